"""From a recipe to what the native kernel does: one source box and one flip per image. Pure and vectorised.

The kernel does one thing: cut a box out of the source, resize it to the output, maybe flip, maybe normalise. So a chain
of geometric ops must fold into one box. Resize + CenterCrop does: torchvision resizes to integer sizes (new_w, new_h),
so a pixel of the resized image is w / new_w by h / new_h source pixels, and the crop at (x, y) of the resized image is
the source box at (x * w / new_w, y * h / new_h). The resize looks outside the box (Pillow's ``box=``), so the pixels at
the crop's edge are the same too, but for the one rounding to uint8 between the two steps that no longer happens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import OptionsError
from shardmill.images.pixels import Crops, PixelLayout, ResizeFilter
from shardmill.images.recipe import (
    CenterCrop,
    HorizontalFlip,
    Normalize,
    Op,
    RandomResizedCrop,
    Recipe,
    Resize,
)
from shardmill.images.sampling import Stream, states, uniforms

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

ATTEMPTS = 10


@dataclass(frozen=True)
class FusedPlan:
    """What `compile_recipe` gives: everything the kernel needs but the images."""

    layout: PixelLayout
    filter: ResizeFilter
    apply_exif: bool
    geometry: tuple[RandomResizedCrop | Resize | CenterCrop, ...]
    flip_p: float

    @property
    def random(self) -> bool:
        """Whether pixels depend on seed and epoch."""
        return isinstance(self.geometry[0], RandomResizedCrop) or self.flip_p > 0

    def crops(
        self, widths: NDArray[np.integer], heights: NDArray[np.integer], *, seed: int, epoch: int, ids: I64
    ) -> Crops:
        """One box per image, in source pixels.

        ``widths``, ``heights``: [n], at least 1, as the kernel sees the image (after EXIF, where that is applied).
        ``ids``: int64 [n]. Each row is a function of (seed, epoch, its id, its size) alone. 0.1 to 0.3 us an image at
        n = 256.
        """
        w, h = widths.astype(np.float64), heights.astype(np.float64)
        if len(w) and (w.min() < 1 or h.min() < 1):
            raise ValueError("an image of no size: read the sizes before planning its crop")
        first = self.geometry[0]
        if isinstance(first, RandomResizedCrop):
            left, top, width, height = random_resized_boxes(first, w, h, states(seed, epoch, ids, Stream.CROP))
        else:
            crop = self.geometry[1] if len(self.geometry) > 1 else None
            assert isinstance(first, Resize)
            assert crop is None or isinstance(crop, CenterCrop)
            left, top, width, height = _resized_boxes(first, crop, w, h)
        flip = np.zeros(len(w), bool)
        if self.flip_p > 0:
            flip = uniforms(states(seed, epoch, ids, Stream.FLIP), 0, 1)[0] < self.flip_p
        return Crops(left, top, width, height, flip)


def compile_recipe(recipe: Recipe) -> FusedPlan:
    """Folds a recipe for the fused kernel. Raises `OptionsError` saying which op cannot be folded, and what can."""
    left = list(recipe.ops)
    geometry: list[RandomResizedCrop | Resize | CenterCrop] = []
    while left and isinstance(left[0], RandomResizedCrop | Resize | CenterCrop):
        geometry.append(left.pop(0))  # type: ignore[arg-type]
    flip = left.pop(0) if left and isinstance(left[0], HorizontalFlip) else None
    normalize = left.pop(0) if left and isinstance(left[0], Normalize) else None
    if left:
        raise OptionsError(f"{_names(recipe.ops)}: {type(left[0]).__name__} cannot come there. {_CAN}")
    size = _output_size(geometry, recipe.ops)
    assert flip is None or isinstance(flip, HorizontalFlip)
    assert normalize is None or isinstance(normalize, Normalize)
    layout = PixelLayout(
        height=size[0],
        width=size[1],
        dtype=recipe.dtype,
        order=recipe.order,
        mean=normalize.mean if normalize else None,
        std=normalize.std if normalize else None,
    )
    first = geometry[0]
    assert not isinstance(first, CenterCrop)
    return FusedPlan(layout, first.filter, recipe.apply_exif, tuple(geometry), flip.p if flip else 0.0)


_CAN = (
    "The kernel does one of RandomResizedCrop, Resize((height, width)) or Resize + CenterCrop, then HorizontalFlip, "
    "then Normalize"
)


def _names(ops: tuple[Op, ...]) -> str:
    return " + ".join(type(op).__name__ for op in ops) or "an empty recipe"


def _output_size(geometry: list[RandomResizedCrop | Resize | CenterCrop], ops: tuple[Op, ...]) -> tuple[int, int]:
    match geometry:
        case [RandomResizedCrop(size=size)]:
            return size
        case [Resize(size=(height, width))]:
            return height, width
        case [Resize(size=int())]:
            raise OptionsError(
                f"{_names(ops)}: Resize of the shorter side gives images of different shapes, which make no batch; add "
                "CenterCrop, or give (height, width)"
            )
        case [Resize(size=resized), CenterCrop(size=size)]:
            room = (resized, resized) if isinstance(resized, int) else resized
            if size[0] > room[0] or size[1] > room[1]:
                raise OptionsError(
                    f"CenterCrop({size}) after Resize({resized}) would have to invent pixels around small images; "
                    "resize to the size of the crop or more"
                )
            return size
    raise OptionsError(f"{_names(ops)}: cannot be one box of the source. {_CAN}")


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


def _resized_boxes(resize: Resize, crop: CenterCrop | None, w: F64, h: F64) -> tuple[F64, F64, F64, F64]:
    if isinstance(resize.size, int):
        short = np.minimum(w, h)
        # int(size * long / short) of integers; floor of the float quotient is the same below 2^53.
        new_w, new_h = np.floor(resize.size * w / short), np.floor(resize.size * h / short)
    else:
        new_h, new_w = (np.full(len(w), float(side)) for side in resize.size)
    if crop is None:
        return np.zeros(len(w)), np.zeros(len(w)), w, h
    # int(round(...)) of torchvision: half to even, as rint.
    top, left = np.rint((new_h - crop.size[0]) / 2), np.rint((new_w - crop.size[1]) / 2)
    across, down = w / new_w, h / new_h
    left, top = left * across, top * down
    # A crop of the whole side may come out an ulp larger than the image, which the kernel would refuse.
    return left, top, np.minimum(crop.size[1] * across, w - left), np.minimum(crop.size[0] * down, h - top)
