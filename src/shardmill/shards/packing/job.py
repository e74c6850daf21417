"""One pack after its plan: the stages that are left, in order."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version

from shardmill.errors import SourceError
from shardmill.shards.executor import Executor, run_tasks
from shardmill.shards.index_writer import ShardRows, write_index, write_manifest
from shardmill.shards.manifest import Manifest
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
from shardmill.shards.packing.options import Means, PackOptions
from shardmill.shards.packing.position import METHOD
from shardmill.shards.packing.progress import ProgressBoard
from shardmill.shards.packing.report import PackReport
from shardmill.shards.packing.runs import RunInfo, list_runs
from shardmill.shards.packing.scatter import ScatterTask, scatter
from shardmill.shards.packing.shardplan import plan_shards
from shardmill.shards.packing.workspace import Workspace
from shardmill.shards.tar import END
from shardmill.sources.protocols import Source, SourceInfo

_MOST_SHARDS_PER_TASK = 256
_SMALL_TASK_BYTES = 64 * 2**20
_WINDOW_BYTES = 8 * 2**20
_SLICE_BYTES = 2**20


@dataclass
class Job:
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
        """Scatter, cut, gather, commit; whatever an earlier call finished is not done again."""
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
