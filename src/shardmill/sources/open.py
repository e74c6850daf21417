"""From what the user names to a source: decides the kind by looking at the first few names in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from shardmill.errors import OptionsError, SourceError
from shardmill.records import Sample
from shardmill.shards.grouping import plain_name
from shardmill.shards.tar import file_members, read_stream
from shardmill.sources.folder import FolderOptions, FolderPart, FolderSource
from shardmill.sources.iterable import IterableSource
from shardmill.sources.keys import is_image_name, is_litter
from shardmill.sources.labels import Labels, read_labels
from shardmill.sources.protocols import Source
from shardmill.sources.streams import TarArea, file_area, is_compressed, open_area
from shardmill.sources.tar import (
    CompressedPart,
    CompressedTarOfTars,
    CompressedTarSource,
    TarPart,
    TarSource,
    describe_tars,
    inner_tars,
)
from shardmill.sources.tarsamples import Layout, looks_grouped, numbered, tar_stem
from shardmill.storage.names import expand

Kind = Literal["images", "webdataset"]
Spec: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Source | Iterable[Sample]"

_PEEK_MEMBERS = 64
_PEEK_BYTES = 64 * 2**20
_SPLITS = frozenset({"train", "training", "val", "valid", "validation", "test", "testing"})


def open_source(
    spec: Spec,
    *,
    labels: str | os.PathLike[str] | None = None,
    kind: Kind | None = None,
    ignore: Sequence[str] = (),
    follow_links: bool = False,
) -> Source:
    """The source that ``spec`` names.

    A folder with a directory per class, or of images (with ``labels``: a JSON file, see `read_labels`), or of
    tars. A tar or ``.tar.gz``: of one tar per class, of WebDataset samples, or of images, whose folder is their
    class. A pattern (``"train-{000..127}.tar"``, ``"*.tar"``) or a list of tars. A `Source`, or any iterable of
    `Sample` that starts anew with each ``iter()``.

    ``kind`` settles tars that could be both. ``ignore``: shell patterns of names to pass over. ``follow_links``
    reads through symbolic links in folders; they are refused otherwise. Raises `SourceError` where nothing fits,
    `OptionsError` where the options do not. Reads directory listings and a few headers.
    """
    if isinstance(spec, str | os.PathLike):
        path = os.fspath(spec)
        paths = [path] if Path(path).exists() else expand(path)
    elif isinstance(spec, Source):
        _refuse_labels(labels, "a source")
        return spec
    elif isinstance(spec, Sequence) and spec and all(isinstance(item, str | os.PathLike) for item in spec):
        paths = [path for item in spec for path in expand(os.fspath(item))]
        path = f"{paths[0]} and {len(paths) - 1} more" if len(paths) > 1 else paths[0]
    elif isinstance(spec, Iterable):
        _refuse_labels(labels, "an iterable of samples")
        return IterableSource(spec)  # type: ignore[arg-type]
    else:
        raise OptionsError(f"a source is a path, a pattern, a list of tars or an iterable of Sample, not {spec!r}")
    for one in paths:
        _check_exists(one)
    if len(paths) == 1 and Path(paths[0]).is_dir():
        return _open_folder(path, paths[0], labels, kind, FolderOptions(tuple(ignore), follow_links))
    return _open_tars(path, paths, labels, kind, tuple(ignore))


def _check_exists(path: str) -> None:
    if not Path(path).exists():
        raise SourceError(f"{path}: no such file or folder")


def _refuse_labels(labels: object, what: str) -> None:
    if labels is not None:
        raise OptionsError(f"labels= goes with a folder or tar of images; {what} brings its own labels")


def _open_folder(
    name: str, root: str, labels: str | os.PathLike[str] | None, kind: Kind | None, options: FolderOptions
) -> Source:
    try:
        with os.scandir(root) as listing:
            entries = sorted((entry for entry in listing if not is_litter(entry.name)), key=lambda entry: entry.name)
        folders = [entry.name for entry in entries if entry.is_dir()]
    except OSError as error:
        raise SourceError(f"{root}: cannot list: {error.strerror}") from error
    images = [entry.name for entry in entries if entry.name not in folders and is_image_name(entry.name)]
    tars = [str(Path(root, entry.name)) for entry in entries if entry.is_file() and tar_stem(entry.name)]
    if tars and not images and not folders:
        return _open_tars(name, tars, labels, kind, options.ignore)
    if kind == "webdataset":
        raise OptionsError(f"{root}: kind='webdataset' is for tars; this is a folder of files")
    if labels is not None:
        return FolderSource(root, (FolderPart(root, labels=read_labels(labels), options=options),))
    if images and folders:
        raise SourceError(
            f"{root}: both images ({images[0]!r}, ...) and folders ({folders[0]!r}, ...): is a folder a class here? "
            "Move the images away, or give labels="
        )
    if not folders:
        return FolderSource(root, (FolderPart(root, options=options),))
    if _SPLITS.issuperset(folder.lower() for folder in folders):
        raise SourceError(f"{root}: the folders {', '.join(folders)} look like splits, not classes; pack one at a time")
    parts = tuple(FolderPart(root, folder, i, folder, options=options) for i, folder in enumerate(folders))
    return FolderSource(root, parts, tuple(folders))


def _open_tars(
    name: str, paths: Sequence[str], labels: str | os.PathLike[str] | None, kind: Kind | None, ignore: tuple[str, ...]
) -> Source:
    for path in paths:
        if not Path(path).is_file():
            raise SourceError(f"{path}: not a file; give one folder, or files that are tars")
    areas = [file_area(path) for path in paths]
    names, cut = _peek(areas[0])
    if kind is None and names and tar_stem(names[0]) is not None:
        _refuse_labels(labels, "a tar of tars")
        if len(areas) > 1:
            raise SourceError(f"{paths[0]}: a tar of tars is packed on its own; give this one alone")
        return _open_tar_of_tars(name, areas[0], ignore)
    if kind == "webdataset" or (kind is None and looks_grouped(names, cut=cut)):
        _refuse_labels(labels, "a WebDataset tar")
        source = "none" if not any(one.lower().endswith(".cls") for one in names) else ".cls members"
        return _tars(name, "webdataset", source, areas, [Layout(grouped=True, ignore=ignore)] * len(areas), None)
    if len(areas) > 1:
        _refuse_labels(labels, "a tar per class")
        return _class_tars(name, areas, ignore)
    layout, source = _image_layout(names, None if labels is None else read_labels(labels), ignore)
    class_names = None if layout.labels is None else layout.labels.class_names
    return _tars(name, "tar", source, areas, [layout], class_names)


def _image_layout(names: Sequence[str], labels: Labels | None, ignore: tuple[str, ...]) -> tuple[Layout, str]:
    if labels is not None:
        return Layout(grouped=False, labels=labels, ignore=ignore), Path(labels.path).name
    first = next((one for one in names if is_image_name(one) and not is_litter(one)), "")
    by_folder = "/" in first
    return Layout(grouped=False, by_folder=by_folder, ignore=ignore), "folders in the tar" if by_folder else "none"


def _open_tar_of_tars(name: str, area: TarArea, ignore: tuple[str, ...]) -> Source:
    if is_compressed(area):
        info = describe_tars(name, "tar-of-tars", "sorted inner tar names", [area], None)
        return CompressedTarOfTars(info, area, ignore)
    found = inner_tars(area)
    return _by_class(name, "tar-of-tars", "sorted inner tar names", found, ignore)


def _class_tars(name: str, areas: Sequence[TarArea], ignore: tuple[str, ...]) -> Source:
    stems = [tar_stem(area.path) or Path(area.path).name for area in areas]
    for i, stem in enumerate(stems):
        first = stems.index(stem)
        if first != i:
            raise SourceError(f"{areas[first].path} and {areas[i].path} both stand for class {stem!r}; rename one")
    return _by_class(name, "tar-per-class", "sorted tar names", list(zip(stems, areas, strict=True)), ignore)


def _by_class(
    name: str, kind: str, label_source: str, found: Sequence[tuple[str, TarArea]], ignore: tuple[str, ...]
) -> Source:
    class_names = tuple(sorted(stem for stem, _ in found))
    number = {class_name: i for i, class_name in enumerate(class_names)}
    plain = Layout(grouped=False, ignore=ignore)
    layouts = [numbered(plain, number[stem], stem) for stem, _ in found]
    return _tars(name, kind, label_source, [area for _, area in found], layouts, class_names)


def _tars(
    name: str,
    kind: str,
    label_source: str,
    areas: Sequence[TarArea],
    layouts: Sequence[Layout],
    class_names: tuple[str, ...] | None,
) -> Source:
    info = describe_tars(name, kind, label_source, areas, class_names)
    pairs = list(zip(areas, layouts, strict=True))
    if any(is_compressed(area) for area in areas):
        mixed = [CompressedPart(a, how) if is_compressed(a) else TarPart(a, how) for a, how in pairs]
        return CompressedTarSource(info, tuple(mixed))
    return TarSource(info, tuple(TarPart(area, how) for area, how in pairs))


def _peek(area: TarArea) -> tuple[list[str], bool]:
    """The names of the first files of a tar, and whether more follow."""
    names: list[str] = []
    passed = 0
    with open_area(area) as stream:
        compressed = is_compressed(area)
        members = (member for member, _ in read_stream(stream, area.name)) if compressed else file_members(area.path)
        for member in members:
            name = plain_name(member.name)
            if is_litter(name):
                continue
            names.append(name)
            passed += member.size if compressed else 0
            # To go on past an inner tar, or a bomb, means to decompress all of it.
            if len(names) == _PEEK_MEMBERS or tar_stem(name) is not None or passed > _PEEK_BYTES:
                return names, True
    return names, False
