"""The folders a pack works in, and who may work there."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardmill.errors import OptionsError
from shardmill.shards.manifest import MANIFEST
from shardmill.shards.packing.journal import JOURNAL
from shardmill.shards.packing.progress import STOP_FILE

CONTROL: Final = ".shardmill-pack"
_LOCK: Final = "lock"


@dataclass(frozen=True, slots=True)
class Workspace:
    """``dest`` gets the shards; ``control`` (in it) the journal, the lock and rows; ``runs`` the bulky part."""

    dest: Path
    control: Path
    runs: Path

    @property
    def journal(self) -> Path:
        """The journal's path."""
        return self.control / JOURNAL

    def make(self) -> None:
        """Makes the folders, and takes away what an earlier stop left."""
        for folder in (self.runs, self.control / "rows", self.control / "progress"):
            folder.mkdir(parents=True, exist_ok=True)
        (self.control / STOP_FILE).unlink(missing_ok=True)

    def stop(self) -> None:
        """Asks every worker to stop; nothing where the work is over."""
        if self.control.is_dir():
            (self.control / STOP_FILE).touch()

    def remove(self) -> None:
        """Takes all of it away; the journal last, so that an interrupted removal can be told from a fresh start."""
        shutil.rmtree(self.runs, ignore_errors=True)
        for name in ("rows", "progress"):
            shutil.rmtree(self.control / name, ignore_errors=True)
        for name in (STOP_FILE, "classes.json", JOURNAL, _LOCK):
            (self.control / name).unlink(missing_ok=True)
        self.control.rmdir()


def workspace(dest: Path, scratch: Path | None) -> Workspace:
    """The folders for packing into ``dest``; with ``scratch``, the bulky part goes to a folder of its own there."""
    control = dest / CONTROL
    if scratch is None:
        return Workspace(dest, control, control / "runs")
    name = hashlib.sha256(os.fsencode(dest.absolute())).hexdigest()[:16]
    return Workspace(dest, control, scratch / f"shardmill-pack-{name}")


def has_manifest(dest: Path) -> bool:
    """Whether a finished dataset is there."""
    return (dest / MANIFEST).exists()


class Lock:
    """Held while a pack works on ``dest``; a second one fails at once. The kernel frees it when the holder dies."""

    def __init__(self, space: Workspace) -> None:
        self._path = space.control / _LOCK
        self._dest = space.dest
        self._fd = -1

    def __enter__(self) -> Lock:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The holder before may have removed the file after we opened it: then this lock guards nothing.
                current = os.stat(self._path, follow_symlinks=False)  # noqa: PTH116
                if os.path.samestat(os.fstat(fd), current):
                    break
            except BlockingIOError:
                owner = _owner(fd)
                os.close(fd)
                raise OptionsError(
                    f"{self._dest} is being packed by {owner}: wait for it, or choose another folder"
                ) from None
            except FileNotFoundError:
                pass
            os.close(fd)
            self._path.parent.mkdir(parents=True, exist_ok=True)
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        self._fd = fd
        return self

    def __exit__(self, *failure: object) -> None:
        os.close(self._fd)


def _owner(fd: int) -> str:
    try:
        owner = json.loads(os.pread(fd, 1000, 0))
        return f"process {owner['pid']} on {owner['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
