"""One run of one loader in a fresh process: ``python -m benchmarks.worker PEER JOB.json RESULT.json``.

Runs under the peer's own interpreter, so it imports only the standard library, numpy and the peer. Every batch is
checked lightly; a loader that gives wrong shapes, types or labels fails here and gets no numbers.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import Job, Peer, find

SKIPPED_BATCHES = 8
"""The rate is taken from the end of this batch on: before it, queues fill and workers start."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What one run measured. Seconds; ``images_per_s`` and ``cpu_s_per_1000`` from batch 8 to the end of the epoch.

    ``first_batch_s`` counts from the call that opens the dataset, all imports done; ``first_batch_from_start_s`` from
    the start of the process. CPU is user + system of the process and all its descendants.
    """

    images_per_s: float
    cpu_s_per_1000: float
    first_batch_s: float
    first_batch_from_start_s: float


def measure(peer: Peer, job: Job) -> Timing:
    """Runs the epoch and checks it."""
    opened = time.perf_counter()
    first = from_start = 0.0
    mark, mark_cpu, mark_images = opened, 0.0, 0
    seen: Counter[int] = Counter()
    images_seen = 0
    batches = -(-job.samples // job.batch_size)
    skipped = min(SKIPPED_BATCHES, batches // 2)
    end, end_cpu = opened, 0.0
    for number, (images, labels) in enumerate(peer.load(job), 1):
        now = time.perf_counter()
        labels = np.asarray(labels)
        if number == 1:
            first, from_start = now - opened, _age()
        _check(images, labels, job)
        seen.update(labels.tolist())
        images_seen += len(labels)
        if number == skipped:
            mark, mark_cpu, mark_images = time.perf_counter(), tree_cpu(), images_seen
        if images_seen >= job.samples:
            # Here and not after the loop: ending the epoch stops worker processes, which is no part of the rate.
            end, end_cpu = time.perf_counter(), tree_cpu()
    _check_epoch(seen, job)
    rest = images_seen - mark_images
    return Timing(
        images_per_s=rest / (end - mark),
        cpu_s_per_1000=(end_cpu - mark_cpu) / rest * 1000,
        first_batch_s=first,
        first_batch_from_start_s=from_start,
    )


def _check(images: Any, labels: np.ndarray[Any, Any], job: Job) -> None:
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise AssertionError(f"labels: {labels.dtype} {list(labels.shape)}")
    if images is None:  # the ceiling makes none
        return
    images = np.asarray(images)
    expected = (len(labels), 3, job.size, job.size)
    if images.shape != expected or images.dtype != job.dtype or not images.flags.c_contiguous:
        raise AssertionError(f"images: {images.dtype} {list(images.shape)}, expected {job.dtype} {list(expected)}")
    pixels = images[0, :, ::8, ::8].astype(np.float64)
    low, high = (-2.2, 2.7) if job.dtype == "float32" else (0.0, 255.0)
    if pixels.min() < low or pixels.max() > high or pixels.min() == pixels.max():
        raise AssertionError(f"pixels from {pixels.min():.2f} to {pixels.max():.2f}, expected {low} to {high}")


def _check_epoch(seen: Counter[int], job: Job) -> None:
    classes = sorted(entry.name for entry in Path(job.folder).iterdir())
    expected = {label: len(list(Path(job.folder, name).iterdir())) for label, name in enumerate(classes)}
    if dict(seen) != expected:
        wrong = [label for label in sorted({*seen, *expected}) if seen[label] != expected.get(label, 0)]
        raise AssertionError(
            f"{sum(seen.values())} images, expected {job.samples}; label {wrong[0]} came {seen[wrong[0]]} times, "
            f"expected {expected.get(wrong[0], 0)} ({len(wrong)} labels are wrong)"
        )


def tree_cpu() -> float:
    """CPU seconds of this process, its living descendants, and those it has waited for."""
    tick = os.sysconf("SC_CLK_TCK")
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - a name filter is all that is wanted
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry)] = int(fields[1])
            ticks[int(entry)] = sum(int(field) for field in fields[11:15])
    tree = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return sum(ticks[pid] for pid in tree if pid in ticks) / tick


def _age() -> float:
    """Seconds since this process began."""
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def main() -> None:
    name, job_file, result_file = sys.argv[1:4]
    prepare = sys.argv[4:] == ["--prepare"]
    data = json.loads(Path(job_file).read_text())
    job = Job(**{**data, "shards": tuple(data["shards"])})
    peer = find(name)
    result: dict[str, Any]
    try:
        for module in peer.imports:
            importlib.import_module(module)
    except ImportError as error:
        result = {"missing": str(error)}
    else:
        if prepare:
            assert peer.prepare is not None
            peer.prepare(job)
            result = {}
        else:
            result = asdict(measure(peer, job))
    Path(result_file).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
