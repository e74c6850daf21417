"""Source boxes of the geometric ops, for many images at once. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import OptionsError
from shardmill.images.ops import CenterCrop, RandomCrop, RandomResizedCrop, Resize
from shardmill.images.pixels import Crops
from shardmill.images.sampling import uniforms

F64 = NDArray[np.float64]

ATTEMPTS = 10


def random_resized_boxes(op: RandomResizedCrop, w: F64, h: F64, state: NDArray[np.uint64]) -> tuple[F64, F64, F64, F64]:
    """(left, top, width, height), each float64 [n] holding integers: torchvision's RandomResizedCrop.get_params.

    Draws 2k and 2k + 1 of a state are area and ratio of attempt k, draws 20 and 21 are top and left.
    """
    width, height, fits = _attempts(op, w, h, state, 0, 1)
    width, height, fits = width[0], height[0], fits[0]
    if not fits.all():
        # One in eight ImageNet images; all its nine further attempts at once, and the first that fits.
        late = np.flatnonzero(~fits)
        wider, higher, good = _attempts(op, w[late], h[late], state[late], 1, ATTEMPTS - 1)
        pick = good.argmax(axis=0)
        columns = np.arange(len(late))
        central = _central(op, w[late], h[late])
        found = good.any(axis=0)
        width[late] = np.where(found, wider[pick, columns], central[0])
        height[late] = np.where(found, higher[pick, columns], central[1])
        lost = late[~found]
    else:
        lost = np.empty(0, np.int64)
    top_u, left_u = uniforms(state, 2 * ATTEMPTS, 2)
    left = np.minimum(np.floor(left_u * (w - width + 1)), w - width)
    top = np.minimum(np.floor(top_u * (h - height + 1)), h - height)
    if len(lost):
        left[lost] = (w[lost] - width[lost]) // 2
        top[lost] = (h[lost] - height[lost]) // 2
    return left, top, width, height


def _attempts(
    op: RandomResizedCrop, w: F64, h: F64, state: NDArray[np.uint64], first: int, count: int
) -> tuple[F64, F64, NDArray[np.bool_]]:
    """Sizes of attempts ``first .. first + count``, each [count, n], and which lie inside the image."""
    draws = uniforms(state, 2 * first, 2 * count)
    area = (op.scale[0] + draws[0::2] * (op.scale[1] - op.scale[0])) * (w * h)
    low, high = np.log(op.ratio[0]), np.log(op.ratio[1])
    ratio = np.exp(low + draws[1::2] * (high - low))
    width, height = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (width > 0) & (width <= w) & (height > 0) & (height <= h)
    return width, height, fits


def _central(op: RandomResizedCrop, w: F64, h: F64) -> tuple[F64, F64]:
    """Width and height of the largest box within the ratio, at least one pixel."""
    low, high = op.ratio
    ratio = w / h
    width = np.where(ratio > high, np.rint(h * high), w)
    height = np.where(ratio < low, np.rint(w / low), h)
    return np.clip(width, 1, w), np.clip(height, 1, h)


def random_crops(resize: Resize | None, crop: RandomCrop, w: F64, h: F64, draws: F64, flip: NDArray[np.bool_]) -> Crops:
    """Boxes of `RandomCrop`; ``draws`` [2, n] are top and left.

    The kernel reads no padding: a box that reaches into it is moved back into the image, and the pixels are moved by as
    much the other way once they are decoded (`Crops.right`, `Crops.down`).
    """
    new_w, new_h = (w, h) if resize is None else _resized(resize, w, h)
    height, width = crop.size
    small = (new_w < width) | (new_h < height)
    if small.any():
        i = int(small.argmax())
        raise OptionsError(
            f"RandomCrop of {height} x {width} (height x width) from an image of {int(h[i])} x {int(w[i])}: put Resize "
            "before it"
        )
    top, left = (
        np.floor(u * (room + 2 * crop.padding + 1)) - crop.padding
        for u, room in zip(draws, (new_h - height, new_w - width), strict=True)
    )
    inner_top, inner_left = np.clip(top, 0, new_h - height), np.clip(left, 0, new_w - width)
    boxes = _source_boxes(inner_left, inner_top, crop.size, new_w, new_h, w, h)
    if not crop.padding:
        return Crops(*boxes, flip)
    right = np.where(flip, left - inner_left, inner_left - left)
    return Crops(*boxes, flip, right.astype(np.int64), (inner_top - top).astype(np.int64))


def _resized(resize: Resize, w: F64, h: F64) -> tuple[F64, F64]:
    """(new width, new height), as torchvision resizes: int(size * long / short) of integers for the longer side."""
    if isinstance(resize.size, int):
        short = np.minimum(w, h)
        # The floor of the float quotient is the same below 2^53.
        return np.floor(resize.size * w / short), np.floor(resize.size * h / short)
    height, width = resize.size
    return np.full(len(w), float(width)), np.full(len(w), float(height))


def resized_boxes(resize: Resize, crop: CenterCrop | None, w: F64, h: F64) -> tuple[F64, F64, F64, F64]:
    """Boxes of Resize, and of Resize + CenterCrop: (left, top, width, height), float64 [n] each."""
    if crop is None:
        return np.zeros(len(w)), np.zeros(len(w)), w, h
    new_w, new_h = _resized(resize, w, h)
    # int(round(...)) of torchvision: half to even, as rint.
    top, left = np.rint((new_h - crop.size[0]) / 2), np.rint((new_w - crop.size[1]) / 2)
    return _source_boxes(left, top, crop.size, new_w, new_h, w, h)


def _source_boxes(
    left: F64, top: F64, size: tuple[int, int], new_w: F64, new_h: F64, w: F64, h: F64
) -> tuple[F64, F64, F64, F64]:
    """A box of the resized image as one of the source."""
    across, down = w / new_w, h / new_h
    left, top = left * across, top * down
    # A crop of the whole side may come out an ulp larger than the image, which the kernel would refuse.
    return left, top, np.minimum(size[1] * across, w - left), np.minimum(size[0] * down, h - top)
