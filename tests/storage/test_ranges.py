from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardmill.storage.ranges import _plan_any, _plan_sorted, plan_fetches

wanted = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300), st.integers(0, 60)), max_size=40)


def columns(ranges: list[tuple[int, int, int]]) -> list[np.ndarray]:
    return [np.array([r[k] for r in ranges], np.int64) for k in range(3)]


@given(wanted, st.integers(0, 40))
def test_every_wanted_byte_lands_where_the_plan_says(ranges: list[tuple[int, int, int]], gap: int) -> None:
    rng = np.random.default_rng(0)
    files = [rng.integers(0, 256, 400, dtype=np.uint8) for _ in range(4)]
    plan = plan_fetches(*columns(ranges), max_gap_bytes=gap)
    buffer = np.zeros(plan.total, np.uint8)
    for i in range(len(plan)):
        start, size, out = int(plan.starts[i]), int(plan.sizes[i]), int(plan.out_starts[i])
        buffer[out : out + size] = files[int(plan.files[i])][start : start + size]
    for (file, start, size), at in zip(ranges, plan.positions.tolist(), strict=True):
        assert (buffer[at : at + size] == files[file][start : start + size]).all()


@given(wanted, st.integers(0, 40))
def test_fetches_of_a_file_are_apart_by_more_than_the_gap(ranges: list[tuple[int, int, int]], gap: int) -> None:
    plan = plan_fetches(*columns(ranges), max_gap_bytes=gap)
    ends = plan.starts + plan.sizes
    same = plan.files[1:] == plan.files[:-1]
    assert (plan.starts[1:][same] > ends[:-1][same] + gap).all()
    # Nothing is fetched that is neither wanted nor a gap between two wanted ranges.
    for file, start, size in zip(plan.files, plan.starts, plan.sizes, strict=True):
        inside = sorted((s, s + n) for f, s, n in ranges if f == file and start <= s <= start + size)
        assert inside[0][0] == start
        reach = inside[0][1]
        for s, e in inside[1:]:
            assert s - reach <= gap
            reach = max(reach, e)
        assert reach == start + size


def test_neighbours_join_and_strangers_do_not() -> None:
    plan = plan_fetches(*columns([(0, 0, 10), (0, 15, 10), (0, 100, 10), (1, 20, 10)]), max_gap_bytes=5)
    assert [plan.files.tolist(), plan.starts.tolist(), plan.sizes.tolist()] == [[0, 0, 1], [0, 100, 20], [25, 10, 10]]


@given(wanted, st.integers(0, 40))
def test_the_quick_way_for_sorted_ranges_is_the_same_plan(ranges: list[tuple[int, int, int]], gap: int) -> None:
    # With ends made to keep clear of the next range, as rows of a dataset are.
    ranges = sorted(ranges)
    clear = [
        (file, start, min(size, after[1] - start) if after[0] == file else size)
        for (file, start, size), after in zip(ranges, [*ranges[1:], (-1, 0, 0)], strict=False)
    ]
    files, starts, sizes = columns(clear)
    quick = _plan_sorted(files, starts, sizes, gap)
    if not clear:
        assert quick is None
        return
    assert quick is not None
    plain = _plan_any(files, starts, sizes, gap)
    for field in dataclasses.fields(plain):
        assert np.array_equal(getattr(quick, field.name), getattr(plain, field.name)), field.name


def test_what_the_quick_way_cannot_do_it_leaves() -> None:
    for ranges in ([(1, 0, 5), (0, 0, 5)], [(0, 10, 5), (0, 0, 5)], [(0, 0, 10), (0, 9, 5)]):
        files, starts, sizes = columns(ranges)
        assert _plan_sorted(files, starts, sizes, 0) is None
