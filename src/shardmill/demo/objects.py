"""Scenes of things: balloons, city, fish, flowers."""

from __future__ import annotations

import numpy as np

from shardmill.demo.landscapes import relief, rows_below
from shardmill.demo.light import Colour, Light, Pixels, any_colour, cover, mix, rgb, sky, smoothstep, some_light
from shardmill.demo.textures import Field, Textures


def around(pixels: Pixels, cx: float, cy: float, reach: float) -> tuple[Pixels, Field, Field] | None:
    """The part of ``pixels`` within ``reach`` of a point, with x and y from it: a view, or None if outside."""
    _, height, width = pixels.shape
    top, bottom = max(0, int(cy - reach)), min(height, int(cy + reach) + 1)
    left, right = max(0, int(cx - reach)), min(width, int(cx + reach) + 1)
    if bottom - top < 2 or right - left < 2:
        return None
    y = np.arange(top, bottom, dtype=np.float32)[:, None] - np.float32(cy)
    x = np.arange(left, right, dtype=np.float32)[None, :] - np.float32(cx)
    return pixels[:, top:bottom, left:right], x, y


def balloons(rng: np.random.Generator, noise: Textures, height: int, width: int) -> Pixels:
    """Hot-air balloons, near and far, over hills."""
    light = some_light(rng)
    horizon = height * rng.uniform(0.75, 1.1)
    pixels = sky(rng, noise, light, height, width, horizon=horizon)
    for share in (0.4, 0.8):
        hills = horizon + height * (0.1 * share - 0.05) - noise.line(noise.smooth, rng, width) * height * 0.08
        top, alpha = rows_below(hills, height)
        grass = mix(light.horizon, light.on(rgb(0.30, 0.36, 0.18)), share)
        cover(
            pixels[:, top:],
            alpha,
            grass * (1.0 + relief(noise, noise.rough, rng, height - top, width) * np.float32(0.2)),
        )
    sizes = np.sort(min(height, width) * (0.05 + 0.22 * rng.random(int(rng.integers(1, 8))) ** 2.0))
    sizes[-1] = max(sizes[-1], min(height, width) * rng.uniform(0.12, 0.24))
    for size in sizes:
        cx, cy = rng.uniform(0.08, 0.92) * width, rng.uniform(0.15, 0.6) * height
        _balloon(rng, noise, pixels, light, cx, cy, float(size))
    return pixels


def _balloon(
    rng: np.random.Generator, noise: Textures, pixels: Pixels, light: Light, cx: float, cy: float, size: float
) -> None:
    box = around(pixels, cx, cy, size * 1.9)
    if box is None:
        return
    part, x, y = box
    down = y / np.float32(size)
    # A sphere above, a cone below: half the width at each height, in balloon radii.
    bell = np.where(
        down < 0.35, np.sqrt(np.clip(1.0 - down * down, 0.0, 1.0)), np.clip(0.937 - 0.72 * (down - 0.35), 0.0, 1)
    )
    bell = np.where((down > -1.0) & (down < 1.3), bell, 0.0).astype(np.float32)
    across = x / np.maximum(bell * size, 0.5)
    alpha = np.clip((1.0 - np.abs(across)) * bell * size, 0.0, 1.0)
    turn = np.arcsin(np.clip(across, -1.0, 1.0)) * np.float32(rng.integers(3, 7)) + np.float32(rng.uniform(0, 6))
    pattern = smoothstep(-0.12, 0.12, np.sin(turn * 2.0))
    if rng.random() < 0.4:
        pattern = np.abs(pattern - smoothstep(-0.1, 0.1, np.sin(down * np.float32(rng.integers(5, 11)))))
    first, second = any_colour(rng, saturation=0.85), any_colour(rng, saturation=float(rng.random()), value=0.95)
    cloth = light.on(first) + pattern * (light.on(second) - light.on(first))
    seams = 1.0 - 0.25 * smoothstep(0.9, 1.0, np.abs(np.sin(turn * 2.0 + np.float32(np.pi / 2))))
    lit = (0.92 - across * np.float32(0.22) - down * np.float32(0.12)) * seams
    cover(part, alpha, cloth * lit)
    basket = np.clip(size * 0.13 - np.abs(x) + 0.5, 0, 1) * np.clip(size * 0.1 - np.abs(y - size * 1.65) + 0.5, 0, 1)
    rope = np.clip(1.0 - np.abs(np.abs(x) - size * (0.28 - 0.5 * (down - 1.25))), 0.0, 1.0) * (
        (down > 1.25) & (down < 1.58)
    )
    cover(part, np.maximum(basket, rope * 0.8).astype(np.float32), light.on(rgb(0.30, 0.19, 0.10)))


def city(rng: np.random.Generator, noise: Textures, height: int, width: int) -> Pixels:
    """A skyline: towers in depth with windows, lit when it is dark, sometimes doubled in water."""
    light = some_light(rng)
    base = height * rng.uniform(0.72, 0.94) if rng.random() < 0.7 else float(height)
    pixels = sky(rng, noise, light, height, width, horizon=base)
    dark = float(np.clip(1.1 - light.level, 0.0, 0.8))
    for share in (0.3, 0.6, 1.0):
        at = -width * rng.uniform(0.0, 0.1)
        while at < width:
            wide = width * rng.uniform(0.04, 0.12) * (0.6 + 0.6 * share)
            tall = height * (rng.uniform(0.12, 0.38) + 0.3 * rng.random() ** 3) * (1.35 - 0.6 * share)
            wall = mix(any_colour(rng, saturation=0.25, value=rng.uniform(0.25, 0.75)), rgb(0.4, 0.42, 0.46), 0.5)
            colour = mix(light.horizon * 0.95, light.on(wall) * np.float32(1.0 - 0.5 * dark), 0.3 + 0.7 * share)
            _tower(rng, noise, pixels, light, colour, (at, base - tall, at + wide, base), share, dark)
            at += wide * rng.uniform(0.75, 1.25)
    if base < height:
        _reflection(rng, noise, pixels, light, int(base))
    return pixels


def _tower(
    rng: np.random.Generator,
    noise: Textures,
    pixels: Pixels,
    light: Light,
    colour: Colour,
    box: tuple[float, float, float, float],
    share: float,
    dark: float,
) -> None:
    _, height, width = pixels.shape
    left, top, right, bottom = (int(v) for v in box)
    x0, y0, x1, y1 = max(0, left), max(0, top), min(width, right), min(height, bottom)
    if x1 - x0 < 3 or y1 - y0 < 3:
        return
    part = pixels[:, y0:y1, x0:x1]
    rows, columns = np.arange(y0 - top, y1 - top), np.arange(x0 - left, x1 - left)
    # Paler toward the street, where haze gathers; a little dirt on the walls.
    haze = np.linspace(0.0, 0.25, y1 - y0, dtype=np.float32)[:, None]
    wall = colour * (1.0 + noise.window(noise.bark, rng, y1 - y0, x1 - x0) * np.float32(0.05))
    part[:] = wall + haze * (light.horizon - wall)
    side = (columns > (x1 - left) * rng.uniform(0.6, 0.95)).astype(np.float32)
    part *= 1.0 - 0.25 * side
    step_x, step_y = int(rng.integers(5, 10)), int(rng.integers(6, 12))
    frame_x, frame_y = int(rng.integers(2, 4)), int(rng.integers(2, 5))
    if rng.random() < 0.25:
        frame_x = 0  # bands of glass all around
    grid = ((rows % step_y) >= frame_y)[:, None] & ((columns % step_x) >= frame_x)[None, :]
    inside = grid & (rows > 5)[:, None] & ((columns > 2) & (columns < right - left - 3))[None, :]
    lamps = rng.random((len(rows) // step_y + 1, len(columns) // step_x + 2)).astype(np.float32)
    lamp = lamps[(rows // step_y)[:, None] - rows[0] // step_y, (columns // step_x)[None, :] - columns[0] // step_x]
    on = lamp < dark * 0.75
    glow = rgb(1.0, 0.82, 0.50) * (0.55 + lamp * 0.6)
    glass = mix(light.middle, colour, 0.35) * (0.62 + lamp * np.float32(0.3))
    strength = inside.astype(np.float32) * np.float32(0.35 + 0.6 * share)
    cover(part, strength, np.where(on, glow, glass))
    if rng.random() < 0.2 and 0 < (left + right) // 2 < width - 2:
        middle = (left + right) // 2
        pixels[:, max(0, top - int(height * 0.07)) : y0, middle : middle + 2] = colour * 0.7


def _reflection(rng: np.random.Generator, noise: Textures, pixels: Pixels, light: Light, shore: int) -> None:
    _, height, width = pixels.shape
    depth = height - shore
    ripple = noise.window(noise.wave, rng, depth, width)
    rows = np.clip(shore - 1 - (np.arange(depth)[:, None] * 1.3 + ripple * 5.0).astype(np.int32), 0, shore - 1)
    water = pixels[:, rows, np.arange(width)[None, :]] * (0.72 + ripple * np.float32(0.07))
    pixels[:, shore:] = water + 0.2 * (light.on(rgb(0.10, 0.22, 0.30)) - water)


def fish(rng: np.random.Generator, noise: Textures, height: int, width: int) -> Pixels:
    """Under water: striped fish over sand and coral, rays of light from above."""
    shallow = mix(rgb(0.25, 0.66, 0.78), rgb(0.45, 0.72, 0.55), rng.random())
    deep = mix(rgb(0.02, 0.16, 0.36), rgb(0.06, 0.26, 0.24), rng.random())
    if rng.random() < 0.3:  # an aquarium under warm lamps
        shallow, deep = rgb(0.80, 0.72, 0.56), mix(rgb(0.20, 0.12, 0.10), rgb(0.10, 0.12, 0.16), rng.random())
    y = np.arange(height, dtype=np.float32)[:, None] / height
    x = np.arange(width, dtype=np.float32)[None, :]
    pixels = shallow + np.sqrt(y) * (deep - shallow) + np.zeros((1, 1, width), np.float32)
    pixels *= 1.0 + noise.window(noise.smooth, rng, height, width) * np.float32(0.08)
    lean = (x + y * height * np.float32(rng.uniform(-0.8, 0.8))).astype(np.int32)
    rays = noise.line(noise.cloud, rng, 1024)[(lean * 2) & 1023]
    cover(pixels, np.clip(rays, 0.0, 1.0) * (1.0 - y) * np.float32(0.5), np.clip(shallow * 1.3, 0.0, 1.0))
    bed = height * rng.uniform(0.72, 0.98) - noise.line(noise.smooth, rng, width) * height * 0.06
    top, alpha = rows_below(bed, height)
    sand = mix(shallow, rgb(0.75, 0.68, 0.52), 0.4) * np.float32(0.75)
    cover(pixels[:, top:], alpha, sand * (1.0 + relief(noise, noise.rough, rng, height - top, width) * np.float32(0.3)))
    for _ in range(int(rng.integers(0, 5))):
        reef = height * rng.uniform(0.8, 1.05) - np.abs(noise.line(noise.leaf, rng, width)) * height * 0.16
        here = np.exp(-(((np.arange(width) - rng.uniform(0, width)) / (width * 0.13)) ** 2))
        top, alpha = rows_below((height - (height - reef) * here - height * 0.12 * here).astype(np.float32), height)
        knobs = noise.window(noise.leaf, rng, height - top, width)
        colour = mix(any_colour(rng, saturation=0.6), deep, 0.35)
        cover(pixels[:, top:], alpha, colour * (0.75 + knobs * np.float32(0.22)))
    count = int(rng.integers(1, 9))
    paint = (any_colour(rng), any_colour(rng, saturation=float(rng.random())))
    facing = 1.0 if rng.random() < 0.5 else -1.0
    biggest = min(height, width) * rng.uniform(0.12, 0.3) / (1.0 + 0.08 * count)
    for i in range(count):
        size = biggest * rng.uniform(0.5, 1.0) if i < count - 1 else biggest
        if rng.random() < 0.15:
            paint = (any_colour(rng), any_colour(rng, saturation=float(rng.random())))
        at = (rng.uniform(0.1, 0.9) * width, rng.uniform(0.15, 0.8) * height)
        _one_fish(rng, noise, pixels, paint, deep, at, size, facing)
    for _ in range(int(rng.integers(0, 14))):
        box = around(pixels, rng.uniform(0, width), rng.uniform(0, height), radius := rng.uniform(2.0, 8.0))
        if box is not None:
            part, dx, dy = box
            ring = np.clip(1.3 - np.abs(np.sqrt(dx * dx + dy * dy) - np.float32(radius * 0.7)), 0.0, 1.0)
            cover(part, ring * np.float32(0.5), rgb(0.9, 0.97, 1.0))
    return pixels


def _one_fish(
    rng: np.random.Generator,
    noise: Textures,
    pixels: Pixels,
    paint: tuple[Colour, Colour],
    water: Colour,
    at: tuple[float, float],
    size: float,
    facing: float,
) -> None:
    box = around(pixels, *at, size * 1.7)
    if box is None:
        return
    part, x, y = box
    tilt = rng.uniform(-0.25, 0.25)
    u = (x * np.float32(np.cos(tilt)) + y * np.float32(np.sin(tilt))) * np.float32(facing / size)
    v = (y * np.float32(np.cos(tilt)) - x * np.float32(np.sin(tilt))) / np.float32(size)
    plump = rng.uniform(0.38, 0.62)
    body = 1.0 - u * u - (v / np.float32(plump)) ** 2
    tail = np.minimum(np.minimum(-u - 0.8, u + 1.5) * 3.0, (-u - 0.72) * np.float32(0.9) - np.abs(v) + 0.05)
    fin = np.minimum(0.5 - np.abs(u + 0.1 + v * 0.4), np.minimum(plump * 1.45 + v, -v)) * 1.2
    alpha = np.clip(np.maximum(np.maximum(body * 0.5, tail), fin) * np.float32(size), 0.0, 1.0)
    wave = np.sin(u * np.float32(rng.uniform(5.0, 11.0)) + v * v * 2.0 + np.float32(rng.uniform(0, 6)))
    stripes = smoothstep(-0.1, 0.3, wave) * (body > 0) if rng.random() < 0.75 else smoothstep(-0.1, 0.1, v)
    skin = paint[0] + stripes * (paint[1] - paint[0])
    scales = noise.window(noise.leaf, rng, *v.shape)
    lit = np.clip(1.0 - v * np.float32(0.5) + scales * np.float32(0.08), 0.2, 1.4)
    skin = skin * lit
    cover(part, alpha, skin + 0.2 * (water - skin))
    eye = np.sqrt((u - 0.66) ** 2 + (v + 0.1) ** 2)
    cover(part, np.clip((0.12 - eye) * np.float32(size), 0.0, 1.0), rgb(0.95, 0.95, 0.85))
    cover(part, np.clip((0.065 - eye) * np.float32(size), 0.0, 1.0), rgb(0.02, 0.02, 0.02))


def flowers(rng: np.random.Generator, noise: Textures, height: int, width: int) -> Pixels:
    """Flowers close up before a blurred meadow."""
    light = some_light(rng)
    backs = (rgb(0.24, 0.38, 0.16), rgb(0.40, 0.42, 0.22), rgb(0.12, 0.18, 0.12), rgb(0.55, 0.62, 0.60))
    back = light.on(backs[int(rng.integers(len(backs)))])
    glow = mix(light.horizon, back, 0.4)
    blur = noise.window(noise.smooth, rng, height, width) * np.float32(0.5) + np.float32(0.5)
    pixels: Pixels = back + np.clip(blur, 0.0, 1.0) * (glow - back)
    for _ in range(int(rng.integers(5, 16))):
        radius = min(height, width) * rng.uniform(0.03, 0.1)
        box = around(pixels, rng.uniform(0, width), rng.uniform(0, height), radius * 1.1)
        if box is not None:
            part, x, y = box
            disc = smoothstep(0.0, 0.35, 1.0 - np.sqrt(x * x + y * y) / np.float32(radius))
            cover(part, disc * np.float32(0.35), mix(glow, any_colour(rng), 0.4))
    blades = noise.window(noise.bark, rng, height, width)
    fade = np.linspace(-0.3, 1.0, height, dtype=np.float32)[:, None]
    cover(pixels, smoothstep(0.9, 1.9, blades + fade) * np.float32(0.6), light.on(rgb(0.22, 0.36, 0.12)))
    petal, heart = (
        any_colour(rng, saturation=rng.uniform(0.1, 0.9)),
        mix(rgb(0.95, 0.75, 0.15), rgb(0.3, 0.2, 0.1), rng.random()),
    )
    count = int(rng.integers(1, 7))
    petals = int(rng.integers(5, 14))
    sizes = np.sort(min(height, width) * rng.uniform(0.2, 0.42) * rng.uniform(0.45, 1.0, count) / (1 + 0.12 * count))
    for size in sizes:
        at = (rng.uniform(0.12, 0.88) * width, rng.uniform(0.15, 0.75) * height)
        _flower(rng, noise, pixels, light, (petal, heart), at, float(size), petals)
    return pixels


def _flower(
    rng: np.random.Generator,
    noise: Textures,
    pixels: Pixels,
    light: Light,
    paint: tuple[Colour, Colour],
    at: tuple[float, float],
    size: float,
    petals: int,
) -> None:
    _, height, width = pixels.shape
    stem_x = int(np.clip(at[0], 3, width - 4))
    top = int(np.clip(at[1], 0, height - 2))
    rows = np.arange(top, height, dtype=np.float32)[:, None]
    x = np.arange(width, dtype=np.float32)[None, :]
    left, right = max(0, stem_x - 30), min(width, stem_x + 30)
    bend = np.sin((rows - top) / height * 3.0) * np.float32(rng.uniform(-24, 24))
    stem = np.clip(size * 0.05 + 1.0 - np.abs(x[:, left:right] - stem_x - bend), 0.0, 1.0)
    cover(pixels[:, top:, left:right], stem, light.on(rgb(0.25, 0.42, 0.14)))
    box = around(pixels, *at, size * 1.1)
    if box is None:
        return
    part, x, y = box
    y = y / np.float32(rng.uniform(0.65, 1.0))
    radius = np.sqrt(x * x + y * y) / np.float32(size)
    angle = np.arctan2(y, x) + np.float32(rng.uniform(0, 6))
    lobe = np.abs(np.cos(angle * np.float32(petals / 2)))
    reach = 0.45 + 0.55 * lobe ** np.float32(rng.uniform(0.4, 1.2))
    alpha = np.clip((reach - radius) * np.float32(size), 0.0, 1.0)
    veins = noise.window(noise.rough, rng, *radius.shape) * np.float32(0.05)
    lit = (0.45 + 0.55 * radius) * (0.7 + 0.3 * lobe) + veins + 0.1
    cover(part, alpha, light.on(paint[0]) * lit * 1.25)
    core = rng.uniform(0.2, 0.36)
    seeds = noise.window(noise.leaf, rng, *radius.shape) * np.float32(0.25)
    alpha = np.clip((core - radius) * np.float32(size), 0.0, 1.0)
    cover(part, alpha, light.on(paint[1]) * (1.1 - radius / np.float32(core) * 0.4 + seeds))
