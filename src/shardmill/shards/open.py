"""From what a user names to an opened dataset: a packed directory, or tars of others with an index made on the spot."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shardmill.errors import IndexFileError, OptionsError
from shardmill.shards.bare import index_tars
from shardmill.shards.dataset import Dataset, load_dataset
from shardmill.shards.manifest import MANIFEST
from shardmill.storage.names import expand

_COMPRESSED = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")


def open_dataset(
    url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    verify: bool = True,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Opens a dataset: a directory that `pack` or ``shardmill index`` wrote, or bare tars.

    ``url``: a path or ``file://`` URL of a directory; or of one tar; or a pattern (``train-{000..099}.tar``,
    ``*.tar``); or a list of tars. Bare tars are indexed by a header scan at the first opening (about 1 us a member when
    the tars are in the page cache); the index is kept in ``cache_dir`` (default: ``shardmill`` in the user's cache
    directory) and used again while names, sizes and modification times stay the same. Such an index has no checksums:
    ``shardmill index`` makes one that has. A damaged index in the cache is made again.

    ``verify=False`` leaves out the crc32c check of every read. Cost for a packed directory: a few small files,
    whatever the number of samples.
    """
    names = [url] if isinstance(url, str | os.PathLike) else list(url)
    if not names:
        raise OptionsError("an empty list names no dataset")
    paths = [path for name in names for path in _paths(os.fspath(name))]
    if len(names) == 1 and len(paths) == 1 and paths[0].is_dir():
        folder = paths[0]
        if (folder / MANIFEST).is_file():
            return load_dataset(folder, folder, verify=verify)
        paths = tars_in(folder)
    return _open_bare(paths, verify=verify, cache_dir=cache_dir)


def tars_in(folder: Path) -> list[Path]:
    """The tars directly in ``folder``, by name. Raises `OptionsError` where there is none, saying what is there."""
    found = sorted(path for path in folder.iterdir() if path.suffix == ".tar" and not path.name.startswith("."))
    if found:
        return found
    if (folder / ".shardmill-pack").exists():
        raise OptionsError(
            f"{folder} holds an unfinished pack: finish it with `shardmill pack SOURCE {folder} --resume`"
        )
    raise OptionsError(
        f"{folder} holds neither {MANIFEST} nor tars: pack the images first with `shardmill pack {folder} DEST`"
    )


def _paths(name: str) -> list[Path]:
    scheme, separator, rest = name.partition("://")
    if separator and scheme != "file":
        raise OptionsError(f"{name}: this version opens local paths only")
    found = [_absolute(each) for each in expand(rest if separator else name)]
    for path in found:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist")
        if path.name.endswith(_COMPRESSED):
            raise OptionsError(
                f"{path} is compressed, so its samples cannot be reached one by one: pack it with `shardmill pack`"
            )
    return found


def _absolute(name: str) -> Path:
    path = Path(name).absolute()
    # The index names shards below the folder that all have in common, which ".." would lead out of.
    return path.parent.resolve() / path.name if ".." in path.parts[:-1] else path


def _open_bare(paths: list[Path], *, verify: bool, cache_dir: str | os.PathLike[str] | None) -> Dataset:
    root = Path(os.path.commonpath([path.parent for path in paths]))
    cache = Path(cache_dir) if cache_dir is not None else _user_cache()
    found = [path.stat() for path in paths]  # before anything is read: what changes from now on is noticed
    stamps = {
        path.relative_to(root).as_posix(): (status.st_size, status.st_mtime_ns)
        for path, status in zip(paths, found, strict=True)
    }
    folder = cache / "index" / _identity(paths, found)
    if folder.is_dir():
        try:
            return load_dataset(folder, root, verify=verify, stamps=stamps)
        except (IndexFileError, FileNotFoundError):
            # Cut by a full disk, half removed by a cleaner of caches, or of another version: it is only a cache.
            _remove(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Made beside its place and renamed: two processes that open the same tars for the first time do not meet.
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".making-"))
    try:
        index_tars(paths, root=root, dest=temporary, checksums=False)
        _publish(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return load_dataset(folder, root, verify=verify, stamps=stamps)


def _publish(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError:
        # Another process was first, with the same result; anything else is a real error.
        if not (folder / MANIFEST).is_file():
            raise


def _remove(folder: Path) -> None:
    """Renamed first, so that nobody opens what is half removed."""
    doomed = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".making-"))
    try:
        # Gone already where another process found the same damage.
        with contextlib.suppress(FileNotFoundError):
            folder.rename(doomed)
    finally:
        shutil.rmtree(doomed, ignore_errors=True)


def _identity(paths: list[Path], found: list[os.stat_result]) -> str:
    facts = hashlib.sha256()
    for path, status in zip(paths, found, strict=True):
        facts.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return facts.hexdigest()[:32]


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardmill"
