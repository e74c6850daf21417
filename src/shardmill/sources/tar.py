"""Tars as sources: piles of images, WebDataset tars, a tar per class, and a tar of such tars. Nothing is extracted.

A tar that is not compressed gives byte ranges after a scan of its headers. A compressed one is read front to back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardmill.errors import SourceError
from shardmill.records import ByteRange, Sample, SampleRef
from shardmill.shards.tar import read_members, read_stream
from shardmill.shards.tarscan import scan_tar
from shardmill.sources.keys import is_litter
from shardmill.sources.protocols import Source, SourceInfo
from shardmill.sources.reading import RangeReader
from shardmill.sources.streams import TarArea, decompressed, open_area, stream_entries
from shardmill.sources.tarsamples import Entry, Layout, numbered, sample_refs, tar_stem


@dataclass(frozen=True, slots=True)
class TarPart:
    """The samples of one uncompressed tar, in file order."""

    area: TarArea
    layout: Layout

    def __iter__(self) -> Iterator[Sample]:
        """One pass, front to back."""
        with RangeReader() as reader:
            for ref in sample_refs(self._walk(reader), self.area.name, self.layout, reader.read):
                yield reader.load(ref)

    def refs(self) -> Iterator[SampleRef]:
        """Reads the headers first (see `scan_tar`), payloads never; labels in ``.cls`` members one by one."""
        area = self.area
        with RangeReader() as reader:
            table = scan_tar(area.path, start=area.start, size=area.size, name=area.name)
            entries = (
                Entry(member.name, member.header_offset - area.start, self._range(member.payload_offset, member.size))
                for member in table.members()
            )
            yield from sample_refs(entries, area.name, self.layout, reader.read)

    def describe(self) -> SourceInfo:
        """Looks at the file's size and time only."""
        return describe_tars(self.area.name, "tar", "", [self.area], None)

    def _walk(self, reader: RangeReader) -> Iterator[Entry]:
        area = self.area

        def read(at: int, size: int) -> bytes:
            return reader.read(self._range(area.start + at, max(0, min(size, area.size - at))))

        for member in read_members(read, area.size, area.name):
            yield Entry(member.name, member.header_offset, self._range(area.start + member.payload_offset, member.size))

    def _range(self, start: int, size: int) -> ByteRange:
        return ByteRange(self.area.path, start, size)


@dataclass(frozen=True, slots=True)
class CompressedPart:
    """The samples of one ``.tar.gz``, in file order."""

    area: TarArea
    layout: Layout

    def __iter__(self) -> Iterator[Sample]:
        """One pass, front to back; memory is one sample."""
        with open_area(self.area) as stream:
            entries = stream_entries(stream, self.area.name)
            yield from _samples(sample_refs(entries, self.area.name, self.layout, _no_fetch))

    def describe(self) -> SourceInfo:
        """Looks at the file's size and time only."""
        return describe_tars(self.area.name, "tar", "", [self.area], None)


@dataclass(frozen=True, slots=True)
class TarSource:
    """Uncompressed tars, one after another."""

    info: SourceInfo
    parts: tuple[TarPart, ...] = field(repr=False)

    def __iter__(self) -> Iterator[Sample]:
        for part in self.parts:
            yield from part

    def refs(self) -> Iterator[SampleRef]:
        """Scans the headers of each tar when its turn comes."""
        for part in self.parts:
            yield from part.refs()

    def split(self) -> Sequence[Source]:
        """One part per tar."""
        return self.parts

    def describe(self) -> SourceInfo:
        """What was seen when the source was opened; the fingerprint is taken anew."""
        return describe_again(self.info, [part.area for part in self.parts])


@dataclass(frozen=True, slots=True)
class CompressedTarSource:
    """Tars of which one or more are compressed, one after another: only front to back."""

    info: SourceInfo
    parts: tuple[TarPart | CompressedPart, ...] = field(repr=False)

    def __iter__(self) -> Iterator[Sample]:
        for part in self.parts:
            yield from part

    def split(self) -> Sequence[Source]:
        """One part per tar."""
        return self.parts

    def describe(self) -> SourceInfo:
        """What was seen when the source was opened; the fingerprint is taken anew."""
        return describe_again(self.info, [part.area for part in self.parts])


@dataclass(frozen=True, slots=True)
class CompressedTarOfTars:
    """A ``.tar.gz`` of one tar per class, read front to back. Classes are known by name only, while reading."""

    info: SourceInfo
    area: TarArea
    ignore: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Sample]:
        seen: dict[str, str] = {}
        layout = Layout(grouped=False, ignore=self.ignore)
        with open_area(self.area) as outer:
            for member, payload in read_stream(outer, self.area.name):
                stem = inner_stem(member.name, self.area.name, seen)
                if stem is None:
                    continue
                place = f"{self.area.name}!{member.name}"
                entries = stream_entries(decompressed(payload, place), place)
                yield from _samples(sample_refs(entries, place, numbered(layout, -1, stem), _no_fetch))

    def describe(self) -> SourceInfo:
        """What was seen when the source was opened; the fingerprint is taken anew."""
        return describe_again(self.info, [self.area])


def inner_tars(area: TarArea) -> list[tuple[str, TarArea]]:
    """(class name, area) of each tar inside an uncompressed tar, in file order. Reads the outer headers."""
    seen: dict[str, str] = {}
    found = []
    table = scan_tar(area.path, start=area.start, size=area.size, name=area.name)
    for member in table.members():
        stem = inner_stem(member.name, area.name, seen)
        if stem is not None:
            inner = TarArea(area.path, member.payload_offset, member.size, f"{area.name}!{member.name}")
            found.append((stem, inner))
    return found


def inner_stem(name: str, place: str, seen: dict[str, str]) -> str | None:
    """The class of an inner tar by its name, ``None`` for litter. ``seen``: the names so far, by class."""
    if is_litter(name):
        return None
    stem = tar_stem(name)
    if stem is None:
        raise SourceError(f"{place}: {name!r} is not a tar like the members before it; pack it on its own")
    if stem in seen:
        raise SourceError(f"{place}: {seen[stem]!r} and {name!r} both stand for class {stem!r}; rename one of them")
    seen[stem] = name
    return stem


def describe_tars(
    name: str, kind: str, label_source: str, areas: Sequence[TarArea], class_names: tuple[str, ...] | None
) -> SourceInfo:
    """Looks at sizes and times of the files, not into them."""
    digest = hashlib.sha256(kind.encode())
    for path in dict.fromkeys(area.path for area in areas):
        info = Path(path).stat()
        digest.update(
            f"{Path(path).absolute()}\0{info.st_size}\0{info.st_mtime_ns}\n".encode("utf-8", "surrogateescape")
        )
    total = sum(area.size for area in areas)
    return SourceInfo(name, kind, label_source, class_names, total, digest.hexdigest())


def describe_again(info: SourceInfo, areas: Sequence[TarArea]) -> SourceInfo:
    """``info`` of the files as they are now."""
    return describe_tars(info.name, info.kind, info.label_source, areas, info.class_names)


def _samples(refs: Iterator[SampleRef]) -> Iterator[Sample]:
    for ref in refs:
        fields = {name: data for name, data in ref.fields.items() if isinstance(data, bytes)}
        yield Sample(ref.key, fields, ref.label, ref.class_name)


def _no_fetch(place: ByteRange) -> bytes:
    raise AssertionError("a stream has its bytes at hand")
