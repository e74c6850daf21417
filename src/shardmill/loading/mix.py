"""Several datasets as one, by weight: a function of the position, so that a mix resumes and scales like one dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import OptionsError
from shardmill.images.sampling import Stream, key64
from shardmill.loading.order import Order, OwnOrder, Window, ids_and_draws, order_of
from shardmill.loading.protocols import Column, Reader
from shardmill.loading.turns import Turns, shares_of
from shardmill.records import EncodedImages

I64 = NDArray[np.int64]
T = TypeVar("T", bound=np.generic)
Stop = Literal["first_exhausted", "all_exhausted"] | int

# What a part's read may need beyond its images, for gaps between neighbours; see `shardmill.loading.work`.
_SPARE_BYTES_PER_IMAGE = 12 * 1024


class Mix:
    """Several datasets seen in turn, in proportion to their weights: ``sm.Mix({photos: 0.7, drawings: 0.3})``.

    Args:
        datasets: each dataset with its weight, as a mapping or as pairs. Only the ratio of the weights counts; it is
            exact where the shares have a common denominator of at most 65,536, else rounded to 1/65,536 (`shares`).
        stop: how long an epoch is:

            - ``"first_exhausted"``: it ends right before the first turn of a dataset that has been seen to its end.
            - ``"all_exhausted"``: it ends when every dataset has been seen to its end; the smaller ones repeat.
            - a number of samples.
        label_offsets: added to the labels of each dataset, -1 (no label) stays; by default labels are left as they
            are, so that label 3 of two datasets is one class.

    Which dataset position p of an epoch is from is fixed by the weights alone, and at every prefix of the epoch each
    dataset has had its share to within one sample (Tijdeman's sequence; see `shardmill.loading.turns`). Which of its
    samples it is, is the dataset's own shuffled order, which goes on from one epoch of the mix to the next: after any
    number of samples, every sample of a dataset has been seen equally often, give or take one. A sample that comes
    again within an epoch comes with another crop.

    Rows are numbered through: row i of dataset k is ``first[k] + i``, also in `Batch.ids`; `source_of` says which
    dataset an id is of. A mix is a `Reader`: `Loader(mix)` resumes and is the same for every world size, as with one
    dataset. Ranks share the shards of each dataset, though: with lanes of one dataset a rank has its own.

    A mix may hold mixes, and `Balanced` and `Weighted` datasets. Memory: 6 bytes a turn of the period, at most 400 kB;
    nothing is copied of the datasets. Thread-safe.
    """

    def __init__(
        self,
        datasets: Mapping[Any, float] | Sequence[tuple[Any, float]],
        *,
        stop: Stop = "first_exhausted",
        label_offsets: Sequence[int] | None = None,
    ) -> None:
        pairs: list[tuple[Any, float]] = list(datasets.items() if isinstance(datasets, Mapping) else datasets)
        if not pairs:
            raise OptionsError("a mix of no dataset")
        self.parts: tuple[Reader, ...] = tuple(part for part, _ in pairs)
        for part in self.parts:
            if len(part) == 0:
                raise OptionsError(f"{part!r} holds no samples: leave it out of the mix")
        if isinstance(stop, bool) or not (isinstance(stop, int) or stop in get_args(get_args(Stop)[0])):
            raise OptionsError(f'stop must be "first_exhausted", "all_exhausted" or a number of samples, got {stop!r}')
        if isinstance(stop, int) and stop < 1:
            raise OptionsError(f"stop must be at least 1 sample, got {stop}")
        if label_offsets is not None and len(label_offsets) != len(pairs):
            raise OptionsError(f"{len(label_offsets)} label_offsets for {len(pairs)} datasets")
        self.stop = stop
        self.label_offsets = (0,) * len(pairs) if label_offsets is None else tuple(map(int, label_offsets))
        self.shares = shares_of([weight for _, weight in pairs])
        """Samples of each dataset in every ``sum(shares)``."""
        self.first = np.cumsum([0, *map(len, self.parts)], dtype=np.int64)
        """int64 [datasets + 1]: dataset ``k`` has rows ``first[k] .. first[k + 1]``."""
        self._turns = Turns.of(self.shares)
        sizes = [part.samples_per_epoch if isinstance(part, OwnOrder) else len(part) for part in self.parts]
        self.samples_per_epoch = _length(self._turns, sizes, stop)
        """Samples of an epoch; with ``stop`` a number, that number."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Samples of each dataset in an epoch."""
        return self._turns.counts(self.samples_per_epoch)

    def source_of(self, ids: Any) -> I64:
        """int64, the shape of ``ids``: the number of the dataset that each id is of; -1 for the -1 of padding."""
        return np.searchsorted(self.first, np.asarray(ids, np.int64), side="right") - 1

    def make_order(self, *, seed: int, lanes: int, shuffle: bool, window: Window) -> Order:
        """See `OwnOrder`. Every dataset has a seed of its own, so that equal ones are not seen in step."""
        orders = [
            order_of(part, seed=key64((seed, int(Stream.PARTS), k)), lanes=lanes, shuffle=shuffle, window=window)
            for k, part in enumerate(self.parts)
        ]
        identity: dict[str, int | str] = {"mix": ":".join(map(str, self.shares)), "stop": self.stop}
        for k, (part, order) in enumerate(zip(self.parts, orders, strict=True)):
            own = isinstance(part, OwnOrder)
            identity |= {f"mix {k} {name}" if own else name: value for name, value in order.identity.items()}
        return _MixOrder(self, orders, {**identity, "seed": seed})

    # -- Reader --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Rows of all datasets together; an epoch has `samples_per_epoch`."""
        return int(self.first[-1])

    @cached_property
    def labels(self) -> Column[np.int32]:
        """int32 of each row asked for, with `label_offsets`; ``numpy.asarray`` of it is all of them."""
        columns = zip(self.parts, self.label_offsets, strict=True)
        return self._column(np.int32, [_Shifted(part.labels, n) if n else part.labels for part, n in columns])

    @cached_property
    def widths(self) -> Column[np.uint16]:
        """Pixels, uint16 of each row asked for; 0 where not known."""
        return self._column(np.uint16, [part.widths for part in self.parts])

    @cached_property
    def heights(self) -> Column[np.uint16]:
        """As `widths`."""
        return self._column(np.uint16, [part.heights for part in self.parts])

    @cached_property
    def image_bytes(self) -> Column[np.uint32]:
        """Size of the encoded image, uint32 of each row asked for."""
        return self._column(np.uint32, [part.image_bytes for part in self.parts])

    @property
    def shard_first(self) -> I64:
        """int64 [shards + 1]: the shards of all datasets, one after the other."""
        firsts = [part.shard_first[:-1] + self.first[k] for k, part in enumerate(self.parts)]
        return np.concatenate([*firsts, self.first[-1:]])

    @property
    def digest(self) -> str:
        """Identity of the datasets and their labels; weights and ``stop`` are the order's."""
        text = repr([(part.digest, offset) for part, offset in zip(self.parts, self.label_offsets, strict=True)])
        return hashlib.sha256(text.encode()).hexdigest()

    def read(self, ids: I64, out: NDArray[np.uint8] | None = None) -> EncodedImages:
        """See `Reader`: one read per dataset that ``ids`` touch, each into its own piece of ``out``."""
        rows = np.asarray(ids, np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"rows {rows.min()} to {rows.max()} asked for, the mix has 0 to {len(self) - 1}")
        found: list[tuple[NDArray[np.intp], EncodedImages]] = []
        free = np.empty(0, np.uint8) if out is None else out
        # The column that was joined once: that of a subset is made anew each time that it is asked for.
        sizes = self.image_bytes[rows]
        for k, where in self._split(rows):
            local = rows[where] - self.first[k]
            need = int(sizes[where].sum(dtype=np.int64)) + _SPARE_BYTES_PER_IMAGE * len(local)
            found.append((where, self.parts[k].read(local, free[:need])))
            free = free[need:]
        return _joined(rows, found, out)

    def describe(self, i: int, /) -> tuple[str, str, int]:
        """See `Reader`."""
        k = int(self.source_of(i))
        return self.parts[k].describe(i - int(self.first[k]))

    def _split(self, rows: I64) -> list[tuple[int, NDArray[np.intp]]]:
        """Each dataset that some rows are of, and where those are among ``rows``."""
        source = self.source_of(rows)
        return [(int(k), np.flatnonzero(source == k)) for k in np.unique(source)]

    def _column(self, dtype: type[T], columns: Sequence[Column[T]]) -> _JoinedColumn[T]:
        return _JoinedColumn(self._split, self.first, np.dtype(dtype), columns)

    def __repr__(self) -> str:
        parts = ", ".join(f"{part!r}: {share}" for part, share in zip(self.parts, self.shares, strict=True))
        return f"Mix({{{parts}}}, stop={self.stop!r}, {self.samples_per_epoch:,} samples per epoch)"


class _JoinedColumn(Generic[T]):
    """Columns one after the other, without a copy of them."""

    def __init__(
        self,
        split: Callable[[I64], list[tuple[int, NDArray[np.intp]]]],
        first: I64,
        dtype: np.dtype[T],
        columns: Sequence[Column[T]],
    ) -> None:
        self._split, self._first, self._columns = split, first, columns
        self.dtype = dtype

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, ids: I64, /) -> NDArray[T]:
        rows = np.asarray(ids, np.int64)
        out = np.empty(len(rows), self.dtype)
        for k, where in self._split(rows):
            out[where] = self._columns[k][rows[where] - self._first[k]]
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[np.arange(len(self))].astype(dtype or self.dtype, copy=False)


@dataclass(frozen=True)
class _Shifted:
    """Labels with ``offset`` added; -1 stays."""

    labels: Column[np.int32]
    offset: int

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, ids: I64, /) -> NDArray[np.int32]:
        labels = self.labels[ids]
        return np.where(labels < 0, labels, labels + self.offset).astype(np.int32)


class _MixOrder:
    """Position -> whose turn it is and which of that dataset's samples -> the dataset's own order."""

    def __init__(self, mix: Mix, orders: Sequence[Order], identity: dict[str, int | str]) -> None:
        self.samples = mix.samples_per_epoch
        self.identity = identity
        self._orders = orders
        self._turns = mix._turns
        self._first = mix.first
        self._counts = mix.counts

    def ids(self, epoch: int, positions: I64) -> I64:
        """See `Order`."""
        out = np.empty(len(positions), np.int64)
        for k, own_epoch, where, own in self._own_positions(epoch, positions):
            out[where] = self._orders[k].ids(own_epoch, own) + self._first[k]
        return out

    def ids_and_draws(self, epoch: int, positions: I64) -> tuple[I64, I64]:
        """See `RepeatingOrder`."""
        ids, draws = np.empty((2, len(positions)), np.int64)
        total = int(self._first[-1])
        for k, own_epoch, where, own in self._own_positions(epoch, positions):
            order, first, size = self._orders[k], int(self._first[k]), int(self._first[k + 1] - self._first[k])
            rows, own_draws = ids_and_draws(order, own_epoch, own)
            # How often the row came before: in this epoch of its own, and in epochs of its own before it within this
            # epoch of the mix. Cantor's pairing makes the two one number, 0 for (0, 0).
            again = own_draws // size
            both = again + (own_epoch - epoch * self._counts[k] // order.samples)
            ids[where] = rows + first
            draws[where] = rows + first + total * (both * (both + 1) // 2 + again)
        return ids, draws

    def _own_positions(self, epoch: int, positions: I64) -> list[tuple[int, int, NDArray[np.intp], I64]]:
        """(dataset, its own epoch, where among ``positions``, positions in that epoch), which cover ``positions``."""
        if len(positions) and (positions.min() < 0 or positions.max() >= self.samples):
            raise IndexError(f"positions {positions.min()} to {positions.max()} of an epoch of {self.samples}")
        who, nth = self._turns.at(positions)
        found = []
        for k in np.unique(who).tolist():
            where = np.flatnonzero(who == k)
            own_epochs, own = np.divmod(nth[where] + epoch * self._counts[k], self._orders[k].samples)
            for own_epoch in np.unique(own_epochs).tolist():
                here = own_epochs == own_epoch
                found.append((k, own_epoch, where[here], own[here]))
        return found


def _length(turns: Turns, sizes: Sequence[int], stop: Stop) -> int:
    """Positions of an epoch over datasets of ``sizes`` samples."""
    if isinstance(stop, int):
        return stop
    if stop == "first_exhausted":
        return min(turns.position_of(k, size) for k, size in enumerate(sizes))
    return max(turns.position_of(k, size - 1) for k, size in enumerate(sizes)) + 1


def _joined(
    ids: I64, found: Sequence[tuple[NDArray[np.intp], EncodedImages]], out: NDArray[np.uint8] | None
) -> EncodedImages:
    """The parts' images as one, in the order of ``ids``: where all lie in ``out``, without a copy."""
    starts, sizes, formats = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64), np.empty(len(ids), np.uint8)
    places = [None if out is None else _place_in(out, images.data) for _, images in found]
    inside = out is not None and None not in places
    shift = 0
    for (where, images), place in zip(found, places, strict=True):
        if inside:
            shift = cast(int, place)
        starts[where] = images.starts + shift
        sizes[where], formats[where] = images.sizes, images.formats
        shift += len(images.data)
    if out is not None and inside:
        return EncodedImages(out, starts, sizes, formats, ids)
    return EncodedImages(
        np.concatenate([np.empty(0, np.uint8), *(images.data for _, images in found)]), starts, sizes, formats, ids
    )


def _place_in(out: NDArray[np.uint8], data: NDArray[np.uint8]) -> int | None:
    """Where in ``out`` the array ``data`` lies; ``None`` where it does not."""
    place = int(data.ctypes.data) - int(out.ctypes.data)
    return place if place >= 0 and place + len(data) <= len(out) else None
