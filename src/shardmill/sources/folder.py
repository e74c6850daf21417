"""Folders of image files: a directory per class, or one pile with or without labels beside it.

Order is by name, component by component, in code points: the same on every machine and locale.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardmill.errors import SourceError
from shardmill.records import NO_LABEL, ByteRange, Sample, SampleRef
from shardmill.sources.keys import KeyCheck, NameFilter
from shardmill.sources.labels import LabelCheck, Labels
from shardmill.sources.protocols import Source, SourceInfo
from shardmill.sources.reading import check_field_size, load_all


@dataclass(frozen=True, slots=True)
class FolderOptions:
    """``ignore``: shell patterns of files to pass over. ``follow_links``: read through symbolic links."""

    ignore: tuple[str, ...] = ()
    follow_links: bool = False


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One image on disk: ``name`` is its path below the root, ``size`` in bytes."""

    name: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class FolderPart:
    """The images below one directory of ``root`` (or all of it, with ``below=""``), with one label or none.

    Costs one ``stat`` per file to list; memory grows with the largest single directory.
    """

    root: str
    below: str = ""
    label: int = NO_LABEL
    class_name: str | None = None
    labels: Labels | None = field(default=None, repr=False)
    options: FolderOptions = FolderOptions()

    def __iter__(self) -> Iterator[Sample]:
        return load_all(self.refs())

    def refs(self) -> Iterator[SampleRef]:
        """Every image as a range over its whole file. Raises `SourceError` where there is none at all."""
        names = NameFilter(self.options.ignore, self.root)
        for folder in self._folders(names):
            keys = KeyCheck(self.root)
            for file in folder:
                key, extension = keys.key_of(file.name)
                label = self.label if self.labels is None else self.labels.values[self.labels.entry(file.name)]
                place = ByteRange(f"{self.root}/{file.name}", 0, file.size)
                yield SampleRef(key, {extension: place}, label, self.class_name)

    def describe(self) -> SourceInfo:
        """Lists the files."""
        return _describe(str(Path(self.root, self.below)), "folder", [self], None)

    def files(self, names: NameFilter) -> Iterator[ImageFile]:
        """The images in order; ``names`` counts what is passed over."""
        for folder in self._folders(names):
            yield from folder

    def _folders(self, names: NameFilter) -> Iterator[list[ImageFile]]:
        found = False
        for folder in _walk(self.root, self.below, self.options, names):
            found = found or bool(folder)
            yield folder
        if not found:
            what = f"class folder {self.below!r} holds no images" if self.below else "no images here"
            raise SourceError(f"{self.root}: {what}; fill it, or remove it")


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A folder of images as a whole: its parts one after another."""

    root: str
    parts: tuple[FolderPart, ...] = field(repr=False)
    class_names: tuple[str, ...] | None = field(default=None, repr=False)

    def __iter__(self) -> Iterator[Sample]:
        return load_all(self.refs())

    def refs(self) -> Iterator[SampleRef]:
        """Every image as a range over its whole file."""
        for part in self.parts:
            yield from part.refs()

    def split(self) -> Sequence[Source]:
        """One part per class directory."""
        return self.parts

    def describe(self) -> SourceInfo:
        """Lists the files, and with JSON labels checks that labels and images fit each other."""
        return _describe(self.root, "folder", self.parts, self.class_names)


def _describe(name: str, kind: str, parts: Sequence[FolderPart], class_names: tuple[str, ...] | None) -> SourceInfo:
    options, labels = parts[0].options, parts[0].labels
    names = NameFilter(options.ignore, parts[0].root)
    check = None if labels is None else LabelCheck(labels)
    total = 0
    digest = hashlib.sha256(b"folder\0" + ("" if labels is None else labels.digest).encode())
    for part in parts:
        for file in part.files(names):
            total += file.size
            digest.update(f"{file.name}\0{file.size}\0{file.mtime_ns}\n".encode("utf-8", "surrogateescape"))
            if check is not None:
                check.see(file.name)
    if check is not None:
        check.finish()
    if labels is not None:
        label_source, class_names = Path(labels.path).name, labels.class_names
    else:
        label_source = "none" if class_names is None else "sorted directory names"
    return SourceInfo(name, kind, label_source, class_names, total, digest.hexdigest(), names.ignored)


def _walk(root: str, below: str, options: FolderOptions, names: NameFilter) -> Iterator[list[ImageFile]]:
    """The images of each directory, parents before children, however deep they lie."""
    # Not recursive: Python gives up at 1,000 calls. With each folder come (device, inode) of the folders around it.
    waiting: list[tuple[str, _Around | None]] = [(below, None)]
    while waiting:
        name, outer = waiting.pop()
        files, folders, here = _list(root, name, options, names)
        around = outer
        while around is not None:
            if around.folder == here:
                path = Path(root, name)
                raise SourceError(f"{path}: a symbolic link leads back to a folder around it; remove the link")
            around = around.outer
        yield files
        waiting += [(folder, _Around(here, outer)) for folder in reversed(folders)]


@dataclass(frozen=True, slots=True)
class _Around:
    """A chain of folders, the innermost first; ``folder`` is (device, inode)."""

    folder: tuple[int, int]
    outer: _Around | None


def _list(
    root: str, below: str, options: FolderOptions, names: NameFilter
) -> tuple[list[ImageFile], list[str], tuple[int, int]]:
    """Images and folders directly in one directory, each by name, and its (device, inode)."""
    path = Path(root, below)
    try:
        with os.scandir(path) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        here = path.stat()
    except OSError as error:
        raise SourceError(f"{path}: cannot list: {error.strerror}") from error
    files, folders = [], []
    for entry in entries:
        name = f"{below}/{entry.name}" if below else entry.name
        try:
            if entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and entry.is_dir()):
                if names.skips(name):
                    continue
                _check_link(entry, options)
                folders.append(name)
            elif names.is_image(name, top=not below):
                _check_link(entry, options)
                info = entry.stat()
                if not stat.S_ISREG(info.st_mode):
                    raise SourceError(f"{entry.path}: not a regular file; move it away")
                check_field_size(info.st_size, name, root)
                files.append(ImageFile(name, info.st_size, info.st_mtime_ns))
        except OSError as error:
            raise SourceError(f"{entry.path}: cannot look at it: {error.strerror}") from error
    return files, folders, (here.st_dev, here.st_ino)


def _check_link(entry: os.DirEntry[str], options: FolderOptions) -> None:
    if entry.is_symlink() and not options.follow_links:
        target = str(Path(entry.path).readlink())
        raise SourceError(f"{entry.path}: a symbolic link (to {target!r}); follow_links=True reads through links")
