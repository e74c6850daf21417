"""An index for tars that others wrote: a header scan, and with ``checksums`` one read of everything."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from shardmill.errors import OptionsError, TarError
from shardmill.imageinfo import image_field, probe
from shardmill.machine import usable_cores
from shardmill.records import NO_LABEL, ImageInfo
from shardmill.shards.grouping import MAX_LABEL_BYTES, SampleGroup, group_samples, parse_label
from shardmill.shards.index import ROW
from shardmill.shards.index_writer import ShardRows, remove_manifest, write_index, write_manifest
from shardmill.shards.manifest import Manifest
from shardmill.shards.tar import Member
from shardmill.shards.tarscan import scan_tar

_HEAD_BYTES = 64  # enough for every magic number; the size of an image is read only with checksums
_COPY_BYTES = 8 * 2**20
_LARGEST_SIDE = 2**16 - 1
_LARGEST_IMAGE = 2**32 - 1


def index_tars(
    paths: Sequence[Path],
    *,
    root: Path,
    dest: Path,
    checksums: bool,
    done: Callable[[int], None] = lambda size: None,
) -> Manifest:
    """Writes ``index/`` and the manifest for the tars ``paths``, all below ``root``, into ``dest``.

    Samples are members with one key, side by side (the WebDataset rule); labels come from ``.cls`` members. Without
    ``checksums`` only headers, labels and 64 bytes of each image are read; with it everything is, so that reads are
    checked and `verify` works, and image sizes are known. Tars are read by several threads. ``done`` is told the bytes
    of every finished tar. Raises `TarError` naming tar, offset and key. Memory: about 150 bytes a sample.
    """
    if not paths:
        raise OptionsError(f"there is no tar to index in {root}")
    for path in paths:
        if not path.is_file():  # a FIFO would be waited for without end
            raise OptionsError(f"{path} is not a file: give one directory, or tars")
    with ThreadPoolExecutor(usable_cores(), thread_name_prefix="shardmill-index") as threads:
        scanned: list[_Scanned] = []
        for one in threads.map(lambda path: _scan(path, root, checksums), paths):
            scanned.append(one)
            done(one.shard.size)
    shards, classes = _number_classes(scanned)
    samples = sum(len(shard.rows) for shard in shards)
    remove_manifest(dest)
    files = write_index(dest, shards, samples=samples, shard_count=len(shards))
    manifest = Manifest(
        samples=samples,
        shards=len(shards),
        total_bytes=sum(shard.size for shard in shards),
        files=files,
        classes=classes,
        label_source=".cls members",
        shuffle=None,
        encode=None,
        created_by=f"shardmill {importlib.metadata.version('shardmill')}",
        checksums=checksums,
    )
    write_manifest(dest, manifest)
    return manifest


@dataclass(frozen=True, slots=True)
class _Scanned:
    """One tar's rows, and the class name of each where ``.cls`` members are words instead of numbers."""

    shard: ShardRows
    class_names: list[str | None] = field(repr=False)
    path: Path


def _scan(path: Path, root: Path, checksums: bool) -> _Scanned:
    table = scan_tar(path)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        groups = list(group_samples(table.members(), str(path)))
        if not groups:
            raise TarError("the tar holds no sample", path=str(path), hint="leave it out of the dataset")
        rows = np.zeros(len(groups), ROW)
        names: list[str | None] = []
        for row, group in zip(rows, groups, strict=True):
            names.append(_fill(row, group, fd, str(path)))
        digest = _checksums(rows, fd, size, str(path)) if checksums else bytes(32)
    finally:
        os.close(fd)
    name = path.relative_to(root).as_posix()
    if _not_utf8(name):
        raise OptionsError(f"{os.fspath(path)!r}: the name is not UTF-8, which the index needs: rename the tar")
    return _Scanned(ShardRows(name, size, digest, rows, [group.key for group in groups]), names, path)


def _fill(row: Any, group: SampleGroup[Member], fd: int, path: str) -> str | None:
    """Writes one row; returns the class name where the label is a word."""
    parts = dict(group.parts)
    if _not_utf8(group.key):
        first = group.parts[0][1]
        hint = "pack the samples under other names"
        raise TarError("the key is not UTF-8", path=path, offset=first.header_offset, key=group.key, hint=hint)
    chosen = image_field(dict.fromkeys(parts, b""))
    if chosen is None:
        chosen = image_field({name: _head(fd, part) for name, part in parts.items()})
    first, last = group.parts[0][1], group.parts[-1][1]
    if chosen is None:
        raise TarError(
            f"the sample has no image among {', '.join(parts)}", path=path, offset=first.header_offset, key=group.key
        )
    image = parts[chosen]
    if image.size > _LARGEST_IMAGE:
        problem = f"an image of {image.size} bytes; at most {_LARGEST_IMAGE} are accepted"
        raise TarError(problem, path=path, offset=image.payload_offset, key=group.key)
    row["sample_start"] = first.header_offset
    row["sample_bytes"] = last.end - first.header_offset
    row["image_offset"] = image.payload_offset
    row["image_bytes"] = image.size
    _describe(row, probe(_head(fd, image)))
    row["label"] = NO_LABEL
    label = next((part for name, part in parts.items() if name.lower() == "cls"), None)
    if label is None:
        return None
    try:
        found = parse_label(os.pread(fd, min(label.size, MAX_LABEL_BYTES + 1), label.payload_offset))
    except ValueError as error:
        raise TarError(f"the label {error}", path=path, offset=label.payload_offset, key=group.key) from None
    if isinstance(found, str):
        return found
    row["label"] = found
    return None


def _head(fd: int, part: Member) -> bytes:
    return os.pread(fd, min(_HEAD_BYTES, part.size), part.payload_offset)


def _not_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return True
    return False


def _describe(row: Any, info: ImageInfo) -> None:
    row["image_format"] = info.format
    if info.width <= _LARGEST_SIDE and info.height <= _LARGEST_SIDE:
        row["width"], row["height"] = info.width, info.height


def _checksums(rows: NDArray[Any], fd: int, size: int, path: str) -> bytes:
    """Fills the crc32c columns and image sizes from one sequential read; returns the sha256 of the file.

    Memory: one image and 8 MiB, whatever else is in its sample.
    """
    sha256, at, crc = hashlib.sha256(), 0, 0

    def up_to(end: int) -> Iterator[bytes]:
        nonlocal at, crc
        while at < end:
            data = os.pread(fd, min(_COPY_BYTES, end - at), at)
            if not data:
                hint = "leave the tars alone while they are indexed"
                raise TarError("the file became shorter while it was read", path=path, offset=at, hint=hint)
            sha256.update(data)
            crc = google_crc32c.extend(crc, data)
            at += len(data)
            yield data

    def skip_to(end: int) -> None:
        for _ in up_to(end):
            pass

    for row in rows:
        start, image = int(row["sample_start"]), int(row["image_offset"])
        skip_to(start)
        crc = 0
        skip_to(image)
        payload = b"".join(up_to(image + int(row["image_bytes"])))
        skip_to(start + int(row["sample_bytes"]))
        row["sample_crc32c"] = crc
        row["image_crc32c"] = google_crc32c.value(payload)
        _describe(row, probe(payload))
    skip_to(size)
    return sha256.digest()


def _number_classes(scanned: Iterable[_Scanned]) -> tuple[list[ShardRows], tuple[str, ...] | None]:
    """Labels that are words become their rank among the sorted words; numbers stay."""
    tars = list(scanned)
    words = sorted({name for tar in tars for name in tar.class_names if name is not None})
    if not words:
        return [tar.shard for tar in tars], None
    number = {name: i for i, name in enumerate(words)}
    return [_numbered(tar, number) for tar in tars], tuple(words)


def _numbered(tar: _Scanned, number: dict[str, int]) -> ShardRows:
    rows = tar.shard.rows.copy()
    for i, name in enumerate(tar.class_names):
        if rows["label"][i] != NO_LABEL:
            raise TarError(
                f"this label is the number {rows['label'][i]}, others are words like {next(iter(number))!r}",
                path=str(tar.path),
                offset=int(rows["sample_start"][i]),
                key=tar.shard.keys[i],
                hint="give all labels in one form",
            )
        rows["label"][i] = NO_LABEL if name is None else number[name]
    return replace(tar.shard, rows=rows)
