"""Where a tar lies, and its bytes front to back, decompressed where they need to be."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from shardmill.errors import TarError
from shardmill.shards.tar import Payload, read_stream
from shardmill.sources.reading import check_field_size
from shardmill.sources.tarsamples import Entry

GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class TarArea:
    """A tar: ``size`` bytes of the file ``path`` from byte ``start``. ``name`` is what errors call it."""

    path: str
    start: int
    size: int
    name: str


def stream_entries(stream: Payload, place: str) -> Iterator[Entry]:
    """The members of a tar read front to back, each with its bytes. Memory is one member."""
    for member, payload in read_stream(stream, place):
        # Before the bytes: a few KB of gzip can unfold to one member of many GB.
        if member.size:
            check_field_size(member.size, member.name, f"{place} @ {member.header_offset}")
        yield Entry(member.name, member.header_offset, payload.read())


@contextmanager
def open_area(area: TarArea) -> Iterator[Payload]:
    """A stream of the tar's bytes, decompressed where its magic says gzip. Damage in it raises `TarError`."""
    with Path(area.path).open("rb") as file:
        file.seek(area.start)
        yield decompressed(_Window(file, area.size), area.name)


def decompressed(stream: Payload, place: str) -> Payload:
    """``stream``, through gzip where its first bytes say so."""
    return _Decompressed(stream, place)


def is_compressed(area: TarArea) -> bool:
    """Whether the area starts with the magic of gzip."""
    with Path(area.path).open("rb") as file:
        file.seek(area.start)
        return area.size > 2 and file.read(2) == GZIP


def file_area(path: str) -> TarArea:
    """The whole of a file."""
    return TarArea(path, 0, Path(path).stat().st_size, path)


class _Window:
    """The next ``size`` bytes of a file."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


class _Decompressed:
    """A stream, through gzip where its magic says so, whose damage is told as what it is."""

    def __init__(self, stream: Payload, place: str) -> None:
        self._place = place
        head = stream.read(2)
        whole = _Counted(head, stream)
        self._source = whole
        self._from: Payload = _unzipped(whole) if head == GZIP else whole

    def read(self, size: int = -1, /) -> bytes:
        try:
            return self._from.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TarError(
                f"the gzip data is cut or damaged ({error}), at about this byte of the compressed file",
                path=self._place,
                offset=self._source.taken,
            ) from error


class _Counted:
    """``head`` and then ``stream``; counts what was taken."""

    def __init__(self, head: bytes, stream: Payload) -> None:
        self._head = head
        self._stream = stream
        self.taken = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._head if size < 0 else self._head[:size]
        self._head = self._head[len(data) :]
        if size < 0 or len(data) < size:
            data += self._stream.read(size if size < 0 else size - len(data))
        self.taken += len(data)
        return data


def _unzipped(stream: _Counted) -> Payload:
    # Concatenated gzip members are one stream, and each one's CRC is checked at its end.
    return cast(Payload, gzip.GzipFile(fileobj=cast(BinaryIO, stream), mode="rb"))
