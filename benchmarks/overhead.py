"""What the loader itself costs: an epoch in which reading and decoding take no time.

    python -m benchmarks.overhead                        4,000 images, batch 256, some seconds

The compiled functions that read, check and decode are replaced by stand-ins of the same signature that return at once.
All that is left is Python: planning order and crops, cutting chunks, planning reads, handing tasks from thread to
thread, the calls themselves, making tensors. Its CPU time over all threads, divided by the samples, bounds the time
under the GIL from above (numpy's own loops, locks and switches between threads are in it). Checksums are switched off,
as no byte is read; they add two numpy calls a chunk. `benchmarks.python_time` measures the same in a real epoch, by
subtracting the time inside the compiled functions.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.harness import WORK_DIR, Spread, machine, print_table

GOAL_US = 5.0


class StandIn:
    """The compiled module, doing nothing: reads leave the buffer as it is, every image is decoded at once."""

    def __init__(self) -> None:
        self.calls = 0

    def read_ranges(self, *_: Any) -> None:
        self.calls += 1

    def read_jpeg_sizes(self, _data: Any, starts: Any, _sizes: Any) -> Any:
        size = np.full(len(starts), 400, np.int32)
        return size, size.copy(), np.ones(len(starts), np.int32), np.zeros(len(starts), np.int32)

    def decode_jpegs(self, _data: Any, starts: Any, *_: Any, **__: Any) -> Any:
        self.calls += 1
        return np.zeros(len(starts), np.int32)


def install() -> StandIn:
    """Puts the stand-in into every module of shardmill that holds the compiled module."""
    from shardmill.native import native

    assert native is not None, "the compiled module is needed: without it Pillow decodes under the GIL"
    stand_in = StandIn()
    for name, module in list(sys.modules.items()):
        if name.startswith("shardmill.") and getattr(module, "native", None) is native:
            module.native = stand_in  # type: ignore[attr-defined]
    return stand_in


def measure(dataset: Path, *, batch_size: int, threads: int | None, chunk: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds a sample, ``rounds`` epochs after a first that is not counted: CPU, and wall."""
    from shardmill.images import recipes
    from shardmill.loading.loader import Loader
    from shardmill.loading.options import Tuning
    from shardmill.shards.open import open_dataset

    ds = open_dataset(str(dataset), verify=False)
    loader = Loader(
        ds,
        batch_size,
        recipe=recipes.train(224),
        threads=threads,
        tuning=Tuning(decode_samples=chunk),
    )
    stand_in = install()
    result: dict[str, list[float]] = {"cpu": [], "wall": []}
    for epoch in range(rounds + 1):
        cpu, wall, samples = time.process_time(), time.perf_counter(), 0
        for images, labels in loader:
            assert len(images) == len(labels)
            samples += len(labels)
        assert samples == len(ds)
        if epoch:
            result["cpu"].append((time.process_time() - cpu) / samples * 1e6)
            result["wall"].append((time.perf_counter() - wall) / samples * 1e6)
    assert stand_in.calls >= 2 * (rounds + 1), "the stand-ins were not reached"
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overhead", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument(
        "--chunks", type=int, nargs="+", default=[16, 32, 64], help="images a call (Tuning.decode_samples)"
    )
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--work-dir", type=Path, default=WORK_DIR, help=f"where the data lies (default {WORK_DIR})")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="24 images, 1 round: does it run at all")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.quick:
        data = datasets.make(options.work_dir, images=12, repeat=2, shards=4)
        rounds, batch_size, chunks = 1, 8, [4]
    else:
        data = datasets.make(options.work_dir, images=None, repeat=8, shards=16)
        rounds, batch_size, chunks = options.rounds, options.batch_size, options.chunks
    rows = {}
    for chunk in chunks:
        rows[chunk] = measure(data.dataset, batch_size=batch_size, threads=options.threads, chunk=chunk, rounds=rounds)
        uninstall()
    if options.json:
        print(json.dumps({"machine": machine(), "batch_size": batch_size, "us_per_sample": rows}, indent=1))
        return 0
    print_table(
        f"Loader without reading and decoding, {data.samples:,} samples, batch {batch_size}, float32 224 x 224",
        ("images a call", "CPU us a sample", "wall us a sample"),
        [[str(chunk), Spread.of(row["cpu"]).text(1), Spread.of(row["wall"]).text(1)] for chunk, row in rows.items()],
        [f"goal: under {GOAL_US} us at batch 256; the default is 32 images a call"],
    )
    print(f"median (min-max) of {rounds} epochs; {machine()}")
    return 0


def uninstall() -> None:
    """Puts the compiled module back."""
    import shardmill._native as module

    for name, holder in list(sys.modules.items()):
        if name.startswith("shardmill.") and isinstance(getattr(holder, "native", None), StandIn):
            holder.native = module  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
