"""The samples that a run left out, in memory and as lines of JSON: what ``on_error="skip"`` owes to its user.

Which samples are bad is a property of the data, so the order does not depend on the ledger, and a saved state need not
hold it. What would be lost in a restart is the record. With a folder, each rank appends to a file of its own, one line
a sample, at the moment its batch is handed over:

    {"run": "5b0c...", "epoch": 0, "step": 17, "id": 4711, "kind": "ImageError", "problem": "...", "path": "...",
     "offset": 1536, "key": "n01440764_10026", "hint": "..."}

``run`` is a digest of dataset and order, so that several runs may share a folder. Steps that are done again after a
restart write their lines again; readers take each (run, epoch, id) once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shardmill import errors
from shardmill.errors import DataError, OptionsError, StateError
from shardmill.loading.state import digest_of

MAX_REMEMBERED = 10_000
"""Samples that are remembered one by one; the counts go on."""

_KINDS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, DataError)}


@dataclass(frozen=True)
class Skipped:
    """A sample left out: its row, when it was due, where it lies and what is wrong with it."""

    id: int
    epoch: int
    step: int
    error: DataError


class Ledger:
    """What was left out so far, each (epoch, row) once. Not thread-safe: the consumer's thread writes it."""

    def __init__(
        self, folder: str | os.PathLike[str] | None, run: Mapping[str, int | str], *, rank: int, world_size: int
    ) -> None:
        self.run = digest_of(json.dumps(dict(run), sort_keys=True))
        self._folder: Path | None = None
        self._entries: dict[tuple[int, int], Skipped] = {}
        self._counts: dict[int, int] = {}
        if folder is not None:
            if "://" in os.fspath(folder):
                raise OptionsError(f"ledger={os.fspath(folder)!r} must be a local folder: no appending to objects")
            self._folder = Path(folder)
            self._folder.mkdir(parents=True, exist_ok=True)
            self._path = self._folder / f"skipped-rank{rank:05d}-of-{world_size:05d}.jsonl"

    @property
    def entries(self) -> tuple[Skipped, ...]:
        """In the order of epoch and step, at most `MAX_REMEMBERED`."""
        return tuple(sorted(self._entries.values(), key=lambda entry: (entry.epoch, entry.step, entry.id)))

    @property
    def counts(self) -> dict[int, int]:
        """Samples left out by epoch; epochs without any are not in it."""
        return dict(sorted(self._counts.items()))

    def add(self, entry: Skipped) -> None:
        """Remembers it, and appends its line. Raises `OSError` where that cannot be written."""
        self._remember(entry)
        if self._folder is not None:
            # One write of one line to the end: two loaders of a process may share the file.
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(file, _line(self.run, entry))
            finally:
                os.close(file)

    def resume(self, epoch: int, step: int) -> None:
        """Makes it the ledger of everything before ``step`` of ``epoch``: later entries will be found again.

        With a folder that is what all ranks wrote, of this world size and of others; without, what is in memory.
        """
        entries = [*self._entries.values()] if self._folder is None else [*read_ledger(self._folder, run=self.run)]
        self._entries, self._counts = {}, {}
        for entry in entries:
            if (entry.epoch, entry.step) < (epoch, step):
                self._remember(entry)

    def _remember(self, entry: Skipped) -> None:
        at = entry.epoch, entry.id
        if at in self._entries:
            return
        self._counts[entry.epoch] = self._counts.get(entry.epoch, 0) + 1
        if len(self._entries) < MAX_REMEMBERED:
            self._entries[at] = entry


def read_ledger(folder: str | os.PathLike[str], *, run: str | None = None) -> Iterator[Skipped]:
    """The entries of a folder's files, rank by rank, each (run, epoch, row) once; of one ``run`` or of all.

    Raises `StateError` naming file and line for a line that is no entry, as a full disk leaves it.
    """
    seen: set[tuple[str, int, int]] = set()
    for path in sorted(Path(folder).glob("skipped-rank*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    fields = json.loads(line)
                    entry = Skipped(fields["id"], fields["epoch"], fields["step"], _error(fields))
                    at = fields["run"], entry.epoch, entry.id
                except (ValueError, KeyError, TypeError) as error:
                    raise StateError(
                        f"{path}:{number}: no entry of a ledger ({error!r}): was the disk full? Delete the line"
                    ) from None
                if at not in seen and run in (None, at[0]):
                    seen.add(at)
                    yield entry


def _line(run: str, entry: Skipped) -> bytes:
    error = entry.error
    fields = {
        "run": run,
        "epoch": entry.epoch,
        "step": entry.step,
        "id": entry.id,
        "kind": type(error).__name__,
        "problem": error.problem,
        "path": error.path,
        "offset": error.offset,
        "key": error.key,
        "hint": error.hint,
    }
    return (json.dumps(fields) + "\n").encode()


def _error(fields: Mapping[str, str]) -> DataError:
    kind = _KINDS.get(fields["kind"], DataError)
    offset = fields["offset"]
    return kind(
        fields["problem"],
        path=fields["path"],
        offset=None if offset is None else int(offset),
        key=fields["key"],
        hint=fields["hint"],
    )
