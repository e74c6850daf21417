"""Fields whose bytes still lie in the source, as a few bytes of JSON in a run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from shardmill.errors import SourceError
from shardmill.records import ByteRange


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a file looked like when it was listed; a file that changes before it is copied is refused."""

    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Reference:
    """``size`` bytes from ``start`` of a file that must still match its stamp."""

    path: str
    start: int
    size: int
    stamp: Stamp


def stamp_of(path: str) -> Stamp:
    """Asks the file system; errors name the file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - one call per image, Path is 3 times slower
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}: it was listed a moment ago; is something changing it?") from None
    return Stamp(status.st_size, status.st_mtime_ns)


def encode_fields(fields: Mapping[str, ByteRange | bytes], stamps: Mapping[str, Stamp]) -> bytes:
    """JSON: ``[extension, text]`` for bytes at hand (latin-1), ``[extension, path, start, size, file, mtime]``."""
    parts: list[list[object]] = []
    for extension, value in fields.items():
        if isinstance(value, ByteRange):
            stamp = stamps[value.path]
            parts.append([extension, value.path, value.start, value.size, stamp.size, stamp.mtime_ns])
        else:
            parts.append([extension, value.decode("latin-1")])
    return json.dumps(parts, separators=(",", ":")).encode()


def decode_fields(data: bytes) -> dict[str, Reference | bytes]:
    """The inverse of `encode_fields`."""
    fields: dict[str, Reference | bytes] = {}
    for extension, *rest in json.loads(data):
        if len(rest) == 1:
            fields[extension] = rest[0].encode("latin-1")
        else:
            path, start, size, file_size, mtime_ns = rest
            fields[extension] = Reference(path, start, size, Stamp(file_size, mtime_ns))
    return fields
