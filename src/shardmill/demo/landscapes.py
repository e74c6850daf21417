"""Scenes without things in them: clouds, desert, forest, mountains, sea, stars."""

from __future__ import annotations

import numpy as np

from shardmill.demo.light import Light, Pixels, cover, mix, rgb, sky, smoothstep, some_light
from shardmill.demo.textures import TILE, Field, Textures


def rows_below(line: Field, height: int) -> tuple[int, Field]:
    """Where the ground under a line is: its first row, and how much of each pixel from there down it covers (0..1)."""
    top = int(np.clip(line.min() - 1.0, 0, height - 1))
    y = np.arange(top, height, dtype=np.float32)[:, None]
    return top, np.clip(y - line[None, :] + 0.5, 0.0, 1.0)


def relief(noise: Textures, tile: Field, rng: np.random.Generator, height: int, width: int) -> Field:
    """Noise lit from one side, about -1..1: how bumpy ground looks under a low sun."""
    bumps = noise.window(tile, rng, height + 2, width + 2)
    return bumps[2:, 2:] - bumps[:-2, :-2]


def far_ground(y: Field, horizon: float, near: float) -> Field:
    """Distance along flat ground for rows ``y`` below ``horizon``: 1 at row ``near``, growing toward the horizon."""
    distance: Field = np.float32(near - horizon) / np.maximum(y - np.float32(horizon), 1.0)
    return distance


def mountains(rng: np.random.Generator, noise: Textures, height: int, width: int) -> Pixels:
    """Ridge behind ridge, paler with distance, snow on the high ones."""
    light = some_light(rng)
    horizon = height * rng.uniform(0.55, 0.75)
    sun_x = rng.uniform(0, width) if rng.random() < 0.4 else None
    pixels = sky(rng, noise, light, height, width, horizon=horizon, sun_x=sun_x)
    layers = int(rng.integers(3, 6))
    rock = mix(rgb(0.36, 0.33, 0.32), rgb(0.22, 0.32, 0.22), rng.random())
    snow_line = height * rng.uniform(0.2, 0.85)
    for depth in range(layers):
        share = (depth + 1) / layers
        # 1 - |noise| has sharp tops where smooth noise changes sign: peaks far apart, with broad valleys.
        peaks = 1.0 - 2.0 * np.abs(noise.line(noise.smooth, rng, width)) + 0.35 * noise.line(noise.cloud, rng, width)
        jags = noise.line(noise.rough, rng, width)
        ridge = horizon * (0.5 + 0.62 * share) - (peaks + jags * 0.07) * height * rng.uniform(0.14, 0.3) * (
            1.3 - 0.7 * share
        )
        top, alpha = rows_below(ridge, height)
        faces = noise.window(noise.cloud, rng, height - top + 7, width + 7)
        slopes = np.clip((faces[7:, 7:] - faces[:-7, :-7]) * 1.3, -1.0, 1.0)
        bumps = relief(noise, noise.rough, rng, height - top, width) * np.float32(0.4) + slopes
        colour = mix(light.horizon * 0.9, light.on(rock), 0.25 + 0.75 * share)
        ground = colour * (1.0 + bumps * np.float32(0.1 + 0.24 * share))
        y = np.arange(top, height, dtype=np.float32)[:, None]
        snow = smoothstep(-14.0, 14.0, snow_line - y + bumps * np.float32(22.0) + peaks[None, :] * np.float32(20.0))
        white = mix(light.on(rgb(1.0, 1.0, 1.04)), light.horizon, 0.25) * (0.95 + bumps * np.float32(0.22))
        cover(ground, snow * np.float32(0.35 + 0.6 * share), white)
        fade = np.clip((y - ridge[None, :]) / (height * 0.45), 0.0, 1.0) * np.float32(0.7 * (1.0 - share))
        cover(ground, fade, light.horizon)
        cover(pixels[:, top:], alpha, ground)
    return pixels


def desert(rng: np.random.Generator, noise: Textures, height: int, width: int) -> Pixels:
    """Dunes with a lit and a shaded side, their crests winding toward the viewer, and wind ripples."""
    light = some_light(rng)
    horizon = height * rng.uniform(0.22, 0.5)
    sun_x = rng.uniform(0, width) if rng.random() < 0.5 else None
    pixels = sky(rng, noise, light, height, width, horizon=horizon, cloudiness=rng.random() * 0.5, sun_x=sun_x)
    sand = mix(rgb(0.93, 0.68, 0.42), rgb(0.86, 0.80, 0.70), rng.random())
    side = 1.0 if rng.random() < 0.5 else -1.0
    layers = int(rng.integers(3, 6))
    x = np.arange(width, dtype=np.float32)[None, :] * np.float32(side)
    for depth in range(layers):
        share = depth / (layers - 1)
        period = width * rng.uniform(0.35, 0.7) * (0.5 + share)
        phase = (x[0] + noise.line(noise.smooth, rng, width) * period * 0.25) / period + rng.random()
        swell = _dune(phase.astype(np.float32))
        level = horizon + (height - horizon) * share * 0.72 + height * 0.04 * noise.line(noise.smooth, rng, width)
        crest = level - (swell - 0.4) * height * (0.05 + 0.15 * share) * rng.uniform(0.6, 1.2)
        top, alpha = rows_below(crest, height)
        below = np.arange(top, height, dtype=np.float32)[:, None] - crest[None, :]
        bend = noise.window(noise.smooth, rng, height - top, width)
        winding = phase[None, :] - (below * rng.uniform(0.5, 1.1) + bend * 12.0) / np.float32(period)
        position = winding - np.floor(winding)
        slip = smoothstep(0.685, 0.70, position) * (1.0 - smoothstep(0.78, 1.0, position) * 0.8)
        slip *= np.exp(below / np.float32(-height * (0.1 + 0.35 * share)))
        step = 3.0 + 4.0 * share
        ripples = np.sin((below + bend * 20.0 + x * 0.15) * np.float32(2 * np.pi / step))
        colour = mix(light.horizon * 0.92, light.on(sand), 0.45 + 0.55 * share)
        shine = 1.0 - slip * np.float32(0.55) + ripples * np.float32(0.01 + 0.03 * share) + bend * np.float32(0.05)
        shine += relief(noise, noise.rough, rng, height - top, width) * np.float32(0.03)
        shine += _dune(winding) * np.float32(0.10)
        cover(pixels[:, top:], alpha, colour * shine)
    return pixels


def _dune(phase: Field) -> Field:
    """The height of a dune along the wind, 0..1, with period 1: a long rise, then a short steep fall."""
    position = phase - np.floor(phase)
    rise_or_fall: Field = np.minimum(position / np.float32(0.7), (1.0 - position) / np.float32(0.3))
    return rise_or_fall


def sea(rng: np.random.Generator, noise: Textures, height: int, width: int) -> Pixels:
    """Water to the horizon: waves in perspective, the sky in them, glitter under the sun, sometimes a sail."""
    light = some_light(rng)
    horizon = height * rng.uniform(0.28, 0.58)
    sun_x = rng.uniform(0.1, 0.9) * width
    has_sun = rng.random() < 0.6
    pixels = sky(rng, noise, light, height, width, horizon=horizon, sun_x=sun_x if has_sun else None)
    if rng.random() < 0.35:
        island = (
            horizon + 3.0 - np.clip(noise.line(noise.cloud, rng, width) * rng.uniform(0.08, 0.2) * height, 0.0, None)
        )
        top, alpha = rows_below(island, height)
        cover(pixels[:, top:], alpha, mix(light.horizon, light.on(rgb(0.25, 0.28, 0.27)), 0.6))
    top = int(horizon)
    y = np.arange(top, height, dtype=np.float32)[:, None]
    x = np.arange(width, dtype=np.float32)[None, :]
    distance = far_ground(y, horizon, height)
    rows = (distance * rng.uniform(90.0, 220.0) + rng.integers(TILE)).astype(np.int32)
    columns = ((x - width / 2) * np.clip(distance, 1.0, 12.0) * 0.9 + rng.integers(TILE)).astype(np.int32)
    swell = noise.wave[rows & (TILE - 1), columns & (TILE - 1)]
    chop = noise.window(noise.wave, rng, height - top, width)
    near = np.clip((y - horizon) / (height - horizon), 0.0, 1.0)
    waves = swell * (0.25 + 0.75 * near) + chop * np.float32(0.4)
    deep = light.on(mix(rgb(0.04, 0.20, 0.30), rgb(0.10, 0.34, 0.34), rng.random()))
    # Water seen at a shallow angle shows the sky; near the feet one looks into it.
    mirror = np.clip(0.75 - 0.6 * near + waves * np.float32(0.2), 0.0, 1.0)
    water = deep + mirror * (mix(light.middle, light.horizon, 0.4) - deep)
    foam = smoothstep(1.5, 2.6, waves + relief(noise, noise.rough, rng, height - top, width) * np.float32(0.35))
    cover(water, foam * np.float32(0.8) * near, light.on(rgb(0.95, 0.97, 1.0)))
    if has_sun:
        spread = width * (0.05 + 0.16 * near)
        path = np.exp(-(((x - np.float32(sun_x)) / spread) ** 2))
        cover(water, path * smoothstep(-0.2, 1.0, waves), np.clip(light.sun * 1.1, 0.0, 1.0))
    pixels[:, top:] = water
    if rng.random() < 0.3:
        _sail(rng, pixels, light, horizon)
    return pixels


def _sail(rng: np.random.Generator, pixels: Pixels, light: Light, horizon: float) -> None:
    _, height, width = pixels.shape
    size = height * rng.uniform(0.06, 0.18)
    foot, mast = horizon + size * 0.2, rng.uniform(0.15, 0.85) * width
    y = np.arange(height, dtype=np.float32)[:, None]
    x = np.arange(width, dtype=np.float32)[None, :] - np.float32(mast)
    up = (foot - y) / np.float32(size)
    cloth = np.clip((0.55 * (1.0 - up) * size - np.abs(x - size * 0.12)) * 1.0, 0.0, 1.0) * ((up > 0.08) & (up < 1.0))
    hull = np.clip(0.5 * size + up * size * 0.6 - np.abs(x), 0.0, 1.0) * ((up <= 0.04) & (up > -0.14))
    cover(pixels, cloth, light.on(rgb(0.97, 0.95, 0.9)))
    cover(pixels, hull.astype(np.float32), light.on(rgb(0.3, 0.15, 0.12)))


def clouds(rng: np.random.Generator, noise: Textures, height: int, width: int) -> Pixels:
    """Nothing but sky: heaps of cloud with lit tops and dark undersides."""
    light = some_light(rng)
    pixels = sky(rng, noise, light, height, width, horizon=height * rng.uniform(1.0, 1.6), cloudiness=0.3)
    white = np.clip(light.sun * np.float32(0.45 + 0.55 * light.level), 0.0, 1.0)
    grey = mix(light.middle, light.zenith, 0.5) * 0.85
    for depth in range(int(rng.integers(2, 4))):
        billow = noise.window(noise.cloud, rng, height + 24, width)
        puffs = 1.0 - np.abs(noise.window(noise.rough, rng, height + 24, width))
        lift = (np.linspace(-0.9, 0.9, height + 24, dtype=np.float32) * np.float32(rng.uniform(-0.6, 1.6)))[:, None]
        density = billow + puffs * np.float32(0.13) + lift
        edge = rng.uniform(-0.2, 0.9) - 0.15 * depth
        alpha = smoothstep(edge, edge + 0.45, density[:height])
        shade = np.clip((density[:height] - density[24:]) * -0.6 + 0.72 - (density[:height] - edge) * 0.12, 0.0, 1.0)
        cover(pixels, alpha, grey + shade * (white - grey))
    return pixels


def stars(rng: np.random.Generator, noise: Textures, height: int, width: int) -> Pixels:
    """A clear night: the band of the galaxy, many stars, a dark skyline of hills or trees."""
    night = mix(rgb(0.02, 0.03, 0.08), rgb(0.07, 0.09, 0.20), rng.random())
    low = mix(rgb(0.10, 0.14, 0.26), rgb(0.38, 0.22, 0.20), rng.random() ** 1.5)
    y = np.arange(height, dtype=np.float32)[:, None]
    x = np.arange(width, dtype=np.float32)[None, :]
    pixels = night + (y / height) ** 2.2 * (low - night) + np.zeros((1, 1, width), np.float32)
    angle, middle = rng.uniform(0.2, 2.9), rng.uniform(0.3, 0.7)
    across = ((x - width * middle) * np.sin(angle) + (y - height * 0.45) * np.cos(angle)) / (
        height * rng.uniform(0.15, 0.3)
    )
    dust = noise.window(noise.cloud, rng, height, width)
    band = np.exp(-(across * across)) * np.clip(0.55 + dust * np.float32(0.4), 0.0, 1.2)
    glow = mix(rgb(0.75, 0.68, 0.75), rgb(0.55, 0.70, 0.95), rng.random())
    pixels += band * glow * np.float32(rng.uniform(0.25, 0.6))
    count = int(height * width * rng.uniform(0.002, 0.006))
    sy, sx = rng.integers(1, height - 1, count), rng.integers(1, width - 1, count)
    power = (rng.pareto(1.6, count) * 0.16).clip(0.08, 1.0).astype(np.float32)
    tint = 1.0 - rng.random((3, count)).astype(np.float32) * np.array([[0.25], [0.12], [0.2]], np.float32)
    for dy, dx, part in ((0, 0, 1.0), (0, 1, 0.4), (0, -1, 0.4), (1, 0, 0.4), (-1, 0, 0.4)):
        pixels[:, sy + dy, sx + dx] += tint * power * np.float32(part)
    if rng.random() < 0.6:
        edge = height * rng.uniform(0.78, 0.95)
        hills = edge - noise.line(noise.cloud, rng, width) * height * rng.uniform(0.03, 0.12)
        if rng.random() < 0.5:
            hills -= np.abs(noise.line(noise.leaf, rng, width)) * height * 0.07
        top, alpha = rows_below(hills, height)
        cover(pixels[:, top:], alpha, night * np.float32(0.5))
    return pixels


def forest(rng: np.random.Generator, noise: Textures, height: int, width: int) -> Pixels:
    """Among trees: trunks in depth, leaves above, litter below, mist between."""
    light = some_light(rng)
    season = (rgb(0.20, 0.38, 0.12), rgb(0.66, 0.36, 0.10), rgb(0.42, 0.46, 0.44), rgb(0.42, 0.50, 0.14))
    leaf = season[int(rng.integers(len(season)))]
    mist = mix(light.horizon, light.on(leaf) * 1.4, rng.uniform(0.2, 0.6))
    ground_row = height * rng.uniform(0.62, 0.85)
    y = np.arange(height, dtype=np.float32)[:, None]
    x = np.arange(width, dtype=np.float32)[None, :]
    pixels = mist * (1.05 - 0.25 * np.abs(y / height - 0.45)) + np.zeros((1, 1, width), np.float32)
    pixels *= 1.0 + noise.window(noise.cloud, rng, height, width) * np.float32(0.06)
    foliage = noise.window(noise.leaf, rng, height, width)
    patches = noise.window(noise.cloud, rng, height, width)
    layers = int(rng.integers(3, 5))
    for depth in range(layers):
        share = (depth + 1) / layers
        foot = ground_row + (height - ground_row) * (share - 0.5) * 0.9
        if depth == 0 or depth == layers - 1:
            soil = mix(mist, light.on(mix(leaf, rgb(0.25, 0.17, 0.10), 0.5)) * 0.8, 0.4 + 0.6 * share)
            edge = foot + noise.line(noise.cloud, rng, width) * height * 0.03
            top, alpha = rows_below(edge, height)
            litter = noise.window(noise.leaf, rng, height - top, width)
            cover(pixels[:, top:], alpha, soil * (0.9 + litter * np.float32(0.22)))
        colour = mix(mist, light.on(rgb(0.20, 0.15, 0.12)) * 0.8, 0.25 + 0.7 * share)
        for _ in range(int(rng.integers(4, 9) * (1.4 - share))):
            thick = width * rng.uniform(0.012, 0.03) * (0.5 + 2.0 * share * share)
            _trunk(rng, noise, pixels, colour, rng.uniform(0, width), thick, foot)
        reach = np.float32(height * rng.uniform(0.25, 0.6))
        rows = min(height, int(reach * 2.6))  # farther down leaves are too rare to draw
        blobs = foliage[:rows] if depth % 2 else foliage[height - rows :][::-1]
        crown = smoothstep(
            0.1, 0.7, blobs * np.float32(0.6) + patches[:rows] * np.float32(0.7) + 0.7 - y[:rows] / reach
        )
        green = mix(mist, light.on(leaf), 0.35 + 0.6 * share)
        cover(pixels[:, :rows], crown * np.float32(0.85), green * (0.85 + blobs * np.float32(0.3)))
    if rng.random() < 0.4:
        lean = x + y * np.float32(rng.uniform(-0.6, 0.6))
        beams = noise.line(noise.smooth, rng, TILE)[(lean.astype(np.int32) * 2) & (TILE - 1)]
        cover(pixels, np.clip(beams, 0.0, 1.0) * (1.0 - y / height) * np.float32(0.5), light.sun)
    return pixels


def _trunk(
    rng: np.random.Generator, noise: Textures, pixels: Pixels, colour: Pixels, at: float, thick: float, foot: float
) -> None:
    _, height, width = pixels.shape
    lean = rng.uniform(-0.06, 0.06)
    left, right = max(0, int(at - thick * 2 - 20)), min(width, int(at + thick * 2 + 20))
    bottom = min(height, int(foot) + 4)
    if right - left < 2:
        return
    y = np.arange(bottom, dtype=np.float32)[:, None]
    x = np.arange(left, right, dtype=np.float32)[None, :]
    half = thick * (0.4 + 0.2 * y / height) + thick * 0.5 * np.exp((y - bottom) / 8.0)
    across = (x - np.float32(at) - (y - bottom) * np.float32(lean)) / half
    alpha = np.clip((1.0 - np.abs(across)) * half, 0.0, 1.0)
    bark = noise.window(noise.bark, rng, bottom, right - left)
    cover(pixels[:, :bottom, left:right], alpha, colour * (1.0 - across * np.float32(0.3) + bark * np.float32(0.22)))
