"""Random erasing, in the slots of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.images.augmentations import RandomErasing
from shardmill.images.pixels import PixelLayout
from shardmill.images.sampling import Draws, Stream, hash64, uniforms
from shardmill.images.stored import as_stored, planes

ATTEMPTS = 10
I64 = NDArray[np.int64]


def erase_some(op: RandomErasing, out: NDArray[Any], slots: I64, layout: PixelLayout, draws: Draws, nth: int) -> None:
    """Overwrites a box of ``out[slots[i]]`` for those that are drawn."""
    top, left, height, width = erase_boxes(op, layout.height, layout.width, draws, nth)
    noise = draws.states(Stream.NOISE, nth) if op.value == "random" else None
    for i in np.flatnonzero(height).tolist():
        image = planes(out[slots[i]], layout)
        box = image[:, top[i] : top[i] + height[i], left[i] : left[i] + width[i]]
        values = np.array(op.value, np.float32)[:, None, None] if noise is None else normals(int(noise[i]), box.shape)
        box[...] = as_stored(values, layout)


def erase_boxes(op: RandomErasing, height: int, width: int, draws: Draws, nth: int) -> tuple[I64, I64, I64, I64]:
    """(top, left, height, width), int64 [n] each; a height of 0 where nothing is erased.

    As torchvision's RandomErasing.make_params: the first of ten attempts that is smaller than the image both ways.
    Draws: whether, two for each attempt (area, ratio), then top and left.
    """
    u = draws.uniforms(Stream.ERASE, nth, 3 + 2 * ATTEMPTS)
    area = (op.scale[0] + u[1:-2:2] * (op.scale[1] - op.scale[0])) * (height * width)
    low, high = np.log(op.ratio[0]), np.log(op.ratio[1])
    ratio = np.exp(low + u[2:-2:2] * (high - low))
    down, across = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (down < height) & (across < width)
    first, columns = fits.argmax(axis=0), np.arange(len(draws.ids))
    done = fits.any(axis=0) & (u[0] < op.p)
    down, across = np.where(done, down[first, columns], 0), np.where(done, across[first, columns], 0)
    top, left = np.floor(u[-2] * (height - down + 1)), np.floor(u[-1] * (width - across + 1))
    return top.astype(np.int64), left.astype(np.int64), down.astype(np.int64), across.astype(np.int64)


def normals(state: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Standard normal numbers, a function of ``state`` and their place (Box and Muller, 1958)."""
    count = int(np.prod(shape))
    first, second = uniforms(hash64(state, np.arange((count + 1) // 2)), 0, 2)
    radius, angle = np.sqrt(-2 * np.log1p(-first)), 2 * np.pi * second
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return both.astype(np.float32).reshape(shape)
