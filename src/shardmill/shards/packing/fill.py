"""Reads scattered byte ranges of many files straight to their places in one buffer."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SourceError
from shardmill.shards.packing.references import Stamp
from shardmill.storage.local import read_ranges
from shardmill.storage.ranges import FetchPlan

_FILES_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class Read:
    """``size`` bytes from ``start`` of ``path`` to ``out[at:]``. ``stamp``: what the file must still look like."""

    path: str
    start: int
    size: int
    at: int
    stamp: Stamp | None


def fill(out: NDArray[np.uint8], reads: Iterable[Read]) -> None:
    """Does all ``reads``, each file front to back, at most 128 files open at a time.

    Raises `SourceError` naming the file where it is gone, is not a plain file, differs from its stamp or is short.
    """
    ordered = sorted(reads, key=lambda read: (read.path, read.start))
    for batch in _batches(ordered):
        _fill(out, batch)


def _batches(reads: Sequence[Read]) -> Iterable[Sequence[Read]]:
    first = files = 0
    previous = None
    for i, read in enumerate(reads):
        if read.path != previous:
            if files == _FILES_AT_ONCE:
                yield reads[first:i]
                first, files = i, 0
            files += 1
            previous = read.path
    if first < len(reads):
        yield reads[first:]


def _fill(out: NDArray[np.uint8], reads: Sequence[Read]) -> None:
    opened: list[int] = []
    fds: list[int] = []
    try:
        previous = None
        for read in reads:
            if read.path != previous:
                opened.append(open_unchanged(read.path, read.stamp))
                previous = read.path
            fds.append(opened[-1])
        status = read_ranges(np.array(fds, np.int32), _one_fetch_each(reads), out, None)
        for i in np.flatnonzero(status).tolist():
            read = reads[i]
            if status[i] > 0:
                why = os.strerror(int(status[i]))
                raise SourceError(f"{read.path} @ {read.start}: {why} while reading {read.size} bytes")
            raise SourceError(
                f"{read.path} ends before byte {read.start + read.size}: it changed while it was being packed; "
                "pack again when nothing writes to the source"
            )
        # Once more after reading: a file rewritten in between would give bytes of two versions.
        for fd, read in _first_of_each(fds, reads):
            _check(os.fstat(fd), read.path, read.stamp)
    finally:
        for fd in opened:
            os.close(fd)


def _one_fetch_each(reads: Sequence[Read]) -> FetchPlan:
    n = len(reads)
    table = np.array([(read.start, read.size, read.at) for read in reads], np.int64).reshape(n, 3)
    starts, sizes, places = (np.ascontiguousarray(column) for column in table.T)
    each, none = np.arange(n + 1), np.empty(0, np.int64)
    return FetchPlan(
        files=each[:n], starts=starts, sizes=sizes, out_starts=places, positions=places, wanted_sizes=sizes,
        order=each[:n], first_wanted=each, used=none, slots=none, total=int(sizes.sum()),
    )  # fmt: skip


def _first_of_each(fds: Sequence[int], reads: Sequence[Read]) -> Iterable[tuple[int, Read]]:
    previous = -1
    for fd, read in zip(fds, reads, strict=True):
        if fd != previous:
            yield fd, read
            previous = fd


def open_unchanged(path: str, stamp: Stamp | None) -> int:
    """A descriptor of a plain file that still matches ``stamp``."""
    try:
        # O_NONBLOCK: a FIFO put in the place of an image would otherwise block the open for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        what = "it was removed while it was being packed" if error.errno == errno.ENOENT else error.strerror
        raise SourceError(f"{path}: {what}; pack again when nothing changes the source") from None
    try:
        _check(os.fstat(fd), path, stamp)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check(status: os.stat_result, path: str, stamp: Stamp | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(f"{path} is not a plain file any more; pack again when nothing changes the source")
    if stamp is not None and (status.st_size != stamp.size or status.st_mtime_ns != stamp.mtime_ns):
        grown = status.st_size != stamp.size
        what = f"{stamp.size} bytes, now {status.st_size}" if grown else "a new modification time"
        raise SourceError(f"{path} changed while it was being packed ({what}); pack again when nothing writes to it")
