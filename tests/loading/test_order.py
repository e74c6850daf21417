from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import OptionsError
from shardmill.loading.order import FullOrder, LaneOrder, Order, SequentialOrder, make_order

GOLDEN = Path(__file__).resolve().parents[1] / "golden"

shard_sizes = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 400)), min_size=1, max_size=25).filter(
    lambda sizes: sum(sizes) > 0
)


def table(sizes: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def uneven(samples: int, shards: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    cuts = np.random.default_rng(seed).integers(0, samples + 1, shards - 1)
    return np.concatenate([[0], np.sort(cuts), [samples]]).astype(np.int64)


def whole_epoch(order: Order, epoch: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return order.ids(epoch, np.arange(order.samples))


@given(shard_sizes, st.integers(1, 40), st.integers(1, 500), st.integers(0, 2**64 - 1), st.integers(0, 5))
def test_every_row_exactly_once(sizes: list[int], lanes: int, window: int, seed: int, epoch: int) -> None:
    order = LaneOrder(table(sizes), seed=seed, lanes=lanes, window_samples=window)
    assert np.array_equal(np.sort(whole_epoch(order, epoch)), np.arange(sum(sizes)))


@given(st.integers(1, 5000), st.integers(0, 2**64 - 1), st.integers(0, 5))
def test_the_full_order_is_a_permutation(samples: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(whole_epoch(FullOrder(samples, seed), epoch)), np.arange(samples))


@given(shard_sizes, st.integers(1, 40), st.integers(1, 500), st.data())
def test_one_by_one_is_the_same_as_in_bulk(sizes: list[int], lanes: int, window: int, data: st.DataObject) -> None:
    order = LaneOrder(table(sizes), seed=3, lanes=lanes, window_samples=window)
    bulk = whole_epoch(order)
    some = data.draw(st.lists(st.integers(0, sum(sizes) - 1), max_size=20))
    fresh = LaneOrder(table(sizes), seed=3, lanes=lanes, window_samples=window)
    for position in some:
        assert fresh.ids(0, np.array([position]))[0] == bulk[position]
    assert np.array_equal(fresh.ids(0, np.array(some, np.int64)), bulk[np.array(some, np.int64)])


def test_one_by_one_is_the_same_as_in_bulk_beyond_the_block_size() -> None:
    order = LaneOrder(uneven(100_003, 37), seed=3, lanes=16, window_samples=1000)
    bulk = whole_epoch(order)
    pieces = [order.ids(0, np.arange(i, min(i + 700, 100_003))) for i in range(0, 100_003, 700)]
    assert np.array_equal(np.concatenate(pieces), bulk)


@given(shard_sizes, st.integers(1, 16), st.integers(1, 200))
def test_lanes_own_contiguous_parts_of_the_virtual_sequence(sizes: list[int], lanes: int, window: int) -> None:
    """The slow truth: build the sequence of step 1 to 4 with lists, and compare where every window's rows go."""
    samples = sum(sizes)
    order = LaneOrder(table(sizes), seed=9, lanes=lanes, window_samples=window)
    ids = whole_epoch(order)
    # One window per lane would keep the shard order: read it off an order whose windows are single samples.
    still = whole_epoch(LaneOrder(table(sizes), seed=9, lanes=1, window_samples=1))
    first_seen = [int(np.searchsorted(table(sizes), row, side="right")) - 1 for row in still.tolist()]
    virtual: list[int] = []
    for shard in dict.fromkeys(first_seen):
        virtual += range(int(table(sizes)[shard]), int(table(sizes)[shard + 1]))
    windows = order.windows(0)
    assert [a for a, _ in windows] == [0, *(b for _, b in windows[:-1])]
    assert windows[-1][1] == samples
    start = 0
    for lane in range(lanes):
        mine = ids[lane::lanes].tolist()
        assert len(mine) in {samples // lanes, samples // lanes + 1}
        for a, b in windows:
            if start <= a < start + len(mine):
                assert b <= start + len(mine), "a window crosses its lane's border"
                assert sorted(mine[a - start : b - start]) == sorted(virtual[a:b])
        start += len(mine)


@given(shard_sizes, st.integers(1, 8), st.integers(1, 200))
def test_windows_are_whole_shards_unless_a_shard_is_larger_than_a_window(
    sizes: list[int], lanes: int, window: int
) -> None:
    order = LaneOrder(table(sizes), seed=9, lanes=lanes, window_samples=window)
    largest = max(sizes)
    for a, b in order.windows(0):
        assert 0 < b - a < window + max(largest, window)


def test_windows_cut_a_large_shard_and_keep_small_ones_whole() -> None:
    order = LaneOrder(table([1000]), seed=0, lanes=1, window_samples=300)
    assert order.windows(0) == [(0, 300), (300, 600), (600, 1000)]
    order = LaneOrder(table([100] * 10), seed=0, lanes=2, window_samples=200)
    assert order.windows(0) == [(0, 200), (200, 400), (400, 500), (500, 700), (700, 900), (900, 1000)]


def test_epochs_and_seeds_differ_and_repeat() -> None:

    def make(seed: int) -> LaneOrder:
        return LaneOrder(uneven(5000, 11), seed=seed, lanes=8, window_samples=300)

    a, b = make(1), make(2)
    assert np.array_equal(whole_epoch(a, 4), whole_epoch(make(1), 4))
    assert not np.array_equal(whole_epoch(a, 0), whole_epoch(a, 1))
    assert not np.array_equal(whole_epoch(a, 0), whole_epoch(b, 0))
    # Tables of old epochs are dropped and rebuilt: the same again.
    first = whole_epoch(a, 0)
    for epoch in range(5):
        whole_epoch(a, epoch)
    assert np.array_equal(first, whole_epoch(a, 0))


def test_the_order_is_well_mixed() -> None:
    """Position and row are uncorrelated, and batches draw from everywhere, in a dataset sorted by label."""
    samples = 64_000
    order = LaneOrder(np.arange(0, samples + 1, 500), seed=5, lanes=64, window_samples=2000)
    ids = whole_epoch(order)
    assert abs(np.corrcoef(np.arange(samples), ids)[0, 1]) < 0.05
    labels = ids * 10 // samples
    # A random order has 10 % equal neighbours; sorted rows have 100 %.
    assert (labels[1:] == labels[:-1]).mean() < 0.15
    # A row is not tied to its place of the epoch before: mean displacement of random permutations is N / 3.
    place = np.argsort(ids)
    later = np.argsort(whole_epoch(order, 1))
    assert 0.25 < np.abs(place - later).mean() / samples < 0.42


def test_sequential_is_dataset_order() -> None:
    assert whole_epoch(SequentialOrder(10), 3).tolist() == list(range(10))


@pytest.mark.parametrize(
    "order", [SequentialOrder(10), FullOrder(10, 0), LaneOrder(table([10]), seed=0, lanes=2, window_samples=3)]
)
def test_positions_outside_the_epoch_are_refused(order: Order) -> None:
    assert len(order.ids(0, np.array([], np.int64))) == 0
    for position in (-1, 10):
        with pytest.raises(IndexError, match="of an epoch of 10"):
            order.ids(0, np.array([position]))


def test_bad_options_say_what_is_wrong() -> None:
    with pytest.raises(OptionsError, match="lanes must be at least 1, got 0"):
        LaneOrder(table([3]), seed=0, lanes=0, window_samples=1)
    with pytest.raises(OptionsError, match=r'window must be "all" or at least 1 sample, got 0'):
        make_order(table([3]), seed=0, lanes=1, shuffle=True, window=0)
    with pytest.raises(OptionsError, match="got 'most'"):
        make_order(table([3]), seed=0, lanes=1, shuffle=True, window="most")  # type: ignore[arg-type]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("order-*.json")), ids=lambda p: p.stem)
def test_golden_orders(path: Path) -> None:
    """Runs are resumed years later: an order that changes is a new format, never a refactoring."""
    golden = json.loads(path.read_text())
    order = make_order(
        np.array(golden["shard_first"]),
        seed=golden["seed"],
        lanes=golden["lanes"],
        shuffle=golden["shuffle"],
        window=golden["window"],
    )
    ids = order.ids(golden["epoch"], np.array(golden["positions"]))
    assert ids.tolist() == golden["ids"]


def test_golden_orders_are_there() -> None:
    assert len(list(GOLDEN.glob("order-*.json"))) == 4


@settings(max_examples=20)
@given(st.integers(10**9, 2**48), st.integers(1, 5000), st.integers(0, 2**64 - 1))
def test_billions_of_samples(samples: int, shards: int, seed: int) -> None:
    order = LaneOrder(uneven(samples, shards, 1), seed=seed, lanes=1024, window_samples=4096)
    positions = np.random.default_rng(1).integers(0, samples, 2000)
    ids = order.ids(0, positions)
    assert ids.min() >= 0
    assert ids.max() < samples
    assert len(np.unique(ids)) == len(np.unique(positions))
