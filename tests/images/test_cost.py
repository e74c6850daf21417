from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shardmill.images import recipes
from shardmill.images.cost import time_ops
from shardmill.images.recipe import CutMix, GaussianBlur, MixUp, RandomCrop, RandomErasing, Recipe, Resize


def test_every_step_is_named_in_order_with_its_cost(imagenet_sample: Path, join: Any) -> None:
    images = join([path.read_bytes() for path in sorted(imagenet_sample.glob("*.JPEG"))[:6]] + [b"no image"])
    plain = time_ops(recipes.train(32), images)
    assert [cost.name for cost in plain] == ["decode + RandomResizedCrop + HorizontalFlip + Normalize"]
    strong = recipes.train_strong(32)
    strong = Recipe((*strong.ops, RandomErasing(), CutMix(10, p=0.5), MixUp(10, p=0.5)))
    costs = time_ops(strong, images)
    assert [cost.name for cost in costs] == [
        "decode + RandomResizedCrop + HorizontalFlip",
        "TrivialAugmentWide",
        "Normalize",
        "RandomErasing",
        "RandomErasing again",
        "CutMix + MixUp",
    ]
    assert all(np.isfinite(cost.microseconds) and cost.microseconds >= 0 for cost in costs)
    padded = Recipe((Resize((32, 32)), RandomCrop((32, 32), padding=4), GaussianBlur(5)), dtype="uint8")
    names = [cost.name for cost in time_ops(padded, images, rounds=1)]
    assert names == ["decode + Resize + RandomCrop", "padding", "GaussianBlur", "convert"]
    views = time_ops(recipes.multicrop(32, 16, locals=1), images, rounds=1)
    assert views[0].name == "view 0: decode + RandomResizedCrop + HorizontalFlip"
    assert views[-1].name == "view 2: Normalize"
