"""Tar as shardmill writes it: deterministic bytes from (name, size), pure. Reading: `read_members`, `read_stream`.

A member is a ustar header, its payload, zeros up to 512. A name or size that ustar cannot hold gets a PAX header
before it. No times, owners or host facts: the same samples give the same bytes on every machine. Python's tarfile,
GNU tar and webdataset read the result alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from shardmill.errors import OptionsError
from shardmill.shards.tarheader import BLOCK, LARGEST_OCTAL, MAX_NAME_BYTES, MAX_SIZE
from shardmill.shards.tarread import (
    HeaderReader,
    Member,
    Payload,
    Read,
    Special,
    file_members,
    padded,
    read_members,
    read_stream,
)

__all__ = [
    "BLOCK",
    "END",
    "HeaderReader",
    "Member",
    "Payload",
    "Read",
    "SampleLayout",
    "Special",
    "file_members",
    "header_bytes",
    "member_header",
    "padded",
    "padding",
    "read_members",
    "read_stream",
    "sample_bytes",
    "sample_layout",
]

END = bytes(2 * BLOCK)
"""What ends a tar. Not padded to GNU tar's 10,240-byte records: no reader of files asks for that."""

Buffer: TypeAlias = bytes | bytearray | memoryview

_ZEROS = bytes(BLOCK)
_OWNER = b"0000644\0" + b"0000000\0" + b"0000000\0"  # mode, uid, gid
_MTIME = b"00000000000\0"
_MAGIC = bytes(100) + b"ustar\x0000" + bytes(32) + bytes(32) + b"0000000\0" + b"0000000\0"  # linkname ... devices
_FIXED_SUM = sum(_OWNER) + sum(_MTIME) + sum(_MAGIC) + 8 * ord(" ")


@dataclass(frozen=True, slots=True)
class SampleLayout:
    """Where the parts of one sample lie, in bytes from the sample's first header.

    ``total`` is everything up to the next sample, padding included; ``payloads[extension]`` the offset of that
    field's first byte.
    """

    total: int
    payloads: Mapping[str, int]


def padding(size: int) -> int:
    """How many zeros follow a payload of ``size`` bytes: 0 to 511."""
    return -size % BLOCK


def member_header(name: str, size: int) -> bytes:
    """The header blocks of a plain file: 512 bytes, or 1,536 and more where the name or size needs PAX.

    Names that came with bytes that are not UTF-8 (surrogate escapes) are written as those bytes, without the
    ``hdrcharset`` record that POSIX asks for: GNU tar warns about it, and every reader does right without. Raises
    `OptionsError` for a name that is empty, holds a NUL, ends with a slash or is over 4,096 bytes, and for a
    size that is negative or over 2**63 - 1.
    """
    raw = name.encode("utf-8", "surrogateescape")
    if not raw or b"\0" in raw or raw.endswith(b"/") or len(raw) > MAX_NAME_BYTES:
        raise OptionsError(f"{name[:64]!r} cannot name a tar member: empty, a NUL, a final slash or over 4,096 bytes")
    if not 0 <= size <= MAX_SIZE:
        raise OptionsError(f"a tar member cannot hold {size} bytes")
    if len(raw) <= 100 and size <= LARGEST_OCTAL and raw.isascii():
        return _block(raw, b"", size, b"0")
    records = b""
    prefix, base = b"", raw
    split = _split(raw) if raw.isascii() else None
    if split is None:
        records += _record(b"path", raw)
        # For readers without PAX: something ASCII that fits. Every reader we know takes the record instead.
        base = raw.decode("ascii", "replace").encode("ascii", "replace")[:100].rstrip(b"/")
    else:
        prefix, base = split
    if size > LARGEST_OCTAL:
        records += _record(b"size", str(size).encode())
        size = 0
    pax = b""
    if records:
        pax = _block(b"././@PaxHeader", b"", len(records), b"x") + records + _ZEROS[: padding(len(records))]
    return pax + _block(base, prefix, size, b"0")


def sample_layout(key: str, sizes: Mapping[str, int]) -> SampleLayout:
    """Plan one sample: members ``<key>.<extension>`` in the mapping's order, with payloads of these sizes."""
    at = 0
    payloads = {}
    for extension, size in sizes.items():
        at += header_bytes(f"{key}.{extension}", size)
        payloads[extension] = at
        at += padded(size)
    return SampleLayout(at, payloads)


def sample_bytes(key: str, fields: Mapping[str, Buffer]) -> list[Buffer]:
    """The sample as pieces to write one after another (``os.writev``); payloads are passed on, not copied."""
    pieces: list[Buffer] = []
    for extension, data in fields.items():
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        pieces.append(member_header(f"{key}.{extension}", size))
        pieces.append(data)
        if size % BLOCK:
            pieces.append(_ZEROS[: padding(size)])
    return pieces


def header_bytes(name: str, size: int) -> int:
    """``len(member_header(name, size))``, without building it where it is the usual 512."""
    if len(name) <= 100 and size <= LARGEST_OCTAL and name.isascii():
        return BLOCK
    return len(member_header(name, size))


def _split(raw: bytes) -> tuple[bytes, bytes] | None:
    """Cut a long name into the ustar prefix (155) and name (100) at the first slash where both fit."""
    at = raw.find(b"/", max(len(raw) - 101, 1))
    return (raw[:at], raw[at + 1 :]) if 0 < at <= 155 and at + 1 < len(raw) else None


def _record(key: bytes, value: bytes) -> bytes:
    """One PAX record; its length counts its own digits."""
    body = len(key) + len(value) + 3
    length = body + len(str(body))
    if len(str(length)) > len(str(body)):
        length += 1
    return b"%d %b=%b\n" % (length, key, value)


def _block(name: bytes, prefix: bytes, size: int, typeflag: bytes) -> bytes:
    octal = b"%011o\0" % size
    total = _FIXED_SUM + sum(name) + sum(octal) + sum(typeflag) + sum(prefix)
    return b"".join(
        (
            name.ljust(100, b"\0"),
            _OWNER,
            octal,
            _MTIME,
            b"%06o\0 " % total,
            typeflag,
            _MAGIC,
            prefix.ljust(155, b"\0"),
            bytes(12),
        )
    )
