"""Gaussian blur of images, uint8 [3, height, width], in place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardmill.images.augmentations import GaussianBlur
from shardmill.images.sampling import Draws, Stream
from shardmill.images.scratch import scratch


def blur_some(op: GaussianBlur, images: NDArray[np.uint8], draws: Draws, nth: int) -> None:
    """``images`` uint8 [n, 3, height, width]. Draws: whether, and sigma."""
    u = draws.uniforms(Stream.BLUR, nth, 2)
    for i in np.flatnonzero(u[0] < op.p).tolist():
        blur(images[i], op.kernel_size, op.sigma[0] + float(u[1, i]) * (op.sigma[1] - op.sigma[0]))


def blur(image: NDArray[np.uint8], taps: int, sigma: float) -> None:
    """A Gaussian of ``taps`` (odd) pixels, mirrored at the borders, rounded to nearest at the end.

    Two passes of ``taps``, down and across, in float32: torchvision's one pass of ``taps`` squared, up to rounding.
    Cost: proportional to ``taps``.
    """
    half = taps // 2
    distance = np.arange(half + 1, dtype=np.float64)
    weights = np.exp(-0.5 * (distance / sigma) ** 2)
    weights /= weights[0] + 2 * weights[1:].sum()
    # A tap below a thousandth of a level changes nothing.
    half = int(np.flatnonzero(weights > 1e-6)[-1])
    if half == 0:
        return
    channels, height, width = image.shape
    padded = scratch("padded", (channels, height + 2 * half, width), np.float32)
    np.copyto(padded, np.take(image, _mirror(height, half), axis=1))
    down = _pass(padded, weights[: half + 1], axis=1)
    padded = scratch("padded", (channels, height, width + 2 * half), np.float32)
    np.take(down, _mirror(width, half), axis=2, out=padded, mode="clip")
    across = _pass(padded, weights[: half + 1], axis=2)
    np.copyto(image, np.rint(across, out=across), casting="unsafe")


def _pass(padded: NDArray[np.float32], weights: NDArray[np.float64], axis: int) -> NDArray[np.float32]:
    half = len(weights) - 1
    size = padded.shape[axis] - 2 * half

    def shifted(by: int) -> NDArray[np.float32]:
        index = [slice(None)] * 3
        index[axis] = slice(half + by, half + by + size)
        return padded[tuple(index)]

    total = scratch(f"blurred {axis}", shifted(0).shape, np.float32)
    pair = scratch("pair", total.shape, np.float32)
    np.multiply(shifted(0), np.float32(weights[0]), out=total)
    for by in range(1, half + 1):
        np.add(shifted(-by), shifted(by), out=pair)
        pair *= np.float32(weights[by])
        total += pair
    return total


def _mirror(size: int, half: int) -> NDArray[np.intp]:
    """Indices of a line with ``half`` pixels mirrored at each end, the end itself not repeated."""
    index = np.abs(np.arange(-half, size + half))
    period = max(2 * (size - 1), 1)
    index %= period
    return np.minimum(index, period - index) if size > 1 else np.zeros_like(index)
