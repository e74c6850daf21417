"""Encoded images to the finished pixels of one output of a recipe, in the slots of a batch.

    kernel ── crop, resize, flip, normalise ──────────────────────────────▶ slot ── slot ops
    kernel ── crop, resize, flip ──▶ 8 bits ── pixel ops ── normalise ────▶ slot ── slot ops

The upper line where the recipe has no pixel ops: then this is one call of the kernel and nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.images.augmentations import (
    ColorJitter,
    GaussianBlur,
    Grayscale,
    PixelOp,
    RandAugment,
    RandomErasing,
    Solarize,
    TrivialAugmentWide,
)
from shardmill.images.auto_augment import augment
from shardmill.images.blur import blur_some
from shardmill.images.color import jitter, solarize_some, to_gray
from shardmill.images.decode import decode_into
from shardmill.images.erase import erase_some
from shardmill.images.ops import HorizontalFlip, VerticalFlip
from shardmill.images.pillow import write_pixels
from shardmill.images.pixels import Crops, DecodeLimits, PixelLayout
from shardmill.images.plan import Flip, FusedPlan, Placed
from shardmill.images.sampling import Draws
from shardmill.images.scratch import scratch
from shardmill.images.shape import flip, flip_some, flip_stream, move
from shardmill.images.stored import as_stored, planes
from shardmill.records import EncodedImages

I64 = NDArray[np.int64]


def render(
    plan: FusedPlan,
    images: EncodedImages,
    crops: Crops,
    out: NDArray[Any],
    slots: I64,
    *,
    seed: int,
    epoch: int,
    ids: I64,
    limits: DecodeLimits,
) -> NDArray[np.int32]:
    """Write image ``i`` into ``out[slots[i]]``, and return a `DecodeStatus` per image, int32 [n].

    ``crops``: by `FusedPlan.crops` with the same seed, epoch and ids (int64 [n]). ``out`` and the threads that may call
    this: as for `decode_into`. Batch ops (``plan.mix``) are not done here. Pixel ops cost Python and numpy calls an
    image, most of their time without the GIL; a thread keeps scratch memory of some 30 images for them.
    """
    direct = not plan.pixel_ops
    layout = plan.layout if direct else plan.raw_layout
    target = out if direct else scratch("pixels", layout.batch_shape(len(images)), np.uint8)
    places = slots if direct else np.arange(len(images))
    statuses = decode_into(
        images, crops, layout, target, places, filter=plan.filter, apply_exif=plan.apply_exif, limits=limits
    )
    if plan.fill is not None:
        pad(target, places, layout, crops, plan.fill)
    if direct and not plan.slot_ops:
        return statuses
    draws = Draws(seed, epoch, ids, plan.view)
    for placed in plan.pixel_ops:
        change_pixels(placed, target, draws)
    if not direct:
        convert(target, plan.layout, out, slots)
    for late in plan.slot_ops:
        change_slots(late, out, slots, plan.layout, draws)
    return statuses


def pad(out: NDArray[Any], slots: I64, layout: PixelLayout, crops: Crops, fill: tuple[int, int, int]) -> None:
    """Moves what was decoded to where the crop wanted it, and fills the rest."""
    assert crops.right is not None
    assert crops.down is not None
    levels = np.array(fill, np.float32)
    if layout.dtype != "uint8":
        gain, bias = layout.gain_and_bias()
        levels = levels * gain + bias
    stored = as_stored(levels, layout)
    for i in np.flatnonzero((crops.right != 0) | (crops.down != 0)).tolist():
        move(planes(out[slots[i]], layout), int(crops.right[i]), int(crops.down[i]), stored)


def change_pixels(placed: Placed[PixelOp | Flip], pixels: NDArray[np.uint8], draws: Draws) -> None:
    """One op on uint8 [n, 3, height, width], in place."""
    op, nth = placed.op, placed.nth
    match op:
        case ColorJitter():
            jitter(op, pixels, draws, nth)
        case Grayscale():
            to_gray(op, pixels, draws, nth)
        case Solarize():
            solarize_some(op, pixels, draws, nth)
        case GaussianBlur():
            blur_some(op, pixels, draws, nth)
        case HorizontalFlip() | VerticalFlip():
            flip_some(op, pixels, draws, nth)
        case RandAugment() | TrivialAugmentWide():
            augment(op, pixels, draws, nth)


def convert(pixels: NDArray[np.uint8], layout: PixelLayout, out: NDArray[Any], slots: I64) -> None:
    """uint8 [n, 3, height, width] into the slots, normalised, bit for bit as the kernel would have."""
    if layout.dtype == "uint8":
        planes(out, layout)[slots] = pixels
        return
    gain, bias = layout.gain_and_bias()
    for image, slot in zip(pixels, slots.tolist(), strict=True):
        if layout.dtype == "float32" and layout.order == "NCHW":
            for channel in range(3):
                plane = out[slot, channel]
                np.copyto(plane, image[channel])
                plane *= gain[channel]
                plane += bias[channel]
        else:
            write_pixels(image.transpose(1, 2, 0), False, layout, out[slot])


def change_slots(
    placed: Placed[RandomErasing | Flip], out: NDArray[Any], slots: I64, layout: PixelLayout, draws: Draws
) -> None:
    """One op on ``out[slots]``, in place."""
    op = placed.op
    if isinstance(op, RandomErasing):
        erase_some(op, out, slots, layout, draws, placed.nth)
        return
    drawn = draws.uniforms(flip_stream(op), placed.nth, 1)[0] < op.p
    for slot in slots[drawn].tolist():
        flip(planes(out[slot], layout), across=isinstance(op, HorizontalFlip))
