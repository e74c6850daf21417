from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from shardmill.errors import OptionsError
from shardmill.images.augmentations import RandomErasing
from shardmill.images.erase import erase_boxes, erase_some, normals
from shardmill.images.ops import Normalize, Resize
from shardmill.images.pixels import PixelDtype, PixelLayout, PixelOrder
from shardmill.images.plan import compile_recipe
from shardmill.images.recipe import Recipe
from shardmill.images.sampling import Draws
from shardmill.images.stored import as_float, as_stored


@pytest.mark.parametrize("options", [{}, {"scale": (0.3, 0.9), "ratio": (0.2, 6.0)}])
def test_boxes_have_torchvisions_distribution(options: dict[str, Any]) -> None:
    n, height, width = 3000, 60, 90
    boxes = erase_boxes(RandomErasing(p=1, **options), height, width, Draws(1, 0, np.arange(n)), 0)
    torch.manual_seed(0)
    erasing, image = v2.RandomErasing(p=1, **options), torch.empty(3, height, width)
    theirs = [erasing.make_params([image]) for _ in range(n)]
    done = boxes[2] > 0
    assert abs(done.mean() - np.mean([p["v"] is not None for p in theirs])) < 0.02
    for ours, name in zip(boxes, "ijhw", strict=True):
        a, b = np.sort(ours[done]), np.sort([p[name] for p in theirs if p["v"] is not None])
        grid = np.union1d(a, b)
        cdfs = [np.searchsorted(side, grid, "right") / len(side) for side in (a, b)]
        # Kolmogorov and Smirnov: 1 % of honest samples exceed it.
        assert np.abs(cdfs[0] - cdfs[1]).max() < 1.63 * np.sqrt(2 / min(len(a), len(b))), name


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
def test_exactly_the_box_is_overwritten(dtype: PixelDtype, order: PixelOrder) -> None:
    layout = PixelLayout(20, 30, dtype, order)
    op, draws = RandomErasing(p=0.6, value=(3, 5, 7)), Draws(2, 0, np.arange(40))
    before = as_stored(np.full(layout.batch_shape(40), 9, np.float32), layout)
    out = before.copy()
    slots = np.arange(40)[::-1].copy()
    erase_some(op, out, slots, layout, draws, 0)
    top, left, height, width = erase_boxes(op, 20, 30, draws, 0)
    assert 15 < (height > 0).sum() < 33
    for i, slot in enumerate(slots):
        expected = np.full((3, 20, 30), 9, np.float32)
        expected[:, top[i] : top[i] + height[i], left[i] : left[i] + width[i]] = np.array([[[3]], [[5]], [[7]]])
        got = as_float(out[slot], layout)
        assert (got == (expected if order == "NCHW" else expected.transpose(1, 2, 0))).all()


def test_noise_is_normal_and_keyed() -> None:
    values = normals(17, (3, 200, 101))
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1) < 0.02
    assert abs((np.abs(values) < 1).mean() - 0.6827) < 0.01
    assert (values == normals(17, (3, 200, 101))).all()
    assert (values != normals(18, (3, 200, 101))).mean() > 0.99


def test_values_that_uint8_cannot_hold_are_refused() -> None:
    for value in ("random", 300.0, -1.0):
        with pytest.raises(OptionsError, match="uint8"):
            compile_recipe(Recipe((Resize((8, 8)), RandomErasing(value=value)), dtype="uint8"))
    with pytest.raises(OptionsError, match="Normalize cannot come there"):
        compile_recipe(Recipe((Resize((8, 8)), RandomErasing(), Normalize())))
