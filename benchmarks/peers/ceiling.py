"""Not a loader: libjpeg-turbo's entropy decoding of every image, in threads, from memory."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.peers import Job, Peer


def load(job: Job) -> Iterator[tuple[Any, Any]]:
    """Reads all images first; the runner's clock ignores the first batches."""
    import shardmill as sm
    from shardmill.native import native

    assert native is not None, "the ceiling needs the compiled module"
    ds = sm.open(job.dataset)
    ids = np.random.default_rng(job.seed).permutation(len(ds))
    chunks = [ids[i : i + job.batch_size] for i in range(0, len(ids), job.batch_size)]
    encoded = [ds.read(chunk) for chunk in chunks]
    labels = np.asarray(ds.labels)

    def decode(i: int) -> Any:
        status = native.entropy_decode(encoded[i].data, encoded[i].starts, encoded[i].sizes)
        assert not np.any(status), "the data has an image that libjpeg-turbo does not read"
        return labels[chunks[i]]

    with ThreadPoolExecutor(job.workers) as pool:
        for done in pool.map(decode, range(len(chunks))):
            yield None, done


PEER = Peer(title="ceiling: entropy decode", imports=("shardmill",), reads="dataset", load=load, max_extra_workers=0)
