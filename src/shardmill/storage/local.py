"""Files under one folder, with a bounded number of them open whatever the number of shards."""

from __future__ import annotations

import os
import resource
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import DataError
from shardmill.native import native
from shardmill.storage.checksums import crc32c_ranges
from shardmill.storage.ranges import FetchPlan

Stamps: TypeAlias = Mapping[str, tuple[int, int]]

_MAX_OPEN_FILES = 4096
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # to open a FIFO would otherwise wait for its writer, for ever


class LocalStore:
    """Byte ranges of the files under ``root``. Thread-safe, picklable, safe after fork.

    At most ``max_open_files`` descriptors are held (default: a quarter of the process's limit, at most 4,096), plus
    those of the calls in flight, a sixteenth of that number each.

    ``stamps``: size and mtime in ns of files by path, where nothing else would tell that one was replaced; each is
    compared when its file is opened, and a difference raises `DataError`.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, max_open_files: int | None = None, stamps: Stamps | None = None
    ) -> None:
        self.root = str(Path(root).absolute())
        if max_open_files is None:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            max_open_files = max(8, min(_MAX_OPEN_FILES, soft // 4 if soft > 0 else _MAX_OPEN_FILES))
        self.max_open_files = max_open_files
        self._files_at_once = max(1, max_open_files // 16)
        self._stamps = stamps
        self._files = _OpenFiles(self.root, max_open_files, stamps or {})

    def get(self, path: str) -> bytes:
        """All bytes of the file ``path``."""
        return Path(self.root, path).read_bytes()

    def get_ranges(
        self, paths: Sequence[str], plan: FetchPlan, out: NDArray[np.uint8], crcs: NDArray[np.uint32] | None = None
    ) -> None:
        """See `GetRanges`. One ``pread`` per fetch, without the GIL where the compiled module is there."""
        if len(plan.used) <= self._files_at_once:
            self._get_ranges(paths, plan, out, crcs)
            return
        # Rows from all over a dataset: to open every shard for one call would be over the process's limit.
        for piece, wanted in plan.pieces(self._files_at_once):
            some = None if crcs is None else np.empty(len(wanted), np.uint32)
            self._get_ranges(paths, piece, out, some)
            if crcs is not None and some is not None:
                crcs[wanted] = some

    def _get_ranges(
        self, paths: Sequence[str], plan: FetchPlan, out: NDArray[np.uint8], crcs: NDArray[np.uint32] | None
    ) -> None:
        with self._files.borrow(paths, plan.used.tolist()) as fds:
            status = read_ranges(np.array(fds, np.int32)[plan.slots], plan, out, crcs)
        if status.any():
            i = int(np.flatnonzero(status)[0])
            name = str(Path(self.root, paths[int(plan.files[i])]))
            start, size = int(plan.starts[i]), int(plan.sizes[i])
            if status[i] > 0:
                raise OSError(int(status[i]), os.strerror(int(status[i])), name)
            raise DataError(
                f"the file ends before byte {start + size}",
                path=name,
                offset=start,
                hint="it was cut or replaced after it was indexed: copy or pack it again",
            )

    def close(self) -> None:
        """Closes every descriptor; the store can still be used and opens them again."""
        self._files.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "max_open_files": self.max_open_files, "stamps": self._stamps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["root"], max_open_files=state["max_open_files"], stamps=state["stamps"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"


def read_ranges(
    fds: NDArray[np.int32], plan: FetchPlan, out: NDArray[np.uint8], crcs: NDArray[np.uint32] | None
) -> NDArray[np.int32]:
    """Reads fetch ``i`` of ``plan`` from descriptor ``fds[i]`` into ``out``; fills ``crcs`` unless it is ``None``.

    Returns a status per fetch, int32. 0: all bytes are there; -1: the file ended first; otherwise the ``errno``.
    """
    status = np.zeros(len(fds), np.int32)
    if native is not None:
        native.read_ranges(
            fds,
            plan.starts,
            plan.sizes,
            out,
            plan.out_starts,
            status,
            plan.positions,
            plan.wanted_sizes,
            plan.order,
            plan.first_wanted,
            crcs,
        )
        return status
    view = out.data
    ranges = zip(fds.tolist(), plan.starts.tolist(), plan.sizes.tolist(), plan.out_starts.tolist(), strict=True)
    for i, (fd, start, size, at) in enumerate(ranges):
        try:
            done = 0
            while done < size and (got := os.preadv(fd, [view[at + done : at + size]], start + done)):
                done += got
            status[i] = 0 if done == size else -1
        except OSError as error:
            status[i] = error.errno or -1
    if crcs is not None and not status.any():
        crcs[:] = crc32c_ranges(out, plan.positions, plan.wanted_sizes)
    return status


@dataclass(slots=True)
class _Open:
    name: str
    fd: int  # -1: closed
    users: int = 0


class _OpenFiles:
    """The least recently used files are closed first, and never while a call reads from them."""

    def __init__(self, root: str, limit: int, stamps: Stamps) -> None:
        self._root = root
        self._stamps = stamps
        self._limit = limit
        self._open: OrderedDict[str, _Open] = OrderedDict()
        # By number in the `paths` of the last call: finding a file by its name takes twice as long.
        self._paths: Sequence[str] | None = None
        self._numbered: dict[int, _Open] = {}
        self._lock = threading.Lock()
        _every.add(self)

    @contextmanager
    def borrow(self, paths: Sequence[str], numbers: list[int]) -> Iterator[list[int]]:
        held: list[_Open] = []
        try:
            with self._lock:
                if paths is not self._paths:
                    self._paths, self._numbered = paths, {}
                # While there is room for as many again, nothing is about to be closed, and age does not matter.
                touch = self._open.move_to_end if 2 * len(self._open) > self._limit else None
                for number in numbers:
                    entry = self._numbered.get(number)
                    if entry is None or entry.fd < 0:
                        entry = self._numbered[number] = self._find(paths[number])
                    elif touch is not None:
                        touch(entry.name)
                    entry.users += 1
                    held.append(entry)
            yield [entry.fd for entry in held]
        finally:
            with self._lock:
                for entry in held:
                    entry.users -= 1
                self._evict()

    def _find(self, name: str) -> _Open:
        entry = self._open.get(name)
        if entry is None:
            entry = self._open[name] = _Open(name, self._opened(name))
        return entry

    def _forget(self, name: str) -> None:
        entry = self._open.pop(name)
        os.close(entry.fd)
        entry.fd = -1

    def _opened(self, name: str) -> int:
        path = f"{self._root}/{name}"
        fd = os.open(path, _FLAGS)
        if (stamp := self._stamps.get(name)) is not None:
            status = os.fstat(fd)
            if (status.st_size, status.st_mtime_ns) != stamp:
                os.close(fd)
                raise DataError(
                    "the file was changed or replaced after the dataset was opened", path=path, hint="open it again"
                )
        return fd

    def _evict(self) -> None:
        excess = len(self._open) - self._limit
        if excess <= 0:
            return
        for name in [name for name, entry in self._open.items() if entry.users == 0][:excess]:
            self._forget(name)

    def close(self) -> None:
        with self._lock:
            for name in [name for name, entry in self._open.items() if entry.users == 0]:
                self._forget(name)

    def __del__(self) -> None:
        for entry in self._open.values():
            os.close(entry.fd)


def _renew_after_fork() -> None:
    """A fork in the middle of `borrow` would leave the child's copy of the lock held for ever."""
    for files in _every:
        files._lock = threading.Lock()
        for entry in files._open.values():
            entry.users = 0  # the calls that held them run in the parent


_every: weakref.WeakSet[_OpenFiles] = weakref.WeakSet()
os.register_at_fork(after_in_child=_renew_after_fork)
