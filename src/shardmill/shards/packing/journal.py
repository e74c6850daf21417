"""The journal of a pack: what is finished, one JSON object a line, synced line by line.

Only the parent writes it. A line that a crash cut short is as if it had not been written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardmill.errors import OptionsError
from shardmill.shards.packing.gather import ShardResult

JOURNAL = "journal.jsonl"
JOURNAL_VERSION = 1


@dataclass(slots=True)
class Finished:
    """What earlier calls finished: indexes of source ranges with (samples, bytes), and shards by index."""

    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)
    shards: dict[int, ShardResult] = field(default_factory=dict)


class Journal:
    """An open journal. `start` or `resume` makes one; `close` it."""

    def __init__(self, path: Path, plan: Mapping[str, Any], finished: Finished) -> None:
        self.path = path
        self.plan = plan
        self.finished = finished
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)

    def range_done(self, index: int, samples: int, size: int) -> None:
        """Range ``index`` of the source is in runs."""
        self.finished.ranges[index] = (samples, size)
        self._add({"kind": "range", "index": index, "samples": samples, "bytes": size})

    def forget_ranges(self, plan: Mapping[str, Any]) -> None:
        """Goes on as ``plan``: the ranges are to be read again, the finished shards stay."""
        self.plan = plan
        self.finished.ranges.clear()
        self._add({"kind": "again", **plan})

    def shard_done(self, shard: ShardResult) -> None:
        """A shard is under its final name and its rows are saved."""
        self.finished.shards[shard.index] = shard
        self._add(
            {
                "kind": "shard",
                "index": shard.index,
                "samples": shard.samples,
                "size": shard.size,
                "sha256": shard.sha256,
                "notes": dict(shard.notes),
            }
        )

    def _add(self, entry: Mapping[str, Any]) -> None:
        os.write(self._fd, (json.dumps(entry) + "\n").encode())
        os.fdatasync(self._fd)


def start(path: Path, plan: Mapping[str, Any]) -> Journal:
    """A new journal that begins with ``plan``."""
    journal = Journal(path, plan, Finished())
    journal._add({"kind": "plan", "version": JOURNAL_VERSION, **plan})
    return journal


def resume(path: Path) -> Journal | None:
    """The journal at ``path``, or ``None`` where none was begun. A line cut short is removed."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    whole = data[: data.rfind(b"\n") + 1]
    lines = whole.splitlines()
    if not lines:
        path.unlink()
        return None
    plan = json.loads(lines[0])
    if plan.pop("kind", None) != "plan" or plan.pop("version", None) != JOURNAL_VERSION:
        raise OptionsError(f"{path} was written by another version of shardmill: delete its folder and pack again")
    finished = Finished()
    for line in lines[1:]:
        entry = json.loads(line)
        if entry["kind"] == "again":
            del entry["kind"]
            plan = entry
            finished.ranges.clear()
        elif entry["kind"] == "range":
            finished.ranges[entry["index"]] = (entry["samples"], entry["bytes"])
        else:
            finished.shards[entry["index"]] = ShardResult(
                entry["index"], entry["samples"], entry["size"], entry["sha256"], entry["notes"]
            )
    if len(whole) != len(data):
        os.truncate(path, len(whole))
    return Journal(path, plan, finished)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What keeps ``new`` from continuing ``old``, in words."""
    return [
        f"{name} was {old.get(name)!r}, now {new.get(name)!r}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
