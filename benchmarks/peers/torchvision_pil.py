"""torchvision ImageFolder + DataLoader as its tutorials write it: Pillow decodes, classic transforms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.peers import MEAN, STD, Job, Peer


def load(job: Job) -> Iterator[tuple[Any, Any]]:
    """Shuffled, default collation, worker processes."""
    import torch
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    steps: list[Any] = [transforms.RandomResizedCrop(job.size), transforms.RandomHorizontalFlip()]
    if job.dtype == "float32":
        steps += [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    else:
        steps += [transforms.PILToTensor()]
    dataset = ImageFolder(job.folder, transforms.Compose(steps))
    generator = torch.Generator().manual_seed(job.seed)
    yield from torch.utils.data.DataLoader(
        dataset, batch_size=job.batch_size, shuffle=True, num_workers=job.workers, generator=generator
    )


PEER = Peer(
    title="torchvision Pillow",
    imports=("torch", "torchvision.transforms", "torchvision.datasets"),
    reads="folder",
    load=load,
)
