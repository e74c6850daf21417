"""Scatter: read one range of the source front to back, leave sorted runs. One call is one task of an executor."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.errors import OptionsError, SourceError
from shardmill.imageinfo import image_field, probe
from shardmill.records import NO_LABEL, ByteRange, ImageFormat, Sample, SampleRef
from shardmill.shards.grouping import name_problem, split_key
from shardmill.shards.packing.buffers import big_pages
from shardmill.shards.packing.options import EncodeSpec
from shardmill.shards.packing.position import position_of
from shardmill.shards.packing.progress import TaskProgress
from shardmill.shards.packing.references import Stamp, encode_fields, stamp_of
from shardmill.shards.packing.runs import ADD_CLS, LYING_EXTENSION, RUN_ROW, RunInfo, list_runs, write_run
from shardmill.shards.tar import BLOCK, header_bytes, sample_bytes, sample_layout
from shardmill.sources.protocols import RefSource, Source
from shardmill.storage.checksums import crc32c_ranges

_ROW_MEMORY = 900  # bytes of Python objects per pending sample, besides its text
_FORMAT_OF = {
    "jpg": ImageFormat.JPEG,
    "jpeg": ImageFormat.JPEG,
    "jpe": ImageFormat.JPEG,
    "jfif": ImageFormat.JPEG,
    "png": ImageFormat.PNG,
    "webp": ImageFormat.WEBP,
    "gif": ImageFormat.GIF,
    "bmp": ImageFormat.BMP,
    "tif": ImageFormat.TIFF,
    "tiff": ImageFormat.TIFF,
    "avif": ImageFormat.AVIF,
    "heic": ImageFormat.HEIF,
    "heif": ImageFormat.HEIF,
    "jp2": ImageFormat.JPEG2000,
}


@dataclass(frozen=True, slots=True)
class ScatterTask:
    """One range: consecutive parts of the source. ``memory_bytes``: what this worker may hold."""

    index: int
    parts: Sequence[Source] = field(repr=False)
    by_reference: bool
    folder: Path
    control: Path
    seed: int
    encode: EncodeSpec | None
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class ScatterResult:
    """What is finished: ``samples`` and ``bytes`` of the range as they will lie in shards; ``runs`` it left."""

    samples: int
    bytes: int
    runs: int


def scatter(task: ScatterTask) -> ScatterResult:
    """Runs one task. Runs that an interrupted earlier call finished are kept and their samples passed over."""
    done = list_runs(task.folder, task.index)
    consumed = done[-1].consumed if done else 0
    with TaskProgress(task.control, f"scatter-{task.index:05d}") as progress:
        progress.add(samples=consumed, size=sum(run.total_bytes for run in done))
        writer = _RunWriter(task, first_number=len(done), consumed=consumed, progress=progress)
        writer.read(itertools.islice(_samples(task), consumed, None))
        runs = [*done, *writer.finished]
    return ScatterResult(sum(run.samples for run in runs), sum(run.total_bytes for run in runs), len(runs))


def _samples(task: ScatterTask) -> Iterator[Sample | SampleRef]:
    for part in task.parts:
        if task.by_reference:
            assert isinstance(part, RefSource)
            yield from part.refs()
        else:
            yield from part


def lying(extension: str, found: ImageFormat) -> bool:
    """Whether an image's extension names another format than its bytes: WebP called ``.JPEG``."""
    named = _FORMAT_OF.get(extension.rpartition(".")[2].lower())
    return named is not None and found is not ImageFormat.UNKNOWN and named is not found


def cls_bytes(key: str) -> int:
    """Bytes of the ``cls`` member that packing adds; its text is 1 to 10 digits, so one block."""
    return header_bytes(f"{key}.cls", 1) + BLOCK


def check_sample(sample: Sample | SampleRef) -> None:
    """Refuses names that would not come back from a WebDataset tar as they went in."""
    key = sample.key
    problem = name_problem(key)
    base = key.rpartition("/")[2]
    if problem is None and "." in base:
        problem = "holds a dot in its last part, where readers cut off the extension"
    if problem is None and key.startswith("__"):
        problem = "begins with '__', which webdataset keeps for its own metadata"
    if problem is None and not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError:
            problem = "is not UTF-8"
    if problem is not None:
        raise SourceError(f"key {key[:200]!r} {problem}: rename it in the source")
    if not sample.fields:
        raise SourceError(f"sample {key!r} has no fields")
    lowered = set()
    for extension in sample.fields:
        if not extension or extension.startswith("__") or split_key(f"{key}.{extension}")[1] != extension:
            raise SourceError(f"sample {key!r}: {extension!r} cannot be an extension")
        if extension.lower() in lowered:
            raise SourceError(f"sample {key!r} has the field {extension!r} twice, upper and lower case being the same")
        lowered.add(extension.lower())
    if not NO_LABEL <= sample.label < 2**31:
        raise SourceError(f"sample {key!r} has label {sample.label}: labels are 0 to 2**31 - 1, or -1 for none")


class _RunWriter:
    """Collects samples until the memory share is used, then writes them sorted as one run."""

    def __init__(self, task: ScatterTask, *, first_number: int, consumed: int, progress: TaskProgress) -> None:
        self.task = task
        self.finished: list[RunInfo] = []
        self._progress = progress
        self._number = first_number
        self._consumed = consumed
        self._position = position_of(task.seed)
        # The rest of the share is for row objects and one sample of the source.
        self._room = 1 if task.by_reference else int(task.memory_bytes * 0.6)
        self._buffer = _buffer(self._room)
        self._text_room = int(task.memory_bytes * (0.7 if task.by_reference else 0.15))
        self._used = 0
        self._text_used = 0
        self._rows: list[tuple[Any, ...]] = []
        self._texts: list[bytes] = []
        self._classes: dict[str, int] = {}
        self._largest_label = NO_LABEL
        self._stamp: tuple[str, Stamp] | None = None

    def read(self, samples: Iterator[Sample | SampleRef]) -> None:
        for sample in samples:
            check_sample(sample)
            if isinstance(sample, Sample):
                self._add_stored(sample)
            else:
                self._add_reference(sample)
        self._flush()

    def _add_reference(self, sample: SampleRef) -> None:
        sizes = {}
        stamps = {}
        for extension, value in sample.fields.items():
            if isinstance(value, ByteRange):
                sizes[extension] = value.size
                if self._stamp is None or self._stamp[0] != value.path:
                    self._stamp = value.path, stamp_of(value.path)
                stamps[value.path] = self._stamp[1]
            else:
                sizes[extension] = len(value)
        total = self._layout(sample.key, sizes).total
        self._append(sample, total, 0, 0, encode_fields(sample.fields, stamps), None, 0)

    def _add_stored(self, sample: Sample) -> None:
        fields = dict(sample.fields)
        image = image_field(fields)
        info = probe(fields[image]) if image is not None else None
        if self.task.encode is not None and image is not None and info is not None:
            fields, image = _encoded(sample.key, fields, image, self.task.encode)
            info = probe(fields[image])
        layout = self._layout(sample.key, {extension: len(data) for extension, data in fields.items()})
        if self._used + layout.total > len(self._buffer):
            self._flush()
            if layout.total > len(self._buffer):
                self._buffer = _buffer(layout.total)
        at = start = self._used
        for piece in sample_bytes(sample.key, fields):
            self._buffer[at : at + len(piece)] = piece
            at += len(piece)
        self._used = at
        flags = 0
        parts = (0, 0, 0, 0, 0)
        if image is not None and info is not None:
            size = len(fields[image])
            if size >= 2**32:
                raise SourceError(f"sample {sample.key!r}: the image has {size} bytes; 4 GiB is the limit")
            flags = LYING_EXTENSION if lying(image, info.format) else 0
            wide = max(info.width, info.height) > 0xFFFF
            parts = (
                layout.payloads[image],
                size,
                0 if wide else info.width,
                0 if wide else info.height,
                int(info.format),
            )
        self._append(sample, layout.total, layout.total, start, b"", parts, flags)

    def _layout(self, key: str, sizes: Mapping[str, int]) -> Any:
        try:
            return sample_layout(key, sizes)
        except OptionsError as error:
            raise SourceError(f"sample {key[:200]!r}: {error}") from None

    def _append(
        self,
        sample: Sample | SampleRef,
        total: int,
        stored: int,
        start: int,
        fields: bytes,
        image: tuple[int, int, int, int, int] | None,
        flags: int,
    ) -> None:
        named = -1
        if sample.class_name is not None:
            named = self._classes.setdefault(sample.class_name, len(self._classes))
        else:
            self._largest_label = max(self._largest_label, sample.label)
        if "cls" not in sample.fields and (sample.label != NO_LABEL or named >= 0):
            flags |= ADD_CLS
            total += cls_bytes(sample.key)
        key = sample.key.encode()
        image_start, image_size, width, height, image_format = image or (0, 0, 0, 0, 0)
        self._consumed += 1
        self._rows.append(
            (
                self._position(sample.key), total, stored, start, 0, image_start, image_size, 0, 0,
                width, height, image_format, flags, len(key), len(fields), sample.label, named, self._consumed,
            )
        )  # fmt: skip
        self._texts.append(key + fields)
        self._text_used += len(key) + len(fields) + _ROW_MEMORY
        self._progress.add(samples=1, size=total)
        if self._text_used > self._text_room:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        rows = np.array(self._rows, RUN_ROW)
        self._rows.clear()
        starts = rows["data_start"].astype(np.int64)
        if not self.task.by_reference:
            view = np.frombuffer(self._buffer, np.uint8)
            rows["stored_crc32c"] = crc32c_ranges(view, starts, rows["stored"].astype(np.int64))
            images = starts + rows["image_start"].astype(np.int64)
            rows["image_crc32c"] = crc32c_ranges(view, images, rows["image_bytes"].astype(np.int64))
            del view
        order = np.argsort(rows["position"], kind="stable")
        rows = rows[order]
        texts = [self._texts[i] for i in order.tolist()]
        self._texts = []
        lengths = rows["key_bytes"].astype(np.uint64) + rows["fields_bytes"]
        rows["text_start"] = np.cumsum(lengths) - lengths
        data: list[memoryview] = []
        if not self.task.by_reference:
            whole = memoryview(self._buffer)
            data = [
                whole[start : start + size]
                for start, size in zip(starts[order].tolist(), rows["stored"].tolist(), strict=True)
            ]
            rows["data_start"] = np.cumsum(rows["stored"]) - rows["stored"]
            whole.release()
        info = RunInfo(
            range_index=self.task.index,
            number=self._number,
            samples=len(rows),
            consumed=self._consumed,
            total_bytes=int(rows["total"].sum()),
            data_bytes=int(rows["stored"].sum()),
            text_bytes=int(lengths.sum()),
            classes=tuple(self._classes),
            largest_label=self._largest_label,
        )
        write_run(self.task.folder, info, rows, texts, data)
        for piece in data:
            piece.release()
        self.finished.append(info)
        self._number += 1
        self._used = self._text_used = 0
        if len(self._buffer) > self._room:
            self._buffer = _buffer(self._room)


def _encoded(key: str, fields: dict[str, bytes], image: str, encode: EncodeSpec) -> tuple[dict[str, bytes], str]:
    """The fields with the image re-encoded, in the same order, under the new extension."""
    try:
        data = encode(fields[image], probe(fields[image]))
    except Exception as error:
        error.add_note(f"while re-encoding the image of sample {key!r}")
        raise
    if data is None:
        return fields, image
    stem, dot, _ = image.rpartition(".")
    renamed = f"{stem}{dot}{encode.extension}"
    if renamed != image and renamed in fields:
        raise SourceError(f"sample {key!r} has {image!r} and {renamed!r}: re-encoding would make them one")
    return {renamed if name == image else name: data if name == image else old for name, old in fields.items()}, renamed


def _buffer(size: int) -> mmap.mmap:
    # Anonymous memory: pages count only once they are written, and go back to the system in one piece.
    return big_pages(mmap.mmap(-1, size))
