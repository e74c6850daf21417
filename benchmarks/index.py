"""Header scan of bare tars from the page cache: shardmill's scan beside Python's tarfile and GNU tar.

    python -m benchmarks.index              4 tars of 2,000 real images (about 110 KB each), under a minute
    python -m benchmarks.index --json

Every reader lists every member of the same tars (name, offset, size); nothing reads a payload. shardmill fills columns;
tarfile makes its `TarInfo` objects; GNU tar prints names to /dev/null. Rounds are interleaved, ratios within a round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness import SAMPLE, WORK_DIR, Spread, busy_warning, log, machine, paired, print_table, warm
from shardmill.native import native
from shardmill.shards.tar import END, sample_bytes
from shardmill.shards.tarscan import scan_tar

GOAL = 10.0
SCAN, PYTHON, TARFILE, GNU = "shardmill, compiled", "shardmill, Python only", "tarfile", "GNU tar -t"


def make_tars(folder: Path, *, tars: int, members: int) -> list[Path]:
    """``tars`` files of ``members`` images each: the sample again and again, under distinct keys."""
    if not SAMPLE.is_dir():
        raise SystemExit(f"{SAMPLE} is not there: the benchmarks run on the shared ImageNet sample")
    images = [(path.stem, path.read_bytes()) for path in sorted(SAMPLE.glob("*.JPEG"))]
    paths = []
    for number in range(tars):
        path = folder / f"bare-{number:03d}.tar"
        with path.open("wb") as file:
            for i in range(members):
                stem, data = images[i % len(images)]
                file.writelines(sample_bytes(f"{stem}_{number}_{i // len(images)}", {"jpg": data}))
            file.write(END)
        paths.append(path)
    return paths


def scan(paths: Sequence[Path], *, compiled: bool) -> int:
    return sum(len(scan_tar(path, compiled=compiled)) for path in paths)


def by_tarfile(paths: Sequence[Path]) -> int:
    count = 0
    for path in paths:
        with tarfile.open(path) as tar:
            count += sum(1 for _ in tar)
    return count


def by_gnu_tar(paths: Sequence[Path]) -> int:
    for path in paths:
        subprocess.run(["tar", "-tf", path], stdout=subprocess.DEVNULL, check=True)
    return 0


def measure(paths: Sequence[Path], members: int, *, rounds: int) -> dict[str, list[float]]:
    """Members per second of each reader in each round."""
    readers: dict[str, Callable[[], int]] = {
        PYTHON: lambda: scan(paths, compiled=False),
        TARFILE: lambda: by_tarfile(paths),
        GNU: lambda: by_gnu_tar(paths),
    }
    if native is not None:
        readers = {SCAN: lambda: scan(paths, compiled=True), **readers}
    rates: dict[str, list[float]] = {name: [] for name in readers}
    for number in range(rounds + 1):
        warm(paths)
        for name, read in readers.items():
            started = time.perf_counter()
            found = read()
            elapsed = time.perf_counter() - started
            if found not in (members, 0):
                raise AssertionError(f"{name} found {found} of {members} members")
            if number:  # the first round imports and opens for the first time
                rates[name].append(members / elapsed)
    return rates


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.index", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tars", type=int, default=4)
    parser.add_argument("--members", type=int, default=2000, help="images in each tar")
    parser.add_argument("--work-dir", type=Path, default=WORK_DIR, help=f"where the data lies (default {WORK_DIR})")
    parser.add_argument("--json", action="store_true", help="all rounds as JSON instead of the table")
    parser.add_argument("--quick", action="store_true", help="2 tars of 20 images, 1 round: does it run at all")
    options = parser.parse_args(arguments)
    tars, members, rounds = (2, 20, 1) if options.quick else (options.tars, options.members, options.rounds)
    if not options.quick and (warning := busy_warning()):
        log(f"warning: {warning}")

    options.work_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.work_dir, prefix="index-") as temporary:
        paths = make_tars(Path(temporary), tars=tars, members=members)
        mean_kb = sum(path.stat().st_size for path in paths) / (tars * members) / 1000
        rates = measure(paths, tars * members, rounds=rounds)

    if options.json:
        print(json.dumps({"machine": machine(), "member_kb": mean_kb, "members_per_second": rates}, indent=1))
        return 0
    rows = []
    for name, values in rates.items():
        ratio = "" if name == TARFILE else paired(values, rates[TARFILE]).text(1, "x")
        rows.append([name, f"{Spread.of(values).median:,.0f}", f"{min(values):,.0f}-{max(values):,.0f}", ratio])
    reached = paired(rates[SCAN], rates[TARFILE]).median if SCAN in rates else 0.0
    verdict = f"{'met' if reached >= GOAL else 'MISSED'}: {reached:.1f} times tarfile, goal >= {GOAL:.0f}"
    print_table(
        f"headers of {tars * members:,} members of {mean_kb:.0f} KB in {tars} tars, page cache, {rounds} rounds",
        ("reader", "members/s", "min-max", "of tarfile"),
        rows,
        [] if options.quick else [verdict],
    )
    print(f"medians; ratios within a round; {machine()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
