"""Progress of a pack or a verify: what the caller sees, and how workers anywhere report it.

A worker keeps its counts in one small file of the scratch folder; a thread of the parent adds them up. That works on
any executor that shares a file system, needs no queue, and costs a 16-byte write every 50 ms per task.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from shardmill.errors import ShardmillError

STOP_FILE: Final = "stop"
_COUNTS = struct.Struct("<QQ")
_WORKER_INTERVAL_S = 0.05
_PARENT_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """``stage`` is ``scatter``, ``cut``, ``gather``, ``commit`` or ``verify``. Totals are ``None`` where not known."""

    stage: str
    samples: int
    bytes: int
    total_samples: int | None
    total_bytes: int | None


class Progress(Protocol):
    """Called about ten times a second from one thread at a time, and at the end of every stage."""

    def __call__(self, event: ProgressEvent, /) -> None:
        """Shows ``event``; must return soon."""
        ...


class Stopped(ShardmillError):
    """The parent asked its workers to stop; finished work is kept."""


class TaskProgress:
    """Counts of one task. `add` is cheap enough to call per sample; it also notices that the parent wants to stop."""

    def __init__(self, control: Path, name: str) -> None:
        self._stop = str(control / STOP_FILE)
        self._path = control / "progress" / name
        self._samples = self._bytes = 0
        self._next = 0.0

    def __enter__(self) -> TaskProgress:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        return self

    def __exit__(self, *failure: object) -> None:
        try:
            self._write()
        finally:
            os.close(self._fd)

    def add(self, *, samples: int, size: int) -> None:
        """Counts; raises `Stopped` within 50 ms of a call after the parent asked for it."""
        self._samples += samples
        self._bytes += size
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _WORKER_INTERVAL_S
            self._write()
            if os.path.exists(self._stop):  # noqa: PTH110 - called 20 times a second
                raise Stopped("stopped")

    def _write(self) -> None:
        os.pwrite(self._fd, _COUNTS.pack(self._samples, self._bytes), 0)


class ProgressBoard:
    """The parent's side: adds up the counts of all tasks of a stage and calls ``progress``."""

    def __init__(self, control: Path, progress: Progress | None) -> None:
        self._folder = control / "progress"
        self._progress = progress

    @contextmanager
    def stage(
        self, name: str, *, total_samples: int | None = None, total_bytes: int | None = None,
        done_samples: int = 0, done_bytes: int = 0,
    ) -> Iterator[None]:  # fmt: skip
        """Reports while the block runs; ``done_*`` is what an earlier call had finished."""
        self._folder.mkdir(exist_ok=True)
        for old in self._folder.iterdir():
            old.unlink()
        if self._progress is None:
            yield
            return
        progress = self._progress
        ended = threading.Event()

        def report() -> None:
            samples, size = self._counts()
            progress(ProgressEvent(name, done_samples + samples, done_bytes + size, total_samples, total_bytes))

        def watch() -> None:
            while not ended.wait(_PARENT_INTERVAL_S):
                report()

        thread = threading.Thread(target=watch, name="shardmill-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        report()

    def _counts(self) -> tuple[int, int]:
        samples = size = 0
        for entry in os.scandir(self._folder):
            with open(entry.path, "rb") as file:  # noqa: PTH123
                data = file.read(_COUNTS.size)
            if len(data) == _COUNTS.size:
                its_samples, its_bytes = _COUNTS.unpack(data)
                samples += its_samples
                size += its_bytes
        return samples, size


def terminal_progress() -> Progress | None:
    """A bar with rate and time left on stderr where that is a terminal, else ``None``."""
    if not sys.stderr.isatty():
        return None
    return _Bar()


class _Bar:
    """One rich line per stage. Rich is imported here: workers and servers never need it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as RichProgress

        self._bars = RichProgress(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TextColumn("{task.fields[samples]:>12,} samples"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._tasks: dict[str, Any] = {}
        self._bars.start()

    def __call__(self, event: ProgressEvent) -> None:
        task = self._tasks.get(event.stage)
        if task is None:
            task = self._tasks[event.stage] = self._bars.add_task(event.stage, total=event.total_bytes, samples=0)
        self._bars.update(task, completed=event.bytes, samples=event.samples)

    def close(self) -> None:
        self._bars.stop()
