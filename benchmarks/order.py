"""The order of an epoch of a billion samples: positions a second, and the memory it takes.

    python -m benchmarks.order                           1e9 samples in 100,000 shards, half a minute

Each row is a fresh process, so that its peak memory is its own. "bulk": runs of consecutive positions, 1,000,000 at a
time, from a fresh place of the epoch each. "batch": one step of 256 at a time, as the loader asks. "scattered": random
positions. The peak is the resident set above that of an interpreter with numpy imported.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.harness import machine, print_table

GOAL_MIB = 100.0
ORDERS = ("windows", "windows, shards cut", "all")


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(name: str, *, samples: int, shards: int, seconds: float) -> dict[str, float]:
    from shardmill.loading.order import make_order

    before = peak_mib()
    rng = np.random.default_rng(0)
    # Uneven shards: equal ones would be found without a search.
    cuts = np.sort(rng.integers(0, samples, shards - 1))
    first = np.concatenate([[0], cuts, [samples]])
    window = {"windows": 16_384, "windows, shards cut": 1024}.get(name, "all")
    order = make_order(first, seed=1, lanes=64, shuffle=True, window=window)  # type: ignore[arg-type]
    started = time.perf_counter()
    order.ids(0, np.arange(1))
    result = {"table_ms": (time.perf_counter() - started) * 1e3}
    result["bulk"] = _rate(order, lambda: np.arange(1_000_000) + rng.integers(0, samples - 1_000_000), seconds)
    result["scattered"] = _rate(order, lambda: rng.integers(0, samples, 1_000_000), seconds)
    result["batch_us"] = 256e6 / _rate(order, lambda: np.arange(256) + rng.integers(0, samples - 256), seconds)
    result["peak_mib"] = peak_mib() - before
    return result


def _rate(order: Any, positions: Any, seconds: float) -> float:
    done, spent = 0, 0.0
    while spent < seconds:
        part = positions()
        started = time.perf_counter()
        order.ids(0, part)
        spent += time.perf_counter() - started
        done += len(part)
    return done / spent


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.order", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=10**9)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a fraction of a second: does it run at all")
    parser.add_argument("--only", choices=ORDERS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    seconds = 0.01 if options.quick else 2.0
    if options.only:
        print(json.dumps(measure(options.only, samples=options.samples, shards=options.shards, seconds=seconds)))
        return 0
    rows = {}
    for name in ORDERS:
        command = [sys.executable, "-m", "benchmarks.order", "--only", name, "--samples", str(options.samples)]
        command += ["--shards", str(options.shards), *(["--quick"] if options.quick else [])]
        rows[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if options.json:
        report = {"machine": machine(), "samples": options.samples, "shards": options.shards, "orders": rows}
        print(json.dumps(report, indent=1))
        return 0
    peak = max(row["peak_mib"] for row in rows.values())
    print_table(
        f"Order of {options.samples:,} samples in {options.shards:,} uneven shards, 64 lanes, one thread",
        ("order", "bulk M/s", "scattered M/s", "batch of 256, us", "table of an epoch, ms", "peak MiB"),
        [
            [
                name,
                f"{row['bulk'] / 1e6:.1f}",
                f"{row['scattered'] / 1e6:.1f}",
                f"{row['batch_us']:.0f}",
                f"{row['table_ms']:.0f}",
                f"{row['peak_mib']:.0f}",
            ]
            for name, row in rows.items()
        ],
        [f"{'met' if peak < GOAL_MIB else 'MISSED'}: peak {peak:.0f} MiB, goal < {GOAL_MIB:.0f}"],
    )
    print(machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
