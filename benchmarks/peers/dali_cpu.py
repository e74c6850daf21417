"""NVIDIA DALI on the CPU alone: its own threads, region-of-interest decoding."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from benchmarks.peers import MEAN, STD, Job, Peer


def load(job: Job) -> Iterator[tuple[Any, Any]]:
    """File reader over the folder, `DALIGenericIterator` to torch, the last batch kept short."""
    # As Any: its stubs do not know the attributes of its own `types`.
    dali: Any = importlib.import_module("nvidia.dali")
    plugin: Any = importlib.import_module("nvidia.dali.plugin.pytorch")
    fn, types = dali.fn, dali.types

    pipeline = dali.Pipeline(batch_size=job.batch_size, num_threads=job.workers, device_id=None, seed=job.seed + 1)
    with pipeline:
        data, label = fn.readers.file(file_root=job.folder, random_shuffle=True, name="reader")
        image = fn.decoders.image_random_crop(
            data, device="cpu", output_type=types.RGB, random_aspect_ratio=(3 / 4, 4 / 3), random_area=(0.08, 1.0)
        )
        image = fn.resize(image, resize_x=job.size, resize_y=job.size, interp_type=types.INTERP_LINEAR, antialias=True)
        mirror = fn.random.coin_flip()
        if job.dtype == "float32":
            image = fn.crop_mirror_normalize(
                image,
                dtype=types.FLOAT,
                output_layout="CHW",
                mirror=mirror,
                mean=[255 * m for m in MEAN],
                std=[255 * s for s in STD],
            )
        else:
            image = fn.crop_mirror_normalize(image, dtype=types.UINT8, output_layout="CHW", mirror=mirror)
        pipeline.set_outputs(image, label)

    iterator = plugin.DALIGenericIterator(
        [pipeline], ["images", "labels"], reader_name="reader", last_batch_policy=plugin.LastBatchPolicy.PARTIAL
    )
    for (batch,) in iterator:
        yield batch["images"], batch["labels"].squeeze(-1)


PEER = Peer(title="DALI CPU", imports=("torch", "nvidia.dali.plugin.pytorch"), reads="folder", load=load)
