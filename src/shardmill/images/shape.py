"""Moving the pixels of decoded images: flips, the padding of a crop, and affine maps through Pillow."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shardmill.images.augmentations import ShapeFilter
from shardmill.images.ops import HorizontalFlip, VerticalFlip
from shardmill.images.sampling import Draws, Stream

_FILTERS = {"nearest": Image.Resampling.NEAREST, "bilinear": Image.Resampling.BILINEAR}


def flip_some(op: HorizontalFlip | VerticalFlip, images: NDArray[Any], draws: Draws, nth: int) -> None:
    """``images`` [n, 3, height, width] of any kind of number, in place."""
    for i in np.flatnonzero(draws.uniforms(flip_stream(op), nth, 1)[0] < op.p).tolist():
        flip(images[i], across=isinstance(op, HorizontalFlip))


def flip_stream(op: HorizontalFlip | VerticalFlip) -> Stream:
    """What draws the flip, in the kernel or after it."""
    return Stream.FLIP if isinstance(op, HorizontalFlip) else Stream.VERTICAL_FLIP


def flip(image: NDArray[Any], *, across: bool) -> None:
    """[3, height, width], left to right where ``across``, else top to bottom."""
    image[...] = image[:, :, ::-1].copy() if across else image[:, ::-1].copy()


def move(image: NDArray[Any], right: int, down: int, fill: NDArray[Any]) -> None:
    """Moves [3, height, width] by whole pixels; what comes in from outside is ``fill`` [3]."""
    height, width = image.shape[1:]
    moved = image[:, max(-down, 0) : height - max(down, 0), max(-right, 0) : width - max(right, 0)].copy()
    image[...] = fill[:, None, None]
    image[:, max(down, 0) : height + min(down, 0), max(right, 0) : width + min(right, 0)] = moved


def shear(image: NDArray[np.uint8], across: float, down: float, kind: ShapeFilter, fill: tuple[int, int, int]) -> None:
    """Rows move left by ``across`` pixels a row, columns up by ``down`` a column; uint8 [3, height, width] in place."""
    for plane, level in zip(image, fill, strict=True):
        _affine(plane, (1, across, 0, down, 1, 0), kind, level)


def translate(image: NDArray[np.uint8], right: int, down: int, fill: tuple[int, int, int]) -> None:
    """By whole pixels; uint8 [3, height, width] in place."""
    height, width = image.shape[1:]
    if abs(right) >= width or abs(down) >= height:
        image[...] = np.array(fill, np.uint8)[:, None, None]
    else:
        move(image, right, down, np.array(fill, np.uint8))


def rotate(image: NDArray[np.uint8], degrees: float, kind: ShapeFilter, fill: tuple[int, int, int]) -> None:
    """Counterclockwise about the middle; uint8 [3, height, width] in place."""
    for plane, level in zip(image, fill, strict=True):
        plane[...] = np.asarray(Image.fromarray(plane).rotate(degrees, _FILTERS[kind], fillcolor=level))


def _affine(plane: NDArray[np.uint8], matrix: tuple[float, ...], kind: ShapeFilter, level: int) -> None:
    source = Image.fromarray(plane)
    moved = source.transform(source.size, Image.Transform.AFFINE, matrix, _FILTERS[kind], fillcolor=level)
    plane[...] = np.asarray(moved)
