"""Writes ``index/`` one shard at a time: memory for one shard's rows, whatever the dataset."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from shardmill.shards.index import BLOBS, INDEX_DIR, OFFSET_COLUMNS, ROW, SHARD_COLUMNS, array_header
from shardmill.shards.manifest import MANIFEST, FileDigest, Manifest


@dataclass(frozen=True, slots=True)
class ShardRows:
    """One finished shard as the index needs it.

    ``size``: of the shard file in bytes. ``rows``: structured array of `ROW` [samples]. ``keys``: one per row.
    ``sha256``: of the whole shard file (32 zero bytes where it is not known).
    """

    name: str
    size: int
    sha256: bytes = field(repr=False)
    rows: NDArray[Any] = field(repr=False)
    keys: Sequence[str] = field(repr=False)


def write_index(dest: Path, shards: Iterable[ShardRows], *, samples: int, shard_count: int) -> dict[str, FileDigest]:
    """Writes all of ``dest/index/`` durably (temporary name, fsync, rename) and returns the digests for the manifest.

    ``shards`` come in order; ``samples`` and ``shard_count`` are their totals, which the ``.npy`` headers need first.
    ``sample_bytes`` is stored in 4 bytes until a sample reaches 4 GiB; then the column is written again in 8.
    """
    folder = dest / INDEX_DIR
    folder.mkdir(parents=True, exist_ok=True)
    with _Columns(folder, samples=samples, shard_count=shard_count) as columns:
        for shard in shards:
            columns.add(shard)
        digests = columns.finish()
    fsync_folder(folder)
    return digests


def write_manifest(dest: Path, manifest: Manifest) -> None:
    """Commits the dataset: after this call it exists, before it does not."""
    temporary = dest / f".{MANIFEST}.tmp"
    try:
        with _naming(dest / MANIFEST), temporary.open("wb") as out:
            out.write(manifest.to_bytes())
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(dest / MANIFEST)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_folder(dest)


def remove_manifest(dest: Path) -> None:
    """Takes an old manifest away before its index is replaced: what is killed in between leaves no dataset.

    Otherwise the old manifest would stand over a mixture of old and new columns, which have the same sizes as a rule.
    """
    if (dest / MANIFEST).exists():
        (dest / MANIFEST).unlink()
        fsync_folder(dest)


def fsync_folder(folder: Path) -> None:
    """Makes renames inside ``folder`` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _naming(folder):
            os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """ "No space left on device" alone does not say on which."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


class _File:
    """One file of the index under its temporary name, hashed while it is written."""

    def __init__(self, folder: Path, name: str, *, dtype: str | None = None, shape: tuple[int, ...] = ()) -> None:
        self.name = name
        self.path = folder / name
        self.temporary = folder / f".{name}.tmp"
        self.file: BinaryIO = self.temporary.open("wb")
        self.sha256 = hashlib.sha256()
        self.bytes = 0
        self.dtype = dtype
        self.rows = shape[0] if shape else None
        self._expected: int | None = None
        if dtype is not None:
            self.write(array_header(dtype, shape))
            self._expected = self.bytes + int(np.prod(shape)) * np.dtype(dtype).itemsize

    def write(self, data: bytes | memoryview) -> None:
        with _naming(self.path):
            self.file.write(data)
        self.sha256.update(data)
        self.bytes += len(data)

    def finish(self) -> FileDigest:
        if self._expected is not None and self.bytes != self._expected:
            raise AssertionError(f"{self.name}: wrote {self.bytes} bytes, announced {self._expected}")
        with _naming(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
        self.temporary.replace(self.path)
        return FileDigest(size=self.bytes, sha256=self.sha256.hexdigest(), dtype=self.dtype, rows=self.rows)

    def abandon(self) -> None:
        try:
            # Flushes first, which fails once more where the disk is full.
            with contextlib.suppress(OSError):
                self.file.close()
        finally:
            self.temporary.unlink(missing_ok=True)


class _Columns:
    def __init__(self, folder: Path, *, samples: int, shard_count: int) -> None:
        shapes: dict[str, tuple[str, tuple[int, ...]]] = {
            str(name): (ROW[name].str, (samples,)) for name in ROW.names or ()
        }
        # Written narrow first: a sample of 4 GiB or more is rare enough to pay for a second pass.
        shapes["sample_bytes"] = ("<u4", (samples,))
        shapes["shard_first"] = (SHARD_COLUMNS["shard_first"], (shard_count + 1,))
        shapes["shard_bytes"] = (SHARD_COLUMNS["shard_bytes"], (shard_count,))
        shapes["shard_sha256"] = ("|u1", (shard_count, 32))
        shapes["keys_offsets"] = ("<u8", (samples + 1,))
        shapes["shard_names_offsets"] = ("<u8", (shard_count + 1,))
        self._folder = folder
        self._samples = samples
        self._files: dict[str, _File] = {}
        try:
            for name, (dtype, shape) in shapes.items():
                self._files[name] = _File(folder, f"{name}.npy", dtype=dtype, shape=shape)
            for name in BLOBS:
                self._files[name] = _File(folder, name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self._first = 0
        self._ends = {"keys": 0, "shard_names": 0}
        for name in ("shard_first", *OFFSET_COLUMNS):
            self._files[name].write(np.zeros(1, "<u8").tobytes())

    def __enter__(self) -> _Columns:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.abandon()

    def add(self, shard: ShardRows) -> None:
        rows = shard.rows
        for name in ROW.names or ():
            if name == "sample_bytes":
                self._add_sample_bytes(rows[name])
            else:
                self._files[name].write(np.ascontiguousarray(rows[name]).tobytes())
        self._first += len(rows)
        self._files["shard_first"].write(np.array([self._first], "<u8").tobytes())
        self._files["shard_bytes"].write(np.array([shard.size], "<u8").tobytes())
        self._files["shard_sha256"].write(shard.sha256)
        self._add_strings("keys", shard.keys)
        self._add_strings("shard_names", [shard.name])

    def _add_sample_bytes(self, values: NDArray[np.uint64]) -> None:
        narrow = self._files["sample_bytes"]
        if narrow.dtype == "<u4" and len(values) and int(values.max()) >= 2**32:
            narrow.file.flush()
            start = len(array_header("<u4", (self._samples,)))
            before = np.fromfile(narrow.temporary, "<u4", offset=start)
            narrow.abandon()
            wide = _File(self._folder, "sample_bytes.npy", dtype="<u8", shape=(self._samples,))
            wide.write(before.astype("<u8").tobytes())
            self._files["sample_bytes"] = wide
        out = self._files["sample_bytes"]
        out.write(values.astype(str(out.dtype)).tobytes())

    def _add_strings(self, name: str, strings: Sequence[str]) -> None:
        encoded = [string.encode() for string in strings]
        ends = self._ends[name] + np.cumsum([len(data) for data in encoded], dtype="<u8")
        self._files[f"{name}.utf8"].write(b"".join(encoded))
        self._files[f"{name}_offsets"].write(ends.astype("<u8").tobytes())
        if len(ends):
            self._ends[name] = int(ends[-1])

    def finish(self) -> dict[str, FileDigest]:
        digests: dict[str, FileDigest] = {}
        for file in list(self._files.values()):
            digests[file.name] = file.finish()
        self._files = {}
        return digests
