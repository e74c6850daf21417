"""Random reads from the page cache: ``ds.read`` beside a bare Python loop of ``os.pread`` + crc32c.

    python -m benchmarks.random_access                   8,000 samples of 110 KB, 16 and 4,000 shards, under a minute
    python -m benchmarks.random_access --json

Both sides read the same ranges in the same run and check every payload's crc32c. The bare loop is the least a reader
can do in Python: descriptors are open, offsets are plain ints in a list, each payload is dropped as soon as it is
checked. ``ds.read`` plans, finds the shards, keeps all images of a call together in one buffer; ``out=`` gives it the
same buffer every time, as the loader does. Rounds are interleaved and ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from benchmarks import datasets
from benchmarks.harness import WORK_DIR, Spread, busy_warning, log, machine, paired, print_table, warm

GOAL = 1.3
BARE, READ, REUSED = "bare loop", "ds.read(ids)", "ds.read(ids, out=buffer)"


@dataclass(slots=True)
class Row:
    """One way to read, in one setting; ``us`` has microseconds a sample of each round."""

    reader: str
    shards: int
    ids_per_call: int
    us: list[float] = field(default_factory=list)


class BareLoop:
    """`os.pread` + `google_crc32c.value` over ranges looked up beforehand."""

    def __init__(self, ds: Any) -> None:
        columns = ds.index.columns
        self.names = [f"{ds.path}/{name}" for name in ds.shard_names]
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Half of what the process may open: the dataset keeps descriptors too. The others are opened for each read.
        self.open = {i: os.open(name, os.O_RDONLY) for i, name in enumerate(self.names[: soft // 2])}
        self.shards = ds.index.shard_of(np.arange(len(ds))).tolist()
        self.starts = columns["image_offset"].tolist()
        self.sizes = columns["image_bytes"].tolist()
        self.crcs = columns["image_crc32c"].tolist()

    def __call__(self, ids: list[int]) -> None:
        shards, starts, sizes, crcs, fds = self.shards, self.starts, self.sizes, self.crcs, self.open
        pread, crc32c = os.pread, google_crc32c.value
        for i in ids:
            fd = fds.get(shards[i])
            data = self._read_closed(i) if fd is None else pread(fd, sizes[i], starts[i])
            if crc32c(data) != crcs[i]:
                raise AssertionError(f"row {i} differs from its crc32c")

    def _read_closed(self, i: int) -> bytes:
        fd = os.open(self.names[self.shards[i]], os.O_RDONLY)
        try:
            return os.pread(fd, self.sizes[i], self.starts[i])
        finally:
            os.close(fd)

    def close(self) -> None:
        for fd in self.open.values():
            os.close(fd)


def measure(dataset: Path, shards: int, *, calls: Sequence[int], reads: int, rounds: int, seed: int) -> list[Row]:
    """``rounds`` times ``reads`` random rows through each reader, in calls of each size of ``calls``."""
    import shardmill as sm

    ds = sm.open(str(dataset))
    bare = BareLoop(ds)
    rows = [Row(reader, shards, size) for size in calls for reader in (BARE, READ, REUSED)]
    buffer = np.zeros(max(calls) * int(ds.image_bytes.max()), np.uint8)
    rng = np.random.default_rng(seed)
    check(ds, rng.integers(0, len(ds), min(64, len(ds))), bare)
    for number in range(rounds + 1):
        warm([dataset])
        for size in calls:
            ids = rng.integers(0, len(ds), -(-reads // size) * size).reshape(-1, size)
            readers: dict[str, Callable[[NDArray[np.int64]], Any]] = {
                BARE: lambda chunk: bare(chunk.tolist()),
                READ: ds.read,
                REUSED: lambda chunk: ds.read(chunk, out=buffer),
            }
            for row in rows:
                if row.ids_per_call == size:
                    us = 1e6 * seconds(readers[row.reader], ids) / ids.size
                    if number:  # the first round opens descriptors and grows the heap
                        row.us.append(us)
    bare.close()
    ds.close()
    return rows


def seconds(read: Callable[[NDArray[np.int64]], Any], ids: NDArray[np.int64]) -> float:
    """Time for all of ``ids`` [calls, ids per call]."""
    started = time.perf_counter()
    for chunk in ids:
        read(chunk)
    return time.perf_counter() - started


def check(ds: Any, ids: NDArray[np.int64], bare: BareLoop) -> None:
    """Both sides read the same bytes."""
    for image in ds.read(ids):
        start, size = bare.starts[image.id], bare.sizes[image.id]
        with Path(bare.names[bare.shards[image.id]]).open("rb") as file:
            file.seek(start)
            assert bytes(image.data) == file.read(size), f"row {image.id}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.random_access",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=31, help="many and short: pairs stay close in time")
    parser.add_argument("--reads", type=int, default=1024, help="rows read in a round by each reader")
    parser.add_argument("--repeat", type=int, default=16, help="copies of the 500 images")
    parser.add_argument("--work-dir", type=Path, default=WORK_DIR, help=f"where the data lies (default {WORK_DIR})")
    parser.add_argument("--keep", action="store_true", help="leave the data (2.6 GB) for the next run")
    parser.add_argument("--json", action="store_true", help="all rounds as JSON instead of the table")
    parser.add_argument("--quick", action="store_true", help="24 samples, 1 round: does it run at all")
    options = parser.parse_args(arguments)

    images, repeat, rounds, reads = None, options.repeat, options.rounds, options.reads
    shard_counts, calls = (16, 4000), (64, 256)
    if options.quick:
        images, repeat, rounds, reads, shard_counts, calls = 12, 2, 1, 32, (2, 12), (4, 16)
    elif warning := busy_warning():
        log(f"warning: {warning}")
    rows: list[Row] = []
    payload = 0.0
    options.work_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.work_dir, prefix="random-access-") as temporary:
        folder = options.work_dir if options.keep else Path(temporary)
        for shards in shard_counts:
            data = datasets.make(folder, images=images, repeat=repeat, shards=shards)
            payload = sum(path.stat().st_size for path in data.folder.glob("*/*")) / data.samples / 1000
            rows += measure(data.dataset, len(data.shards), calls=calls, reads=reads, rounds=rounds, seed=0)

    if options.json:
        print(
            json.dumps({"machine": machine(), "payload_kb": payload, "rows": [asdict(row) for row in rows]}, indent=1)
        )
        return 0
    cells, worst = [], 0.0
    for row in rows:
        bare = next(
            one for one in rows if (one.reader, one.shards, one.ids_per_call) == (BARE, row.shards, row.ids_per_call)
        )
        ratio = paired(row.us, bare.us)
        if row is not bare:
            worst = max(worst, ratio.median)
        cells.append(
            [
                row.reader,
                f"{row.shards:,}",
                str(row.ids_per_call),
                Spread.of(row.us).text(1),
                "" if row is bare else ratio.text(2, "x"),
            ]
        )
    verdict = f"{'met' if worst <= GOAL else 'MISSED'}: at most {worst:.2f} times the bare loop, goal <= {GOAL}"
    print_table(
        f"random rows of {payload:.0f} KB, page cache, crc32c checked, one thread, {rounds} rounds of {reads:,}",
        ("reader", "shards", "ids a call", "us a sample", "of the bare loop"),
        cells,
        [] if options.quick else [verdict],
    )
    print(f"median (min-max); ratios within a round; {machine()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
