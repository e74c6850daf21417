"""Members of tars to samples: pure over entries, whether their bytes are at hand or still in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter

from shardmill.errors import SourceError
from shardmill.records import NO_LABEL, ByteRange, SampleRef
from shardmill.shards.grouping import group_samples, parse_label, plain_name, split_key
from shardmill.sources.keys import KeyCheck, NameFilter, is_image_name, is_litter, is_note
from shardmill.sources.labels import Labels
from shardmill.sources.reading import check_field_size

_TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a tar: where it stands, and its bytes or their place."""

    name: str
    header_offset: int
    payload: ByteRange | bytes = field(repr=False)

    @property
    def size(self) -> int:
        """Of the payload, in bytes."""
        return len(self.payload) if isinstance(self.payload, bytes) else self.payload.size


@dataclass(frozen=True, slots=True)
class Layout:
    """How the members of a tar become samples.

    ``grouped``: WebDataset tars, members of one key are one sample. Otherwise every image is a sample: its key is
    ``prefix`` and its path; its class is ``class_name`` (number ``label``), or the folder it lies in with
    ``by_folder``, or what ``labels`` says, or none.
    """

    grouped: bool
    prefix: str = ""
    label: int = NO_LABEL
    class_name: str | None = None
    by_folder: bool = False
    labels: Labels | None = field(default=None, repr=False)
    ignore: tuple[str, ...] = ()


def tar_stem(name: str) -> str | None:
    """The file name without ``.tar``, ``.tar.gz`` or ``.tgz``; ``None`` where it has none of them."""
    base = name.rpartition("/")[2]
    for suffix in _TAR_SUFFIXES:
        if base.lower().endswith(suffix) and len(base) > len(suffix):
            return base[: -len(suffix)]
    return None


def sample_refs(
    entries: Iterable[Entry], place: str, layout: Layout, fetch: Callable[[ByteRange], bytes]
) -> Iterator[SampleRef]:
    """The samples of one tar. ``fetch`` reads the few bytes a label needs; ``place`` names the tar in errors."""
    return _grouped(entries, place, layout, fetch) if layout.grouped else _images(entries, place, layout)


def looks_grouped(names: Sequence[str], *, cut: bool) -> bool:
    """Whether these members, in file order, are a WebDataset tar rather than a pile of images.

    They are where a member is no image and no note (``img1.cls`` beside ``img1.jpg``), or where all keys come
    with the same two or more extensions. ``cut``: more members follow, so the last key does not count.
    """
    plain = [name for name in map(plain_name, names) if not is_litter(name)]
    if any(not is_image_name(name) and ("/" in name or not is_note(name)) for name in plain):
        return True
    split = [(*split_key(name), name) for name in plain]
    images = {key for key, _, name in split if is_image_name(name)}
    if any(key in images and not is_image_name(name) for key, _, name in split):
        return True  # img1.json beside img1.jpg is no note
    runs = [{extension.lower() for _, extension, _ in run} for _, run in groupby(split, key=itemgetter(0))]
    whole = runs[:-1] if cut else runs
    return bool(whole) and len(whole[0]) > 1 and all(run == whole[0] for run in whole)


def _images(entries: Iterable[Entry], place: str, layout: Layout) -> Iterator[SampleRef]:
    names, keys = NameFilter(layout.ignore, place), KeyCheck(place)
    found = False
    for entry in entries:
        name = plain_name(entry.name)
        if not names.is_image(name, top="/" not in name):
            continue
        found = True
        check_field_size(entry.size, name, f"{place} @ {entry.header_offset}")
        key, extension = keys.key_of(layout.prefix + name)
        label, class_name = layout.label, layout.class_name
        if layout.labels is not None:
            label = layout.labels.values[layout.labels.entry(name)]
        elif layout.by_folder != ("/" in name) and layout.class_name is None:
            where = "in no folder" if layout.by_folder else "in a folder"
            raise SourceError(
                f"{place} @ {entry.header_offset}: {name!r} lies {where}, the first image does not; "
                "put every image into the folder of its class, or none"
            )
        elif layout.by_folder:
            class_name = name.rpartition("/")[0]
        yield SampleRef(key, {extension: entry.payload}, label, class_name)
    if not found:
        raise SourceError(f"{place}: no images in this tar; leave it out")


def _grouped(
    entries: Iterable[Entry], place: str, layout: Layout, fetch: Callable[[ByteRange], bytes]
) -> Iterator[SampleRef]:
    names = NameFilter(layout.ignore, place)
    wanted = (entry for entry in entries if not names.skips(plain_name(entry.name)))
    named = None
    for group in group_samples(wanted, place):
        fields: dict[str, ByteRange | bytes] = {}
        label, class_name = NO_LABEL, None
        for extension, entry in group.parts:
            if entry.size:
                check_field_size(entry.size, entry.name, f"{place} @ {entry.header_offset}")
            fields[extension] = entry.payload
            if extension.lower() == "cls":
                data = entry.payload if isinstance(entry.payload, bytes) else fetch(entry.payload)
                fields[extension] = data
                label, class_name = _label(data, f"{place} @ {entry.header_offset}: {entry.name!r}")
                named = (class_name is not None) if named is None else named
                if named != (class_name is not None):
                    raise SourceError(
                        f"{place} @ {entry.header_offset}: {entry.name!r} is {data[:40]!r}; labels before it were "
                        f"{'class names' if named else 'numbers'}: give all labels in one form"
                    )
        yield SampleRef(group.key, fields, label, class_name)


def _label(data: bytes, place: str) -> tuple[int, str | None]:
    """A ``.cls`` member: a number from -1 (none) on, or a class name."""
    try:
        label = parse_label(data)
    except ValueError as error:
        raise SourceError(f"{place}: the label {error}") from None
    return (NO_LABEL, label) if isinstance(label, str) else (label, None)


def numbered(layout: Layout, label: int, class_name: str) -> Layout:
    """``layout`` for the tar of one class."""
    return replace(layout, label=label, class_name=class_name, prefix=f"{class_name}/")
