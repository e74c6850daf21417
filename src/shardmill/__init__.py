"""Pack any pile of images into globally shuffled, indexed shards and feed them to PyTorch.

import shardmill as sm

sm.pack("photos/", "shards/")
ds = sm.open("shards/")
for images, labels in sm.Loader(ds, batch_size=256, recipe=sm.recipes.train(224)):
    ...
"""

from __future__ import annotations

from shardmill import errors
from shardmill.errors import ShardmillError
from shardmill.images import recipes
from shardmill.images.encode import Encode
from shardmill.loading.loader import Loader
from shardmill.loading.mix import Mix
from shardmill.loading.sampling_orders import Balanced, Weighted
from shardmill.records import Batch, Sample
from shardmill.shards.dataset import Dataset
from shardmill.shards.open import open_dataset as open  # noqa: A004 - the verb of the design: sm.open
from shardmill.shards.packing import PackReport, pack
from shardmill.shards.verify import VerifyReport, verify

__all__ = [
    "Balanced",
    "Batch",
    "Dataset",
    "Encode",
    "Loader",
    "Mix",
    "PackReport",
    "Sample",
    "ShardmillError",
    "VerifyReport",
    "Weighted",
    "errors",
    "open",
    "pack",
    "recipes",
    "verify",
]


def __dir__() -> list[str]:
    return __all__
