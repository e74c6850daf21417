"""shardmill itself: one process, threads, the native kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.peers import Job, Peer


def load(job: Job) -> Iterator[tuple[Any, Any]]:
    """`sm.open` and one epoch of `sm.Loader`, as a user writes it."""
    import shardmill as sm

    loader = sm.Loader(
        sm.open(job.dataset),
        batch_size=job.batch_size,
        recipe=sm.recipes.train(job.size, dtype=job.dtype),
        seed=job.seed,
        last="keep",
        threads=job.workers,
    )
    for batch in loader:
        yield batch.images, batch.labels


PEER = Peer(title="shardmill", imports=("shardmill", "torch"), reads="dataset", load=load)
