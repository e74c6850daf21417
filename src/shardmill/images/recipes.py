"""The recipes that most people train and evaluate with."""

from __future__ import annotations

from shardmill.images.pixels import PixelDtype, PixelOrder
from shardmill.images.recipe import (
    CenterCrop,
    HorizontalFlip,
    Normalize,
    Op,
    RandomResizedCrop,
    Recipe,
    Resize,
)

__all__ = ["eval", "train"]


def train(size: int | tuple[int, int], *, dtype: PixelDtype = "float32", order: PixelOrder = "NCHW") -> Recipe:
    """RandomResizedCrop(size, scale 0.08 .. 1, ratio 3/4 .. 4/3) + HorizontalFlip + Normalize(ImageNet).

    ``dtype="uint8"`` leaves Normalize out: a quarter of the memory, and the device normalises.
    """
    return _finish((RandomResizedCrop(_pair(size)), HorizontalFlip()), dtype, order)


# The name hides the built-in where it is imported by itself; everybody writes `recipes.eval`.
def eval(  # noqa: A001
    size: int | tuple[int, int], *, resize: int = 256, dtype: PixelDtype = "float32", order: PixelOrder = "NCHW"
) -> Recipe:
    """Resize(resize) of the shorter side + CenterCrop(size) + Normalize(ImageNet); nothing random.

    ``dtype="uint8"`` leaves Normalize out.
    """
    return _finish((Resize(resize), CenterCrop(_pair(size))), dtype, order)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _finish(ops: tuple[Op, ...], dtype: PixelDtype, order: PixelOrder) -> Recipe:
    return Recipe(ops if dtype == "uint8" else (*ops, Normalize()), dtype, order)
