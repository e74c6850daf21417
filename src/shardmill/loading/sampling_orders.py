"""Which samples are seen how often, as orders over the rows of a dataset: every class equally, or by weight.

Both wrap a dataset and bring their own order, so they go wherever a dataset goes: ``Loader(sm.Balanced(ds))``,
``sm.Mix({sm.Balanced(a): 1, b: 2})``. A position is mapped to a row by keyed functions of (seed, epoch, position): they
resume and are the same for every world size like any order. They read all over the dataset at once: ``lanes`` and
``window`` do not matter, and storage should be quick at random reads.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardmill.errors import OptionsError
from shardmill.images.sampling import Stream, hash64, key64, uniforms
from shardmill.loading.order import Order, Window
from shardmill.loading.permute import permute
from shardmill.loading.protocols import Column, Reader
from shardmill.records import EncodedImages

I64 = NDArray[np.int64]


class _View:
    """The rows of ``base``, unchanged."""

    def __init__(self, base: Reader) -> None:
        if len(base) == 0:
            raise OptionsError(f"{base!r} holds no samples")
        self.base = base

    def __len__(self) -> int:
        return len(self.base)

    @property
    def labels(self) -> Column[np.int32]:
        """See `Reader`."""
        return self.base.labels

    @property
    def widths(self) -> Column[np.uint16]:
        """See `Reader`."""
        return self.base.widths

    @property
    def heights(self) -> Column[np.uint16]:
        """See `Reader`."""
        return self.base.heights

    @property
    def image_bytes(self) -> Column[np.uint32]:
        """See `Reader`."""
        return self.base.image_bytes

    @property
    def shard_first(self) -> I64:
        """See `Reader`."""
        return self.base.shard_first

    @property
    def digest(self) -> str:
        """The base's: how it is sampled is the order's."""
        return self.base.digest

    def read(self, ids: I64, out: NDArray[np.uint8] | None = None) -> EncodedImages:
        """See `Reader`."""
        return self.base.read(ids, out)

    def describe(self, i: int, /) -> tuple[str, str, int]:
        """See `Reader`."""
        return self.base.describe(i)


class Balanced(_View):
    """A dataset seen class by class in equal numbers: ``sm.Loader(sm.Balanced(ds))``.

    An epoch is ``rounds`` rounds, each with one sample of every class, the classes in another random order each time;
    so at every prefix of the epoch the counts of any two classes differ by at most one. By default as many rounds as
    give ``len(dataset)`` samples or just more. A class goes through its samples in a random order, one pass after the
    other and on from epoch to epoch: no sample is seen twice before all of its class have been seen.

    Classes are the labels that occur; samples without a label (-1) are never seen. Ids are rows of ``dataset``.
    Memory: 8 bytes a sample, taken once; twice that for a moment.
    """

    def __init__(self, dataset: Reader, *, rounds: int | None = None) -> None:
        super().__init__(dataset)
        labels = np.asarray(dataset.labels)
        by_label = np.argsort(labels, kind="stable")
        rows = by_label[np.searchsorted(labels, 0, sorter=by_label) :]
        if not len(rows):
            raise OptionsError(f"{dataset!r} has no labels: there are no classes to balance")
        starts = np.flatnonzero(np.diff(labels[rows], prepend=-1))
        self._tables = _Classes(rows, starts, np.diff(starts, append=len(rows)))
        if rounds is not None and (type(rounds) is not int or rounds < 1):
            raise OptionsError(f"rounds must be an integer of at least 1, got {rounds!r}")
        self.rounds = -(-len(dataset) // len(starts)) if rounds is None else rounds
        self.samples_per_epoch = self.rounds * len(starts)
        """Samples of an epoch: ``rounds`` times the number of classes."""

    def make_order(self, *, seed: int, lanes: int, shuffle: bool, window: Window) -> Order:
        """See `OwnOrder`. Without ``shuffle``: classes by label, the samples of a class by row."""
        return _BalancedOrder(len(self), self.rounds, self._tables, seed if shuffle else None)

    def __repr__(self) -> str:
        return f"Balanced({self.base!r}, {self.rounds:,} rounds of {len(self._tables.starts):,} classes)"


class Weighted(_View):
    """A dataset of which each sample is seen in proportion to its weight: ``sm.Loader(sm.Weighted(ds, weights))``.

    Args:
        dataset: any dataset.
        weights: float [len(dataset)], none negative; a weight of 0 is never seen. Only ratios count.
        samples_per_epoch: by default ``len(dataset)``.

    A sample whose share is s comes ``s * samples_per_epoch`` times in an epoch, rounded up or down, and as often over
    1, 2, 4, 8, ... epochs together: draws are systematic, at equal distances along the running sum of the weights
    (W. G. Madow and L. H. Madow, On the theory of systematic sampling, 1944), from a start that moves from epoch to
    epoch; their order is random. So with equal weights every sample comes exactly once; of samples that come less than
    once, neighbours take turns. A sample that comes again within an epoch comes with another crop. Ids are rows of
    ``dataset``. Memory: 8 bytes a sample.
    """

    def __init__(self, dataset: Reader, weights: ArrayLike, *, samples_per_epoch: int | None = None) -> None:
        super().__init__(dataset)
        given = np.asarray(weights, np.float64)
        if given.shape != (len(dataset),):
            raise OptionsError(f"weights must be one number a sample, [{len(dataset)}], got {list(given.shape)}")
        if not np.isfinite(given).all() or given.min() < 0 or given.max() <= 0:
            raise OptionsError("weights must be finite, none negative, and one at least above 0")
        if samples_per_epoch is not None and (type(samples_per_epoch) is not int or samples_per_epoch < 1):
            raise OptionsError(f"samples_per_epoch must be an integer of at least 1, got {samples_per_epoch!r}")
        self.samples_per_epoch = len(dataset) if samples_per_epoch is None else samples_per_epoch
        """Samples of an epoch."""
        self._ends = np.cumsum(given / given.max())
        self._ends /= self._ends[-1]
        self._weights_digest = hashlib.sha256(given.astype("<f8").tobytes()).hexdigest()

    def make_order(self, *, seed: int, lanes: int, shuffle: bool, window: Window) -> Order:
        """See `OwnOrder`. Without ``shuffle``: by row, each as often as its weight says, the same in every epoch."""
        return _WeightedOrder(self.samples_per_epoch, self._ends, self._weights_digest, seed if shuffle else None)

    def __repr__(self) -> str:
        return f"Weighted({self.base!r}, {self.samples_per_epoch:,} samples per epoch)"


@dataclass(frozen=True)
class _Classes:
    """``rows`` int64 [labelled], sorted by label; class c has ``sizes[c]`` of them from ``starts[c]``, int64 [C]."""

    rows: I64
    starts: I64
    sizes: I64


@dataclass(frozen=True)
class _BalancedOrder:
    """``seed`` is ``None`` for no shuffling."""

    base_samples: int
    rounds: int
    classes: _Classes
    seed: int | None

    @property
    def samples(self) -> int:
        return self.rounds * len(self.classes.starts)

    @property
    def identity(self) -> dict[str, int | str]:
        shuffled: dict[str, int | str] = {"shuffle": "no"} if self.seed is None else {"seed": self.seed}
        return {"sampling": "balanced", "rounds": self.rounds, **shuffled}

    def ids(self, epoch: int, positions: I64) -> I64:
        return self._place(epoch, positions)[0]

    def ids_and_draws(self, epoch: int, positions: I64) -> tuple[I64, I64]:
        row, again = self._place(epoch, positions)
        return row, row + self.base_samples * again

    def _place(self, epoch: int, positions: I64) -> tuple[I64, I64]:
        """Row, and how many passes over its class began before it within the epoch."""
        _check(positions, self.samples)
        count = len(self.classes.starts)
        rounds, turn = np.divmod(positions, count)
        rounds += epoch * self.rounds
        which = turn if self.seed is None else _shuffled(turn, count, key64((self.seed, int(Stream.CLASSES))), rounds)
        size = self.classes.sizes[which]
        passes, index = np.divmod(rounds, size)
        if self.seed is not None:
            index = _shuffled(index, size, key64((self.seed, int(Stream.ROWS))), passes * count + which)
        return self.classes.rows[self.classes.starts[which] + index], passes - epoch * self.rounds // size


@dataclass(frozen=True)
class _WeightedOrder:
    """``ends``: float64 [N], the running sum of the shares, 1 at the end. ``seed`` is ``None`` for no shuffling."""

    samples: int
    ends: NDArray[np.float64]
    weights_digest: str
    seed: int | None

    @property
    def identity(self) -> dict[str, int | str]:
        shuffled: dict[str, int | str] = {"shuffle": "no"} if self.seed is None else {"seed": self.seed}
        weights = self.weights_digest[:16]
        return {"sampling": "weighted", "weights": weights, "samples_per_epoch": self.samples, **shuffled}

    def ids(self, epoch: int, positions: I64) -> I64:
        return self._place(epoch, positions)[0]

    def ids_and_draws(self, epoch: int, positions: I64) -> tuple[I64, I64]:
        row, again = self._place(epoch, positions)
        return row, row + len(self.ends) * again

    def _place(self, epoch: int, positions: I64) -> tuple[I64, I64]:
        """Row, and how many draws of the epoch fall on it before this one."""
        _check(positions, self.samples)
        if self.seed is None:
            draw, offset = positions, 0.5
        else:
            key = key64((self.seed, epoch, int(Stream.DRAWS)))
            draw = _shuffled(positions, self.samples, key, np.zeros(len(positions), np.int64))
            start = np.array([key64((self.seed, int(Stream.DRAWS)))], np.uint64)
            offset = (float(uniforms(start, 0, 1)[0, 0]) + _radical_inverse(epoch)) % 1.0
        row = np.minimum(np.searchsorted(self.ends, (draw + offset) / self.samples, side="right"), self._last)
        begins = np.where(row > 0, self.ends[row - 1], 0.0)
        first = np.ceil(begins * self.samples - offset)
        # The quotient above may be rounded to the other side of a border than this product: what it says counts.
        first -= (first - 1 + offset) / self.samples >= begins
        first += (first + offset) / self.samples < begins
        return row, draw - np.maximum(first, 0).astype(np.int64)

    @property
    def _last(self) -> int:
        """The last row of a weight above 0."""
        return int(np.searchsorted(self.ends, self.ends[-1], side="left"))


def _radical_inverse(number: int) -> float:
    """The binary digits of ``number`` behind the point, mirrored: 0, 1/2, 1/4, 3/4, 1/8, ... (van der Corput, 1935)."""
    bits = max(1, number.bit_length())
    return int(f"{number:0{bits}b}"[::-1], 2) / (1 << bits)


def _shuffled(index: I64, size: I64 | int, key: int, counters: I64) -> I64:
    """int64 [n]: each index under the permutation of ``0 .. size - 1`` that belongs to its counter."""
    sizes = np.broadcast_to(np.asarray(size, np.uint64), index.shape)
    return permute(index.astype(np.uint64), sizes, hash64(key, counters)).astype(np.int64)


def _check(positions: I64, samples: int) -> None:
    if len(positions) and (positions.min() < 0 or positions.max() >= samples):
        raise IndexError(f"positions {positions.min()} to {positions.max()} of an epoch of {samples}")
