"""The order of an epoch as a pure function: (seed, epoch, position) -> row of the dataset. No array of N exists.

Lanes and windows, exactly:

1. The shards that are not empty, sorted by a keyed hash of (seed, epoch, shard number), form one virtual sequence.
2. It is cut into ``lanes`` contiguous lanes: with N = q * lanes + r, the first r hold q + 1 samples, the others q.
3. Position p lies in lane p mod lanes, at index p // lanes of that lane. Long lanes come first, so this is a bijection
   of 0 .. N - 1 for every N.
4. A lane is a row of *segments*: its shards, of which the first and the last may be cut by the lane's borders.
   Segments whose first sample has the same ``offset in lane // window_samples`` form a *group*: whole shards.
   A group of 2 * window_samples or more (a shard larger than the window) is cut into windows of ``window_samples``,
   the last of which takes the rest (up to twice as much); any other group is one window.
5. Inside a window, index i holds the sample that the keyed permutation of `permute` gives for i.

The table of an epoch is O(shards + lanes); a position is found in O(log shards), one by one or in bulk.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import OptionsError
from shardmill.images.sampling import GOLDEN, MASK64, Stream, hash64, key64
from shardmill.loading.permute import BLOCK, U64, Locator, permute
from shardmill.loading.protocols import Reader

DEFAULT_WINDOW = 4096
"""Samples of a window: about 450 MB of ImageNet, one or two shards of 256 MiB."""

Window = int | Literal["all"]


class Order(Protocol):
    """An order of ``samples`` rows for every epoch. Pure and thread-safe."""

    @property
    def samples(self) -> int:
        """Positions of an epoch: 0 .. samples - 1."""
        ...

    @property
    def identity(self) -> dict[str, int | str]:
        """What the order is a function of besides the dataset, for a saved state: small JSON values by name."""
        ...

    def ids(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [n]: the row at each position; each within 0 .. samples - 1, in any order, repeats allowed."""
        ...


@runtime_checkable
class RepeatingOrder(Protocol):
    """An order that may show a row more than once in an epoch."""

    def ids_and_draws(self, epoch: int, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Two int64 [n]: the row at each position, and what its random draws are keyed by in place of the row: another
        number each time that a row comes in the epoch, so that it comes with another crop. The row modulo the number
        of rows."""
        ...


@runtime_checkable
class OwnOrder(Protocol):
    """A dataset that says itself in which order its rows are seen, and how often: a mix, a weighted draw."""

    @property
    def samples_per_epoch(self) -> int:
        """Positions of its order."""
        ...

    def make_order(self, *, seed: int, lanes: int, shuffle: bool, window: Window) -> Order:
        """The order that the loader's options ask for."""
        ...


@dataclass(frozen=True)
class SequentialOrder:
    """Position p is row p, in every epoch."""

    samples: int

    @property
    def identity(self) -> dict[str, int | str]:
        """See `Order`."""
        return {"shuffle": "no"}

    def ids(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Order`. A copy."""
        _check(positions, self.samples)
        return positions.astype(np.int64)


@dataclass(frozen=True)
class FullOrder:
    """One window over the whole dataset: for storage with cheap random reads. No table at all."""

    samples: int
    seed: int

    @property
    def identity(self) -> dict[str, int | str]:
        """See `Order`."""
        return {"shuffle": "all", "seed": self.seed}

    def ids(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Order`."""
        _check(positions, self.samples)
        out = np.empty(len(positions), np.int64)
        key = np.uint64(key64((self.seed, epoch, int(Stream.WINDOWS))))
        for start in range(0, len(positions), BLOCK):
            part = positions[start : start + BLOCK].astype(np.uint64)
            sizes = np.full(len(part), self.samples, np.uint64)
            out[start : start + BLOCK] = permute(part, sizes, np.full(len(part), key))
        return out


class LaneOrder:
    """Lanes of windows of whole shards, as the head of this module says.

    ``shard_first``: int64 [shards + 1], non-decreasing from 0: shard ``s`` holds rows ``shard_first[s] ..
    shard_first[s + 1]``. The tables of the last two epochs asked for are kept, about 60 bytes a shard each; a new one
    takes about 30 ms at 100,000 shards.
    """

    def __init__(self, shard_first: NDArray[np.int64], *, seed: int, lanes: int, window_samples: int) -> None:
        if lanes < 1:
            raise OptionsError(f"lanes must be at least 1, got {lanes}")
        if window_samples < 1:
            raise OptionsError(f'window must be "all" or at least 1 sample, got {window_samples}')
        first = np.asarray(shard_first, np.int64)
        self.samples = int(first[-1])
        self.seed = seed
        self.lanes = lanes
        self.window_samples = window_samples
        sizes = np.diff(first)
        self._filled = np.flatnonzero(sizes)
        self._first = first[self._filled]
        self._sizes = sizes[self._filled]
        self._tables: dict[int, _Table] = {}
        self._lock = threading.Lock()

    @property
    def identity(self) -> dict[str, int | str]:
        """See `Order`."""
        return {"shuffle": "windows", "seed": self.seed, "lanes": self.lanes, "window": self.window_samples}

    def ids(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Order`. About 45 ns a position in bulk, 0.2 ms for a batch of 256."""
        _check(positions, self.samples)
        out = np.empty(len(positions), np.int64)
        if len(positions):
            table = self._table(epoch)
            for start in range(0, len(positions), BLOCK):
                part = positions[start : start + BLOCK].astype(np.uint64)
                out[start : start + BLOCK] = table.rows(part)
        return out

    def windows(self, epoch: int) -> list[tuple[int, int]]:
        """(first, end) of every window in the virtual sequence, in order: O(windows), for tests and pictures."""
        table = self._table(epoch)
        found = []
        for group_first, group_end in zip(
            table.groups.bounds[:-1].tolist(), table.groups.bounds[1:].tolist(), strict=True
        ):
            count = max(1, (group_end - group_first) // self.window_samples)
            cuts = [group_first + i * self.window_samples for i in range(count)]
            found += list(zip(cuts, [*cuts[1:], group_end], strict=True))
        return found

    def _table(self, epoch: int) -> _Table:
        with self._lock:
            table = self._tables.get(epoch)
            if table is None:
                if len(self._tables) >= 2:
                    del self._tables[next(iter(self._tables))]
                table = self._tables[epoch] = self._build(epoch)
            return table

    def _build(self, epoch: int) -> _Table:
        shard_key = key64((self.seed, epoch, int(Stream.SHARDS)))
        turn = np.argsort(hash64(shard_key, self._filled), kind="stable")
        shard_first = np.concatenate([[0], np.cumsum(self._sizes[turn])])
        short, long_lanes = divmod(self.samples, self.lanes)
        lane = np.arange(self.lanes + 1)
        lane_first = lane * short + np.minimum(lane, long_lanes)
        segments = np.unique(np.concatenate([shard_first, lane_first]))
        firsts = segments[:-1]
        of_lane = np.searchsorted(lane_first, firsts, side="right") - 1
        cell = (firsts - lane_first[of_lane]) // self.window_samples
        opens = np.ones(len(firsts), bool)
        opens[1:] = (np.diff(of_lane) != 0) | (np.diff(cell) != 0)
        group_first = np.append(firsts[opens], self.samples)
        window_key = key64((self.seed, epoch, int(Stream.WINDOWS)))
        return _Table(
            lanes=self.lanes,
            short=short,
            long_lanes=long_lanes,
            window_samples=self.window_samples,
            groups=Locator(group_first),
            group_keys=hash64(window_key, group_first[:-1]),
            cut=bool(np.diff(group_first).max() >= 2 * self.window_samples),
            shards=Locator(shard_first),
            to_row=(self._first[turn] - shard_first[:-1]),
        )


@dataclass(frozen=True)
class _Table:
    """One epoch: everything a position needs. ``group_keys`` uint64 [groups]; ``to_row`` int64 [shards], what to add to
    a place in the virtual sequence to get the row. ``cut``: some group holds more than one window."""

    lanes: int
    short: int
    long_lanes: int
    window_samples: int
    groups: Locator
    group_keys: U64
    cut: bool
    shards: Locator
    to_row: NDArray[np.int64]

    def rows(self, positions: U64) -> NDArray[np.int64]:
        index = positions // np.uint64(self.lanes)
        lane = positions - index * np.uint64(self.lanes)
        place = lane * np.uint64(self.short)
        place += np.minimum(lane, np.uint64(self.long_lanes))
        place += index

        group = self.groups.find(place)
        first = self.groups.bounds.take(group)
        size = self.groups.bounds.take(group + 1) - first
        key = self.group_keys.take(group)
        place -= first
        if self.cut:
            width = np.uint64(self.window_samples)
            windows = np.maximum(size // width, np.uint64(1))
            number = np.minimum(place // width, windows - np.uint64(1))
            skipped = number * width
            size = np.where(number + np.uint64(1) == windows, size - skipped, width)
            place -= skipped
            first += skipped
            key += number * np.uint64(GOLDEN & MASK64)
        first += permute(place, size, key)
        shard = self.shards.find(first)
        return first.view(np.int64) + self.to_row.take(shard)


def order_of(dataset: Reader | OwnOrder, *, seed: int, lanes: int, shuffle: bool, window: Window) -> Order:
    """The dataset's own order where it has one, else that of `make_order` over its shards."""
    if isinstance(dataset, OwnOrder):
        return dataset.make_order(seed=seed, lanes=lanes, shuffle=shuffle, window=window)
    return make_order(dataset.shard_first, seed=seed, lanes=lanes, shuffle=shuffle, window=window)


def ids_and_draws(
    order: Order, epoch: int, positions: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two int64 [n]: rows, and what their random draws are keyed by: the rows, but where one may come again."""
    if isinstance(order, RepeatingOrder):
        return order.ids_and_draws(epoch, positions)
    ids = order.ids(epoch, positions)
    return ids, ids


def make_order(
    shard_first: NDArray[np.int64], *, seed: int, lanes: int, shuffle: bool, window: Window
) -> SequentialOrder | FullOrder | LaneOrder:
    """The order that the loader's options ask for. Raises `OptionsError` for a window that makes no sense."""
    samples = int(shard_first[-1])
    if not shuffle:
        return SequentialOrder(samples)
    if window == "all":
        return FullOrder(samples, seed)
    if isinstance(window, str):
        raise OptionsError(f'window must be a number of samples or "all", got {window!r}')
    return LaneOrder(shard_first, seed=seed, lanes=lanes, window_samples=window)


def _check(positions: NDArray[np.int64], samples: int) -> None:
    if len(positions) and (positions.min() < 0 or positions.max() >= samples):
        raise IndexError(f"positions {positions.min()} to {positions.max()} of an epoch of {samples}")
