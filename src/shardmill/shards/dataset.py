"""An opened dataset: what `shardmill.open` returns."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardmill.errors import IndexFileError
from shardmill.records import EncodedImages, Sample
from shardmill.shards.index import INDEX_DIR, Index, check_digests, load_index
from shardmill.shards.manifest import MANIFEST, Manifest
from shardmill.shards.reader import ShardReader
from shardmill.shards.samples import parse_sample
from shardmill.shards.subset import Subset, chosen_rows, row_numbers, rows_by_key_hash, rows_with_labels
from shardmill.storage.local import LocalStore, Stamps


class Dataset:
    """A packed dataset, addressed by row number, in shard order (which is already a global shuffle).

    Opening maps the index and reads no sample: under 1 s and 100 MB for 1e9 samples. Thread-safe; pickles as its path
    (a spawned worker opens it again); safe after fork. ``verify=False`` leaves out the crc32c check of every read.
    """

    def __init__(
        self,
        manifest: Manifest,
        index: Index,
        *,
        index_root: Path,
        shard_root: Path,
        verify: bool,
        stamps: Stamps | None = None,
    ) -> None:
        self.manifest = manifest
        self.path = str(shard_root)
        self._index_root = index_root
        self._shard_root = shard_root
        self._verify = verify
        self._index = index
        self._stamps = stamps
        self._reader = ShardReader(index, LocalStore(shard_root, stamps=stamps), verify=verify and manifest.checksums)

    # -- what is in it -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._index)

    @property
    def keys(self) -> Sequence[str]:
        """The key of every row, decoded when asked for."""
        return self._index.keys

    @property
    def labels(self) -> NDArray[np.int32]:
        """int32 [len]; -1 where a sample has none. Memory-mapped."""
        return self._index.columns["label"]

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The class names by label, or ``None`` where the source had numbers only."""
        return self.manifest.classes

    @property
    def widths(self) -> NDArray[np.uint16]:
        """Pixels, uint16 [len]; 0 where not known. Memory-mapped."""
        return self._index.columns["width"]

    @property
    def heights(self) -> NDArray[np.uint16]:
        """Pixels, uint16 [len]; 0 where not known. Memory-mapped."""
        return self._index.columns["height"]

    @property
    def image_bytes(self) -> NDArray[np.uint32]:
        """Size of every encoded image, uint32 [len]. Memory-mapped."""
        return self._index.columns["image_bytes"]

    @property
    def shard_first(self) -> NDArray[np.int64]:
        """int64 [shards + 1]: shard ``s`` holds rows ``shard_first[s] .. shard_first[s + 1]``, end exclusive."""
        return self._index.shard_first

    @property
    def shard_names(self) -> Sequence[str]:
        """File names of the shards, relative to ``path``."""
        return self._index.shard_names

    @property
    def index(self) -> Index:
        """The columns themselves."""
        return self._index

    @property
    def digest(self) -> str:
        """sha256 of the manifest, which holds the digests of all else: what a saved loader state refers to."""
        return hashlib.sha256(self.manifest.to_bytes()).hexdigest()

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, ids: ArrayLike, out: NDArray[np.uint8] | None = None) -> EncodedImages:
        """The encoded images of rows ``ids``, in that order, checked against their crc32c.

        One planned pass: ranges that lie close together are one read. ``out``, a uint8 buffer, is used where it is
        large enough, so that a caller that reuses one pays no page faults. Raises `IndexError` for a row out of
        range, `ChecksumError` naming shard, key and offset for a wrong byte.
        """
        return self._reader.read(row_numbers(ids, len(self), of="dataset"), out)

    def __getitem__(self, i: SupportsIndex) -> Sample:
        """Row ``i`` with all its fields; negative rows count from the end. Cost: one read."""
        row = operator.index(i)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} is out of range for {len(self)} samples")
        row %= len(self)
        (data,) = self._reader.read_samples(np.array([row]))
        shard, key, _ = self._reader.place(row)
        start = int(self._index.columns["sample_start"][row])
        fields = parse_sample(data, key=key, path=f"{self.path}/{shard}", start=start)
        label = int(self.labels[row])
        classes = self.classes
        return Sample(key, fields, label, classes[label] if classes and 0 <= label < len(classes) else None)

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(len(self)))

    # -- choosing ------------------------------------------------------------------------------------------------

    def select(self, chosen: ArrayLike) -> Subset:
        """Some rows as a dataset of their own: row numbers (any order, repeats count once) or a mask of bool [len]."""
        return Subset(self, chosen_rows(chosen, len(self)))

    def where(self, *, label: ArrayLike) -> Subset:
        """The rows whose label is ``label``, or one of several."""
        return Subset(self, rows_with_labels(self.labels, label))

    def split(self, fraction: float, *, seed: int = 0) -> tuple[Subset, Subset]:
        """Two parts, the first with about ``fraction`` of the rows, divided by a hash of the key.

        A sample stays on its side when the dataset grows or is packed again with another seed. About 2 us a sample.
        """
        mask = rows_by_key_hash(self.keys, fraction, seed=seed)
        return self.select(mask), self.select(~mask)

    def describe(self, i: int) -> tuple[str, str, int]:
        """Path of the shard, key, and offset of the image of row ``i``: what an error message needs."""
        shard, key, offset = self._reader.place(i)
        return f"{self.path}/{shard}", key, offset

    def close(self) -> None:
        """Closes the files held open; the dataset stays usable and opens them again when asked to read."""
        store = self._reader.store
        assert isinstance(store, LocalStore)
        store.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._index_root, self._shard_root, self._verify, self.digest, self._stamps)

    def __repr__(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes else ""
        return f"Dataset({self.path!r}: {len(self):,} samples, {self.manifest.shards:,} shards{classes})"


def load_dataset(index_root: Path, shard_root: Path, *, verify: bool, stamps: Stamps | None = None) -> Dataset:
    """Opens the dataset whose manifest and ``index/`` are in ``index_root`` and whose shards are in ``shard_root``.

    The two differ only for bare tars, whose index lies in a cache directory. They have no checksums, so that
    ``stamps`` (see `LocalStore`) tell where one was replaced since.
    """
    path = index_root / MANIFEST
    manifest = Manifest.from_bytes(path.read_bytes(), path=str(path))
    if verify:
        check_digests(index_root / INDEX_DIR, manifest)
    index = load_index(index_root / INDEX_DIR, manifest)
    return Dataset(manifest, index, index_root=index_root, shard_root=shard_root, verify=verify, stamps=stamps)


def _reopen(index_root: Path, shard_root: Path, verify: bool, digest: str, stamps: Stamps | None) -> Dataset:
    dataset = load_dataset(index_root, shard_root, verify=verify, stamps=stamps)
    if dataset.digest != digest:
        raise IndexFileError(
            "the dataset was replaced between pickling and opening",
            path=str(index_root),
            hint="open it again in the parent process",
        )
    return dataset
