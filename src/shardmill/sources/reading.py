"""From refs to samples: reads byte ranges of local files with few open files."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from types import TracebackType

from shardmill.errors import SourceError
from shardmill.records import ByteRange, Sample, SampleRef

MAX_FIELD_BYTES = 2**31
"""A single field above 2 GiB is damage or a decompression bomb, not an image."""


class RangeReader:
    """Reads byte ranges of files that must not change meanwhile. A context manager; one owner, not thread-safe."""

    def __init__(self, *, max_open_files: int = 16) -> None:
        self._max_open = max_open_files
        self._open: OrderedDict[str, tuple[int, os.stat_result]] = OrderedDict()

    def read(self, place: ByteRange) -> bytes:
        """The bytes of ``place``. Raises `SourceError` where the file is gone, unreadable or shorter than that."""
        fd = self._descriptor(place.path)
        try:
            data = os.pread(fd, place.size, place.start)
            while len(data) < place.size:  # Linux gives at most 2 GiB - 4 KiB a call
                more = os.pread(fd, place.size - len(data), place.start + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise SourceError(f"{place.path} @ {place.start}: cannot read: {error.strerror}") from error
        if len(data) < place.size:
            raise SourceError(
                f"{place.path} @ {place.start}: only {len(data)} of {place.size} bytes are there: "
                "the file became shorter while it was read; leave the source alone and start again"
            )
        return data

    def load(self, ref: SampleRef) -> Sample:
        """``ref`` with its bytes. A file's last change is looked at when its descriptor is closed."""
        fields = {name: data if isinstance(data, bytes) else self.read(data) for name, data in ref.fields.items()}
        return Sample(ref.key, fields, ref.label, ref.class_name)

    def close(self) -> None:
        """Close all files. Raises `SourceError` where one was changed since it was opened."""
        while self._open:
            self._close_oldest()

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        while self._open:
            os.close(self._open.popitem()[1][0])

    def _descriptor(self, path: str) -> int:
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path][0]
        if len(self._open) >= self._max_open:
            self._close_oldest()
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceError(f"{path}: cannot open: {error.strerror}") from error
        self._open[path] = fd, os.fstat(fd)
        return fd

    def _close_oldest(self) -> None:
        path, (fd, before) = self._open.popitem(last=False)
        after = os.fstat(fd)
        os.close(fd)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise SourceError(f"{path}: changed while it was read; leave the source alone and start again")


def load_all(refs: Iterable[SampleRef]) -> Iterator[Sample]:
    """Samples of ``refs``, in their order. One read per field; a run of fields of one file costs one open."""
    with RangeReader() as reader:
        for ref in refs:
            yield reader.load(ref)


def check_field_size(size: int, name: str, place: str) -> None:
    """Raises `SourceError` for an image of no bytes, or of more than `MAX_FIELD_BYTES`."""
    if size == 0:
        raise SourceError(f"{place}: {name!r} is empty (0 bytes); replace it, or move it away")
    if size > MAX_FIELD_BYTES:
        raise SourceError(f"{place}: {name!r} has {size} bytes; a field holds at most {MAX_FIELD_BYTES}")
