"""Python per sample: what the loader does under the GIL, which all of its threads share.

    python -m benchmarks.python_time                     4,000 images, batch 256, under a minute

The CPU time of every thread during an epoch (`time.thread_time`), less its time inside the compiled functions, which
release the GIL. What is left is an upper bound of the time under the GIL, since it holds numpy's long loops and page
faults too. Shown by the threads' names; "consumer" is the thread that iterates. One process cannot use more cores than
1 / (this time x images a second of one core).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import datasets
from benchmarks.harness import WORK_DIR, Spread, log, machine, print_table, warm

GOAL_US = 5.0


class TimedModule:
    """The compiled module with a clock around every function; ``seconds`` is the CPU time inside, by thread."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._timed: dict[str, Callable[..., Any]] = {}
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._module, name)
        if not callable(attribute) or isinstance(attribute, type):
            return attribute
        if name not in self._timed:

            def timed(*arguments: Any, **named: Any) -> Any:
                started = time.thread_time()
                try:
                    return attribute(*arguments, **named)
                finally:
                    spent = time.thread_time() - started
                    with self._lock:
                        self.seconds[stage()] += spent

            self._timed[name] = timed
        return self._timed[name]


def stage() -> str:
    """The running thread's name without its number; ``consumer`` for the main thread."""
    if threading.current_thread() is threading.main_thread():
        return "consumer"
    return re.sub(r"\W*\d+\W*", " ", threading.current_thread().name).strip()


def time_threads() -> defaultdict[str, float]:
    """From now on each thread adds its CPU seconds, all of them, under its `stage` when it ends."""
    ended: defaultdict[str, float] = defaultdict(float)
    run = threading.Thread.run

    def timed(self: threading.Thread) -> None:
        started = time.thread_time()
        try:
            run(self)
        finally:
            ended[stage()] += time.thread_time() - started

    threading.Thread.run = timed  # type: ignore[method-assign]
    return ended


def install() -> TimedModule:
    """Puts the clocks into every module of shardmill that holds the compiled module."""
    from shardmill.native import native

    assert native is not None, "there is nothing to measure without the compiled module"
    timed = TimedModule(native)
    for name, module in list(sys.modules.items()):
        if name.startswith("shardmill.") and getattr(module, "native", None) is native:
            module.native = timed  # type: ignore[attr-defined]
    return timed


def measure(dataset: Path, *, batch_size: int, size: int, threads: int | None, rounds: int) -> dict[str, list[float]]:
    """Microseconds of CPU a sample in ``rounds`` epochs, after a first that is not counted.

    Keys: ``"<stage>"`` in Python, by `stage`; ``"all Python"``, their sum; ``"compiled"``.
    """
    import shardmill as sm

    ds = sm.open(str(dataset))
    loader = sm.Loader(ds, batch_size=batch_size, recipe=sm.recipes.train(size), seed=0, threads=threads, last="keep")
    timed, ended = install(), time_threads()
    result: dict[str, list[float]] = {}
    for epoch in range(rounds + 1):
        warm([dataset])
        loader.set_epoch(epoch)
        timed.seconds.clear()
        ended.clear()
        started, samples = time.thread_time(), 0
        for images, labels in loader:
            assert len(images) == len(labels)
            samples += len(labels)
        ended["consumer"] += time.thread_time() - started
        assert samples == len(ds)
        assert sum(timed.seconds.values()) > 0, "the clocks were not reached"
        python = {name: seconds - timed.seconds[name] for name, seconds in sorted(ended.items())}
        python["all Python"] = sum(python.values())
        if epoch:
            for name, seconds in {**python, "compiled": sum(timed.seconds.values())}.items():
                result.setdefault(name, []).append(seconds / samples * 1e6)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.python_time",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--work-dir", type=Path, default=WORK_DIR, help=f"where the data lies (default {WORK_DIR})")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="24 images, 1 round: does it run at all")
    options = parser.parse_args(arguments)

    rounds, batch_size = options.rounds, options.batch_size
    if options.quick:
        data = datasets.make(options.work_dir, images=12, repeat=2, shards=4)
        rounds, batch_size = 1, 8
    else:
        data = datasets.make(options.work_dir, images=None, repeat=8, shards=16)
    result = measure(data.dataset, batch_size=batch_size, size=224, threads=options.threads, rounds=rounds)
    if options.json:
        print(json.dumps({"machine": machine(), "batch_size": batch_size, "us_per_sample": result}, indent=1))
        return 0
    spread = Spread.of(result["all Python"])
    verdict = f"{'met' if spread.median < GOAL_US else 'MISSED'}: {spread.median:.1f} us of Python, goal < {GOAL_US}"
    print_table(
        f"CPU time a sample, {data.samples:,} images, batch {batch_size}, float32 224 x 224, {rounds} epochs",
        ("where", "us a sample"),
        [[where, Spread.of(values).text(1)] for where, values in result.items()],
        [] if options.quick else [verdict],
    )
    print(f"median (min-max); {machine()}")
    if options.quick:
        log("quick: these times say nothing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
