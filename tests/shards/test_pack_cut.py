"""The cut: never over a limit, never smaller than it could be, whatever way the sizes arrive."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.shards.packing.cut import Cutter, Limits, SampleTooLargeError

OVERHEAD = 1024


def plain_cut(sizes: list[int], limits: Limits) -> list[int]:
    """Where shards end, one sample at a time: the obvious way."""
    ends = []
    held_bytes = held = 0
    for i, size in enumerate(sizes):
        over_bytes = held_bytes + size + limits.overhead_bytes > limits.shard_bytes
        over_count = limits.shard_samples is not None and held + 1 > limits.shard_samples
        if held and (over_bytes or over_count):
            ends.append(i)
            held_bytes = held = 0
        held_bytes += size
        held += 1
    return ends


@given(
    sizes=st.lists(st.integers(1, 40).map(lambda blocks: blocks * 512), max_size=60),
    room=st.integers(40, 200),
    count=st.one_of(st.none(), st.integers(1, 9)),
    breaks=st.lists(st.integers(0, 60), max_size=8),
)
def test_same_cuts_as_one_sample_at_a_time(sizes: list[int], room: int, count: int | None, breaks: list[int]) -> None:
    limits = Limits(room * 512 + OVERHEAD, count, OVERHEAD)
    cutter = Cutter(limits)
    places = [0, *sorted(min(place, len(sizes)) for place in breaks), len(sizes)]
    ends = []
    for first, end in itertools.pairwise(places):
        ends += [first + at for at in cutter.feed(np.array(sizes[first:end], np.uint64))]
    assert ends == plain_cut(sizes, limits)
    for first, end in zip([0, *ends], [*ends, len(sizes)], strict=True):
        assert sum(sizes[first:end]) + OVERHEAD <= limits.shard_bytes
        assert count is None or end - first <= count


def test_a_shard_may_be_filled_to_the_byte() -> None:
    cutter = Cutter(Limits(2048 + OVERHEAD, None, OVERHEAD))
    assert cutter.feed(np.array([1024, 1024, 512], np.uint64)) == [2]


def test_a_sample_too_large_says_what_would_do() -> None:
    cutter = Cutter(Limits(2048 + OVERHEAD, None, OVERHEAD))
    with pytest.raises(SampleTooLargeError, match="give shard_bytes=3584 or more") as caught:
        cutter.feed(np.array([512, 2560], np.uint64))
    assert caught.value.row == 1
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_sizes_over_four_gigabytes() -> None:
    huge = 5 * 2**30
    cutter = Cutter(Limits(12 * 2**30, None, OVERHEAD))
    assert cutter.feed(np.array([huge, huge, huge, huge, huge], np.uint64)) == [2, 4]
