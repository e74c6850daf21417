"""Strict reading of tars: by byte ranges (only headers are fetched) or front to back (pipes, .gz).

Other readers of this field end silently at a damaged header or a cut, and lose the rest of the shard. This one
raises a `TarError` that names the path and the absolute offset, and delivers nothing after it.

A tar must end with two zero blocks, and nothing but zeros may follow them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NoReturn, Protocol

from shardmill.errors import TarError
from shardmill.shards.tarheader import (
    BLOCK,
    MAX_NAME_BYTES,
    MAX_PAX_BYTES,
    ZERO_BLOCK,
    Header,
    Pax,
    member_size,
    parse_header,
    parse_pax,
)

Read = Callable[[int, int], bytes]
"""``read(offset, size)``: the bytes ``[offset, offset + size)``, fewer only where the file ends."""

Special = Literal["refuse", "list"]
"""What to do with members that are not plain files: refuse links and devices, skip directories; or list all."""

_KINDS = {
    "1": "a hard link",
    "2": "a symbolic link",
    "3": "a device",
    "4": "a device",
    "5": "a directory",
    "6": "a FIFO",
}
_TAIL_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a tar. Offsets are absolute in the (decompressed) tar, in bytes.

    ``name`` is decoded as UTF-8 with surrogate escapes: ``name.encode("utf-8", "surrogateescape")`` gives the
    stored bytes back, whatever they are. ``header_offset`` is that of the first header of the member (a long
    name or PAX header, where it has one). ``typeflag`` is ``"0"`` for every kind of plain file.
    """

    name: str
    header_offset: int
    payload_offset: int
    size: int
    typeflag: str = "0"

    @property
    def end(self) -> int:
        """Where the next header starts: the end of the payload, rounded up to 512."""
        return self.payload_offset + padded(self.size)


class Payload(Protocol):
    """The bytes of one member while a stream stands on them."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to ``size`` bytes, all that is left where negative; ``b""`` at the member's end."""


class HeaderReader:
    """Members of one tar by position: ``next(at)`` parses the headers at ``at``. One owner, not thread-safe."""

    def __init__(self, read: Read, size: int | None, path: str, *, special: Special = "refuse") -> None:
        """``size`` is the length of the tar in bytes, ``None`` where only reading on will tell."""
        self._read = read
        self._size = size
        self._path = path
        self._special = special

    def next(self, at: int) -> tuple[Member | None, int]:
        """The next member at or after byte ``at``, and where to ask next; ``None`` after a sound end.

        ``at`` must be 0 or the ``end`` of a member. Costs one read per header block. A member that is passed
        over (a directory) is not returned.
        """
        while True:
            member = self._member(at)
            if member is None:
                return None, at
            if member.typeflag == "0" or self._special == "list":
                return member, member.end
            if member.typeflag != "5":
                self._fail(
                    f"member {member.name!r} is {_KINDS[member.typeflag]}, not a file",
                    member.header_offset,
                    hint="pack the files it points to (tar --dereference)" if member.typeflag in "12" else None,
                )
            at = member.end

    def _member(self, at: int) -> Member | None:
        first, start, pax, long_name, long_link = at, at, None, None, False
        while True:
            block = self._read(at, BLOCK)
            if block == ZERO_BLOCK and at == first:
                self._end(at)
                return None
            if block == ZERO_BLOCK:
                self._fail("the archive ends between an extended header and its member", at)
            if len(block) < BLOCK:
                self._fail_short(at, first, block)
            header = self._header(block, at)
            match header.typeflag:
                case "x" | "X":
                    if pax is not None:
                        self._fail("two PAX headers for one member", at)
                    pax = self._pax(at, header)
                case "g":
                    if at != start:
                        self._fail("a PAX global header between an extended header and its member", at)
                    found = self._pax(at, header)
                    if found != Pax():
                        self._fail("a PAX global header sets path or size for every member", at)
                    start = at + BLOCK + padded(header.size)
                case "L":
                    if long_name is not None:
                        self._fail("two GNU long names for one member", at)
                    long_name = self._long_name(at, header)
                case "K":
                    if long_link:
                        self._fail("two GNU long links for one member", at)
                    long_link = bool(self._long_name(at, header))
                case _:
                    return self._plain(start, at, header, pax or Pax(), long_name)
            at += BLOCK + padded(header.size)

    def _plain(self, start: int, at: int, header: Header, pax: Pax, long_name: bytes | None) -> Member:
        def fail(problem: str) -> NoReturn:
            self._fail(problem, at)

        name = header.name
        if long_name is not None and pax.path is not None and long_name != pax.path:
            fail(f"member name is ambiguous: {pax.path[:64]!r} by PAX, {long_name[:64]!r} by its GNU long name")
        name = pax.path or long_name or name
        shown = name[:200].decode("utf-8", "backslashreplace")
        if header.typeflag == "S" or pax.sparse:
            self._fail(
                f"member {shown!r} is stored sparse: readers disagree on what its bytes are",
                start,
                hint="write the tar again without --sparse",
            )
        if header.typeflag != "0" and header.typeflag not in _KINDS:
            fail(f"member {shown!r} has type {header.typeflag!r}, which no two readers treat alike")
        if not name:
            fail("a member without a name")
        if header.typeflag == "0" and name.endswith(b"/"):
            fail(f"member {shown!r} is a file by its type and a directory by its name")
        size = member_size(header, pax, fail)
        if header.typeflag != "0" and size:
            # tarfile reads on right behind such a header, GNU tar skips the size: two different archives.
            kind = _KINDS[header.typeflag]
            fail(f"member {shown!r} is {kind} with a size of {size}: readers disagree on where the next one starts")
        text = name.decode("utf-8", "surrogateescape")
        member = Member(text, start, at + BLOCK, size, header.typeflag)
        if self._size is not None and member.end > self._size:
            missing = member.end - self._size
            self._fail(
                f"the file ends {missing} bytes before the end of member {shown!r} "
                f"({size} bytes, padded to {padded(size)}): it was cut",
                self._size,
            )
        return member

    def _header(self, block: bytes, at: int) -> Header:
        def fail(problem: str) -> NoReturn:
            hint = None
            if at == 0:
                problem = f"not a tar: the first bytes are {block[:16].hex(' ')} ({problem})"
                if block.startswith(b"\x1f\x8b"):
                    hint = "it is gzip-compressed: decompress it, or read it as a stream"
            self._fail(problem, at, hint=hint)

        return parse_header(block, fail)

    def _pax(self, at: int, header: Header) -> Pax:
        if header.size > MAX_PAX_BYTES:
            self._fail(f"a PAX header of {header.size} bytes; at most {MAX_PAX_BYTES} are accepted", at)

        def fail(problem: str) -> NoReturn:
            self._fail(problem, at + BLOCK)

        return parse_pax(self._body(at, header), fail)

    def _long_name(self, at: int, header: Header) -> bytes:
        if not 1 < header.size <= MAX_NAME_BYTES + 1:
            self._fail(f"a GNU long name of {header.size} bytes; 1 to {MAX_NAME_BYTES} are accepted", at)
        name, nul, rest = self._body(at, header).partition(b"\0")
        if not name or (nul and rest.strip(b"\0")):
            self._fail("a GNU long name that is empty or has bytes after its end", at + BLOCK)
        return name

    def _body(self, at: int, header: Header) -> bytes:
        data = self._read(at + BLOCK, padded(header.size))
        if len(data) < padded(header.size):
            self._fail(f"the file ends inside an extended header of {header.size} bytes: it was cut", at)
        return data[: header.size]

    def _end(self, at: int) -> None:
        """Check the end marker and that only zeros follow it, whatever their number."""
        second = self._read(at + BLOCK, BLOCK)
        if second != ZERO_BLOCK:
            if len(second) < BLOCK and not any(second):
                self._fail("the end marker is cut: one zero block where two belong", at)
            self._fail("a single zero block with data after it, where two zero blocks end a tar", at)
        if at == 0:
            self._fail("a tar without a single member: nothing but zeros", 0)
        at += 2 * BLOCK
        while chunk := self._read(at, _TAIL_CHUNK):
            if any(chunk):
                first = at + len(chunk) - len(chunk.lstrip(b"\0"))
                block = self._read(first, BLOCK) if self._size is not None else b""
                another = block[257:262] == b"ustar"
                self._fail(
                    "data after the end marker" + (": another tar was appended" if another else ""),
                    first,
                    hint="split it, or append with tar --concatenate" if another else None,
                )
            at += len(chunk)

    def _fail_short(self, at: int, first: int, block: bytes) -> NoReturn:
        if at == 0:
            found = f"{len(block)} bytes: {block[:16].hex(' ')}" if block else "an empty file"
            self._fail(f"not a tar: {found}", 0)
        if block:
            self._fail(f"the file ends inside a header ({len(block)} of {BLOCK} bytes): it was cut", at)
        if at != first:
            self._fail("the file ends between an extended header and its member: it was cut", at)
        self._fail("the end marker is missing: the file was cut at a member's end, or never finished", at)

    def _fail(self, problem: str, at: int, *, hint: str | None = None) -> NoReturn:
        raise TarError(problem, path=self._path, offset=at, hint=hint)


def padded(size: int) -> int:
    """``size`` rounded up to whole blocks of 512 bytes."""
    return -(-size // BLOCK) * BLOCK


def read_members(
    read: Read, size: int | None, path: str, *, start: int = 0, special: Special = "refuse"
) -> Iterator[Member]:
    """The members of a tar of ``size`` bytes in file order; only headers are read.

    ``start`` is 0 or the ``end`` of a member. With ``special="refuse"`` only plain files come out:
    directories are passed over, links and devices raise. Raises `TarError` at the first byte that is not what a
    sound tar has there, after the members before it; sparse members always raise.
    """
    headers = HeaderReader(read, size, path, special=special)
    while True:
        member, start = headers.next(start)
        if member is None:
            return
        yield member


def file_members(path: str | os.PathLike[str], *, special: Special = "refuse") -> Iterator[Member]:
    """`read_members` of a file on disk: one small ``pread`` per header. `scan_tar` is the fast way to all of them."""
    name = os.fspath(path)
    with Path(name).open("rb", buffering=0) as file:
        fd = file.fileno()
        size = os.fstat(fd).st_size
        yield from read_members(lambda at, n: os.pread(fd, n, at), size, name, special=special)


def read_stream(
    stream: BinaryIO | Payload, path: str, *, special: Special = "refuse"
) -> Iterator[tuple[Member, Payload]]:
    """Members of a tar front to back, each with a reader of its payload. For pipes and decompressed streams.

    A payload is readable until the next member is asked for; what was not read of it is passed over. Memory is
    one block, whatever the members' sizes. Raises `TarError` as `read_members` does; offsets count from the
    stream's first byte.
    """
    forward = _Forward(stream, path)
    headers = HeaderReader(forward.read, None, path, special=special)
    at = 0
    while True:
        member, at = headers.next(at)
        if member is None:
            return
        forward.enter(member)
        yield member, forward
        forward.leave()


class _Forward:
    """A stream that only goes on, as the ``read(offset, size)`` that `HeaderReader` wants; also the payload."""

    def __init__(self, stream: BinaryIO | Payload, path: str) -> None:
        self._stream = stream
        self._path = path
        self._at = 0
        self._member: Member | None = None
        self._left = 0

    def read(self, *args: int) -> bytes:
        """``read(offset, size)`` for headers, ``read([size])`` for the payload of the current member."""
        if len(args) == 2:
            self._skip_to(args[0])
            return self._take(args[1])
        wanted = self._left if not args or args[0] < 0 else min(args[0], self._left)
        data = self._take(wanted)
        self._left -= len(data)
        if len(data) < wanted:
            self._fail_cut()
        return data

    def enter(self, member: Member) -> None:
        self._member, self._left = member, member.size

    def leave(self) -> None:
        assert self._member is not None
        self._skip_to(self._member.end)
        self._member, self._left = None, 0

    def _skip_to(self, offset: int) -> None:
        assert offset >= self._at, "a stream cannot go back"
        while self._at < offset:
            if not self._take(min(offset - self._at, _TAIL_CHUNK)):
                self._fail_cut()

    def _take(self, size: int) -> bytes:
        # In pieces: a damaged size of 2**60 must end at the end of the stream, not in an allocation of 2**60.
        parts = []
        while size > 0:
            data = self._stream.read(min(size, _TAIL_CHUNK))
            if not data:
                break
            parts.append(data)
            size -= len(data)
            self._at += len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _fail_cut(self) -> NoReturn:
        member = self._member
        where = f"member {member.name!r} of {member.size} bytes" if member else "a member"
        raise TarError(f"the stream ends inside {where}: it was cut", path=self._path, offset=self._at)
