"""Training epochs from the page cache: shardmill beside what people use, on the same images in the same run.

    python -m benchmarks.loader                          float32 and uint8, 5 rounds, about 12 minutes on 2 cores
    python -m benchmarks.loader --tune                   tries every worker count first
    python -m benchmarks.loader --only shardmill,webdataset --dtype uint8 --rounds 3
    python -m benchmarks.loader --python-for ffcv=/opt/ffcv/bin/python

RandomResizedCrop(224) + flip + normalise, NCHW, batch 64, 500 ImageNet JPEGs 8 times (440 MB). Every run is a fresh
process; rounds are interleaved, so that a machine that drifts treats all loaders alike, and ratios are taken within
a round. Files are read just before each run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import datasets
from benchmarks.harness import (
    ROOT,
    WORK_DIR,
    Spread,
    busy_warning,
    log,
    machine,
    paired,
    print_table,
    run_watched,
    warm,
)
from benchmarks.peers import NAMES, Job, find
from benchmarks.worker import Timing

CEILING, OURS, BASE = "ceiling", "shardmill", "webdataset"


@dataclass(frozen=True, slots=True)
class Run:
    """One process of one loader."""

    timing: Timing
    peak_pss_mib: float
    peak_private_mib: float


@dataclass(slots=True)
class Row:
    """All runs of one loader with one dtype; ``problem`` says why there are none."""

    name: str
    dtype: str
    workers: int
    runs: list[Run] = field(default_factory=list)
    problem: str | None = None

    def values(self, name: str) -> list[float]:
        """One number of each round."""
        return [float({**asdict(run.timing), **asdict(run)}[name]) for run in self.runs]


@dataclass(frozen=True, slots=True)
class Bench:
    """What all runs of a benchmark share."""

    data: datasets.Data
    pythons: dict[str, str]
    batch_size: int

    def job(self, dtype: Any, workers: int) -> Job:
        """The epoch as every loader gets it."""
        data = self.data
        return Job(
            dataset=str(data.dataset),
            shards=data.shards,
            folder=str(data.folder),
            scratch=str(data.scratch),
            samples=data.samples,
            workers=workers,
            dtype=dtype,
            batch_size=self.batch_size,
        )

    def run(self, row: Row, *, prepare: bool = False) -> Run | None:
        """One run in a fresh process; ``None``, and ``row.problem`` set, where it did not work."""
        peer = find(row.name)
        reads = {"dataset": self.data.dataset, "folder": self.data.folder, "scratch": self.data.scratch}[peer.reads]
        warm([self.data.folder if prepare else reads])
        with tempfile.TemporaryDirectory(dir=self.data.scratch) as folder:
            job, result = Path(folder, "job.json"), Path(folder, "result.json")
            job.write_text(json.dumps(asdict(self.job(row.dtype, row.workers))))
            python = self.pythons.get(row.name, sys.executable)
            command = [python, "-m", "benchmarks.worker", row.name, str(job), str(result)]
            ended = run_watched([*command, "--prepare"] if prepare else command)
            if ended.returncode or not result.exists():
                last = ended.output.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
                row.problem = f"failed: {last[0]}"
                log(ended.output)
                return None
            numbers = json.loads(result.read_text())
        if "missing" in numbers:
            row.problem = f"not installed: {numbers['missing']}"
            return None
        return None if prepare else Run(Timing(**numbers), ended.peak_pss_mib, ended.peak_private_mib)


def tune(bench: Bench, row: Row, *, cores: int) -> int:
    """The smallest worker count within 2 % of the best, one run each."""
    rates: dict[int, float] = {}
    for workers in range(1, cores + find(row.name).max_extra_workers + 1):
        trial = replace(row, workers=workers, runs=[])
        run = bench.run(trial)
        if run is None:
            row.problem = trial.problem
            return row.workers
        rates[workers] = run.timing.images_per_s
        log(f"  {row.name} {row.dtype}: {workers} workers {rates[workers]:.0f} images/s")
    return min(workers for workers, rate in rates.items() if rate >= 0.98 * max(rates.values()))


def measure(bench: Bench, rows: Sequence[Row], *, rounds: int, cores: int, tuned: bool) -> None:
    """Fills ``rows`` in: preparation, worker counts, then the interleaved rounds."""
    for name in {row.name: None for row in rows if find(row.name).prepare}:
        mine = [row for row in rows if row.name == name]
        bench.run(mine[0], prepare=True)
        for row in mine:
            row.problem = mine[0].problem
    for row in rows:
        if tuned and row.problem is None:
            row.workers = tune(bench, row, cores=cores)
    for number in range(rounds):
        for row in rows:
            if row.problem is None and (run := bench.run(row)) is not None:
                row.runs.append(run)
                log(f"  round {number + 1} {row.name} {row.dtype}: {run.timing.images_per_s:.0f} images/s")
    for row in rows:
        if row.problem is not None:  # rounds must pair, so a loader that failed once has no numbers at all
            row.runs.clear()


COLUMNS = (
    "loader",
    "workers",
    "images/s",
    "of ceiling",
    "x webdataset",
    "CPU s/1000",
    "first batch s",
    "from start s",
    "peak PSS MiB",
    "anon+shm MiB",
)


def table_row(row: Row, references: dict[str, Row]) -> list[str]:
    """The row's cells, in the order of `COLUMNS`."""
    title = find(row.name).title
    if not row.runs:
        short = (row.problem or "not run").split(":")[0]
        return [title, "", short, *[""] * (len(COLUMNS) - 3)]
    rate = row.values("images_per_s")

    def ratio(to: str) -> str:
        other = references.get(to)
        return paired(rate, other.values("images_per_s")).text(2) if other and other.runs else ""

    cells = [title, str(row.workers), Spread.of(rate).text(), ratio(CEILING), ratio(BASE)]
    cells.append(Spread.of(row.values("cpu_s_per_1000")).text(2))
    if row.name == CEILING:
        return [*cells, "", "", "", ""]
    return [
        *cells,
        Spread.of(row.values("first_batch_s")).text(2),
        f"{Spread.of(row.values('first_batch_from_start_s')).median:.1f}",
        f"{Spread.of(row.values('peak_pss_mib')).median:.0f}",
        f"{Spread.of(row.values('peak_private_mib')).median:.0f}",
    ]


def goals(rows: dict[str, Row], dtype: str) -> list[str]:
    """The promises of this table, each with what was measured; empty where shardmill did not run."""
    ours = rows.get(OURS)
    if ours is None or not ours.runs:
        return []
    rate = ours.values("images_per_s")
    lines = []

    def line(what: str, measured: float, goal: float, *, below: bool = False) -> None:
        met = measured < goal if below else measured >= goal
        sign = "<" if below else ">="
        lines.append(f"{'met' if met else 'MISSED'}: {what} {measured:.2f}, goal {sign} {goal:.2f}")

    if (ceiling := rows.get(CEILING)) and ceiling.runs:
        goal = 0.75 if dtype == "float32" else 0.80
        line("share of the ceiling", paired(rate, ceiling.values("images_per_s")).median, goal)
    peers = [row for name, row in rows.items() if name not in (CEILING, OURS) and row.runs]
    if peers:
        best = max(peers, key=lambda row: Spread.of(row.values("images_per_s")).median)
        title = find(best.name).title
        line(f"times the best peer ({title})", paired(rate, best.values("images_per_s")).median, 1.6)
    line("seconds to the first batch", Spread.of(ours.values("first_batch_s")).median, 0.5, below=True)
    if (base := rows.get(BASE)) and base.runs:
        line("times webdataset", paired(rate, base.values("images_per_s")).median, 2.5)
        share = paired(ours.values("peak_pss_mib"), base.values("peak_pss_mib")).median
        line("peak PSS beside webdataset's", share, 1.0, below=True)
    return [f"{dtype} {text}" for text in lines]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.loader", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=8, help="copies of the 500 images (default 8)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--dtype", choices=("both", "float32", "uint8"), default="both")
    parser.add_argument("--only", default=",".join(NAMES), help="comma-separated rows (default: all)")
    parser.add_argument("--tune", action="store_true", help="find each loader's best worker count first")
    parser.add_argument("--workers", action="append", default=[], metavar="ROW=N", help="set a worker count")
    parser.add_argument(
        "--python-for", action="append", default=[], metavar="ROW=PATH", help="another interpreter for one row"
    )
    parser.add_argument("--work-dir", type=Path, default=WORK_DIR, help=f"where the data lies (default {WORK_DIR})")
    parser.add_argument("--json", action="store_true", help="all runs as JSON instead of the tables")
    parser.add_argument("--quick", action="store_true", help="24 images, 1 round: does it run at all")
    options = parser.parse_args(arguments)

    names = options.only.split(",")
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"no such row: {', '.join(unknown)} (there are {', '.join(NAMES)})")
    workers = dict(pair.split("=", 1) for pair in options.workers)
    pythons = dict(pair.split("=", 1) for pair in options.python_for)
    cores = len(os.sched_getaffinity(0))
    if options.quick:
        data = datasets.make(options.work_dir, images=12, repeat=2, shards=4)
        rounds, batch_size = 1, 4
    else:
        data = datasets.make(options.work_dir, images=None, repeat=options.repeat, shards=16)
        rounds, batch_size = options.rounds, options.batch_size
        if warning := busy_warning():
            log(f"warning: {warning}")
    bench = Bench(data, pythons, batch_size)
    dtypes = ("float32", "uint8") if options.dtype == "both" else (options.dtype,)
    rows = [
        Row(name, dtype, int(workers.get(name, cores + find(name).extra_workers))) for dtype in dtypes for name in names
    ]
    measure(bench, rows, rounds=rounds, cores=cores, tuned=options.tune)

    if options.json:
        report = {
            "machine": machine(),
            "samples": data.samples,
            "batch_size": batch_size,
            "rows": [asdict(row) for row in rows],
        }
        print(json.dumps(report, indent=1))
    else:
        for dtype in dtypes:
            mine = {row.name: row for row in rows if row.dtype == dtype}
            notes = [f"{find(row.name).title}: {row.problem}" for row in mine.values() if row.problem]
            notes += [] if options.quick else goals(mine, dtype)
            title = f"{data.samples:,} ImageNet JPEGs, {dtype} [{batch_size}, 3, 224, 224], page cache, {rounds} rounds"
            print_table(title, COLUMNS, [table_row(row, mine) for row in mine.values()], notes)
        print(f"median (min-max); ratios within a round; {machine()}")
    return 1 if any(row.name == OURS and row.problem for row in rows) else 0


if __name__ == "__main__":
    assert ROOT.is_dir()
    sys.exit(main())
