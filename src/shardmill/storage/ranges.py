"""Pure: which ranges to fetch for the ranges that are wanted. The result is the I/O plan a store executes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """Fetches in the order of their files and starts, and where each wanted range lands.

    ``files``, ``starts``, ``sizes``, ``out_starts``: int64 [fetches]; fetch ``i`` reads ``sizes[i]`` bytes from byte
    ``starts[i]`` of file ``files[i]`` to byte ``out_starts[i]`` of a buffer of ``total`` bytes.
    ``positions``, ``wanted_sizes``: int64 [wanted], where each wanted range begins in that buffer and how long it is,
    in the order it was asked for. ``first_wanted``: int64 [fetches + 1]; fetch ``i`` holds the wanted ranges
    ``order[first_wanted[i] : first_wanted[i + 1]]``. ``used``: int64 [files], each file once;
    ``slots``: int64 [fetches], ``used[slots[i]] == files[i]``.
    """

    files: NDArray[np.int64] = field(repr=False)
    starts: NDArray[np.int64] = field(repr=False)
    sizes: NDArray[np.int64] = field(repr=False)
    out_starts: NDArray[np.int64] = field(repr=False)
    positions: NDArray[np.int64] = field(repr=False)
    wanted_sizes: NDArray[np.int64] = field(repr=False)
    order: NDArray[np.int64] = field(repr=False)
    first_wanted: NDArray[np.int64] = field(repr=False)
    used: NDArray[np.int64] = field(repr=False)
    slots: NDArray[np.int64] = field(repr=False)
    total: int

    def __len__(self) -> int:
        return len(self.files)

    def pieces(self, max_files: int) -> Iterator[tuple[FetchPlan, NDArray[np.int64]]]:
        """The plan in pieces that touch at most ``max_files`` files each, into the same buffer.

        With each piece come the numbers of the wanted ranges that it holds, int64 [its wanted].
        """
        for first in range(0, len(self.used), max_files):
            a, b = np.searchsorted(self.slots, (first, first + max_files)).tolist()
            wanted = self.order[self.first_wanted[a] : self.first_wanted[b]]
            yield (
                FetchPlan(
                    files=self.files[a:b],
                    starts=self.starts[a:b],
                    sizes=self.sizes[a:b],
                    out_starts=self.out_starts[a:b],
                    positions=self.positions[wanted],
                    wanted_sizes=self.wanted_sizes[wanted],
                    order=np.arange(len(wanted)),
                    first_wanted=self.first_wanted[a : b + 1] - self.first_wanted[a],
                    used=self.used[first : first + max_files],
                    slots=self.slots[a:b] - first,
                    total=self.total,
                ),
                wanted,
            )


def plan_fetches(
    files: NDArray[np.int64], starts: NDArray[np.int64], sizes: NDArray[np.int64], *, max_gap_bytes: int
) -> FetchPlan:
    """Joins ranges of one file that overlap or lie at most ``max_gap_bytes`` apart into one fetch.

    All arrays int64 [n], in any order, duplicates allowed. Every wanted byte is fetched once. Cost: about 25 numpy
    calls whatever ``n``, and one sort; half of that where the ranges come sorted and apart, as the loader's do.
    """
    plan = _plan_sorted(files, starts, sizes, max_gap_bytes)
    return _plan_any(files, starts, sizes, max_gap_bytes) if plan is None else plan


def _plan_sorted(
    files: NDArray[np.int64], starts: NDArray[np.int64], sizes: NDArray[np.int64], max_gap_bytes: int
) -> FetchPlan | None:
    """The same plan for ranges in the order of file and start that do not overlap; ``None`` for others."""
    n = len(files)
    if n == 0:
        return None
    steps = files[1:] - files[:-1]
    if n > 1 and steps.min() < 0:
        return None
    ends = starts + sizes
    gaps = starts[1:] - ends[:-1]
    same = steps == 0
    if (same & (gaps < 0)).any():
        return None
    apart = np.empty(n + 1, np.bool_)
    apart[0] = apart[n] = True
    np.logical_not(same & (gaps <= max_gap_bytes), out=apart[1:n])
    first_wanted = apart.nonzero()[0]
    heads = first_wanted[:-1]
    fetch_start, fetch_file = starts[heads], files[heads]
    fetch_size = ends[first_wanted[1:] - 1] - fetch_start
    reached = fetch_size.cumsum()
    out_starts = reached - fetch_size
    fresh = np.empty(len(heads), np.bool_)
    fresh[0] = True
    np.not_equal(fetch_file[1:], fetch_file[:-1], out=fresh[1:])
    return FetchPlan(
        files=fetch_file,
        starts=fetch_start,
        sizes=fetch_size,
        out_starts=out_starts,
        positions=starts + (out_starts - fetch_start)[apart[:n].cumsum() - 1],
        wanted_sizes=sizes,
        order=np.arange(n),
        first_wanted=first_wanted,
        used=fetch_file[fresh],
        slots=fresh.cumsum() - 1,
        total=int(reached[-1]),
    )


def _plan_any(
    files: NDArray[np.int64], starts: NDArray[np.int64], sizes: NDArray[np.int64], max_gap_bytes: int
) -> FetchPlan:
    n = len(files)
    if n == 0:
        e = np.empty(0, np.int64)
        return FetchPlan(e, e, e, e, e, e, e, np.zeros(1, np.int64), e, e, 0)
    order = np.lexsort((starts, files))
    plan = _plan_sorted(files[order], starts[order], sizes[order], max_gap_bytes)
    if plan is not None:
        # Rows from anywhere rarely overlap: sorting was all they needed.
        positions = np.empty(n, np.int64)
        positions[order] = plan.positions
        return FetchPlan(
            plan.files,
            plan.starts,
            plan.sizes,
            plan.out_starts,
            positions,
            sizes,
            order,
            plan.first_wanted,
            plan.used,
            plan.slots,
            plan.total,
        )
    file, start = files[order], starts[order]
    end = start + sizes[order]
    breaks = np.empty(n, np.bool_)
    breaks[0] = True
    np.not_equal(file[1:], file[:-1], out=breaks[1:])
    # The furthest end so far within each file: lifting each file above the one before keeps one running maximum.
    lift = np.cumsum(breaks) * (int(end.max()) + max_gap_bytes + 1)
    reach = np.maximum.accumulate(end + lift)
    breaks[1:] |= (start + lift)[1:] > reach[:-1] + max_gap_bytes
    heads = np.flatnonzero(breaks)
    first_wanted = np.append(heads, n)
    fetch_start = start[heads]
    fetch_size = (reach - lift)[first_wanted[1:] - 1] - fetch_start
    out_starts = np.cumsum(fetch_size) - fetch_size
    positions = np.empty(n, np.int64)
    group = np.cumsum(breaks) - 1
    positions[order] = start - fetch_start[group] + out_starts[group]
    fetch_file = file[heads]
    fresh = np.empty(len(heads), np.bool_)
    fresh[0] = True
    np.not_equal(fetch_file[1:], fetch_file[:-1], out=fresh[1:])
    return FetchPlan(
        files=fetch_file,
        starts=fetch_start,
        sizes=fetch_size,
        out_starts=out_starts,
        positions=positions,
        wanted_sizes=sizes,
        order=order,
        first_wanted=first_wanted,
        used=fetch_file[fresh],
        slots=np.cumsum(fresh) - 1,
        total=int(fetch_size.sum()),
    )
