"""Gather: write some consecutive shards from the runs. One call is one task of an executor."""

from __future__ import annotations

import functools
import hashlib
import json
import mmap
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ShardmillError, SourceError
from shardmill.imageinfo import IMAGE_EXTENSIONS, probe
from shardmill.records import ImageFormat
from shardmill.shards.index import ROW
from shardmill.shards.index_writer import fsync_folder
from shardmill.shards.packing.buffers import big_pages
from shardmill.shards.packing.fill import Read, fill
from shardmill.shards.packing.progress import TaskProgress
from shardmill.shards.packing.references import Reference, decode_fields
from shardmill.shards.packing.runs import ADD_CLS, LYING_EXTENSION, RunReader, RunSlice, list_runs, write_all
from shardmill.shards.packing.scatter import lying
from shardmill.shards.tar import END, member_header, padded, sample_bytes
from shardmill.storage.checksums import crc32c_ranges


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive samples of one shard that a worker holds at once: positions ``low`` to ``high`` (exclusive)."""

    low: bytes
    high: bytes | None
    samples: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard as the cut has it. ``size``: of the file, end marker included."""

    index: int
    samples: int
    size: int
    pieces: tuple[Piece, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class GatherTask:
    """Consecutive shards, out of the runs in ``folder``. ``token`` differs from pack to pack.

    What is the same for all tasks lies in files: runs and classes would be megabytes in every pickled task.
    """

    shards: tuple[ShardPlan, ...] = field(repr=False)
    folder: Path
    control: Path
    dest: Path
    name: str
    token: str


@dataclass(frozen=True, slots=True)
class ShardResult:
    """A shard under its final name. ``notes`` counts by the keys in `NOTES`."""

    index: int
    samples: int
    size: int
    sha256: str
    notes: Mapping[str, int]


_CLASSES: Final = "classes.json"
NO_IMAGE: Final = "samples without an image"
UNKNOWN_FORMAT: Final = "images of unknown format"


def shard_name(name: str, index: int) -> str:
    """``NAME-000000.tar``; more digits where a million shards need them."""
    return f"{name}-{index:06d}.tar"


def rows_path(control: Path, index: int) -> Path:
    """Where the index rows of a finished shard wait for the commit."""
    return control / "rows" / f"{index:06d}.rows"


def gather(task: GatherTask) -> list[ShardResult]:
    """Writes the shards of one task, each under a temporary name, synced, then renamed. Costs one read per run and
    piece for streamed sources, one open and read per field for references."""
    readers, numbers = _runs(task.folder, task.control, task.token)
    results = []
    with TaskProgress(task.control, f"gather-{task.shards[0].index:06d}") as progress, _Window() as window:
        for shard in task.shards:
            results.append(_write_shard(task, shard, readers, numbers, window, progress))  # noqa: PERF401
    return results


def save_classes(control: Path, names: Sequence[str]) -> None:
    """Leaves the names that number the classes for the workers."""
    (control / _CLASSES).write_text(json.dumps(list(names)))


@functools.lru_cache(maxsize=1)
def _runs(folder: Path, control: Path, token: str) -> tuple[list[RunReader], list[NDArray[np.int32]]]:
    """The readers of all runs, and for each run the labels of its classes (-1 behind the last, for no class)."""
    labels = {name: i for i, name in enumerate(json.loads((control / _CLASSES).read_text()))}
    infos = list_runs(folder)
    numbers = [np.array([labels[name] for name in info.classes] + [-1], np.int32) for info in infos]
    return [RunReader(folder, info) for info in infos], numbers


class _Window:
    """The buffer that pieces are assembled in, reused from piece to piece."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self.array = np.empty(0, np.uint8)

    def of(self, size: int) -> NDArray[np.uint8]:
        """uint8 [size], contents undefined."""
        if len(self.array) < size:
            self.array = np.empty(0, np.uint8)
            self._memory = big_pages(mmap.mmap(-1, size))
            self.array = np.frombuffer(self._memory, np.uint8)
        return self.array[:size]

    def __enter__(self) -> _Window:
        return self

    def __exit__(self, *failure: object) -> None:
        self.array = np.empty(0, np.uint8)
        self._memory = None


def _write_shard(
    task: GatherTask,
    shard: ShardPlan,
    readers: Sequence[RunReader],
    numbers: Sequence[NDArray[np.int32]],
    window: _Window,
    progress: TaskProgress,
) -> ShardResult:
    final = task.dest / shard_name(task.name, shard.index)
    temporary = task.dest / f".{final.name}.tmp"
    sha256 = hashlib.sha256()
    all_rows: list[NDArray[Any]] = []
    all_keys: list[bytes] = []
    notes: Counter[str] = Counter()
    at = 0
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        try:
            for piece in shard.pieces:
                out = window.of(piece.bytes)
                rows, keys = _assemble(out, piece, readers, numbers, notes)
                rows["sample_start"] += np.uint64(at)
                rows["image_offset"] += np.uint64(at)
                view = out.data
                sha256.update(view)
                write_all(fd, [view], temporary)
                at += piece.bytes
                all_rows.append(rows)
                all_keys += keys
                progress.add(samples=piece.samples, size=piece.bytes)
            sha256.update(END)
            write_all(fd, [memoryview(END)], temporary)
            if at + len(END) != shard.size:
                raise AssertionError(f"{final.name}: wrote {at + len(END)} bytes, planned {shard.size}")
            os.fsync(fd)
        finally:
            os.close(fd)
        _save_rows(rows_path(task.control, shard.index), np.concatenate(all_rows), all_keys)
        temporary.replace(final)
        fsync_folder(task.dest)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.filename is None:
            raise OSError(error.errno, error.strerror, str(temporary)) from None
        raise
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return ShardResult(shard.index, shard.samples, shard.size, sha256.hexdigest(), dict(notes))


def _assemble(
    out: NDArray[np.uint8],
    piece: Piece,
    readers: Sequence[RunReader],
    numbers: Sequence[NDArray[np.int32]],
    notes: Counter[str],
) -> tuple[NDArray[Any], list[bytes]]:
    """Fills ``out`` with the tar bytes of one piece; returns its rows (offsets from the piece's start) and keys."""
    slices: list[RunSlice] = []
    labels: list[NDArray[np.int32]] = []
    paths: list[str] = []
    for reader, names in zip(readers, numbers, strict=True):
        part = reader.slice(reader.find(piece.low), reader.find(piece.high))
        if len(part.rows):
            slices.append(part)
            labels.append(np.where(part.rows["class_index"] >= 0, names[part.rows["class_index"]], part.rows["label"]))
            paths.append(str(reader.data_path))
    found = np.concatenate([part.rows for part in slices])
    if len(found) != piece.samples or int(found["total"].sum()) != piece.bytes:
        raise ShardmillError("the runs in the scratch folder changed: delete the scratch folder and pack again")
    label = np.concatenate(labels)
    run = np.repeat(np.arange(len(slices)), [len(part.rows) for part in slices])
    inside = np.concatenate([np.arange(len(part.rows)) for part in slices])
    order = np.argsort(found["position"], kind="stable")
    found, label, run, inside = found[order], label[order], run[order], inside[order]

    rows = np.zeros(len(found), ROW)
    total = found["total"]
    starts = np.cumsum(total) - total
    rows["sample_start"] = starts
    rows["sample_bytes"] = total
    rows["image_offset"] = starts + found["image_start"]
    for name in ("image_bytes", "image_format", "image_crc32c", "width", "height"):
        rows[name] = found[name]
    rows["label"] = label

    view = out.data
    reads: list[Read] = []
    keys: list[bytes] = []
    pending: list[tuple[int, str, dict[str, tuple[int, int]]]] = []
    for i, (start, stored, data_start, flags, number, which, row) in enumerate(
        zip(starts.tolist(), found["stored"].tolist(), found["data_start"].tolist(), found["flags"].tolist(),
            label.tolist(), run.tolist(), inside.tolist(), strict=True)
    ):  # fmt: skip
        part = slices[which]
        key = part.key(row)
        keys.append(key.encode())
        if stored:
            reads.append(Read(paths[which], data_start, stored, start, None))
            end = start + stored
        else:
            fields = decode_fields(part.fields(row))
            spans, end = _place(view, start, key, fields, reads)
            pending.append((i, key, spans))
        if flags & ADD_CLS:
            _put(view, end, key, {"cls": str(number).encode()})
    fill(out, reads)
    _check_stored(out, found, starts, keys, paths, run)
    for i, key, spans in pending:
        _describe(rows, i, key, spans, view, notes)
    if pending:
        which_rows = np.array([i for i, _, _ in pending])
        rows["image_crc32c"][which_rows] = crc32c_ranges(
            out, rows["image_offset"][which_rows].astype(np.int64), rows["image_bytes"][which_rows].astype(np.int64)
        )
    rows["sample_crc32c"] = crc32c_ranges(out, starts.astype(np.int64), total.astype(np.int64))
    _count(rows, found, notes)
    return rows, keys


def _place(
    view: memoryview, start: int, key: str, fields: Mapping[str, Reference | bytes], reads: list[Read]
) -> tuple[dict[str, tuple[int, int]], int]:
    """Writes headers, padding and the bytes at hand, plans the reads; returns payload (offset, size) and the end."""
    spans: dict[str, tuple[int, int]] = {}
    at = start
    for extension, value in fields.items():
        size = value.size if isinstance(value, Reference) else len(value)
        header = member_header(f"{key}.{extension}", size)
        view[at : at + len(header)] = header
        at += len(header)
        spans[extension] = (at, size)
        if isinstance(value, Reference):
            reads.append(Read(value.path, value.start, size, at, value.stamp))
        else:
            view[at : at + size] = value
        end = at + padded(size)
        view[at + size : end] = bytes(end - at - size)
        at = end
    return spans, at


def _put(view: memoryview, at: int, key: str, fields: Mapping[str, bytes]) -> None:
    for piece in sample_bytes(key, fields):
        view[at : at + len(piece)] = piece
        at += len(piece)


def _check_stored(
    out: NDArray[np.uint8],
    found: NDArray[Any],
    starts: NDArray[Any],
    keys: Sequence[bytes],
    paths: Sequence[str],
    run: NDArray[Any],
) -> None:
    """What came back from the scratch folder must be what scatter wrote there."""
    stored = found["stored"].astype(np.int64)
    crcs = crc32c_ranges(out, starts.astype(np.int64), stored)
    for i in np.flatnonzero((crcs != found["stored_crc32c"]) & (stored > 0)).tolist():
        raise ShardmillError(
            f"{paths[int(run[i])]} @ {int(found['data_start'][i])} (key {keys[i].decode()!r}): the scratch data does "
            "not match its checksum: the disk or memory damaged it; delete the scratch folder and pack again"
        )


def _describe(
    rows: NDArray[Any],
    i: int,
    key: str,
    spans: Mapping[str, tuple[int, int]],
    view: memoryview,
    notes: Counter[str],
) -> None:
    """Fills in what only the bytes say: which field is the image, its true format and size."""
    infos = None
    for extension, (at, size) in spans.items():
        if extension.rpartition(".")[2].lower() in IMAGE_EXTENSIONS:
            infos = extension, at, size, probe(view[at : at + size])
            break
    else:
        for extension, (at, size) in spans.items():
            info = probe(view[at : at + size])
            if info.format is not ImageFormat.UNKNOWN:
                infos = extension, at, size, info
                break
    if infos is None:
        return
    extension, at, size, info = infos
    if size >= 2**32:
        raise SourceError(f"sample {key!r}: the image has {size} bytes; 4 GiB is the limit")
    wide = max(info.width, info.height) > 0xFFFF
    rows[i]["image_offset"] = at
    rows[i]["image_bytes"] = size
    rows[i]["image_format"] = int(info.format)
    rows[i]["width"] = 0 if wide else info.width
    rows[i]["height"] = 0 if wide else info.height
    if lying(extension, info.format):
        notes[_lying_note(int(info.format))] += 1


def _lying_note(image_format: int) -> str:
    return f"{ImageFormat(image_format).name} images under another format's extension"


def _count(rows: NDArray[Any], found: NDArray[Any], notes: Counter[str]) -> None:
    for image_format in found["image_format"][(found["flags"] & LYING_EXTENSION) != 0].tolist():
        notes[_lying_note(image_format)] += 1
    missing = int((rows["image_bytes"] == 0).sum())
    unknown = int(((rows["image_bytes"] > 0) & (rows["image_format"] == 0)).sum())
    if missing:
        notes[NO_IMAGE] += missing
    if unknown:
        notes[UNKNOWN_FORMAT] += unknown


def _save_rows(path: Path, rows: NDArray[Any], keys: Sequence[bytes]) -> None:
    lengths = np.array([len(key) for key in keys], "<u4")
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as out:
        out.write(rows.tobytes())
        out.write(lengths.tobytes())
        out.write(b"".join(keys))
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(path)
    fsync_folder(path.parent)


def load_rows(path: Path, samples: int) -> tuple[NDArray[Any], list[str]]:
    """What `gather` left for one shard: rows of `ROW` and keys."""
    data = path.read_bytes()
    rows = np.frombuffer(data, ROW, samples)
    lengths = np.frombuffer(data, "<u4", samples, offset=rows.nbytes)
    at = rows.nbytes + lengths.nbytes
    keys = []
    for length in lengths.tolist():
        keys.append(data[at : at + length].decode())
        at += length
    return rows, keys
