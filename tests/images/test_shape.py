from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms.v2 import functional as F  # noqa: N812

from shardmill.errors import OptionsError
from shardmill.images.decode import DecodeLimits
from shardmill.images.ops import HorizontalFlip, Normalize, RandomCrop, Resize, VerticalFlip
from shardmill.images.plan import compile_recipe
from shardmill.images.recipe import Op, Recipe
from shardmill.images.render import render
from shardmill.images.sampling import Stream, states, uniforms
from shardmill.images.shape import flip, move
from shardmill.records import EncodedImages


def pngs(count: int, width: int, height: int) -> tuple[list[Any], EncodedImages]:
    """Random pixels without loss, so that a crop of the image's own scale must give exactly them."""
    rng = np.random.default_rng(7)
    pixels = [rng.integers(0, 256, (height, width, 3), dtype=np.uint8) for _ in range(count)]
    blobs = []
    for array in pixels:
        out = io.BytesIO()
        Image.fromarray(array).save(out, "PNG")
        blobs.append(np.frombuffer(out.getvalue(), np.uint8))
    sizes = np.array([len(blob) for blob in blobs], np.int64)
    kinds = np.full(count, 2, np.uint8)
    return pixels, EncodedImages(np.concatenate(blobs), np.cumsum(sizes) - sizes, sizes, kinds, np.arange(count))


def rendered(recipe: Recipe, images: EncodedImages, width: int, height: int, ids: Any) -> Any:
    plan = compile_recipe(recipe)
    n = len(images)
    crops = plan.crops(np.full(n, width), np.full(n, height), seed=9, epoch=1, ids=ids)
    out = np.zeros(plan.layout.batch_shape(n), plan.layout.buffer_dtype)
    limits = DecodeLimits()
    assert not render(plan, images, crops, out, np.arange(n), seed=9, epoch=1, ids=ids, limits=limits).any()
    return out


@pytest.mark.parametrize("padding", [0, 4, 12])
@pytest.mark.parametrize("fill", [0, (255, 128, 3)])
@pytest.mark.parametrize("flips", [(), (HorizontalFlip(),), (HorizontalFlip(), VerticalFlip()), (VerticalFlip(),)])
def test_a_random_crop_is_torchvisions_pad_and_crop(padding: int, fill: Any, flips: tuple[Op, ...]) -> None:
    n, width, height, size = 24, 29, 21, (18, 12)
    pixels, images = pngs(n, width, height)
    ids = np.arange(n) + 100
    ours = rendered(Recipe((RandomCrop(size, padding, fill), *flips), dtype="uint8"), images, width, height, ids)
    u = uniforms(states(9, 1, ids, Stream.CROP), 0, 2)
    across, down = (uniforms(states(9, 1, ids, s), 0, 1)[0] < 0.5 for s in (Stream.FLIP, Stream.VERTICAL_FLIP))
    outside = 0
    for i in range(n):
        padded = F.pad(torch.from_numpy(pixels[i].transpose(2, 0, 1)), [padding], fill=fill)
        top = int(u[0, i] * (height + 2 * padding - size[0] + 1))
        left = int(u[1, i] * (width + 2 * padding - size[1] + 1))
        expected = F.crop(padded, top, left, *size)
        outside += top < padding or left < padding
        for flipper, drawn, kind in ((F.hflip, across[i], HorizontalFlip), (F.vflip, down[i], VerticalFlip)):
            if drawn and any(isinstance(op, kind) for op in flips):
                expected = flipper(expected)
        assert (ours[i] == expected.numpy()).all()
    assert outside > (0 if padding == 0 else 5) or padding == 0


def test_padding_is_filled_after_normalisation_as_before_it() -> None:
    pixels, images = pngs(12, 16, 16)
    ids = np.arange(12)
    ops = (RandomCrop(16, padding=6, fill=(10, 20, 30)), HorizontalFlip())  # type: ignore[arg-type]
    raw = rendered(Recipe(ops, dtype="uint8"), images, 16, 16, ids)
    normal = rendered(Recipe((*ops, Normalize())), images, 16, 16, ids)
    assert len(pixels) == 12
    mean, std = (np.array(v, np.float32)[:, None, None] for v in (Normalize().mean, Normalize().std))
    assert np.allclose(normal, (raw / np.float32(255) - mean) / std, atol=1e-5)


def test_a_crop_after_resize_and_one_that_is_too_large() -> None:
    _, images = pngs(6, 40, 30)
    out = rendered(Recipe((Resize(20), RandomCrop(20, padding=2)), dtype="uint8"), images, 40, 30, np.arange(6))  # type: ignore[arg-type]
    assert out.shape == (6, 3, 20, 20)
    plan = compile_recipe(Recipe((RandomCrop(32, padding=4),)))  # type: ignore[arg-type]
    with pytest.raises(OptionsError, match=r"RandomCrop of 32 x 32 .* from an image of 30 x 40: put Resize"):
        plan.crops(np.array([40, 40]), np.array([32, 30]), seed=0, epoch=0, ids=np.arange(2))
    with pytest.raises(OptionsError, match="invent pixels"):
        compile_recipe(Recipe((Resize(20), RandomCrop(24, padding=4))))  # type: ignore[arg-type]


def test_every_place_of_a_padded_crop_is_as_likely() -> None:
    plan = compile_recipe(Recipe((RandomCrop(32, padding=4),)))  # type: ignore[arg-type]
    n = 9 * 9 * 200
    crops = plan.crops(np.full(n, 32), np.full(n, 32), seed=1, epoch=0, ids=np.arange(n))
    assert crops.right is not None
    assert crops.down is not None
    counts = np.zeros((9, 9), int)
    np.add.at(counts, (crops.down + 4, crops.right + 4), 1)
    assert np.abs(counts - 200).max() < 5 * np.sqrt(200)


@given(st.integers(-9, 9), st.integers(-9, 9))
def test_move_is_pad_and_crop(right: int, down: int) -> None:
    image = np.arange(3 * 10 * 11, dtype=np.uint16).reshape(3, 10, 11)
    moved = image.copy()
    move(moved, right, down, np.array([7, 8, 9], np.uint16))
    for y in range(10):
        for x in range(11):
            inside = 0 <= y - down < 10 and 0 <= x - right < 11
            expected = image[:, y - down, x - right] if inside else np.array([7, 8, 9])
            assert (moved[:, y, x] == expected).all()


def test_flips_are_torchvisions() -> None:
    image = np.random.default_rng(0).integers(0, 256, (3, 9, 8), dtype=np.uint8)
    for across, theirs in ((True, F.hflip), (False, F.vflip)):
        mine = image.copy()
        flip(mine, across=across)
        assert (mine == theirs(torch.from_numpy(image)).numpy()).all()
