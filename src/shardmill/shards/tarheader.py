"""One 512-byte tar header, and the PAX records before it: bytes to facts, pure. Strict where readers disagree.

The rule of this module: where Python's tarfile, GNU tar and libarchive would read the same bytes as different
(name, offset, size), the bytes are refused. Silence there is how payloads get smuggled and data gets lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

BLOCK = 512
ZERO_BLOCK = bytes(BLOCK)
MAX_NAME_BYTES = 4096
MAX_PAX_BYTES = 64 * 1024
MAX_SIZE = 2**63 - 1
LARGEST_OCTAL = 0o77777777777
"""The largest size that fits eleven octal digits: 8 GiB - 1."""

# Spaces before and NULs or spaces after are what every writer's padding looks like; anything else is damage.
_OCTAL = re.compile(rb" *([0-7]+)[ \0]*\Z")
_PAX_LENGTH = re.compile(rb"([0-9]{1,20}) ")
_DIGITS = re.compile(rb"[0-9]{1,19}\Z")

Fail = Callable[[str], NoReturn]
"""Raises the caller's error about this header: the caller knows the path and the absolute offset."""


@dataclass(frozen=True, slots=True)
class Header:
    """What one header block says by itself, before long names and PAX records are applied.

    ``name`` are the bytes as stored (with the ustar prefix); ``size`` is the size field, in bytes;
    ``typeflag`` one character, ``"0"`` for every kind of plain file.
    """

    name: bytes
    size: int
    typeflag: str


@dataclass(frozen=True, slots=True)
class Pax:
    """The PAX records that matter to a reader of samples. ``None`` where the header does not say."""

    path: bytes | None = None
    size: int | None = None
    sparse: bool = False


def checksum_fits(block: bytes, stored: int) -> tuple[bool, int]:
    """Whether ``stored`` is the sum of a header block, its own field counted as eight spaces; and that sum."""
    fixed = block[:148] + b"        " + block[156:BLOCK]
    unsigned = sum(fixed)
    if stored == unsigned:
        return True, unsigned
    # Historic Sun tars summed signed chars; tarfile and GNU tar accept both, so we do.
    return stored == unsigned - 256 * sum(byte >= 128 for byte in fixed), unsigned


def parse_header(block: bytes, fail: Fail) -> Header:
    """Read one header block of exactly 512 bytes. Every field that decides name, size or kind is checked."""
    stored = _OCTAL.match(block[148:156])
    fits, computed = checksum_fits(block, -1 if stored is None else int(stored[1], 8))
    if stored is None or not fits:
        found = block[148:156] if stored is None else f"{int(stored[1], 8):#o}"
        fail(f"header checksum is {found!s}, the header sums to {computed:#o}: the header is damaged")
    size = parse_size(block[124:136], fail)
    name = _text(block[0:100])
    typeflag = chr(block[156])
    magic, prefix = block[257:263], block[345:500]
    if magic == b"ustar\0":
        # star keeps access times behind a NUL in this field, so the prefix ends at the first NUL.
        head = _text(prefix)
        if head and typeflag not in "LKSxXg":
            if not name:
                fail(f"the name is ambiguous: a prefix {head[:64]!r} without a name after it")
            name = head + b"/" + name
    elif prefix[0] and typeflag not in "LKSxXg":
        # tarfile takes these bytes for a prefix, GNU tar for times: the name depends on the reader.
        fail("the name is ambiguous: a header that is not POSIX ustar has bytes in the prefix field")
    if typeflag == "\0" and name.endswith(b"/"):  # how V7 tar marks a directory
        typeflag = "5"
    if typeflag in "\0" + "7":
        typeflag = "0"
    return Header(name, size, typeflag)


def parse_size(raw: bytes, fail: Fail) -> int:
    """A size field of 12 bytes: octal digits, or base-256 where the first byte is 0x80. 0 <= size < 2**63."""
    if raw[0] & 0x80:
        value = int.from_bytes(raw[1:], "big")
        if raw[0] != 0x80 or value > MAX_SIZE:
            # 0xff starts a negative number: readers that believe it move backwards and loop (CVE-2025-8194).
            fail(f"member size is negative or over 2**63: base-256 field {raw.hex()}")
        return value
    octal = _OCTAL.match(raw)
    if octal is None:
        fail(f"member size is not an octal number: {raw!r}")
    return int(octal[1], 8)


def parse_pax(data: bytes, fail: Fail) -> Pax:
    """Read the records of one PAX extended header: ``"<length> <key>=<value>\\n"``, length over all of it."""
    seen: dict[bytes, bytes] = {}
    sparse = False
    at = 0
    while at < len(data):
        length = _PAX_LENGTH.match(data, at)
        if length is None:
            fail(f"PAX record at byte {at} does not start with its length: {data[at : at + 16]!r}")
        end = at + int(length[1])
        record = data[length.end() : end - 1]
        key, equals, value = record.partition(b"=")
        if end > len(data) or end <= length.end() or data[end - 1 : end] != b"\n" or not equals or not key:
            fail(
                f"PAX record at byte {at} is damaged: length {int(length[1])} of {len(data) - at} bytes left, "
                f"starting {data[at : at + 32]!r}"
            )
        if key in (b"path", b"size"):
            if seen.get(key, value) != value:
                fail(f"PAX header gives {key.decode()} twice, with different values")
            seen[key] = value
        sparse = sparse or key.startswith(b"GNU.sparse.")
        at = end
    path, size = seen.get(b"path"), seen.get(b"size")
    if path is not None and (not path or b"\0" in path or len(path) > MAX_NAME_BYTES):
        fail(f"PAX path is empty, holds a NUL or is longer than {MAX_NAME_BYTES} bytes: {path[:64]!r}")
    if size is not None and (_DIGITS.match(size) is None or int(size) > MAX_SIZE):
        fail(f"PAX size is not a number of bytes: {size[:32]!r}")
    return Pax(path, None if size is None else int(size), sparse)


def member_size(header: Header, pax: Pax, fail: Fail) -> int:
    """The payload size where a PAX record and the header field may both speak.

    PAX wins, as POSIX says, but only where the field could not hold the number. A disagreement on a size that
    fits is how one reader is made to see members that another does not (CVE-2025-62518), so it is refused.
    """
    if pax.size is None or pax.size == header.size:
        return header.size
    # What writers put into the field when the size does not fit it: zero, all sevens, or the low bits.
    if pax.size <= LARGEST_OCTAL or header.size not in (0, LARGEST_OCTAL, pax.size & LARGEST_OCTAL):
        fail(f"member size is ambiguous: {pax.size} by its PAX header, {header.size} by its own header")
    return pax.size


def _text(field: bytes) -> bytes:
    """A NUL-terminated field, without the NUL and what follows it."""
    return field.partition(b"\0")[0]
