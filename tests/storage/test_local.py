from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from shardmill.errors import DataError
from shardmill.storage import local
from shardmill.storage.local import LocalStore
from shardmill.storage.ranges import plan_fetches

NAMES = [f"part-{i}.bin" for i in range(20)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    for name in NAMES:
        (tmp_path / name).write_bytes(rng.bytes(1000))
    return tmp_path


def read(store: LocalStore, files: list[int], starts: list[int], sizes: list[int]) -> list[bytes]:
    columns = [np.array(x, np.int64) for x in (files, starts, sizes)]
    plan = plan_fetches(*columns, max_gap_bytes=0)
    out = np.empty(plan.total, np.uint8)
    store.get_ranges(NAMES, plan, out, crcs := np.empty(len(files), np.uint32))
    assert crcs.tolist() == [
        google_crc32c.value(out[a : a + n].tobytes()) for a, n in zip(plan.positions, sizes, strict=True)
    ]
    return [out[a : a + n].tobytes() for a, n in zip(plan.positions.tolist(), sizes, strict=True)]


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a Path per descriptor would open one more


@pytest.mark.parametrize("compiled", [True, False])
def test_ranges_are_the_files_own_bytes(folder: Path, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(local, "native", None)
    files, starts, sizes = [3, 0, 3, 19], [10, 0, 990, 500], [20, 1000, 10, 0]
    expected = [(folder / NAMES[f]).read_bytes()[s : s + n] for f, s, n in zip(files, starts, sizes, strict=True)]
    assert read(LocalStore(folder), files, starts, sizes) == expected


@pytest.mark.parametrize("compiled", [True, False])
def test_a_file_that_ends_early_is_named(folder: Path, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(local, "native", None)
    with pytest.raises(DataError, match=r"part-2\.bin @ 990: the file ends before byte 1010"):
        read(LocalStore(folder), [1, 2], [0, 990], [1000, 20])


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / NAMES[4]).unlink()
    with pytest.raises(FileNotFoundError, match="part-4"):
        read(LocalStore(folder), [4], [0], [1])


def test_descriptors_stay_bounded_whatever_the_number_of_files(folder: Path) -> None:
    store = LocalStore(folder, max_open_files=3)
    before = open_descriptors()
    for f in [*range(20), *reversed(range(20))]:
        read(store, [f], [0], [5])
        assert open_descriptors() <= before + 3
    read(store, list(range(20)), [0] * 20, [5] * 20)
    assert open_descriptors() <= before + 3
    store.close()
    assert open_descriptors() == before


def test_dropping_the_store_closes_its_files(folder: Path) -> None:
    before = open_descriptors()
    store = LocalStore(folder)
    read(store, [0, 1], [0, 0], [5, 5])
    assert open_descriptors() == before + 2
    del store
    assert open_descriptors() == before


def test_threads_share_a_small_set_of_descriptors(folder: Path) -> None:
    store = LocalStore(folder, max_open_files=2)
    truth = [(folder / name).read_bytes() for name in NAMES]
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(100):
            files = rng.integers(0, 20, 4).tolist()
            if read(store, files, [7] * 4, [300] * 4) != [truth[f][7:307] for f in files]:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_pickle_carries_the_place_and_no_descriptor(folder: Path) -> None:
    store = LocalStore(folder, max_open_files=5)
    read(store, [0], [0], [5])
    again = pickle.loads(pickle.dumps(store))
    assert (again.root, again.max_open_files) == (store.root, 5)
    assert read(again, [0], [0], [5]) == read(store, [0], [0], [5])


def test_a_child_forked_while_the_lock_is_held_can_read(folder: Path) -> None:
    store = LocalStore(folder)
    read(store, [0], [0], [5])
    with store._files._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if read(store, [0], [0], [5]) else 1)
    assert os.waitpid(child, 0)[1] == 0
