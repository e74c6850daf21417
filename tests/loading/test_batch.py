from __future__ import annotations

import gc
import resource
import threading
from typing import Any

import numpy as np
import pytest
import torch

from shardmill.loading.batch import HUGE_PAGE_BYTES, SlabPool, allocate_huge

F32 = np.dtype(np.float32)


def test_a_slab_comes_back_when_the_last_view_is_gone() -> None:
    pool = SlabPool(4 * 30, keep=2)
    array = pool.take((10, 3), F32)
    assert (array.shape, array.dtype, array.flags.writeable, array.flags.c_contiguous) == ((10, 3), F32, True, True)
    array[:] = 7
    address = array.ctypes.data
    tensor = torch.from_numpy(array)
    view = tensor.view(30)[5:]
    del array, tensor
    gc.collect()
    assert pool.free == 0
    assert view.tolist() == [7.0] * 25
    del view
    assert pool.free == 1
    again = pool.take((5, 3), F32)
    assert again.ctypes.data == address
    assert (pool.allocated, pool.free) == (1, 0)


def test_nothing_is_reused_while_somebody_looks_at_it() -> None:
    pool = SlabPool(400, keep=3)
    held = [pool.take((100,), F32) for _ in range(10)]
    for i, array in enumerate(held):
        array[:] = i
    assert [set(array.tolist()) for array in held] == [{float(i)} for i in range(10)]
    assert pool.allocated == 10
    held.clear()
    assert pool.free == 3


def test_a_pool_may_go_before_its_arrays() -> None:
    pool = SlabPool(400, keep=3)
    array = pool.take((100,), F32)
    del pool
    array[:] = 1
    assert array.sum() == 100


def test_memory_is_fresh_from_the_kernel_and_huge_page_aligned_in_size() -> None:
    assert len(allocate_huge(1)) == HUGE_PAGE_BYTES
    assert len(allocate_huge(HUGE_PAGE_BYTES + 1)) == 2 * HUGE_PAGE_BYTES


def test_reused_slabs_cost_no_page_faults() -> None:
    size = 32 * 2**20
    pool = SlabPool(size, keep=2)

    def fill() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        array: Any = pool.take((size,), np.dtype(np.uint8))
        array.fill(1)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    fill()
    # 32 MiB are 8,192 small pages.
    assert fill() < 100
    assert pool.allocated == 1


def test_threads_take_and_give_back_at_once() -> None:
    pool = SlabPool(4000, keep=8)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(300):
            array = pool.take((1000,), F32)
            array[:] = number
            if not (array == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert pool.allocated <= 8


def test_an_own_allocator_and_a_slab_too_small() -> None:
    made: list[int] = []

    def allocate(size: int) -> bytearray:
        made.append(size)
        return bytearray(size)

    pool = SlabPool(100, keep=1, allocate=allocate)
    pool.take((25,), F32)
    assert made == [100]
    with pytest.raises(ValueError, match="104 bytes asked of slabs of 100"):
        pool.take((26,), F32)
