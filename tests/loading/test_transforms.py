"""Every op through the loader: the same pixels for any number of threads, pieces, ranks and batch sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from shardmill.images import recipes
from shardmill.images.recipe import (
    ColorJitter,
    CutMix,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    MixUp,
    Normalize,
    Op,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Recipe,
    Resize,
    Solarize,
    TrivialAugmentWide,
    VerticalFlip,
    Views,
)
from shardmill.loading.loader import Loader
from shardmill.loading.options import Tuning

Make = Callable[[list[int]], Any]

CROP = (RandomResizedCrop((12, 12)), HorizontalFlip())
RECIPES: dict[str, tuple[Op, ...]] = {
    "jitter": (*CROP, ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8), Grayscale(0.2), Normalize()),
    "blur": (*CROP, GaussianBlur(5, p=0.5), Solarize(128, p=0.5), Normalize()),
    "trivial": (*CROP, TrivialAugmentWide(fill=90), Normalize(), RandomErasing(value="random")),
    "randaugment": (*CROP, RandAugment(), RandomErasing()),
    "padded": (
        Resize((12, 12)),
        RandomCrop((12, 12), padding=4, fill=9),
        HorizontalFlip(),
        VerticalFlip(),
        Normalize(),
    ),
}


def loader(reader: Any, batch_size: int = 8, **options: Any) -> Loader:
    options = {"framework": "numpy", "threads": 2, "window": 20, **options}
    return Loader(reader, batch_size, **options)


def by_id(batches: Any) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for batch in batches:
        for view in batch.images if isinstance(batch.images, tuple) else (batch.images,):
            for row, image in zip(batch.ids.tolist(), view, strict=True):
                found[row] = found.get(row, b"") + image.tobytes()
    return found


@pytest.mark.parametrize("name", [*RECIPES, "views"])
def test_pixels_are_a_function_of_seed_epoch_and_id(make_reader: Make, name: str) -> None:
    reader = make_reader([30, 34])
    recipe: Any = recipes.multicrop(16, 8, locals=2, dtype="uint8") if name == "views" else Recipe(RECIPES[name])
    expected = by_id(loader(reader, recipe=recipe, threads=1))
    assert len(expected) == 64
    tuning = Tuning(decode_samples=3, read_samples=5)
    assert by_id(loader(reader, recipe=recipe, threads=3, tuning=tuning)) == expected
    assert by_id(loader(reader, 32, recipe=recipe)) == expected
    ranks = [by_id(loader(reader, 4, recipe=recipe, rank=r, world_size=2)) for r in (0, 1)]
    assert {**ranks[0], **ranks[1]} == expected
    other = loader(reader, recipe=recipe)
    other.set_epoch(1)
    later = by_id(other)
    # The images are flat: moving and blurring them does not show, but solarising half of them does.
    assert sum(later[row] != pixels for row, pixels in expected.items()) > 10
    assert by_id(loader(reader, recipe=recipe, seed=1)) != expected


@pytest.mark.parametrize("mix", [(MixUp(10),), (CutMix(10, p=0.5), MixUp(10, 0.2, p=0.5))])
def test_mixed_batches_are_the_same_for_every_world_size(make_reader: Make, mix: tuple[Op, ...]) -> None:
    reader = make_reader([33, 31])
    recipe = Recipe((*CROP, Normalize(), *mix))
    pixels: dict[int, bytes] = {}
    for world, threads, lanes in ((1, 1, 8), (2, 3, 8), (4, 2, 8), (1, 2, 8)):
        for rank in range(world):
            one = loader(reader, 16 // world, recipe=recipe, rank=rank, world_size=world, threads=threads, lanes=lanes)
            for images, labels, ids in ((b.images, b.labels, b.ids) for b in one):
                assert labels.dtype == np.float32
                assert labels.shape == (len(ids), 10)
                assert np.allclose(labels.sum(axis=1), 1, atol=1e-6)
                for row, image, label in zip(ids.tolist(), images, labels, strict=True):
                    mine = image.tobytes() + label.tobytes()
                    assert pixels.setdefault(row, mine) == mine
    assert len(pixels) == 64
    plain = by_id(loader(reader, 16, recipe=Recipe((*CROP, Normalize())), lanes=8))
    assert sum(not mine.startswith(plain[row]) for row, mine in pixels.items()) > 50


def test_a_skipped_sample_is_nobodys_partner(make_reader: Make) -> None:
    reader = replace(make_reader([40]), bad_bytes=frozenset({7, 8}))
    reader.images[20] = reader.images[20][:-40]
    recipe = Recipe((*CROP, MixUp(10)))
    seen = set()
    for last in ("keep", "pad"):
        one = loader(reader, recipe=recipe, on_error="skip", last=last)
        for batch in one:
            assert np.isfinite(batch.images).all()
            assert batch.images.max() <= 1
            valid = np.ones(len(batch), bool) if batch.valid is None else batch.valid
            assert np.allclose(batch.labels[valid].sum(axis=1), 1, atol=1e-6)
            assert not batch.labels[~valid].any()
            seen |= set(batch.ids[valid].tolist())
        assert one.stats().skipped == 3
    assert seen == set(range(40)) - {7, 8, 20}


@pytest.mark.parametrize("last", ["keep", "pad"])
def test_labels_keep_their_form_where_a_rank_gets_nothing(make_reader: Make, last: Any) -> None:
    reader = make_reader([17])
    recipe = Recipe((*CROP, MixUp(10)))
    sizes = []
    for rank in range(8):
        *_, end = loader(reader, 2, recipe=recipe, rank=rank, world_size=8, last=last, lanes=8)
        assert end.labels.dtype == np.float32
        assert end.labels.shape == (2 if last == "pad" else len(end.ids), 10)
        sizes.append(int((end.ids >= 0).sum()))
    assert sorted(sizes) == [0] * 7 + [1]


def test_views_come_as_a_tuple_of_tensors_in_one_slab(make_reader: Make) -> None:
    reader = make_reader([20])
    recipe = recipes.multicrop(16, 8, globals=2, locals=3, dtype="bfloat16")
    assert isinstance(recipe, Views)
    one = loader(reader, recipe=recipe, framework="torch", last="pad")
    for batch in one:
        images, labels = batch
        assert [tuple(view.shape) for view in images] == [(8, 3, 16, 16)] * 2 + [(8, 3, 8, 8)] * 3
        assert {view.dtype for view in images} == {torch.bfloat16}
        assert len(labels) == len(batch) == 8
        assert "[8, 3, 16, 16] and" in repr(batch)
        assert (images[0] != images[1]).any()
        assert (images[2] != images[3]).any()
    assert not any(view[4:].any() for view in images)
    # Each image was read once, whatever the number of its views.
    assert sorted(reader.reads) == list(range(20))
