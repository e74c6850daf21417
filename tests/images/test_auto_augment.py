from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from shardmill.images.augmentations import RandAugment, TrivialAugmentWide
from shardmill.images.auto_augment import _SIGNED, OPS, apply, augment, magnitude
from shardmill.images.sampling import Draws, Stream

THEIRS: list[tuple[Any, Any]] = [
    (TrivialAugmentWide(), v2.TrivialAugmentWide()),
    (TrivialAugmentWide(bins=11), v2.TrivialAugmentWide(num_magnitude_bins=11)),
    (RandAugment(), v2.RandAugment()),
    (RandAugment(bins=15), v2.RandAugment(num_magnitude_bins=15)),
]


@pytest.mark.parametrize(("op", "theirs"), THEIRS)
@pytest.mark.parametrize("size", [(224, 224), (96, 130)])
def test_the_ops_and_their_strengths_are_torchvisions(op: Any, theirs: Any, size: tuple[int, int]) -> None:
    space = theirs._AUGMENTATION_SPACE
    assert tuple(space) == OPS
    for name, (strengths, signed) in space.items():
        assert (name in _SIGNED) == signed
        expected = strengths(op.bins, *size)
        for level in range(op.bins):
            value = magnitude(op, name, level, *size)
            assert value == pytest.approx(0.0 if expected is None else float(expected[level]), abs=1e-5), (name, level)


@pytest.mark.parametrize("kind", ["nearest", "bilinear"])
@pytest.mark.parametrize("name", OPS)
def test_an_op_does_what_torchvisions_does(name: str, kind: Any, imagenet_sample: Path) -> None:
    """Pillow moves pixels here and there. Colours are compared with uint8 tensors: within a level, by rounding."""
    op = TrivialAugmentWide(filter=kind, fill=(10, 200, 90))
    moves = name.startswith(("Shear", "Translate", "Rotate"))
    theirs = v2.TrivialAugmentWide(interpolation=InterpolationMode(kind), fill=[10, 200, 90])
    changed = 0
    for path in sorted(imagenet_sample.glob("*.JPEG"))[:4]:
        picture = Image.open(path).convert("RGB").resize((91, 70))
        pixels = np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))
        for level, sign in ((0, 1), (7, 1), (19, -1), (30, 1), (30, -1)):
            if sign < 0 and name not in _SIGNED:
                continue
            size = sign * magnitude(op, name, level, 70, 91)
            mine = pixels.copy()
            apply(op, mine, name, size)
            given: Any = picture if moves else torch.from_numpy(pixels)
            result = theirs._apply_image_or_video_transform(
                given, name, size, interpolation=theirs.interpolation, fill=theirs._fill
            )
            expected = np.asarray(result).transpose(2, 0, 1) if moves else result.numpy()
            levels = np.abs(mine.astype(int) - expected.astype(int))
            assert levels.max() <= (0 if moves and kind == "nearest" else 1), (name, size)
            assert (levels > 0).mean() < 0.01, (name, size)
            changed += bool((mine != pixels).mean() > 0.05)
    assert changed > 3 or name in ("Identity", "AutoContrast")


def test_draws_are_even_over_ops_strengths_and_signs() -> None:
    op = TrivialAugmentWide()
    u = Draws(0, 0, np.arange(28_000)).uniforms(Stream.AUGMENT, 0, 3)
    ops, bins = np.bincount((u[0] * len(OPS)).astype(int)), np.bincount((u[2] * op.bins).astype(int))
    assert (len(ops), len(bins)) == (14, 31)
    # Five standard deviations of a fair draw.
    assert np.abs(ops - 2000).max() < 5 * np.sqrt(2000)
    assert np.abs(bins - 28_000 / 31).max() < 5 * np.sqrt(28_000 / 31)
    assert abs((u[1] < 0.5).mean() - 0.5) < 0.02


def test_rand_augment_chains_its_ops_and_a_row_stands_alone() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, 3, 40, 40), dtype=np.uint8)
    op, ids = RandAugment(ops=3, magnitude=12), np.arange(20) * 3
    together = images.copy()
    augment(op, together, Draws(4, 1, ids), 0)
    u = Draws(4, 1, ids).uniforms(Stream.AUGMENT, 0, 9)
    for i in range(20):
        alone = images[i : i + 1].copy()
        augment(op, alone, Draws(4, 1, ids[i : i + 1]), 0)
        assert (alone[0] == together[i]).all()
        chained = images[i].copy()
        for which, sign, _ in u[:, i].reshape(3, 3):
            name = OPS[int(which * 14)]
            size = magnitude(op, name, 12, 40, 40)
            apply(op, chained, name, -size if name in _SIGNED and sign < 0.5 else size)
        assert (chained == together[i]).all()
    again = images.copy()
    augment(op, again, Draws(4, 1, ids), 1)
    assert (again != together).any()
