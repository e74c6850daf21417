"""torchvision ImageFolder + DataLoader, at its fastest: its own JPEG decoder and v2 transforms on tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers import MEAN, STD, Job, Peer


class Transform:
    """A JPEG's bytes (uint8 tensor) to an augmented image [3, size, size]; a class, so that it pickles."""

    def __init__(self, job: Job) -> None:
        import torch
        from torchvision.transforms import v2

        steps: list[Any] = [v2.RandomResizedCrop(job.size, antialias=True), v2.RandomHorizontalFlip()]
        if job.dtype == "float32":
            steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        self.augment = v2.Compose(steps)

    def __call__(self, data: Any) -> Any:
        from torchvision.io import ImageReadMode, decode_jpeg

        return self.augment(decode_jpeg(data, mode=ImageReadMode.RGB)).contiguous()


def _read(path: str) -> Any:
    from torchvision.io import read_file

    return read_file(path)


def load(job: Job) -> Iterator[tuple[Any, Any]]:
    """Shuffled, default collation, worker processes."""
    import torch
    from torchvision.datasets import DatasetFolder

    dataset = DatasetFolder(
        str(Path(job.folder)), loader=_read, extensions=(".jpeg",), transform=Transform(job), target_transform=None
    )
    generator = torch.Generator().manual_seed(job.seed)
    yield from torch.utils.data.DataLoader(
        dataset, batch_size=job.batch_size, shuffle=True, num_workers=job.workers, generator=generator
    )


PEER = Peer(
    title="torchvision tensor",
    imports=("torch", "torchvision.transforms.v2", "torchvision.datasets"),
    reads="folder",
    load=load,
)
