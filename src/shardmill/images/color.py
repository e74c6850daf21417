"""Colours of one image, uint8 [3, height, width], changed in place: what torchvision's v2 functions give for uint8.

Plain numpy on whole planes: its loops run vectorised and without the GIL, at some 15 us for a pass over 224 x 224 in
float32. Results round down to 8 bits as torchvision's do.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from shardmill.images.augmentations import ColorJitter, Grayscale, Solarize
from shardmill.images.sampling import Draws, Stream
from shardmill.images.scratch import scratch

Image = NDArray[np.uint8]
Plane = NDArray[np.float32]

_ORDERS = tuple(itertools.permutations(range(4)))


def jitter(op: ColorJitter, images: Image, draws: Draws, nth: int) -> None:
    """``images`` uint8 [n, 3, height, width]. Draws: whether, the order, then the four factors."""
    u = draws.uniforms(Stream.COLOR, nth, 6)
    steps = (brightness, contrast, saturation, hue)
    for i in np.flatnonzero(u[0] < op.p).tolist():
        for which in _ORDERS[int(u[1, i] * len(_ORDERS))]:
            limits = op.ranges[which]
            if limits is not None:
                steps[which](images[i], limits[0] + float(u[2 + which, i]) * (limits[1] - limits[0]))


def to_gray(op: Grayscale, images: Image, draws: Draws, nth: int) -> None:
    """``images`` uint8 [n, 3, height, width]."""
    for i in np.flatnonzero(draws.uniforms(Stream.GRAY, nth, 1)[0] < op.p).tolist():
        images[i] = luminance(images[i]).astype(np.uint8)


def solarize_some(op: Solarize, images: Image, draws: Draws, nth: int) -> None:
    """``images`` uint8 [n, 3, height, width]."""
    for i in np.flatnonzero(draws.uniforms(Stream.SOLARIZE, nth, 1)[0] < op.p).tolist():
        solarize(images[i], op.threshold)


def luminance(image: Image) -> Plane:
    """0.2989 R + 0.587 G + 0.114 B, float32 [height, width] of scratch memory."""
    gray, part = (scratch(name, image.shape[1:], np.float32) for name in ("gray", "part"))
    np.copyto(gray, image[0])
    gray *= np.float32(0.2989)
    for channel, weight in ((1, 0.587), (2, 0.114)):
        np.copyto(part, image[channel])
        part *= np.float32(weight)
        gray += part
    return gray


def brightness(image: Image, factor: float) -> None:
    """Times ``factor`` (0 or more), at most 255."""
    levels = _levels(image)
    levels *= np.float32(factor)
    np.minimum(levels, np.float32(255), out=levels)
    np.copyto(image, levels, casting="unsafe")


def contrast(image: Image, factor: float) -> None:
    """Away from the mean luminance by ``factor`` (0: all gray, 1: as it is)."""
    gray = luminance(image)
    mean = np.float32(np.floor(gray, out=gray).mean(dtype=np.float64))
    _blend(image, mean, factor)


def saturation(image: Image, factor: float) -> None:
    """Away from the pixel's own luminance by ``factor`` (0: gray, 1: as it is)."""
    gray = luminance(image)
    _blend(image, np.floor(gray, out=gray), factor)


def hue(image: Image, turn: float) -> None:
    """Hues move round the circle by ``turn`` (-0.5 .. 0.5); value and saturation (HSV) stay.

    From the hue h, in sixths of a turn, and the range c of the channels: channel = max - c clip(min(k, 4 - k), 0, 1),
    with k = n + h modulo 6 and n = 5, 3, 1 for red, green, blue (the closed form of the six cases).
    """
    rgb = _levels(image)
    rgb /= np.float32(255)
    red, green, blue = rgb
    most, span, h, k, low = (scratch(f"hue {i}", image.shape[1:], np.float32) for i in range(5))
    np.maximum(np.maximum(red, green, out=most), blue, out=most)
    np.minimum(np.minimum(red, green, out=low), blue, out=low)
    np.subtract(most, low, out=span)
    is_red = most == red
    is_green = most == green
    np.subtract(red, green, out=h)
    np.copyto(h, np.subtract(blue, red, out=k), where=is_green)
    np.copyto(h, np.subtract(green, blue, out=k), where=is_red)
    # Gray has no hue: 0 / 1 instead of 0 / 0, and no range to show it.
    h /= np.maximum(span, np.float32(1e-9), out=low)
    # 4, 2 or 0 sixths, for blue, green or red being the largest, and the turn.
    np.copyto(low, np.float32(4 + 6 * turn))
    np.copyto(low, np.float32(2 + 6 * turn), where=is_green)
    np.copyto(low, np.float32(6 * turn), where=is_red)
    h += low
    for channel, n in enumerate((5, 3, 1)):
        np.add(h, np.float32(n), out=k)
        np.floor(np.multiply(k, np.float32(1 / 6), out=low), out=low)
        k -= np.multiply(low, np.float32(6), out=low)
        np.minimum(k, np.subtract(np.float32(4), k, out=low), out=k)
        np.clip(k, np.float32(0), np.float32(1), out=k)
        k *= span
        np.subtract(most, k, out=k)
        # torchvision's float to uint8: just under 256 steps, rounded down.
        k *= np.float32(255.999)
        np.copyto(image[channel], k, casting="unsafe")


def sharpness(image: Image, factor: float) -> None:
    """Away from a 3 x 3 smoothing by ``factor`` (0: smooth, 1: as it is); the border of one pixel stays."""
    if min(image.shape[1:]) <= 2:
        return
    wide = scratch("wide", image.shape, np.uint16)
    np.copyto(wide, image)
    rows = wide[:, :-2] + wide[:, 1:-1]
    rows += wide[:, 2:]
    total = rows[:, :, :-2] + rows[:, :, 1:-1]
    total += rows[:, :, 2:]
    inner = wide[:, 1:-1, 1:-1]
    total += inner * np.uint16(4)
    # Ones around a five, over 13, rounded; a thirteenth is never a tie.
    total *= np.uint16(2)
    total += np.uint16(13)
    smooth = (total // np.uint16(26)).astype(np.float32)
    levels = inner.astype(np.float32)
    smooth -= levels
    smooth *= np.float32(1 - factor)
    levels += smooth
    np.clip(levels, np.float32(0), np.float32(255), out=levels)
    np.copyto(image[:, 1:-1, 1:-1], levels, casting="unsafe")


def posterize(image: Image, bits: int) -> None:
    """Keeps the upper ``bits`` of 8."""
    image &= np.uint8(256 - (1 << (8 - bits)))


def solarize(image: Image, threshold: float) -> None:
    """Inverts levels of ``threshold`` and more."""
    bound = int(np.ceil(threshold))
    if bound <= 255:
        # True is 1, minus 1 is 255, and x ^ 255 is 255 - x.
        image ^= np.negative((image >= np.uint8(bound)).view(np.uint8))


def autocontrast(image: Image) -> None:
    """Stretches each channel to 0 .. 255."""
    for plane, levels in zip(image, _levels(image), strict=True):
        low, high = plane.min(), plane.max()
        if low < high:
            levels -= np.float32(low)
            levels /= np.float32(high - low) * np.float32(1 / 255)
            np.clip(levels, np.float32(0), np.float32(255), out=levels)
            np.copyto(plane, levels, casting="unsafe")


def equalize(image: Image) -> None:
    """Makes the histogram of each channel as flat as Pillow's ``ImageOps.equalize`` does."""
    for plane in image:
        counts = np.bincount(plane.reshape(-1), minlength=256)
        step = int(plane.size - counts[np.flatnonzero(counts)[-1]]) // 255
        if step:
            below = np.cumsum(counts) - counts
            table = np.minimum((below + step // 2) // step, 255).astype(np.uint8)
            plane[...] = table.take(plane)


def _levels(image: Image) -> NDArray[np.float32]:
    levels = scratch("levels", image.shape, np.float32)
    np.copyto(levels, image)
    return levels


def _blend(image: Image, other: NDArray[np.float32] | np.float32, factor: float) -> None:
    levels = _levels(image)
    levels *= np.float32(factor)
    levels += other * np.float32(1 - factor)
    np.clip(levels, np.float32(0), np.float32(255), out=levels)
    np.copyto(image, levels, casting="unsafe")
