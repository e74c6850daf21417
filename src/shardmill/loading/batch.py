"""Batch buffers that are used again, on huge pages.

A fresh float32 batch costs 150 page faults an image: 14 % of an OpenCV loader's rate on ImageNet, and half of it in
system time. So pixels are decoded into slabs that come back: an array handed out holds its slab, and when the last
array or tensor that looks into it is gone, the slab returns to the pool. Nothing is ever overwritten while somebody
still looks at it; whoever keeps every batch simply gets new slabs.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE_BYTES = 2 * 2**20

Allocate = Callable[[int], Any]
"""Bytes wanted -> a writable buffer of at least that size, which lives as long as the object does."""


def allocate_huge(size: int) -> mmap.mmap:
    """Anonymous memory, a multiple of 2 MiB; the kernel is asked for huge pages, so that one fault brings 2 MiB."""
    rounded = -(-max(size, 1) // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    memory = mmap.mmap(-1, rounded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            # A kernel built without them: small pages are slower the first time round, and reused all the same.
            return memory
    return memory


class SlabPool:
    """Buffers of ``slab_bytes``, handed out as arrays and taken back when those are gone.

    At most ``keep`` free slabs are kept; memory is (slabs in use + free slabs) * ``slab_bytes``, and in the steady
    state of a loader no more than batches in flight plus those the consumer holds. Thread-safe without a lock: slabs
    come back from finalisers, which may run inside any other code.
    """

    def __init__(self, slab_bytes: int, *, keep: int, allocate: Allocate = allocate_huge) -> None:
        self.slab_bytes = slab_bytes
        self._allocate = allocate
        # A bounded deque drops the oldest slab by itself when one too many comes back.
        self._free: deque[Any] = deque(maxlen=keep)
        self.allocated = 0

    @property
    def free(self) -> int:
        """Slabs at rest."""
        return len(self._free)

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array of ``shape`` at the start of a slab, undefined contents. `ValueError` if it does not fit."""
        need = int(np.prod(shape)) * dtype.itemsize
        if need > self.slab_bytes:
            raise ValueError(f"{need} bytes asked of slabs of {self.slab_bytes}")
        try:
            slab = self._free.pop()
        except IndexError:
            slab = self._allocate(self.slab_bytes)
            self.allocated += 1
        return np.asarray(_Lease(slab, self._free, shape, dtype))


class _Lease:
    """Owns a slab for as long as any array made from it lives: numpy keeps it as the base of all of them."""

    __slots__ = ("__array_interface__", "_home", "_slab")

    def __init__(self, slab: Any, home: deque[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._slab = slab
        self._home = home
        address = np.frombuffer(slab, np.uint8).__array_interface__["data"][0]
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (address, False)}

    def __del__(self) -> None:
        self._home.append(self._slab)
