from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import v2

from shardmill.errors import OptionsError
from shardmill.images import recipes
from shardmill.images.boxes import ATTEMPTS
from shardmill.images.plan import compile_recipe
from shardmill.images.recipe import CenterCrop, HorizontalFlip, Normalize, Op, RandomResizedCrop, Recipe, Resize
from shardmill.images.sampling import Stream, states, uniforms

sizes = st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=40)
TRAIN = compile_recipe(recipes.train(224))


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint16]], ...]:
    return tuple(np.array(side, np.uint16) for side in zip(*pairs, strict=True))


def plain_get_params(op: RandomResizedCrop, w: int, h: int, draws: list[float]) -> tuple[float, float, float, float]:
    """torchvision's RandomResizedCrop.make_params, one image at a time, fed with our draws."""
    left_u, top_u = draws[2 * ATTEMPTS + 1], draws[2 * ATTEMPTS]
    for k in range(ATTEMPTS):
        target = w * h * (op.scale[0] + draws[2 * k] * (op.scale[1] - op.scale[0]))
        low, high = np.log(op.ratio[0]), np.log(op.ratio[1])
        ratio = np.exp(low + draws[2 * k + 1] * (high - low))
        cw, ch = round(np.sqrt(target * ratio)), round(np.sqrt(target / ratio))
        if 0 < cw <= w and 0 < ch <= h:
            return int(left_u * (w - cw + 1)), int(top_u * (h - ch + 1)), cw, ch
    cw, ch = w, h
    if w / h < op.ratio[0]:
        ch = round(w / op.ratio[0])
    elif w / h > op.ratio[1]:
        cw = round(h * op.ratio[1])
    return (w - cw) // 2, (h - ch) // 2, cw, ch


@given(sizes, st.integers(0, 2**64 - 1), st.integers(0, 300))
def test_random_boxes_are_torchvisions(pairs: list[tuple[int, int]], seed: int, epoch: int) -> None:
    widths, heights = columns(pairs)
    ids = np.arange(len(pairs)) * 7
    crops = TRAIN.crops(widths, heights, seed=seed, epoch=epoch, ids=ids)
    draws = uniforms(states(seed, epoch, ids, Stream.CROP), 0, 2 * ATTEMPTS + 2)
    op = TRAIN.geometry[0]
    assert isinstance(op, RandomResizedCrop)
    for i, (w, h) in enumerate(pairs):
        expected = plain_get_params(op, w, h, draws[:, i].tolist())
        assert (crops.left[i], crops.top[i], crops.width[i], crops.height[i]) == expected


@given(sizes, st.integers(0, 2**64 - 1))
def test_boxes_lie_inside_the_image(pairs: list[tuple[int, int]], seed: int) -> None:
    widths, heights = columns(pairs)
    for recipe in (recipes.train(224), recipes.eval(224), recipes.eval(224, resize=224), Recipe((Resize((80, 60)),))):
        crops = compile_recipe(recipe).crops(widths, heights, seed=seed, epoch=0, ids=np.arange(len(pairs)))
        assert (crops.left >= 0).all()
        assert (crops.top >= 0).all()
        assert (crops.width > 0).all()
        assert (crops.height > 0).all()
        assert (crops.left + crops.width <= widths).all()
        assert (crops.top + crops.height <= heights).all()


def test_random_boxes_have_torchvisions_distribution() -> None:
    n, (w, h) = 4000, (500, 333)
    ours = TRAIN.crops(np.full(n, w), np.full(n, h), seed=1, epoch=0, ids=np.arange(n))
    torch.manual_seed(0)
    crop = v2.RandomResizedCrop(224, antialias=True)
    image = torch.empty(3, h, w)
    theirs = [crop.make_params([image]) for _ in range(n)]
    for name in ("left", "top", "width", "height"):
        a = np.sort(getattr(ours, name))
        b = np.sort([params[name] for params in theirs])
        # Two-sample Kolmogorov-Smirnov distance; 1 % of honest samples exceed 1.63 sqrt(2 / n).
        grid = np.union1d(a, b)
        distance = np.abs(np.searchsorted(a, grid, "right") - np.searchsorted(b, grid, "right")).max() / n
        assert distance < 1.63 * np.sqrt(2 / n), name


def test_flips_half_of_them_and_every_epoch_anew() -> None:
    n = 10_000
    flips = [TRAIN.crops(np.full(n, 50), np.full(n, 50), seed=1, epoch=e, ids=np.arange(n)).flip for e in (0, 1)]
    assert abs(flips[0].mean() - 0.5) < 0.02
    assert abs((flips[0] != flips[1]).mean() - 0.5) < 0.02
    never = compile_recipe(Recipe((RandomResizedCrop((8, 8)), HorizontalFlip(0.0))))
    always = compile_recipe(Recipe((RandomResizedCrop((8, 8)), HorizontalFlip(1.0))))
    args = np.full(n, 50), np.full(n, 50)
    assert not never.crops(*args, seed=1, epoch=0, ids=np.arange(n)).flip.any()
    assert always.crops(*args, seed=1, epoch=0, ids=np.arange(n)).flip.all()


def test_a_row_does_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(0)
    w, h, ids = rng.integers(1, 3000, 300), rng.integers(1, 3000, 300), rng.permutation(300)
    together = TRAIN.crops(w, h, seed=5, epoch=2, ids=ids)
    for i in range(0, 300, 7):
        alone = TRAIN.crops(w[i : i + 1], h[i : i + 1], seed=5, epoch=2, ids=ids[i : i + 1])
        for name in ("left", "top", "width", "height", "flip"):
            assert getattr(alone, name)[0] == getattr(together, name)[i]


@pytest.mark.parametrize(
    ("resize", "size"), [(256, (224, 224)), (232, (224, 200)), (224, (224, 224)), ((250, 300), (224, 224))]
)
def test_one_box_is_torchvisions_resize_and_center_crop(
    imagenet_sample: Path, resize: int | tuple[int, int], size: tuple[int, int]
) -> None:
    """Pillow's resize of the folded box against torchvision's two steps: at most roundings differ.

    Pillow rounds to 8 bits between its two passes, and picks which pass comes first by the shape of the box.
    """
    plan = compile_recipe(Recipe((Resize(resize), CenterCrop(size))))
    two_steps = v2.Compose([v2.Resize(resize, antialias=True), v2.CenterCrop(size)])
    worst = 0.0
    wrong = []
    for path in sorted(imagenet_sample.glob("*.JPEG"))[:40]:
        image = Image.open(path).convert("RGB")
        w, h = image.size
        box = plan.crops(np.array([w]), np.array([h]), seed=0, epoch=0, ids=np.array([0]))
        edges = box.left[0], box.top[0], box.left[0] + box.width[0], box.top[0] + box.height[0]
        ours = np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR, box=edges), np.int16)
        theirs = np.asarray(two_steps(image), np.int16)
        assert np.abs(ours - theirs).max() <= 2
        worst = max(worst, float(np.abs(ours - theirs).mean()))
        shifted = np.asarray(
            two_steps(image.transform(image.size, Image.Transform.AFFINE, (1, 0, 1, 0, 1, 0))), np.int16
        )
        wrong.append(float(np.abs(shifted - theirs).mean()))
    assert worst < 0.3
    # The tolerance sees a crop that is one source pixel off.
    assert min(wrong) > 0.3


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((), "an empty recipe: cannot be one box"),
        ((Normalize(),), "cannot be one box"),
        ((CenterCrop((8, 8)),), "CenterCrop: cannot be one box of the source. First comes one of"),
        ((Resize(256),), "Resize of the shorter side gives images of different shapes"),
        ((Resize(200), CenterCrop((224, 224))), "invent pixels"),
        ((Resize((300, 200)), CenterCrop((224, 224))), "invent pixels"),
        ((RandomResizedCrop((8, 8)), CenterCrop((4, 4))), "cannot be one box"),
        ((RandomResizedCrop((8, 8)), Normalize(), HorizontalFlip()), "HorizontalFlip cannot come there"),
        ((HorizontalFlip(), RandomResizedCrop((8, 8))), "RandomResizedCrop cannot come there"),
        ((RandomResizedCrop((8, 8)), HorizontalFlip(), HorizontalFlip()), "HorizontalFlip cannot come there"),
    ],
)
def test_what_the_kernel_cannot_do_is_said(ops: tuple[Op, ...], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        compile_recipe(Recipe(ops))


def test_the_layout_follows_the_recipe() -> None:
    layout = compile_recipe(recipes.train((160, 224), dtype="bfloat16", order="NHWC")).layout
    assert (layout.height, layout.width, layout.dtype, layout.order) == (160, 224, "bfloat16", "NHWC")
    assert layout.mean == Normalize().mean
    assert compile_recipe(recipes.train(224, dtype="uint8")).layout.mean is None


def test_images_of_no_size_are_refused() -> None:
    with pytest.raises(ValueError, match="of no size"):
        TRAIN.crops(np.array([0]), np.array([5]), seed=0, epoch=0, ids=np.array([0]))
