"""webdataset over the same shards: worker processes, torchvision's JPEG decoder and v2 transforms on tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.peers import Job, Peer
from benchmarks.peers.torchvision_tensor import Transform

SHUFFLE_SAMPLES = 1000


class Decode:
    """``{"jpg": bytes, "cls": bytes}`` to (image, label); a class, so that it pickles."""

    def __init__(self, job: Job) -> None:
        self.transform = Transform(job)

    def __call__(self, sample: dict[str, Any]) -> tuple[Any, int]:
        import numpy as np
        import torch

        data = torch.from_numpy(np.frombuffer(bytearray(sample["jpg"]), np.uint8))
        return self.transform(data), int(sample["cls"])


def load(job: Job) -> Iterator[tuple[Any, Any]]:
    """Shards in random order, a shuffle buffer of 1,000 samples a worker, batches made in the workers."""
    import webdataset as wds

    dataset = (
        wds.WebDataset(list(job.shards), shardshuffle=len(job.shards), seed=job.seed, empty_check=False)
        .shuffle(SHUFFLE_SAMPLES)
        .map(_rename)
        .map(Decode(job))
        .batched(job.batch_size, partial=True)
    )
    yield from wds.WebLoader(dataset, batch_size=None, num_workers=job.workers)


def _rename(sample: dict[str, Any]) -> dict[str, Any]:
    """Members keep their source's extension: ``.JPEG``, ``.jpg``, ``.jpeg``."""
    image = next(data for name, data in sample.items() if name.lower() in ("jpg", "jpeg"))
    return {"jpg": image, "cls": sample["cls"]}


PEER = Peer(
    title="webdataset", imports=("webdataset", "torch", "torchvision.transforms.v2"), reads="dataset", load=load
)
