"""Colours against torchvision's v2 functions on uint8 tensors, and each tolerance against a wrong op."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F  # noqa: N812

from shardmill.images import color
from shardmill.images.augmentations import ColorJitter, Grayscale, Solarize
from shardmill.images.blur import blur
from shardmill.images.sampling import Draws, Stream

Pixels = NDArray[np.uint8]

CASES: list[tuple[str, Callable[[Pixels, float], None], Callable[[torch.Tensor, float], torch.Tensor], list[float]]] = [
    ("brightness", color.brightness, F.adjust_brightness, [0.0, 0.3, 0.97, 1.0, 1.7]),
    ("contrast", color.contrast, F.adjust_contrast, [0.0, 0.3, 0.97, 1.0, 1.7]),
    ("saturation", color.saturation, F.adjust_saturation, [0.0, 0.3, 0.97, 1.0, 1.7]),
    ("hue", color.hue, F.adjust_hue, [-0.5, -0.2, 0.0, 0.03, 0.5]),
    ("sharpness", color.sharpness, F.adjust_sharpness, [0.0, 0.3, 1.0, 1.9]),
    ("posterize", lambda x, f: color.posterize(x, int(f)), lambda t, f: F.posterize(t, int(f)), [0, 1, 4, 7, 8]),
    ("solarize", color.solarize, lambda t, f: F.solarize(t, min(f, 255)), [0.0, 17.5, 128.0, 255.0]),
    ("autocontrast", lambda x, _: color.autocontrast(x), lambda t, _: F.autocontrast(t), [0]),
    ("equalize", lambda x, _: color.equalize(x), lambda t, _: F.equalize(t), [0]),
    ("blur 5", lambda x, f: blur(x, 5, f), lambda t, f: F.gaussian_blur(t, [5, 5], [f, f]), [0.1, 0.7, 2.0]),
    ("blur 23", lambda x, f: blur(x, 23, f), lambda t, f: F.gaussian_blur(t, [23, 23], [f, f]), [0.1, 1.3, 5.0]),
]
# Rounding to 8 bits: the two compute in another order, so a pixel in a thousand may fall to the other side.
MAX_LEVELS, MAX_SHARE = 1, 0.002


@pytest.fixture(scope="module")
def pictures(imagenet_sample: Path) -> list[Pixels]:
    """Photographs, and what has no colour, no contrast, or hardly any size."""
    rng = np.random.default_rng(0)
    found = [
        np.asarray(Image.open(path).convert("RGB").resize((97, 64))).transpose(2, 0, 1)
        for path in sorted(imagenet_sample.glob("*.JPEG"))[::50]
    ]
    found += [
        rng.integers(0, 256, (3, 40, 31), dtype=np.uint8),
        np.full((3, 24, 24), 77, np.uint8),
        np.zeros((3, 30, 30), np.uint8),
        np.repeat(rng.integers(0, 256, (1, 33, 40), dtype=np.uint8), 3, axis=0),
        rng.integers(100, 140, (3, 25, 25), dtype=np.uint8),
    ]
    return [np.ascontiguousarray(picture) for picture in found]


def difference(ours: Pixels, theirs: torch.Tensor) -> tuple[int, float]:
    levels = np.abs(ours.astype(int) - theirs.numpy().astype(int))
    return int(levels.max()), float((levels > 0).mean())


@pytest.mark.parametrize(("name", "ours", "theirs", "factors"), CASES, ids=[case[0] for case in CASES])
def test_an_op_is_torchvisions(
    name: str, ours: Callable[..., None], theirs: Callable[..., torch.Tensor], factors: list[float], pictures: Any
) -> None:
    for picture in pictures:
        for factor in factors:
            mine = picture.copy()
            ours(mine, factor)
            most, share = difference(mine, theirs(torch.from_numpy(picture), factor))
            assert most <= MAX_LEVELS, (name, factor, picture.shape)
            assert share <= MAX_SHARE, (name, factor, picture.shape)


@pytest.mark.parametrize(
    ("name", "ours", "theirs", "factors"), CASES[:5] + CASES[9:], ids=lambda v: v if isinstance(v, str) else ""
)
def test_the_tolerance_rejects_a_factor_that_is_slightly_off(
    name: str, ours: Callable[..., None], theirs: Callable[..., torch.Tensor], factors: list[float], pictures: Any
) -> None:
    wrong = 0
    for picture in pictures[:10]:
        mine = picture.copy()
        ours(mine, factors[1] * 1.02 + 0.01)
        _, share = difference(mine, theirs(torch.from_numpy(picture), factors[1]))
        wrong += share > MAX_SHARE
    # One of the photographs has no colour.
    assert wrong >= 9, name


def test_gray_is_torchvisions(pictures: list[Pixels]) -> None:
    for picture in pictures:
        batch = picture[None].copy()
        color.to_gray(Grayscale(), batch, Draws(0, 0, np.array([0])), 0)
        expected = F.rgb_to_grayscale(torch.from_numpy(picture), num_output_channels=3)
        assert difference(batch[0], expected)[1] <= MAX_SHARE
        assert (batch[0, 0] == batch[0, 1]).all()
        assert (batch[0, 0] == batch[0, 2]).all()


def test_jitter_draws_what_torchvision_draws() -> None:
    """Factors are uniform in the same ranges, the order is any of 24, and p of the images are changed."""
    op, theirs = ColorJitter(0.4, (0.5, 1.2), 0.2, 0.1, p=0.8), v2.ColorJitter(0.4, (0.5, 1.2), 0.2, 0.1)
    assert op.ranges == (theirs.brightness, theirs.contrast, theirs.saturation, theirs.hue)
    u = Draws(3, 1, np.arange(20_000)).uniforms(Stream.COLOR, 0, 6)
    assert abs((u[0] < op.p).mean() - 0.8) < 0.01
    orders = np.bincount((u[1] * 24).astype(int), minlength=24)
    assert len(orders) == 24
    assert orders.min() > 700
    for row in u[2:]:
        assert abs(row.mean() - 0.5) < 0.01
        assert 0 <= row.min() < 0.001 < 0.999 < row.max() < 1
    assert abs(np.corrcoef(u) - np.eye(6)).max() < 0.03


def test_jitter_is_its_four_steps_in_the_drawn_order(pictures: list[Pixels]) -> None:
    op = ColorJitter(0.4, 0.4, 0.4, 0.1)
    ids = np.arange(len(pictures)) + 11
    u = Draws(5, 2, ids).uniforms(Stream.COLOR, 0, 6)
    orders: set[tuple[int, ...]] = set()
    for i, picture in enumerate(pictures):
        batch = picture[None].copy()
        color.jitter(op, batch, Draws(5, 2, ids[i : i + 1]), 0)
        expected = torch.from_numpy(picture)
        order = color._ORDERS[int(u[1, i] * 24)]
        orders.add(order)
        for which in order:
            limits = op.ranges[which]
            assert limits is not None
            expected = CASES[which][2](expected, limits[0] + float(u[2 + which, i]) * (limits[1] - limits[0]))
        # Four roundings, each of which may be off by one, and contrast and hue enlarge the step.
        levels = np.abs(batch[0].astype(int) - expected.numpy().astype(int))
        assert (levels > 1).mean() <= 4 * MAX_SHARE
    assert len(orders) > 5


def test_what_is_left_at_nothing_is_not_done(pictures: list[Pixels]) -> None:
    batch = pictures[0][None].copy()
    color.jitter(ColorJitter(), batch, Draws(0, 0, np.array([0])), 0)
    color.solarize_some(Solarize(p=0), batch, Draws(0, 0, np.array([0])), 0)
    color.solarize_some(Solarize(256), batch, Draws(0, 0, np.array([0])), 0)
    assert (batch[0] == pictures[0]).all()
