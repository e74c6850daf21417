"""A canvas, the light of the day over it, and the sky: what every outdoor scene starts from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.demo.textures import Field, Textures

Pixels = NDArray[np.floating[Any]]
"""Colour planes, float32 [3, height, width], 0 black to 1 white (display values, not linear light).

Planes, because numpy is several times slower on arrays whose innermost axis has three elements.
"""

Colour = NDArray[np.floating[Any]]
"""One colour, float32 [3, 1, 1], ready to broadcast over planes."""


def rgb(red: float, green: float, blue: float) -> Colour:
    """A colour from three values in 0..1."""
    return np.array([red, green, blue], np.float32).reshape(3, 1, 1)


def mix(a: Colour, b: Colour, share: float) -> Colour:
    """``a`` where ``share`` is 0, ``b`` where it is 1."""
    return a + (b - a) * np.float32(share)


def any_colour(rng: np.random.Generator, *, saturation: float = 0.75, value: float = 0.9) -> Colour:
    """A colour of random hue."""
    wheel = (rng.random() * 6.0 + np.array([0.0, 4.0, 2.0])) % 6.0
    ramp = np.clip(np.abs(wheel - 3.0) - 1.0, 0.0, 1.0)
    return (value * (1.0 - saturation + saturation * ramp)).astype(np.float32).reshape(3, 1, 1)


def smoothstep(low: float, high: float, x: Field) -> Field:
    """0 below ``low``, 1 above ``high``, a smooth S between."""
    t: Field = np.clip((x - np.float32(low)) * np.float32(1.0 / (high - low)), 0.0, 1.0)
    t *= t * (3.0 - 2.0 * t)
    return t


def cover(pixels: Pixels, alpha: Field | Pixels, colour: Colour | Pixels) -> None:
    """Lay ``colour`` over ``pixels`` in place: fully where ``alpha`` is 1, not at all where it is 0."""
    # A plane at a time: temporaries of one plane stay in the cache, which halves the time.
    for plane, own, over in zip(pixels, _planes(alpha), _planes(colour), strict=True):
        step = over - plane
        step *= own
        plane += step


def _planes(value: Field | Pixels) -> Iterable[Field]:
    return value if value.ndim == 3 else (value, value, value)


@dataclass(frozen=True)
class Light:
    """The light of one moment: sky colours from the zenith down, the sun's colour, and how bright things are."""

    zenith: Colour
    middle: Colour
    horizon: Colour
    sun: Colour
    level: float

    def on(self, colour: Colour) -> Colour:
        """How a thing of that colour looks in this light."""
        return colour * mix(rgb(1, 1, 1), self.sun, 0.65) * np.float32(self.level)


_DAY = {
    "noon": Light(rgb(0.16, 0.36, 0.70), rgb(0.42, 0.62, 0.86), rgb(0.76, 0.86, 0.93), rgb(1.0, 0.98, 0.92), 1.0),
    "golden": Light(rgb(0.30, 0.42, 0.62), rgb(0.64, 0.62, 0.62), rgb(0.98, 0.82, 0.58), rgb(1.0, 0.84, 0.58), 0.9),
    "sunset": Light(rgb(0.20, 0.20, 0.42), rgb(0.66, 0.34, 0.42), rgb(1.00, 0.56, 0.25), rgb(1.0, 0.62, 0.40), 0.7),
    "dusk": Light(rgb(0.06, 0.09, 0.24), rgb(0.22, 0.21, 0.42), rgb(0.66, 0.42, 0.48), rgb(0.62, 0.55, 0.78), 0.45),
    "overcast": Light(rgb(0.50, 0.55, 0.61), rgb(0.66, 0.70, 0.74), rgb(0.82, 0.84, 0.86), rgb(0.90, 0.93, 0.97), 0.8),
    "dawn": Light(rgb(0.34, 0.45, 0.66), rgb(0.80, 0.66, 0.74), rgb(1.00, 0.86, 0.78), rgb(1.0, 0.86, 0.82), 0.85),
}


def some_light(rng: np.random.Generator) -> Light:
    """A time of day, or something between two: scenes of every class share them, so colour alone tells little."""
    names = list(_DAY)
    first, second = (_DAY[names[i]] for i in rng.integers(len(names), size=2))
    share = float(rng.random() ** 2 * 0.6)
    return Light(
        mix(first.zenith, second.zenith, share),
        mix(first.middle, second.middle, share),
        mix(first.horizon, second.horizon, share),
        mix(first.sun, second.sun, share),
        first.level + (second.level - first.level) * share,
    )


def sky(
    rng: np.random.Generator,
    noise: Textures,
    light: Light,
    height: int,
    width: int,
    *,
    horizon: float,
    cloudiness: float | None = None,
    sun_x: float | None = None,
) -> Pixels:
    """A sky down to row ``horizon`` (pixels; below it the horizon's colour goes on), with haze, clouds and glow.

    ``cloudiness``: 0 clear to 1 covered, random where not given. ``sun_x``: column of the sun, none where not given.
    """
    y = np.arange(height, dtype=np.float32)[:, None] / np.float32(max(horizon, 1.0))
    low, high = np.clip(y * 1.7, 0, 1), np.clip((y - 0.45) / 0.55, 0, 1)
    column = light.zenith + low * (light.middle - light.zenith)
    column = column + high * high * (light.horizon - column)
    pixels = np.empty((3, height, width), np.float32)
    pixels[:] = column
    if sun_x is not None:
        _glow(rng, pixels, light, sun_x, horizon)
    amount = float(rng.random() ** 1.5) if cloudiness is None else cloudiness
    rows = min(height, int(horizon) + 1)
    if amount > 0.08 and rows > 8:
        _clouds(rng, noise, pixels[:, :rows], light, amount)
    return pixels


def _glow(rng: np.random.Generator, pixels: Pixels, light: Light, sun_x: float, horizon: float) -> None:
    _, height, width = pixels.shape
    sun_y = horizon * rng.uniform(0.45, 0.95)
    dy = np.arange(height, dtype=np.float32)[:, None] - np.float32(sun_y)
    dx = np.arange(width, dtype=np.float32)[None, :] - np.float32(sun_x)
    distance = np.sqrt(dx * dx + dy * dy) / np.float32(min(height, width))
    halo = np.exp(distance * -5.0) * 0.6
    disc = np.clip((0.045 - distance) * 90.0, 0.0, 1.0)
    cover(pixels, np.maximum(halo, disc), mix(light.sun, rgb(1, 1, 0.95), 0.5))


def _clouds(rng: np.random.Generator, noise: Textures, pixels: Pixels, light: Light, amount: float) -> None:
    """Flat clouds, denser and thinner by noise; the side toward the light is bright."""
    _, height, width = pixels.shape
    tile = noise.wave if rng.random() < 0.35 else noise.cloud
    density = noise.window(tile, rng, height + 6, width)
    edge = 1.3 - 2.2 * amount
    alpha = smoothstep(edge, edge + 1.6, density[:height]) * np.float32(0.9)
    shade = np.clip((density[:height] - density[6:]) * 0.5 + 0.6, 0.0, 1.0)
    bright = np.clip(light.horizon * 1.05 + 0.08, 0.0, 1.0)
    dark = light.middle * 0.75
    cover(pixels, alpha, dark + shade * (bright - dark))
