"""What `verify` finds, and where exactly inside a damaged sample the damage lies. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import google_crc32c

from shardmill.errors import OptionsError, TarError
from shardmill.shards.tar import BLOCK, HeaderReader, Member, member_header, padded

_MOST_HEADER_DAMAGE = 64  # bytes of one header block that may differ before it is called unrecognisable


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. ``path``: relative to the dataset. ``offset``: of the first wrong byte, or of the
    smallest unit known to hold it, in bytes; ``None`` where the whole file is meant. ``key``: of the sample."""

    path: str
    problem: str
    offset: int | None = None
    key: str | None = None

    def __str__(self) -> str:
        place = self.path if self.offset is None else f"{self.path} @ {self.offset}"
        return f"{place}: {self.problem}" if self.key is None else f"{place} (key {self.key!r}): {self.problem}"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the index says of one sample. Offsets are absolute in the shard ``path``."""

    path: str
    key: str | None
    start: int
    image_offset: int
    image_bytes: int
    image_crc32c: int
    sample_crc32c: int
    label: int
    canonical: bool = True
    """Whether `pack` wrote the shard, so that headers and padding are known to the byte."""
    extensions: tuple[str, ...] = field(default=(), repr=False)
    """Extensions that samples of this dataset have, most frequent first: to recognise a damaged name."""


def faults_in_sample(data: bytes, recorded: Recorded) -> list[Fault]:
    """Every fault of a sample whose crc32c differs from the recorded one, as exactly as the index allows.

    Headers, padding and the label are compared with what they must be; a candidate for a damaged header is proven
    where putting it right restores the recorded crc32c. An image is known by its own crc32c. What is left is named as
    the sample.
    """
    known = recorded
    faults: list[Fault] = []
    repaired = bytearray(data)
    image = known.image_offset - known.start
    image_damaged = google_crc32c.value(data[image : image + known.image_bytes]) != known.image_crc32c
    if image_damaged:
        faults.append(
            Fault(
                known.path,
                f"the image's {known.image_bytes} bytes do not match their crc32c",
                known.image_offset,
                known.key,
            )
        )
    other: Member | None = None
    for found in _members(data, repaired, known):
        if isinstance(found, Fault):
            faults.append(found)
            continue
        if found.payload_offset != known.image_offset and found.size:
            wrong = _label_fault(repaired, found, known)
            if wrong is not None:
                faults.append(wrong)
            elif not found.name.endswith(".cls"):
                other = found
    if not image_damaged and google_crc32c.value(bytes(repaired)) != known.sample_crc32c:
        where = known.start if other is None else other.payload_offset
        what = "the sample's" if other is None else f"member {other.name!r}: the sample's"
        faults.append(Fault(known.path, f"{what} {len(data)} bytes do not match their crc32c", where, known.key))
    return sorted(faults, key=lambda fault: fault.offset or 0)


def _members(data: bytes, repaired: bytearray, known: Recorded) -> Iterator[Fault | Member]:
    """Walks the members; what is wrong with headers and padding is put right in ``repaired`` and yielded first."""
    at = 0
    while at < len(data):
        member, fault = _header(data, at, known)
        if fault is not None:
            yield fault
        if member is None:
            return
        payload = member.payload_offset - known.start
        if known.canonical:
            repaired[at:payload] = member_header(member.name, member.size)
        end = payload + padded(member.size)
        pad = data[payload + member.size : end]
        stray = next((i for i, byte in enumerate(pad) if byte), None)
        if stray is not None and known.canonical:
            yield Fault(known.path, "the padding is not zero", member.payload_offset + member.size + stray, known.key)
            repaired[payload + member.size : end] = bytes(len(pad))
        yield member
        at = end


def _header(data: bytes, at: int, known: Recorded) -> tuple[Member | None, Fault | None]:
    """The member whose headers begin at ``at``, and what is wrong with them."""

    def read(offset: int, size: int) -> bytes:
        return data[offset - known.start : offset - known.start + size]

    problem = "the header is damaged"
    where = known.start + at
    try:
        member, _ = HeaderReader(read, known.start + len(data), known.path).next(known.start + at)
        fits = member is not None and (known.key is None or member.name.startswith(f"{known.key}."))
        if member is not None and fits and member.end <= known.start + len(data):
            expected = member_header(member.name, member.size)
            actual = data[at : member.payload_offset - known.start]
            if not known.canonical or actual == expected:
                return member, None
            return member, Fault(known.path, problem, where + _first_difference(actual, expected), known.key)
    except TarError as error:
        problem, where = error.problem, error.offset if error.offset is not None else where
    candidate = _candidate(data, at, known)
    if candidate is None:
        return None, Fault(known.path, problem, where, known.key)
    expected = member_header(candidate.name, candidate.size)
    where = known.start + at + _first_difference(data[at : at + len(expected)], expected)
    return candidate, Fault(known.path, problem, where, known.key)


def _candidate(data: bytes, at: int, known: Recorded) -> Member | None:
    """The member that the damaged header most likely was: of all that could be there, the nearest in bytes."""
    if known.key is None or not known.canonical:
        return None
    best: tuple[int, Member] | None = None
    for extension in known.extensions:
        name = f"{known.key}.{extension}"
        try:
            header = len(member_header(name, 0))
        except OptionsError:
            continue  # an extension read from a damaged header
        image = known.image_offset - known.start
        rest = len(data) - at - header
        sizes: set[int] = set()
        stated = data[at + header - BLOCK + 124 : at + header - BLOCK + 135]
        if stated.isdigit() and not stated.strip(b"01234567"):
            sizes.add(int(stated, 8))
        if at + header == image:
            sizes.add(known.image_bytes)
        elif extension == "cls":
            sizes.add(len(str(known.label)))
        elif at > image:
            # The last member, or the last but the label: its size is known up to the padding.
            for end in (rest, rest - len(member_header(f"{known.key}.cls", 1)) - BLOCK):
                sizes.update(range(max(0, end - BLOCK + 1), end + 1))
        for size in sorted(sizes):
            expected = member_header(name, size)
            if at + len(expected) + padded(size) > len(data):
                continue
            actual = data[at : at + len(expected)]
            wrong = sum(one != two for one, two in zip(actual, expected, strict=True))
            if wrong <= _MOST_HEADER_DAMAGE and (best is None or wrong < best[0]):
                start = known.start + at
                best = wrong, Member(name, start, start + len(expected), size)
    return None if best is None else best[1]


def _label_fault(repaired: bytearray, member: Member, known: Recorded) -> Fault | None:
    if not known.canonical or not member.name.endswith(".cls") or known.label < 0:
        return None
    start = member.payload_offset - known.start
    actual = bytes(repaired[start : start + member.size])
    expected = str(known.label).encode()
    # A cls member of the source may hold the number in another way ("007\n"), or a word: only its crc can tell.
    if actual == expected or len(actual) != len(expected):
        return None
    candidate = repaired.copy()
    candidate[start : start + member.size] = expected
    if google_crc32c.value(bytes(candidate)) != known.sample_crc32c:
        return None
    repaired[:] = candidate
    where = member.payload_offset + _first_difference(actual, expected)
    return Fault(known.path, f"the label reads {actual!r}, the index says {known.label}", where, known.key)


def _first_difference(one: bytes, two: bytes) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
