"""Packing: MB/s beside cp, tar and webdataset's ShardWriter on the same warm source, and memory against the budget.

    python -m benchmarks.packing              500 real images 38 times (2.1 GB), 3 rounds, about 5 minutes
    python -m benchmarks.packing --repeat 4 --rounds 1
    python -m benchmarks.packing --json

Every run is a fresh process that reads the source from the page cache and writes to the same disk; rounds are
interleaved, ratios are taken within a round. shardmill shuffles globally, checksums, indexes and syncs what it writes;
the others do none of that: cp and tar copy in order, ShardWriter writes shards in the order it is given. The memory
rows pack with a budget of a sixteenth of the source and add up the resident sets of the whole process tree.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.datasets import make_folder
from benchmarks.harness import ROOT, WORK_DIR, Spread, busy_warning, log, machine, paired, print_table, warm

CP, TAR, WRITER = "cp -r", "tar cf", "webdataset ShardWriter"
ONE_PASS, TWO_PASS = "shardmill, folder in one pass", "shardmill, tar front to back in two"
GOALS = {ONE_PASS: 0.7, TWO_PASS: 0.4}
INTERPRETERS_MB = 150

_WRITE = """
import sys
from pathlib import Path
import webdataset
out = Path(sys.argv[2])
out.mkdir()
with webdataset.ShardWriter(str(out / "shard-%06d.tar"), maxsize=256 * 2**20, maxcount=10**9, verbose=0) as writer:
    classes = sorted(path for path in Path(sys.argv[1]).iterdir())
    for label, folder in enumerate(classes):
        for path in sorted(folder.iterdir()):
            key = f"{folder.name}/{path.stem}"
            writer.write({"__key__": key, "jpeg": path.read_bytes(), "cls": str(label).encode()})
"""
_PACK = """
import sys
from shardmill.shards.packing import pack
pack(sys.argv[1], sys.argv[2], sequential=sys.argv[3] == "two", memory_bytes=int(sys.argv[4]), progress=False)
"""


@dataclass(frozen=True, slots=True)
class Run:
    """``peak_rss_mb``: highest sum of resident sets over the process tree, in MB, sampled every 20 ms."""

    seconds: float
    peak_rss_mb: float


def run(command: Sequence[str], *, watch: bool = False) -> Run:
    started = time.perf_counter()
    child = subprocess.Popen(command, cwd=ROOT)
    done, peak = threading.Event(), [0]

    def look() -> None:
        tree = psutil.Process(child.pid)
        while not done.wait(0.02):
            peak[0] = max(peak[0], _rss(tree))

    watcher = threading.Thread(target=look if watch else lambda: None)
    watcher.start()
    try:
        code = child.wait()
    finally:
        done.set()
        watcher.join()
    if code != 0:
        raise SystemExit(f"{command[0]} failed with exit code {code}")
    return Run(time.perf_counter() - started, peak[0] / 1e6)


def _rss(tree: psutil.Process) -> int:
    total = 0
    try:
        for process in [tree, *tree.children(recursive=True)]:
            total += int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        pass
    return total


def commands(folder: Path, tar: Path, out: Path, memory_bytes: int) -> dict[str, list[str]]:
    python = [sys.executable, "-c"]
    return {
        CP: ["cp", "-r", str(folder), str(out)],
        TAR: ["tar", "cf", str(out), "-C", str(folder), "."],
        WRITER: [*python, _WRITE, str(folder), str(out)],
        ONE_PASS: [*python, _PACK, str(folder), str(out), "one", str(memory_bytes)],
        TWO_PASS: [*python, _PACK, str(tar), str(out), "two", str(memory_bytes)],
    }


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, help="use the first IMAGES of the sample only")
    parser.add_argument("--repeat", type=int, default=38, help="copies of the sample (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--work-dir", type=Path, default=WORK_DIR, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()

    folder = make_folder(arguments.work_dir, images=arguments.images, repeat=arguments.repeat)
    tar, out = folder.with_suffix(".tar"), arguments.work_dir / "packing-out"
    if not tar.exists():
        subprocess.run(["tar", "cf", str(tar), "-C", str(folder), "."], check=True)
    size = sum(path.stat().st_size for path in folder.rglob("*.JPEG"))
    times: dict[str, list[float]] = {}
    warning = busy_warning()
    for number in range(arguments.rounds):
        for name, command in commands(folder, tar, out, 2**30).items():
            remove(out)
            warm([tar] if name == TWO_PASS else [folder])
            times.setdefault(name, []).append(run(command).seconds)
            log(f"round {number + 1}: {name}: {size / 1e6 / times[name][-1]:.0f} MB/s")
    budget = max(64 * 2**20, size // 16)
    memory: dict[str, float] = {}
    for name in (ONE_PASS, TWO_PASS):
        remove(out)
        memory[name] = run(commands(folder, tar, out, budget)[name], watch=True).peak_rss_mb
    remove(out)

    rates = {name: [size / 1e6 / seconds for seconds in values] for name, values in times.items()}
    ratios = {name: paired(values, rates[WRITER]) for name, values in rates.items()}
    if arguments.json:
        print(
            json.dumps(
                {
                    "machine": machine(),
                    "bytes": size,
                    "mb_per_s": rates,
                    "of_shard_writer": {name: ratio.median for name, ratio in ratios.items()},
                    "budget_bytes": budget,
                    "peak_rss_mb": memory,
                }
            )
        )
        return
    limit = budget / 1e6 + INTERPRETERS_MB
    print_table(
        f"Packing {size / 1e9:.1f} GB of real JPEGs, warm; {machine()}",
        ["", "MB/s", "of ShardWriter", "goal", f"peak RSS with a budget of {budget / 1e6:.0f} MB"],
        [
            [
                name,
                Spread.of(values).text(),
                ratios[name].text(2),
                f">= {GOALS[name]}" if name in GOALS else "",
                f"{memory[name]:.0f} MB (goal <= {limit:.0f})" if name in memory else "",
            ]
            for name, values in rates.items()
        ],
        [warning] if warning else [],
    )


if __name__ == "__main__":
    main()
