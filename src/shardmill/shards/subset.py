"""Some rows of a dataset, as a dataset: what `Dataset.select`, `where` and `split` return."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardmill.errors import OptionsError
from shardmill.records import EncodedImages, Sample

if TYPE_CHECKING:
    from shardmill.shards.dataset import Dataset


class Subset:
    """Rows ``rows`` of ``base``, in ascending order; row ``i`` here is row ``rows[i]`` there.

    Loads and resumes like any dataset: shards with no chosen row are never touched. Memory: 8 bytes a chosen row.
    Thread-safe; pickles as its base and its rows.
    """

    def __init__(self, base: Dataset, rows: NDArray[np.int64]) -> None:
        self.base = base
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def path(self) -> str:
        """Where the base lies."""
        return self.base.path

    @property
    def keys(self) -> Sequence[str]:
        """The key of every row: a list, made when asked for."""
        return [self.base.keys[i] for i in self.rows.tolist()]

    @property
    def labels(self) -> NDArray[np.int32]:
        """int32 [len]; -1 where a sample has none."""
        return self.base.labels[self.rows]

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The base's class names: labels keep their meaning."""
        return self.base.classes

    @property
    def widths(self) -> NDArray[np.uint16]:
        """Pixels, uint16 [len]; 0 where not known."""
        return self.base.widths[self.rows]

    @property
    def heights(self) -> NDArray[np.uint16]:
        """Pixels, uint16 [len]; 0 where not known."""
        return self.base.heights[self.rows]

    @property
    def image_bytes(self) -> NDArray[np.uint32]:
        """Size of every encoded image, uint32 [len]."""
        return self.base.image_bytes[self.rows]

    @property
    def shard_first(self) -> NDArray[np.int64]:
        """int64 [shards + 1]: the chosen rows of shard ``s`` are ``shard_first[s] .. shard_first[s + 1]``."""
        return np.searchsorted(self.rows, self.base.shard_first)

    @property
    def digest(self) -> str:
        """Identity of base and rows together, for a saved loader state."""
        return hashlib.sha256(self.base.digest.encode() + self.rows.astype("<i8").tobytes()).hexdigest()

    def read(self, ids: ArrayLike, out: NDArray[np.uint8] | None = None) -> EncodedImages:
        """See `Dataset.read`; the result's ``ids`` are rows of this subset."""
        mine = row_numbers(ids, len(self), of="subset")
        found = self.base.read(self.rows[mine], out)
        return EncodedImages(found.data, found.starts, found.sizes, found.formats, mine)

    def __getitem__(self, i: SupportsIndex) -> Sample:
        row = operator.index(i)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} is out of range for {len(self)} samples")
        return self.base[int(self.rows[row])]

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(len(self)))

    def describe(self, i: int) -> tuple[str, str, int]:
        """See `Dataset.describe`."""
        return self.base.describe(int(self.rows[i]))

    def select(self, chosen: ArrayLike) -> Subset:
        """See `Dataset.select`; ``chosen`` refers to rows of this subset."""
        return Subset(self.base, self.rows[chosen_rows(chosen, len(self))])

    def __repr__(self) -> str:
        return f"Subset({len(self):,} of {self.base!r})"


def row_numbers(ids: ArrayLike, count: int, *, of: str) -> NDArray[np.int64]:
    """Rows to read, int64 [n], in their order, repeats allowed; a single number counts as a list of one.

    ``of`` is what messages call the whole. Raises `OptionsError` for what are no row numbers, `IndexError` for one
    outside ``0 .. count``.
    """
    rows = np.atleast_1d(np.asarray(ids))
    if rows.ndim != 1 or not (np.issubdtype(rows.dtype, np.integer) or rows.size == 0):
        raise OptionsError(f"ids must be a list or 1-d array of row numbers, got {rows.dtype} {list(rows.shape)}")
    rows = rows.astype(np.int64, copy=False)
    if rows.size and (rows.min() < 0 or rows.max() >= count):
        raise IndexError(f"rows {rows.min()} to {rows.max()} asked for, the {of} has 0 to {count - 1}")
    return rows


def chosen_rows(chosen: ArrayLike, count: int) -> NDArray[np.int64]:
    """Row numbers or a mask, int or bool [n], to ascending row numbers without repeats."""
    array = np.asarray(chosen)
    if array.ndim != 1:
        raise OptionsError(f"select takes a list of rows or a mask, got an array of shape {list(array.shape)}")
    if array.dtype == bool:
        if len(array) != count:
            raise OptionsError(f"the mask has {len(array)} values, the dataset {count} rows")
        return np.flatnonzero(array)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise OptionsError(f"select takes row numbers or a mask of bool, got {array.dtype}")
    rows = np.unique(array.astype(np.int64))
    if rows.size and (rows[0] < 0 or rows[-1] >= count):
        raise IndexError(f"rows {rows[0]} to {rows[-1]} asked for, the dataset has 0 to {count - 1}")
    return rows


def rows_with_labels(labels: NDArray[np.int32], wanted: ArrayLike) -> NDArray[np.int64]:
    """The rows whose label is one of ``wanted``, ascending."""
    return np.flatnonzero(np.isin(labels, np.atleast_1d(np.asarray(wanted))))


def rows_by_key_hash(keys: Sequence[str], fraction: float, *, seed: int) -> NDArray[np.bool_]:
    """Mask [len(keys)]: True for about ``fraction`` of the keys, each decided by its own hash alone.

    So a key stays on its side when the dataset grows or is packed again. blake2b of the key, keyed by the seed, as a
    number in [0, 1), compared with ``fraction``. About 1.5 us a key.
    """
    if not 0.0 <= fraction <= 1.0:
        raise OptionsError(f"fraction is {fraction}: it must be between 0 and 1")
    limit = int(fraction * 2.0**64)
    salt = (seed % 2**64).to_bytes(8, "little")
    mask = np.empty(len(keys), np.bool_)
    for i in range(len(keys)):
        digest = hashlib.blake2b(keys[i].encode("utf-8", "surrogateescape"), digest_size=8, key=salt)
        mask[i] = int.from_bytes(digest.digest(), "little") < limit
    return mask
