"""`pack`: the stages in order, and what holds between them."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from shardmill.errors import OptionsError, SourceError
from shardmill.shards.executor import Executor, LocalProcesses, SerialExecutor, run_tasks, usable_cores
from shardmill.shards.index_writer import ShardRows, write_index, write_manifest
from shardmill.shards.manifest import MANIFEST, Manifest
from shardmill.shards.packing import journal as journals
from shardmill.shards.packing.cut import Limits
from shardmill.shards.packing.duplicates import find_identical
from shardmill.shards.packing.gather import (
    GatherTask,
    ShardPlan,
    ShardResult,
    gather,
    load_rows,
    rows_path,
    save_classes,
    shard_name,
)
from shardmill.shards.packing.options import EncodeSpec, Means, PackOptions, share_memory
from shardmill.shards.packing.position import METHOD
from shardmill.shards.packing.progress import Progress, ProgressBoard, terminal_progress
from shardmill.shards.packing.report import PackReport
from shardmill.shards.packing.runs import RunInfo, list_runs
from shardmill.shards.packing.scatter import ScatterTask, scatter
from shardmill.shards.packing.shardplan import plan_shards
from shardmill.shards.packing.workspace import Lock, Workspace, has_manifest, workspace
from shardmill.shards.tar import END
from shardmill.sources.open import Spec, open_source
from shardmill.sources.protocols import RefSource, Source, SourceInfo, SplittableSource

T = TypeVar("T")
R = TypeVar("R")

_MOST_RANGES = 64
_MOST_REFERENCE_RANGES = 8  # listing is quick, and every range leaves a run that gather must look into
_WINDOW_BYTES = 8 * 2**20
_SLICE_BYTES = 2**20
_MOST_SHARDS_PER_TASK = 256
_SMALL_TASK_BYTES = 64 * 2**20


def pack(
    source: Spec,
    dest: str | os.PathLike[str],
    *,
    shard_bytes: int = 256 * 2**20,
    shard_samples: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    memory_bytes: int = 2**30,
    scratch: str | os.PathLike[str] | None = None,
    encode: EncodeSpec | None = None,
    sequential: bool = False,
    executor: Executor | None = None,
    resume: bool = False,
    progress: bool | Progress = True,
    name: str = "shard",
) -> PackReport:
    """Packs ``source`` into globally shuffled, indexed tar shards in the folder ``dest``.

    The place of a sample is a hash of ``seed`` and its key: the same source, seed and limits give the same bytes for
    any number of workers, any memory and any listing order. Nothing is a dataset until the manifest is written, last.

    ``shard_bytes``, ``shard_samples``: most bytes (end marker included) and samples of a shard. ``workers``:
    processes, by default one per usable core; 1 works in this process. ``memory_bytes``: what all processes together
    may hold besides 150 MB for the interpreters, at least 64 MiB; one sample must fit on top. ``scratch``: folder for
    the bulky temporary files, by default in ``dest``; they are as large as the source where it is re-encoded, cannot
    be read in any order, or is read ``sequential``: front to back, written twice, for hard disks and tape. ``encode``:
    re-encode every image; by default bytes are kept. ``executor``: where tasks run, with ``workers`` of them at a time;
    it must see ``dest``, ``scratch`` and the source under the same paths. ``resume``: continue an interrupted pack of
    the same source with the same options. ``progress``: a callable that gets every `ProgressEvent`, or whether to draw
    a bar where stderr is a terminal. ``name``: of the shards.

    Raises `OptionsError` for options that make no sense or a ``dest`` that is in use or not free, `SourceError` for
    what the source holds, `OSError` naming the path for what the disk refuses. After any of them, and after Ctrl-C,
    SIGTERM or a crash, ``resume=True`` continues.
    """
    options = PackOptions(name, shard_bytes, shard_samples, seed, encode)
    means = share_memory(memory_bytes=memory_bytes, workers=workers or usable_cores())
    opened = open_source(source)
    space = workspace(Path(dest).absolute(), None if scratch is None else Path(scratch).absolute())
    callback = terminal_progress() if progress is True else (progress or None)
    with _sigterm_as_exit():
        _refuse_finished(space, resume=resume)
        with Lock(space):
            if has_manifest(space.dest):
                return _clean_up(space, resume=resume)
            job = _prepare(opened, options, means, space, resume=resume, sequential=sequential)
            with closing_progress(callback), _executor(executor, means) as runner:
                try:
                    return job.run(runner, ProgressBoard(space.control, callback))
                except BaseException:
                    space.stop()
                    raise
                finally:
                    job.journal.close()


def _refuse_finished(space: Workspace, *, resume: bool) -> None:
    if has_manifest(space.dest) and not (resume and space.control.exists()):
        raise OptionsError(f"{space.dest} already holds a dataset ({MANIFEST}): choose another folder, or delete it")
    if not space.dest.exists():
        space.dest.mkdir(parents=True)
    if not space.dest.is_dir():
        raise OptionsError(f"{space.dest} is not a folder")


def _clean_up(space: Workspace, *, resume: bool) -> PackReport:
    """The pack was finished, but killed before it removed its temporary files."""
    if not resume:
        raise OptionsError(f"{space.dest} already holds a dataset ({MANIFEST}): choose another folder, or delete it")
    path = space.dest / MANIFEST
    manifest = Manifest.from_bytes(path.read_bytes(), path=str(path))
    space.remove()
    return PackReport(
        space.dest, manifest.samples, manifest.shards, manifest.total_bytes, passes=0, seconds={}, resumed=True
    )


def _prepare(
    source: Source, options: PackOptions, means: Means, space: Workspace, *, resume: bool, sequential: bool
) -> _Job:
    info = source.describe()
    _refuse_inside(info, space)
    parts: Sequence[Source] = source.split() if isinstance(source, SplittableSource) else [source]
    by_reference = not sequential and options.encode is None and all(isinstance(part, RefSource) for part in parts)
    ranges = min(_MOST_REFERENCE_RANGES if by_reference else _MOST_RANGES, len(parts))
    plan: dict[str, Any] = {
        "source": {"name": info.name, "kind": info.kind, "fingerprint": info.fingerprint, "parts": len(parts)},
        "options": options.describe(),
        "runs": str(space.runs),
        "boot": boot_id(),
        "by_reference": by_reference,
    }
    old = journals.resume(space.journal)
    if old is None:
        _refuse_occupied(space)
        space.make()
        _empty(space.runs)
        journal = journals.start(space.journal, plan)
    else:
        journal = old
        try:
            if not resume:
                raise OptionsError(
                    f"{space.dest} holds an unfinished pack: continue it with resume=True (--resume), or delete "
                    f"{space.control} and the shards beside it"
                )
            differing = [
                line for name in ("source", "options") for line in journals.differences(old.plan[name], plan[name])
            ]
            differing += journals.differences(
                {"scratch": old.plan["runs"], "one pass": old.plan["by_reference"]},
                {"scratch": plan["runs"], "one pass": by_reference},
            )
            if differing:
                raise OptionsError(
                    f"{space.dest} cannot be resumed: {'; '.join(differing)}. Use the same source and options, or "
                    f"delete {space.control} and the shards beside it"
                )
            space.make()
            if plan["boot"] is None or old.plan["boot"] != plan["boot"]:
                # Runs are not synced: after a crash of the machine they may be full of holes.
                journal.forget_ranges(plan)
                _empty(space.runs)
        except BaseException:
            journal.close()
            raise
    return _Job(source, info, parts, by_reference, ranges, options, means, space, journal, resumed=old is not None)


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        entry.unlink()


def boot_id() -> str | None:
    """What this machine calls the time since it was started; ``None`` where it has no name for it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _refuse_inside(info: SourceInfo, space: Workspace) -> None:
    root = Path(info.name)
    if root.is_dir() and space.dest.resolve().is_relative_to(root.resolve()):
        raise OptionsError(f"{space.dest} lies inside the source {root}: choose a folder outside, or it packs itself")


def _refuse_occupied(space: Workspace) -> None:
    for entry in sorted(space.dest.iterdir()):
        if entry.name == "index" or entry.suffix == ".tar":
            raise OptionsError(f"{space.dest} holds {entry.name} already: choose an empty folder, or delete it")


@dataclass
class _Job:
    """One pack after its plan: `run` does the stages that are left."""

    source: Source
    info: SourceInfo
    parts: Sequence[Source]
    by_reference: bool
    ranges: int
    options: PackOptions
    means: Means
    space: Workspace
    journal: journals.Journal
    resumed: bool
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, executor: Executor, board: ProgressBoard) -> PackReport:
        with self._timed("scatter"):
            self._scatter(executor, board)
        runs = list_runs(self.space.runs)
        classes = self._classes(runs)
        with self._timed("cut"), board.stage("cut"):
            plans = list(self._cut(runs))
        with self._timed("gather"):
            self._gather(executor, board, plans, runs)
        with self._timed("commit"), board.stage("commit"):
            notes = self._commit(plans, classes)
        self.space.remove()
        size = sum(plan.size for plan in plans)
        samples = sum(plan.samples for plan in plans)
        return PackReport(
            self.space.dest, samples, len(plans), size, 1 if self.by_reference else 2, self.seconds, notes, self.resumed
        )

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - began

    def _scatter(self, executor: Executor, board: ProgressBoard) -> None:
        done = self.journal.finished.ranges
        # Ranges are cut by the number of parts alone, so that a resume with other workers finds the same ones.
        tasks = [
            ScatterTask(
                index=i,
                parts=self.parts[i * len(self.parts) // self.ranges : (i + 1) * len(self.parts) // self.ranges],
                by_reference=self.by_reference,
                folder=self.space.runs,
                control=self.space.control,
                seed=self.options.seed,
                encode=self.options.encode,
                memory_bytes=self.means.worker_bytes,
            )
            for i in range(self.ranges)
            if i not in done
        ]
        with board.stage(
            "scatter",
            total_bytes=self.info.estimated_bytes,
            done_samples=sum(samples for samples, _ in done.values()),
            done_bytes=sum(size for _, size in done.values()),
        ):
            for task, result in run_tasks(executor, scatter, tasks, workers=self.means.workers):
                self.journal.range_done(task.index, result.samples, result.bytes)
        if not any(samples for samples, _ in self.journal.finished.ranges.values()):
            raise SourceError(f"{self.info.name} holds no samples: nothing to pack")

    def _classes(self, runs: Sequence[RunInfo]) -> tuple[str, ...] | None:
        """The names by label, written where the workers find them."""
        found = {name for run in runs for name in run.classes}
        largest = max(run.largest_label for run in runs)
        known = self.info.class_names
        if found and largest >= 0:
            raise SourceError(
                f"{self.info.name}: some samples have a label number, others a class name (such as "
                f"{min(found)!r}): give all of them one kind"
            )
        if known is not None and largest >= len(known):
            raise SourceError(f"{self.info.name}: label {largest} has no name; there are {len(known)} class names")
        names = known if known is not None and found <= set(known) else tuple(sorted(found)) if found else None
        save_classes(self.space.control, names or ())
        return names

    def _cut(self, runs: Sequence[RunInfo]) -> Iterator[ShardPlan]:
        limits = Limits(self.options.shard_bytes, self.options.shard_samples, len(END))
        share = self.means.worker_bytes
        return plan_shards(
            self.space.runs,
            runs,
            limits,
            memory_bytes=share // 2,
            # A small window stays in the processor's cache; with many runs it must be large, so that what is read of
            # each run at a time is worth a seek.
            piece_bytes=min(share // 2, max(_WINDOW_BYTES, 0 if self.by_reference else len(runs) * _SLICE_BYTES)),
            row_bytes=share // 4,
        )

    def _gather(
        self, executor: Executor, board: ProgressBoard, plans: Sequence[ShardPlan], runs: Sequence[RunInfo]
    ) -> None:
        done = self.journal.finished.shards
        left = [plan for plan in plans if not self._is_written(plan)]
        total = sum(run.total_bytes for run in runs)
        token = secrets.token_hex(8)
        tasks = (
            GatherTask(group, self.space.runs, self.space.control, self.space.dest, self.options.name, token)
            for group in _groups(left, most_bytes=max(_SMALL_TASK_BYTES, 1))
        )
        with board.stage(
            "gather",
            total_samples=sum(plan.samples for plan in plans),
            total_bytes=total,
            done_samples=sum(plan.samples for plan in plans) - sum(plan.samples for plan in left),
            done_bytes=total - sum(plan.size - len(END) for plan in left),
        ):
            for _, results in run_tasks(executor, gather, tasks, workers=self.means.workers):
                for result in results:
                    self.journal.shard_done(result)
        assert all(plan.index in done for plan in plans)

    def _is_written(self, plan: ShardPlan) -> bool:
        """Whether an earlier call finished this shard and it is still there."""
        result = self.journal.finished.shards.get(plan.index)
        path = self.space.dest / shard_name(self.options.name, plan.index)
        if result is None or (result.size, result.samples) != (plan.size, plan.samples):
            return False
        try:
            status = path.lstat()
        except FileNotFoundError:
            return False
        return status.st_size == plan.size and rows_path(self.space.control, plan.index).exists()

    def _commit(self, plans: Sequence[ShardPlan], classes: tuple[str, ...] | None) -> tuple[str, ...]:
        results = self.journal.finished.shards
        samples = sum(plan.samples for plan in plans)

        def rows() -> Iterator[ShardRows]:
            for plan in plans:
                result = results[plan.index]
                its_rows, keys = load_rows(rows_path(self.space.control, plan.index), plan.samples)
                yield ShardRows(
                    shard_name(self.options.name, plan.index),
                    result.size,
                    bytes.fromhex(result.sha256),
                    its_rows,
                    keys,
                )

        notes = self._notes([results[plan.index] for plan in plans], samples)
        files = write_index(self.space.dest, rows(), samples=samples, shard_count=len(plans))
        write_manifest(
            self.space.dest,
            Manifest(
                samples=samples,
                shards=len(plans),
                total_bytes=sum(plan.size for plan in plans),
                files=files,
                classes=classes,
                label_source=self.info.label_source,
                shuffle={"seed": self.options.seed, "method": METHOD},
                encode=None if self.options.encode is None else dict(self.options.encode.describe()),
                created_by=f"shardmill {version('shardmill')}",
            ),
        )
        return notes

    def _notes(self, results: Sequence[ShardResult], samples: int) -> tuple[str, ...]:
        counts: Counter[str] = Counter()
        for result in results:
            counts.update(result.notes)
        notes = [f"{count} {what}" for what, count in sorted(counts.items())]
        identical = find_identical(
            lambda i: load_rows(rows_path(self.space.control, results[i].index), results[i].samples),
            shards=len(results),
            samples=samples,
            memory_bytes=self.means.worker_bytes,
        )
        if identical is not None:
            one, other = identical.example
            notes.append(
                f"{identical.extra} images have the size and crc32c of another one, such as {one!r} and {other!r}"
            )
        if self.info.ignored:
            notes.append(f"{self.info.ignored} files of the source were passed over as litter")
        return tuple(notes)


def _groups(plans: Sequence[ShardPlan], *, most_bytes: int) -> Iterator[tuple[ShardPlan, ...]]:
    """Consecutive shards for one task: small shards together, so that a task is worth its overhead."""
    waiting = iter(plans)
    for first in waiting:
        group, size = [first], first.size
        while size < most_bytes and len(group) < _MOST_SHARDS_PER_TASK:
            following = next(waiting, None)
            if following is None:
                break
            group.append(following)
            size += following.size
        yield tuple(group)


def _executor(given: Executor | None, means: Means) -> AbstractContextManager[Executor]:
    if given is not None:
        return nullcontext(given)
    return nullcontext(SerialExecutor()) if means.workers == 1 else LocalProcesses(means.workers)


@contextmanager
def closing_progress(progress: Progress | None) -> Iterator[None]:
    """Ends a progress display that has a ``close``, whatever happens."""
    try:
        yield
    finally:
        close: Callable[[], Any] | None = getattr(progress, "close", None)
        if close is not None:
            close()


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that temporaries go and workers end; only the main thread may ask for that."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
