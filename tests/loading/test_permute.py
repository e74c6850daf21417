from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.loading.permute import Locator, permute


def permuted(size: int, key: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return permute(np.arange(size, dtype=np.uint64), np.full(size, size, np.uint64), np.full(size, key, np.uint64))


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_is_a_permutation_for_every_size(size: int, key: int) -> None:
    assert np.array_equal(np.sort(permuted(size, key)), np.arange(size))


@pytest.mark.parametrize("size", range(1, 70))
def test_is_a_permutation_for_every_small_size(size: int) -> None:
    for key in range(20):
        assert np.array_equal(np.sort(permuted(size, key)), np.arange(size))


@given(st.lists(st.tuples(st.integers(1, 2**62), st.integers(0, 2**64 - 1)), min_size=1, max_size=30), st.data())
def test_rows_do_not_depend_on_each_other_and_stay_inside(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    sizes = np.array([size for size, _ in rows], np.uint64)
    keys = np.array([key for _, key in rows], np.uint64)
    index = np.array([data.draw(st.integers(0, size - 1)) for size, _ in rows], np.uint64)
    together = permute(index, sizes, keys)
    assert (together < sizes).all()
    alone = [int(permute(index[i : i + 1], sizes[i : i + 1], keys[i : i + 1])[0]) for i in range(len(rows))]
    assert together.tolist() == alone


@pytest.mark.parametrize("size", [2, 3, 5, 6, 7, 16, 37, 100])
def test_every_element_lands_everywhere_equally_often(size: int) -> None:
    # Keys as the windows of a real order have them: hashes.
    trials = 20_000
    keys = np.repeat(np.random.default_rng(1).integers(0, 2**64, trials, dtype=np.uint64), size)
    index = np.tile(np.arange(size, dtype=np.uint64), trials)
    landed = permute(index, np.full(len(index), size, np.uint64), keys).reshape(trials, size).astype(np.int64)
    share = np.array([np.bincount(landed[:, element], minlength=size) for element in range(size)]) * size / trials
    noise = 5 * np.sqrt(size / trials)
    # Windows of a handful of samples may favour a place a little; nobody trains on them.
    assert np.abs(share - 1).max() < noise + (0.1 if size < 12 else 0)


def test_neighbours_are_torn_apart() -> None:
    size, trials = 1000, 50
    near = 0
    for key in np.random.default_rng(2).integers(0, 2**63, trials).tolist():
        near += int((np.abs(np.diff(permuted(size, key).astype(np.int64))) == 1).sum())
    # A random permutation has about 2 adjacent pairs that stay adjacent.
    assert 1.4 * trials < near < 2.6 * trials


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=300), st.integers(0, 2**32))
@settings(max_examples=50)
def test_locator_finds_what_binary_search_finds(sizes: list[int], seed: int) -> None:
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    locator = Locator(bounds)
    x = np.random.default_rng(seed).integers(0, bounds[-1], Locator.SMALL + 500).astype(np.uint64)
    expected = np.searchsorted(bounds, x, side="right") - 1
    assert np.array_equal(locator.find(x), expected)
    assert np.array_equal(locator.find(x[:10]), expected[:10])


def test_locator_with_one_giant_and_many_tiny_intervals() -> None:
    bounds = np.concatenate([np.arange(2001), [10**12]])
    x = np.concatenate([np.arange(2000), [10**12 - 1, 2000]]).astype(np.uint64)
    assert np.array_equal(Locator(bounds).find(x), [*range(2000), 2000, 2000])
