"""Verify one shard: every digest that the index has of it, in one sequential read. A task of an executor."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import TarError
from shardmill.imageinfo import image_field, probe
from shardmill.records import NO_LABEL
from shardmill.shards.faults import Fault, Recorded, faults_in_sample
from shardmill.shards.grouping import group_samples
from shardmill.shards.index import INDEX_DIR, ROW, array_header
from shardmill.shards.tar import BLOCK
from shardmill.shards.tarscan import scan_tar
from shardmill.storage.checksums import crc32c_ranges

WINDOW_BYTES: Final = 8 * 2**20
_NEEDED: Final = ("sample_start", "sample_bytes", "image_offset", "image_bytes", "image_crc32c", "sample_crc32c")
_SCANNED_EXTENSIONS = 16


@dataclass(frozen=True, slots=True)
class VerifyTask:
    """One shard of the dataset in ``root``. ``size``, ``sha256``, ``first``, ``samples``: ``None`` where the index
    cannot be trusted to say. ``damaged``: files of the index that do not match their digest. ``dtypes``,
    ``rows``: of the files of the index, as the manifest has them."""

    root: Path
    name: str
    size: int | None
    sha256: bytes | None
    first: int | None
    samples: int | None
    checksums: bool
    canonical: bool
    classes: tuple[str, ...] | None = field(repr=False)
    damaged: frozenset[str] = frozenset()
    dtypes: Mapping[str, str] = field(default_factory=dict, repr=False)
    rows: Mapping[str, int] = field(default_factory=dict, repr=False)

    def trusts(self, *columns: str) -> bool:
        """Whether these columns can be believed."""
        return self.first is not None and not any(f"{column}.npy" in self.damaged for column in columns)


@dataclass(frozen=True, slots=True)
class ShardFaults:
    """``bytes`` and ``samples`` that were checked, and what was wrong."""

    bytes: int
    samples: int
    faults: tuple[Fault, ...]


def verify_shard(task: VerifyTask) -> ShardFaults:
    """Checks one shard. Memory: about 8 MiB, or one sample. Never raises for what the data hold."""
    path = task.root / task.name
    try:
        # A FIFO would otherwise be waited for without end.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return ShardFaults(0, 0, (Fault(task.name, "the shard is missing"),))
    except OSError as error:
        return ShardFaults(0, 0, (Fault(task.name, f"cannot be read: {error.strerror}"),))
    try:
        return _Shard(task, fd, path).verify()
    except OSError as error:
        return ShardFaults(0, 0, (Fault(task.name, f"cannot be read: {error.strerror}"),))
    finally:
        os.close(fd)


class _Shard:
    def __init__(self, task: VerifyTask, fd: int, path: Path) -> None:
        self.task = task
        self.fd = fd
        self.path = path
        self.size = os.fstat(fd).st_size
        self.faults: list[Fault] = []

    def verify(self) -> ShardFaults:
        task = self.task
        if task.size is not None and self.size != task.size:
            what = "is cut off" if self.size < task.size else "has bytes behind its end"
            offset = min(self.size, task.size)
            self.faults.append(Fault(task.name, f"{what}: {self.size} bytes, the index says {task.size}", offset))
        rows = self._rows() if task.checksums and task.trusts(*_NEEDED) else None
        if rows is None:
            digest, samples = self._digest(), 0
            bad: list[int] = []
        else:
            digest, bad = self._read(rows)
            samples = len(rows["sample_start"])
        if rows is not None:
            for i in bad:
                self.faults += self._sample(rows, i)
            if task.sha256 is not None and digest != task.sha256 and not self._outside(rows) and not self.faults:
                self._digest_fault(rows_good=True)
        elif task.sha256 is not None and digest != task.sha256:
            self._structure()
            if not self.faults:
                self._digest_fault(rows_good=False)
        else:
            samples = self._structure()
            if task.sha256 is None and task.checksums and not self.faults:
                self._compare_payloads()
        if task.damaged and not self.faults:
            self._compare()
        return ShardFaults(self.size, samples, tuple(self.faults))

    def _digest_fault(self, *, rows_good: bool) -> None:
        where = "outside its samples" if rows_good else "somewhere"
        self.faults.append(Fault(self.task.name, f"the sha256 of the shard differs: a byte is wrong {where}"))

    def _rows(self) -> Mapping[str, NDArray[Any]] | None:
        """The index columns of this shard's rows, or ``None`` where they cannot be read."""
        names = [*_NEEDED, "label"]
        rows = {name: self._column(name) for name in names}
        if any(column is None for column in rows.values()):
            return None
        return {name: column for name, column in rows.items() if column is not None}

    def _column(self, name: str) -> NDArray[Any] | None:
        first, samples = self.task.first, self.task.samples
        if first is None or samples is None or f"{name}.npy" not in self.task.dtypes:
            return None
        offset, dtype = self._place(name, first)
        try:
            # Not np.load: the header may be what is damaged, and it is known anyway.
            part = np.fromfile(self.task.root / INDEX_DIR / f"{name}.npy", dtype, samples, offset=offset)
        except (OSError, ValueError):
            return None
        return part if len(part) == samples else None

    def _read(self, rows: Mapping[str, NDArray[Any]]) -> tuple[bytes, list[int]]:
        """One pass: the digest of the file, and the samples that differ from their checksums."""
        sha256 = hashlib.sha256()
        bad: list[int] = []
        starts = rows["sample_start"].astype(np.int64)
        ends = starts + rows["sample_bytes"].astype(np.int64)
        images, image_sizes = rows["image_offset"].astype(np.int64), rows["image_bytes"].astype(np.int64)
        at = first = 0
        while first < len(starts):
            last = max(first + 1, int(np.searchsorted(ends, at + WINDOW_BYTES, side="right")))
            end = int(ends[last - 1])
            window = self._pread(at, end)
            sha256.update(window)
            data = np.frombuffer(window, np.uint8)
            chosen = np.arange(first, last)
            whole = ends[chosen] <= at + len(window)  # the file may be cut off
            bad += chosen[~whole].tolist()
            chosen = chosen[whole]
            crcs = crc32c_ranges(data, starts[chosen] - at, ends[chosen] - starts[chosen])
            image_crcs = crc32c_ranges(data, images[chosen] - at, image_sizes[chosen])
            wrong = (crcs != rows["sample_crc32c"][chosen]) | (image_crcs != rows["image_crc32c"][chosen])
            bad += chosen[wrong].tolist()
            at, first = end, last
        for window in self._windows(at):
            sha256.update(window)
        return sha256.digest(), bad

    def _pread(self, start: int, end: int) -> bytes:
        pieces = []
        while start < end and (piece := os.pread(self.fd, end - start, start)):
            pieces.append(piece)
            start += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _windows(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        end = self.size if end is None else end
        while start < end and (window := self._pread(start, min(end, start + WINDOW_BYTES))):
            yield window
            start += len(window)

    def _digest(self) -> bytes:
        sha256 = hashlib.sha256()
        for window in self._windows():
            sha256.update(window)
        return sha256.digest()

    def _sample(self, rows: Mapping[str, NDArray[Any]], i: int) -> list[Fault]:
        start, size = int(rows["sample_start"][i]), int(rows["sample_bytes"][i])
        data = self._pread(start, start + size)
        key = self._key(i)
        if len(data) < size:
            return [Fault(self.task.name, "the sample is cut off", start + len(data), key)]
        return faults_in_sample(
            data,
            Recorded(
                path=self.task.name,
                key=key,
                start=start,
                image_offset=int(rows["image_offset"][i]),
                image_bytes=int(rows["image_bytes"][i]),
                image_crc32c=int(rows["image_crc32c"][i]),
                sample_crc32c=int(rows["sample_crc32c"][i]),
                label=int(rows["label"][i]) if self.task.trusts("label") else NO_LABEL,
                canonical=self.task.canonical,
                extensions=self._extensions(rows),
            ),
        )

    def _key(self, i: int) -> str | None:
        if not self.task.trusts("keys_offsets") or "keys.utf8" in self.task.damaged:
            return None
        assert self.task.first is not None
        place, dtype = self._place("keys_offsets", self.task.first + i)
        offsets = np.fromfile(self.task.root / INDEX_DIR / "keys_offsets.npy", dtype, 2, offset=place).tolist()
        with (self.task.root / INDEX_DIR / "keys.utf8").open("rb") as file:
            return os.pread(file.fileno(), offsets[1] - offsets[0], offsets[0]).decode()

    def _extensions(self, rows: Mapping[str, NDArray[Any]]) -> tuple[str, ...]:
        """Extensions in use, from a few samples spread over the shard; unreadable ones are passed over."""
        counts: Counter[str] = Counter({"cls": 0, "jpg": 0, "JPEG": 0, "jpeg": 0, "png": 0})
        n = len(rows["sample_start"])
        for i in {int(i) for i in np.linspace(0, n - 1, min(n, _SCANNED_EXTENSIONS))}:
            start, size = int(rows["sample_start"][i]), int(rows["sample_bytes"][i])
            at = start
            while at < start + size:
                block = self._pread(at, at + BLOCK)
                name = block[:100].rstrip(b"\0").decode("ascii", "replace").rpartition("/")[2]
                octal = block[124:135]
                if "." not in name or not octal.isdigit():
                    break
                counts[name.partition(".")[2]] += 1
                at += BLOCK + -(-int(octal, 8) // BLOCK) * BLOCK
        return tuple(extension for extension, _ in counts.most_common())

    def _outside(self, rows: Mapping[str, NDArray[Any]]) -> bool:
        """Looks between and behind the samples, where `pack` writes zeros only; whether anything was found."""
        if not self.task.canonical:
            return False
        ends = (rows["sample_start"] + rows["sample_bytes"]).astype(np.int64)
        starts = np.append(rows["sample_start"].astype(np.int64)[1:], min(self.size, self.task.size or self.size))
        found = False
        for start, end in zip(ends.tolist(), starts.tolist(), strict=True):
            at = start
            for window in self._windows(start, end):
                stray = next((i for i, byte in enumerate(window) if byte), None)
                if stray is not None:
                    self.faults.append(Fault(self.task.name, "the end marker is not zero", at + stray))
                    found = True
                    break
                at += len(window)
        return found

    def _structure(self) -> int:
        """Without usable rows: the tar's own structure. Returns the number of samples found."""
        try:
            return sum(1 for _ in group_samples(scan_tar(self.path).members(), self.task.name))
        except TarError as error:
            self.faults.append(Fault(self.task.name, error.problem, error.offset, error.key))
            return 0

    def _compare(self) -> None:
        """The shard is sound but files of the index are not: say which rows of them are wrong."""
        try:
            derived, keys = self._derived()
        except TarError as error:
            self.faults.append(Fault(self.task.name, error.problem, error.offset, error.key))
            return
        for name in ROW.names or ():
            if f"{name}.npy" not in self.task.damaged:
                continue
            column = self._column(str(name))
            if column is None or len(column) != len(derived):
                continue
            for i in np.flatnonzero(column != derived[name]).tolist():
                if name == "label" and derived[name][i] == NO_LABEL:
                    continue
                problem = f"row {(self.task.first or 0) + i} says {column[i]}, the shard says {derived[name][i]}"
                file = f"{INDEX_DIR}/{name}.npy"
                self.faults.append(Fault(file, problem, self._place(str(name), (self.task.first or 0) + i)[0], keys[i]))

    def _compare_payloads(self) -> None:
        """Neither the shard's digest nor all columns are sound: the checksums that are still say which samples are."""
        derived, keys = self._derived()
        places = {"image_crc32c": "image_offset", "sample_crc32c": "sample_start"}
        bad: set[int] = set()
        for name, place in places.items():
            column = self._column(name) if self.task.trusts(name) else None
            if column is None or len(column) != len(derived):
                continue
            for i in sorted(set(np.flatnonzero(column != derived[name]).tolist()) - bad):
                bad.add(i)
                problem = f"the {name.partition('_')[0]} does not match its crc32c"
                self.faults.append(Fault(self.task.name, problem, int(derived[place][i]), keys[i]))

    def _place(self, name: str, row: int) -> tuple[int, str]:
        """Where row ``row`` of the dataset lies in the file of column ``name``, in bytes, and its dtype."""
        dtype = self.task.dtypes[f"{name}.npy"]
        rows = self.task.rows[f"{name}.npy"]
        return len(array_header(dtype, (rows,))) + row * np.dtype(dtype).itemsize, dtype

    def _derived(self) -> tuple[NDArray[Any], list[str]]:
        """The rows as the shard's own bytes give them, and the keys."""
        groups = list(group_samples(scan_tar(self.path).members(), self.task.name))
        rows = np.zeros(len(groups), ROW)
        numbers = {name: i for i, name in enumerate(self.task.classes or ())}
        for row, group in zip(rows, groups, strict=True):
            parts = dict(group.parts)
            start, end = group.parts[0][1].header_offset, group.parts[-1][1].end
            data = memoryview(self._pread(start, end))
            fields = {
                name: data[part.payload_offset - start : part.payload_offset - start + part.size]
                for name, part in parts.items()
            }
            row["sample_start"], row["sample_bytes"] = start, end - start
            row["image_offset"] = start
            chosen = image_field(fields)
            if chosen is not None:
                info = probe(fields[chosen])
                wide = max(info.width, info.height) > 0xFFFF
                row["image_offset"], row["image_bytes"] = parts[chosen].payload_offset, parts[chosen].size
                row["image_format"] = info.format
                row["width"], row["height"] = (0, 0) if wide else (info.width, info.height)
            text = bytes(fields.get("cls", b"")).decode("utf-8", "replace").strip()
            row["label"] = int(text) if text.isdecimal() and len(text) < 11 else numbers.get(text, NO_LABEL)
            whole = np.frombuffer(data, np.uint8)
            at = int(row["image_offset"]) - start
            crcs = crc32c_ranges(whole, np.array([0, at]), np.array([len(data), int(row["image_bytes"])]))
            row["sample_crc32c"], row["image_crc32c"] = crcs
        return rows, [group.key for group in groups]
