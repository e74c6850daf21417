"""Pixels as a batch stores them and as float32 numbers, for what is done to a batch after it is written."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.images.pixels import PixelLayout


def planes(image: NDArray[Any], layout: PixelLayout) -> NDArray[Any]:
    """One image, or several, of a batch as [..., 3, height, width]: a view."""
    return image if layout.order == "NCHW" else np.moveaxis(image, -1, -3)


def as_float(stored: NDArray[Any], layout: PixelLayout) -> NDArray[np.float32]:
    """The numbers, float32 of the same shape; a new array but for float32."""
    if layout.dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32, copy=False)


def as_stored(values: NDArray[np.float32], layout: PixelLayout) -> NDArray[Any]:
    """Rounded to what the batch holds: to nearest, ties to even; uint8 within 0 .. 255."""
    if layout.dtype == "uint8":
        return np.clip(np.rint(values), 0, 255).astype(np.uint8)
    if layout.dtype == "bfloat16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        # Half an ulp of the upper 16 bits, less one where they are even.
        return ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return values.astype(layout.buffer_dtype, copy=False)
