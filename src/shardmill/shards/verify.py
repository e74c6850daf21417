"""`verify`: every digest of a dataset, and every fault, not just the first."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import IndexFileError, OptionsError
from shardmill.machine import usable_cores
from shardmill.shards.executor import Executor, LocalProcesses, SerialExecutor, run_tasks
from shardmill.shards.faults import Fault
from shardmill.shards.index import INDEX_DIR, Strings, array_header, load_index, wrong_row
from shardmill.shards.manifest import MANIFEST, FileDigest, Manifest
from shardmill.shards.verify_shard import ShardFaults, VerifyTask, verify_shard

_CHUNK_BYTES = 4 * 2**20
_FEW_BYTES = 256 * 2**20
_UNPROVEN = "; without it the files of the index cannot be checked, nor shards for more than their structure"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """``samples``, ``shards`` and ``bytes`` that were checked; ``faults`` in the order of files and offsets.

    ``checksums``: whether the dataset has any; without them (an index made by a header scan) only structure could be
    checked.
    """

    path: Path
    samples: int
    shards: int
    bytes: int
    checksums: bool
    faults: tuple[Fault, ...] = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


def verify(
    path: str | os.PathLike[str],
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Reads all of the dataset in the folder ``path`` and lists every fault. Writes nothing.

    Checked: the manifest's own digest; size and sha256 of every file of the index; missing and foreign files; of every
    shard size and sha256, of every sample and image crc32c. A damaged shard is searched for the exact byte; rows of a
    damaged index file are compared with what the shards say. ``workers``: processes, by default one per usable core.
    ``progress(done, total)``: bytes of shards, called per shard.

    Raises `OptionsError` where there is no dataset at all. Cost: one sequential read; about 1.5 GB/s per core.
    """
    root = Path(path)
    faults: list[Fault] = []
    manifest = _manifest(root, faults)
    damaged = _check_files(root, manifest, faults)
    lies = None if manifest is None or damaged else _lie(root, manifest)
    if lies is None:
        tasks = _tasks(root, manifest, damaged, faults)
    else:
        faults.append(lies)
        tasks = [_blind(root, entry.name, manifest) for entry in sorted(root.glob("*.tar"))]
    total = sum(task.size or 0 for task in tasks)
    count = min(workers or usable_cores(), max(1, len(tasks)), 1 if total < _FEW_BYTES and workers is None else 10**6)
    results: list[ShardFaults] = []
    done = 0
    owned = executor or (SerialExecutor() if count == 1 else LocalProcesses(count))
    with owned if isinstance(owned, LocalProcesses) and executor is None else nullcontext():
        for _, result in run_tasks(owned, verify_shard, tasks, workers=count):
            results.append(result)
            done += result.bytes
            if progress is not None:
                progress(done, max(total, done))
    for result in results:
        faults += result.faults
    ordered = sorted(set(faults), key=lambda fault: (fault.path, -1 if fault.offset is None else fault.offset))
    return VerifyReport(
        root,
        sum(result.samples for result in results),
        len(results),
        sum(result.bytes for result in results),
        manifest is None or manifest.checksums,
        tuple(ordered),
    )


def _manifest(root: Path, faults: list[Fault]) -> Manifest | None:
    path = root / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if not (root / INDEX_DIR).is_dir():
            raise OptionsError(
                f"{root} holds no dataset ({MANIFEST} is missing): point at the folder that pack or index wrote"
            ) from None
        faults.append(Fault(MANIFEST, f"the manifest is missing{_UNPROVEN}"))
        return None
    try:
        return Manifest.from_bytes(data, path=str(path))
    except IndexFileError as error:
        faults.append(Fault(MANIFEST, error.problem + _UNPROVEN, error.offset))
        return None


def _check_files(root: Path, manifest: Manifest | None, faults: list[Fault]) -> frozenset[str]:
    """Compares the files of ``index/`` with the manifest; returns the names that cannot be trusted."""
    if manifest is None:
        return frozenset()
    damaged = set()
    for name, expected in manifest.files.items():
        path = root / INDEX_DIR / name
        shown = f"{INDEX_DIR}/{name}"
        try:
            size, digest = _digest(path)
        except FileNotFoundError:
            faults.append(Fault(shown, "the file is missing"))
        except OSError as error:
            faults.append(Fault(shown, f"cannot be read: {error.strerror}"))
        else:
            if size != expected.size:
                faults.append(
                    Fault(shown, f"{size} bytes, the manifest says {expected.size}", min(size, expected.size))
                )
            elif digest != expected.sha256:
                header = _header_damage(path, name, expected)
                where = "" if header is None else ": the header of the array is damaged"
                faults.append(Fault(shown, f"the sha256 differs from the manifest's{where}", header))
            else:
                continue
        damaged.add(name)
    for entry in sorted((root / INDEX_DIR).glob("*")):
        if entry.name not in manifest.files:
            faults += [Fault(f"{INDEX_DIR}/{entry.name}", "not a file of this dataset")]
    return frozenset(damaged)


def _lie(root: Path, manifest: Manifest) -> Fault | None:
    """What cannot be true in an index whose digests all fit: made so, not damaged. It must not be followed."""
    try:
        index = load_index(root / INDEX_DIR, manifest)
        wrong = wrong_row(index, classes=None if manifest.classes is None else len(manifest.classes))
        if wrong is None:
            return None
        row, problem = wrong
        return Fault(INDEX_DIR, f"row {row} {problem}; the shards were checked for no more than their structure")
    except IndexFileError as error:
        return Fault(INDEX_DIR, error.problem, error.offset)


def _header_damage(path: Path, name: str, expected: FileDigest) -> int | None:
    """The first byte of an array's header that is not what it must be, or ``None``."""
    if expected.dtype is None or expected.rows is None:
        return None
    right = array_header(expected.dtype, (expected.rows, 32) if name == "shard_sha256.npy" else (expected.rows,))
    with path.open("rb") as file:
        found = file.read(len(right))
    return next((i for i, (one, two) in enumerate(zip(found, right, strict=False)) if one != two), None)


def _digest(path: Path) -> tuple[int, str]:
    sha256, size = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            sha256.update(chunk)
            size += len(chunk)
    return size, sha256.hexdigest()


def _tasks(root: Path, manifest: Manifest | None, damaged: frozenset[str], faults: list[Fault]) -> list[VerifyTask]:
    present = sorted(entry.name for entry in root.glob("*.tar"))
    if manifest is None:
        # Neither names nor digests of shards can be trusted: what is there is checked by its own structure.
        return [_blind(root, name, manifest) for name in present]
    table = _shard_table(root, manifest, damaged)
    names = present if table.names is None else table.names
    faults += [Fault(name, "not a shard of this dataset") for name in sorted(set(present) - set(names))]
    if len(names) != manifest.shards:
        return [_blind(root, name, manifest) for name in names]
    return [
        VerifyTask(
            root=root,
            name=name,
            size=None if table.bytes is None else int(table.bytes[i]),
            sha256=None if table.sha256 is None or not manifest.checksums else table.sha256[i].tobytes(),
            first=None if table.first is None else int(table.first[i]),
            samples=None if table.first is None else int(table.first[i + 1] - table.first[i]),
            checksums=manifest.checksums,
            canonical=manifest.shuffle is not None,
            classes=manifest.classes,
            damaged=damaged,
            dtypes={name: digest.dtype for name, digest in manifest.files.items() if digest.dtype is not None},
            rows={name: digest.rows for name, digest in manifest.files.items() if digest.rows is not None},
        )
        for i, name in enumerate(names)
    ]


@dataclass(frozen=True)
class _ShardTable:
    """The columns of the shard table that match their digests; ``None`` for the others."""

    names: list[str] | None
    first: NDArray[Any] | None
    bytes: NDArray[Any] | None
    sha256: NDArray[Any] | None


def _shard_table(root: Path, manifest: Manifest, damaged: frozenset[str]) -> _ShardTable:
    folder = root / INDEX_DIR

    def column(name: str) -> NDArray[Any] | None:
        if f"{name}.npy" in damaged or f"{name}.npy" not in manifest.files:
            return None
        array: NDArray[Any] = np.load(folder / f"{name}.npy", allow_pickle=False)
        return array

    offsets = column("shard_names_offsets")
    names = None
    if offsets is not None and "shard_names.utf8" not in damaged and "shard_names.utf8" in manifest.files:
        blob = np.fromfile(folder / "shard_names.utf8", np.uint8)
        names = list(Strings(blob, offsets))
    first = column("shard_first")
    starts = column("sample_start") if first is None else None
    if starts is not None:
        # The first sample of a shard begins at byte 0.
        zeros = np.flatnonzero(starts == 0)
        first = np.append(zeros, len(starts)) if len(zeros) == manifest.shards else None
    return _ShardTable(names, first, column("shard_bytes"), column("shard_sha256"))


def _blind(root: Path, name: str, manifest: Manifest | None) -> VerifyTask:
    return VerifyTask(
        root=root, name=name, size=None, sha256=None, first=None, samples=None, checksums=False,
        canonical=manifest is not None and manifest.shuffle is not None, classes=None,
    )  # fmt: skip


__all__ = ["Fault", "VerifyReport", "verify"]
