"""FFCV over its own file format, every image stored as JPEG (FFCV encodes it again)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import MEAN, STD, Job, Peer


class _Folder:
    """What `DatasetWriter` reads: (RGB image, label) by number."""

    def __init__(self, folder: str) -> None:
        self.files = [
            (path, label) for label, one in enumerate(sorted(Path(folder).iterdir())) for path in sorted(one.iterdir())
        ]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        from PIL import Image

        path, label = self.files[i]
        return np.asarray(Image.open(path).convert("RGB")), label


def _beton(job: Job) -> Path:
    return Path(job.scratch, "images.beton")


def prepare(job: Job) -> None:
    """Writes the ``.beton`` file."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    if _beton(job).exists():
        return
    temporary = _beton(job).with_suffix(".tmp")
    writer = DatasetWriter(
        str(temporary), {"image": RGBImageField(write_mode="jpg"), "label": IntField()}, num_workers=1
    )
    writer.from_indexed_dataset(_Folder(job.folder))
    temporary.rename(_beton(job))


def load(job: Job) -> Iterator[tuple[Any, Any]]:
    """Random order, the page cache as its memory, at most as many workers as cores."""
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage

    image: list[Any] = [RandomResizedCropRGBImageDecoder((job.size, job.size)), RandomHorizontalFlip()]
    if job.dtype == "float32":
        image += [NormalizeImage(255 * np.array(MEAN), 255 * np.array(STD), np.float32)]
    image += [ToTensor(), ToTorchImage(channels_last=False)]
    loader = Loader(
        str(_beton(job)),
        batch_size=job.batch_size,
        num_workers=job.workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        seed=job.seed,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor(), Squeeze(1)]},
    )
    yield from loader


PEER = Peer(
    title="FFCV JPEG",
    imports=("torch", "ffcv.loader", "ffcv.transforms"),
    reads="scratch",
    load=load,
    prepare=prepare,
    max_extra_workers=0,
)
