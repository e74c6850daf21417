"""The index: fixed-width columns, one row per sample in shard order, readable with numpy alone.

``index/<column>.npy``, little-endian, memory-mapped on opening. Every sample is a contiguous byte range of one shard::

    shard  |... sample_start                                       sample_start + sample_bytes ...|
           |    header | image payload | padding | header | cls | padding                         |
                       ^ image_offset (absolute in the shard), image_bytes long

Samples are numbered through all shards: shard ``s`` holds rows ``shard_first[s] .. shard_first[s + 1]`` (end
exclusive). Keys and shard names are UTF-8 blobs with offsets: ``keys.utf8``, ``keys_offsets.npy``.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import IndexFileError
from shardmill.records import NO_LABEL, ImageFormat
from shardmill.shards.grouping import name_problem
from shardmill.shards.manifest import Manifest

ROW: Final = np.dtype(
    [
        ("sample_start", "<u8"),  # first header of the sample, absolute in its shard
        ("sample_bytes", "<u8"),  # all members with headers and padding; stored as u32 where every one fits
        ("image_offset", "<u8"),  # image payload, absolute in the shard
        ("image_bytes", "<u4"),
        ("image_format", "u1"),  # records.ImageFormat, by magic bytes
        ("label", "<i4"),  # -1: none
        ("image_crc32c", "<u4"),  # of the image payload: checked on every read
        ("sample_crc32c", "<u4"),  # of all sample_bytes: so that verify can name the sample of any flipped byte
        ("width", "<u2"),  # pixels; 0: not known, or over 65,535
        ("height", "<u2"),
    ]
)
"""One row of the index while it is being built; on disk each field is a column of its own (41 bytes a sample)."""

SHARD_COLUMNS: Final = {"shard_first": "<u8", "shard_bytes": "<u8", "shard_sha256": "u1"}
OFFSET_COLUMNS: Final = ("keys_offsets", "shard_names_offsets")
BLOBS: Final = ("keys.utf8", "shard_names.utf8")
INDEX_DIR: Final = "index"
CHECKED_AT_OPENING: Final = 128 * 2**20
"""Largest index, in bytes, whose digests are checked on every opening: about 2 million samples, 0.1 s."""
_PIECE_ROWS = 2**20
_HINT = "the index is damaged: run `shardmill verify`, then copy or pack the dataset again"


class Strings(Sequence[str]):
    """A read-only list of strings in one UTF-8 blob: string ``i`` is ``blob[offsets[i]:offsets[i + 1]]``.

    Indexing costs one slice and one decode; nothing is loaded up front.
    """

    def __init__(
        self, blob: NDArray[np.uint8], offsets: NDArray[np.uint64], *, keep: bool = False, path: str = ""
    ) -> None:
        """``keep`` remembers every string once decoded: for the few names that are asked for again and again.

        ``path`` is the blob's file, for the `IndexFileError` of a string that is outside it or not UTF-8.
        """
        self._kept: dict[int, str] | None = {} if keep else None
        self._blob = blob
        self._bytes = blob.data
        self._offsets = offsets
        self._path = path

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if self._kept is not None and (kept := self._kept.get(i)) is not None:
            return kept
        n = len(self)
        if not -n <= i < n:
            raise IndexError(f"index {i} is out of range for {n} strings")
        j = i % n
        start, end = int(self._offsets[j]), int(self._offsets[j + 1])
        if not start <= end <= len(self._blob):
            raise IndexFileError(
                f"string {j} lies at bytes {start} to {end} of {len(self._blob)}", path=self._path, hint=_HINT
            )
        try:
            string = str(self._bytes[start:end], "utf-8")
        except UnicodeDecodeError as error:
            raise IndexFileError(
                f"string {j} is not UTF-8 ({error.reason})", path=self._path, offset=start + error.start, hint=_HINT
            ) from None
        if self._kept is not None:
            self._kept[i] = string
        return string

    @property
    def offsets(self) -> NDArray[np.uint64]:
        """uint64 [len + 1], in bytes of the blob."""
        return self._offsets

    def find(self, string: str) -> int:
        """The index of the first string equal to ``string``, or -1. Searches the blob: about 1 s per 5 GB in cache."""
        try:
            wanted = string.encode()
        except UnicodeEncodeError:
            return -1  # bytes of a terminal that are not UTF-8: no string here holds them
        blob, chunk = self._blob, 64 * 2**20
        for start in range(0, max(1, len(blob)), chunk):
            # Chunks overlap by the length sought, so that a match across the border is in one of them.
            data = blob[start : start + chunk + len(wanted)].tobytes()
            at = data.find(wanted)
            while at >= 0:
                i = int(np.searchsorted(self._offsets, start + at, side="right")) - 1
                if i < len(self) and self._offsets[i] == start + at and self[i] == string:
                    return i
                at = data.find(wanted, at + 1)
        return -1

    def all_plain(self) -> bool:
        """Whether every string is surely a relative path without ``.`` and ``..``; ``False`` may be a false alarm.

        One look at the whole blob: 400,000 names in 10 ms, against 1.5 s one by one.
        """
        starts, ends = self._offsets[:-1], self._offsets[1:]
        if len(self) == 0 or not (starts < ends).all() or int(ends[-1]) > len(self._blob):
            return False
        blob = self._blob.tobytes()
        odd = (b"..", b"//", b"/.", b"./", b"\0", b":", b"\\")
        return (
            blob.isascii() and not any(text in blob for text in odd) and not np.isin(self._blob[starts], [46, 47]).any()
        )

    def __repr__(self) -> str:
        return f"Strings({len(self)})"


@dataclass(frozen=True)
class Index:
    """The columns of an opened dataset: memory-mapped, checked once, never changed.

    ``columns[name]``: one array of ``samples`` rows per field of `ROW`. ``shard_first``: int64 [shards + 1].
    ``shard_bytes``: uint64 [shards]. ``shard_sha256``: uint8 [shards, 32].
    """

    columns: dict[str, NDArray[Any]] = field(repr=False)
    shard_first: NDArray[np.int64] = field(repr=False)
    shard_bytes: NDArray[np.uint64] = field(repr=False)
    shard_sha256: NDArray[np.uint8] = field(repr=False)
    shard_names: Strings
    keys: Strings

    def __len__(self) -> int:
        return len(self.columns["label"])

    def shard_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The shard of each row, int64 [n]: a binary search, O(n log shards)."""
        return np.searchsorted(self.shard_first, ids, side="right") - 1

    def check(self, *, path: str) -> None:
        """Refuses an index that cannot be true; O(shards), so that opening 1e9 samples stays quick.

        Rows are checked where they are read: a range outside its shard is an error there.
        """
        n, shards = len(self), len(self.shard_bytes)
        for name, column in self.columns.items():
            if column.shape != (n,):
                raise IndexFileError(f"column {name} has shape {column.shape}, expected ({n},)", path=path, hint=_HINT)
        first = self.shard_first
        if len(first) != shards + 1 or first[0] != 0 or first[-1] != n or np.any(np.diff(first) < 0):
            raise IndexFileError(f"the shard table does not divide {n} samples", path=path, hint=_HINT)
        if self.shard_sha256.shape != (shards, 32) or len(self.shard_names) != shards or len(self.keys) != n:
            raise IndexFileError("names, digests and rows do not have the same length", path=path, hint=_HINT)
        if n == 0:
            raise IndexFileError("there is not a single sample", path=path, hint=_HINT)
        _check_shard_names(self.shard_names, path)


def wrong_row(index: Index, *, classes: int | None) -> tuple[int, str] | None:
    """The first row that cannot be true, whatever the digests say, and why; ``None`` where all can be.

    A range outside its shard or its sample, a format that is none, a label outside the ``classes`` names, a key
    without bytes. Reads every column, in pieces of a million rows.
    """
    columns, offsets = index.columns, index.keys.offsets
    for first in range(0, len(index), _PIECE_ROWS):
        rows = np.arange(first, min(first + _PIECE_ROWS, len(index)))
        start, size, image, image_size, image_format, label = (
            columns[name][rows]
            for name in ("sample_start", "sample_bytes", "image_offset", "image_bytes", "image_format", "label")
        )
        room = index.shard_bytes[index.shard_of(rows)]
        # Unsigned: each difference is looked at only where the test before it says that it is one.
        outside = (start > room) | (size > room - start)
        outside |= (image < start) | (image - start > size) | (image_size > size - (image - start))
        found = {
            "points outside its shard or its sample": outside,
            "has an image format that is none": image_format > max(ImageFormat),
            "has a label that is none": (label < NO_LABEL) | (label >= (2**31 if classes is None else classes)),
            "has a key without bytes": offsets[rows] >= offsets[rows + 1],
        }
        wrong = [(int(rows[np.argmax(bad)]), problem) for problem, bad in found.items() if bad.any()]
        if wrong:
            return min(wrong)
    return None


def _check_shard_names(names: Strings, path: str) -> None:
    """Refuses names that lead out of the dataset's directory: an index may come from anywhere."""
    if names.all_plain():
        return
    for name in names:
        if (problem := name_problem(name)) is not None:
            raise IndexFileError(f"shard name {name[:200]!r} {problem}", path=path, hint=_HINT)


def load_index(folder: Path, manifest: Manifest) -> Index:
    """Memory-maps ``folder``'s columns. Checks sizes, dtypes and the shard table against ``manifest``, not digests."""
    columns = {str(name): _column(folder, manifest, str(name)) for name in ROW.names or ()}
    index = Index(
        columns=columns,
        shard_first=_column(folder, manifest, "shard_first").astype(np.int64),
        shard_bytes=_column(folder, manifest, "shard_bytes"),
        shard_sha256=_column(folder, manifest, "shard_sha256"),
        shard_names=_strings(folder, manifest, "shard_names", keep=True),
        keys=_strings(folder, manifest, "keys"),
    )
    if len(index) != manifest.samples or len(index.shard_bytes) != manifest.shards:
        raise IndexFileError(
            f"{len(index)} samples in {len(index.shard_bytes)} shards, "
            f"the manifest says {manifest.samples} in {manifest.shards}",
            path=str(folder),
            hint=_HINT,
        )
    index.check(path=str(folder))
    return index


def check_digests(folder: Path, manifest: Manifest) -> None:
    """Compares every file of a small index with its sha256: a flipped label or offset is found before it is used.

    An index of more than `CHECKED_AT_OPENING` bytes is left to `verify`, so that opening stays quick whatever the size.
    Raises `IndexFileError` naming the file. Cost: about 0.7 ms per MB.
    """
    if sum(digest.size for digest in manifest.files.values()) > CHECKED_AT_OPENING:
        return
    for name, expected in manifest.files.items():
        path = _sized(folder, manifest, name)
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected.sha256:
            raise IndexFileError("its sha256 is not the one in the manifest", path=str(path), hint=_HINT)


def _sized(folder: Path, manifest: Manifest, name: str) -> Path:
    path = folder / name
    expected = manifest.files.get(name)
    if expected is None:
        raise IndexFileError(f"the manifest does not list {name}", path=str(folder), hint=_HINT)
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise IndexFileError("the file is missing", path=str(path), hint=_HINT) from None
    if size != expected.size:
        raise IndexFileError(f"{size} bytes, the manifest says {expected.size}", path=str(path), hint=_HINT)
    return path


def _column(folder: Path, manifest: Manifest, name: str) -> NDArray[Any]:
    path = _sized(folder, manifest, f"{name}.npy")
    shape, dtype, offset = _array_header(path)
    expected = manifest.files[f"{name}.npy"]
    rows = shape[0] if shape else 0
    if dtype.str != expected.dtype or rows != expected.rows:
        raise IndexFileError(
            f"{rows} rows of {dtype.str}, the manifest says {expected.rows} of {expected.dtype}",
            path=str(path),
            hint=_HINT,
        )
    if dtype.str not in _dtypes(name) or len(shape) != (2 if name == "shard_sha256" else 1):
        raise IndexFileError(
            f"an array of {dtype.str} {list(shape)}, this column holds {' or '.join(_dtypes(name))}",
            path=str(path),
            hint=_HINT,
        )
    # By Python's integers: numpy's wrap around, and it would map less than the shape says.
    if offset + math.prod(shape) * dtype.itemsize != expected.size:
        raise IndexFileError(f"{expected.size} bytes do not hold {list(shape)}", path=str(path), hint=_HINT)
    if not rows:
        return np.empty(shape, dtype)
    # A plain view: the memmap subclass costs 2 us more on every fancy index, and the loader does ten per batch.
    return np.memmap(path, dtype, "r", offset, shape).view(np.ndarray)


def _array_header(path: Path) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, dtype and the offset of the values. Not np.load, which takes a zip or a pickle for what it is."""
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise ValueError(f"format {version[0]}.{version[1]}, expected 1.0")
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
            if fortran_order and len(shape) > 1:
                raise ValueError("columns before rows")
            return shape, dtype, file.tell()
    except ValueError as error:
        raise IndexFileError(f"not a readable array ({error})", path=str(path), hint=_HINT) from None


def _dtypes(name: str) -> tuple[str, ...]:
    """The dtypes that a column may have, however it came to be."""
    if name == "sample_bytes":
        return "<u4", "<u8"
    if name in SHARD_COLUMNS:
        return (np.dtype(SHARD_COLUMNS[name]).str,)
    return ("<u8",) if name in OFFSET_COLUMNS else (ROW[name].str,)


def _strings(folder: Path, manifest: Manifest, name: str, *, keep: bool = False) -> Strings:
    offsets = _column(folder, manifest, f"{name}_offsets")
    path = _sized(folder, manifest, f"{name}.utf8")
    size = manifest.files[f"{name}.utf8"].size
    blob = np.memmap(path, np.uint8, "r").view(np.ndarray) if size else np.empty(0, np.uint8)
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != size:
        raise IndexFileError(f"the offsets do not cover {name}.utf8 ({size} bytes)", path=str(path), hint=_HINT)
    return Strings(blob, offsets, keep=keep, path=str(path))


def array_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The header of an ``.npy`` file (format 1.0), so that a column can be written in pieces after it."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue()
