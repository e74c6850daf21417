"""Fractal noise, made once per process and cut into pieces for every picture.

A picture needs several fields of natural-looking noise of about 500 x 375 pixels. An inverse FFT for each costs
10 ms or more, the whole time allowed for a picture; a random window of a large periodic tile costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.floating[Any]]
"""A plane of numbers, float32 [height, width], or a line of them, float32 [width]."""

TILE = 1024
"""Side of a tile in pixels; a window of it may be at most this large."""


@dataclass(frozen=True)
class Textures:
    """Periodic noise tiles, each float32 [TILE, TILE] with mean 0 and standard deviation 1.

    ``rough``: rock and soil. ``cloud``: cloud and haze. ``smooth``: slow changes of light and ground. ``wave``:
    long in x, for water. ``bark``: long in y. ``leaf``: blobs of 4 to 12 pixels. ``grain``: sensor noise.
    """

    rough: Field
    cloud: Field
    smooth: Field
    wave: Field
    bark: Field
    leaf: Field
    grain: Field

    def window(self, tile: Field, rng: np.random.Generator, height: int, width: int) -> Field:
        """A random ``height`` x ``width`` piece of ``tile``, possibly mirrored. A view: do not write to it."""
        top = int(rng.integers(TILE - height + 1))
        left = int(rng.integers(TILE - width + 1))
        piece = tile[top : top + height, left : left + width]
        return piece[:, ::-1] if rng.random() < 0.5 else piece

    def line(self, tile: Field, rng: np.random.Generator, width: int) -> Field:
        """A random row of ``tile``, ``width`` long, shifted to mean 0 and scaled to a largest excursion of 1."""
        drawn = self.window(tile, rng, 1, width)[0]
        row: Field = drawn - drawn.mean()
        row /= max(float(np.abs(row).max()), 1e-6)
        return row


@cache
def textures(seed: int = 0) -> Textures:
    """The tiles for ``seed``: about 0.5 s the first time in a process, then free; 28 MiB."""
    rng = np.random.default_rng([seed, 0x7EC5])
    return Textures(
        rough=_tile(rng, slope=1.2),
        cloud=_tile(rng, slope=1.6),
        smooth=_tile(rng, slope=2.4),
        wave=_tile(rng, slope=1.5, stretch_x=5.0, longest=160.0),
        bark=_tile(rng, slope=1.2, stretch_x=1 / 7, longest=90.0),
        leaf=_tile(rng, slope=1.0, longest=14.0),
        grain=_tile(rng, slope=0.15),
    )


def _tile(rng: np.random.Generator, *, slope: float, stretch_x: float = 1.0, longest: float = float(TILE)) -> Field:
    """Noise whose amplitude falls as frequency ** -slope and fades beyond ``longest`` pixels a period."""
    fy = np.fft.fftfreq(TILE)[:, None]
    fx = np.fft.rfftfreq(TILE)[None, :] * stretch_x
    frequency = np.hypot(fy, fx)
    frequency[0, 0] = 1.0
    amplitude = frequency**-slope / (1.0 + (1.0 / (longest * frequency)) ** 4)
    amplitude[0, 0] = 0.0
    spectrum = np.fft.rfft2(rng.standard_normal((TILE, TILE))) * amplitude
    field = np.fft.irfft2(spectrum, s=(TILE, TILE))
    scaled: Field = (field / field.std()).astype(np.float32)
    return scaled
