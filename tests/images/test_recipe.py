from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import OptionsError
from shardmill.images import recipes
from shardmill.images.plan import compile_views
from shardmill.images.recipe import (
    IMAGENET_MEAN,
    CenterCrop,
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
    read_recipe,
)

sides = st.integers(1, 4096)
pairs = st.tuples(sides, sides)
filters = st.sampled_from(["bilinear", "bicubic"])
fractions = st.floats(0.01, 1.0)
chances = st.floats(0, 1)
levels = st.integers(0, 255)
fills = st.one_of(levels, st.tuples(levels, levels, levels))
kinds = st.sampled_from(["nearest", "bilinear"])
ops: st.SearchStrategy[Op] = st.one_of(
    st.builds(
        RandomResizedCrop,
        st.one_of(sides, pairs),
        scale=st.tuples(fractions, fractions).map(lambda t: (min(t), max(t))),
        ratio=st.tuples(st.floats(0.1, 1), st.floats(1, 10)),
        filter=filters,
    ),
    st.builds(Resize, st.one_of(sides, pairs), filter=filters),
    st.builds(CenterCrop, st.one_of(sides, pairs)),
    st.builds(HorizontalFlip, chances),
    st.builds(VerticalFlip, chances),
    st.builds(RandomCrop, st.integers(8, 99), st.integers(0, 8), fills),
    st.builds(ColorJitter, chances, chances, st.tuples(st.just(0.5), st.floats(0.5, 3)), st.floats(0, 0.5), chances),
    st.builds(Grayscale, chances),
    st.builds(Solarize, st.floats(0, 256), chances),
    st.builds(GaussianBlur, st.sampled_from([1, 5, 23]), st.just((0.1, 2.0)), chances),
    st.builds(TrivialAugmentWide, st.integers(2, 99), kinds, fills),
    st.builds(RandAugment, st.integers(0, 4), st.integers(0, 9), st.integers(10, 40), kinds, fills),
    st.builds(
        RandomErasing, chances, value=st.one_of(st.just("random"), chances, st.tuples(chances, chances, chances))
    ),
    st.builds(MixUp, st.integers(1, 1000), st.floats(0.1, 2), chances),
    st.builds(CutMix, st.integers(1, 1000), st.floats(0.1, 2), chances),
    st.builds(Normalize, st.tuples(fractions, fractions, fractions), st.tuples(fractions, fractions, fractions)),
)


@given(
    st.lists(ops, max_size=5),
    st.sampled_from(["float32", "float16", "bfloat16"]),
    st.sampled_from(["NCHW", "NHWC"]),
    st.booleans(),
)
def test_json_round_trip(ops: list[Op], dtype: Any, order: Any, exif: bool) -> None:
    recipe = Recipe(tuple(ops), dtype, order, exif)
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert hash(Recipe.from_json(recipe.to_json())) == hash(recipe)
    assert read_recipe(recipe.to_json()) == recipe


@pytest.mark.parametrize("views", [recipes.multicrop(), recipes.simclr(), recipes.multicrop(98, 42, locals=0)])
def test_recipes_of_several_views_round_trip_and_compile(views: Views) -> None:
    assert read_recipe(views.to_json()) == views
    plans = compile_views(views)
    assert [plan.view for plan in plans] == list(range(len(views.views)))


def test_the_first_recipes_still_read_the_same() -> None:
    """As written by the first version, without any of the newer ops."""
    text = (
        '{"version": 1, "ops": [{"op": "RandomResizedCrop", "size": [224, 224], "scale": [0.08, 1.0], "ratio": '
        '[0.75, 1.3333333333333333], "filter": "bilinear"}, {"op": "HorizontalFlip", "p": 0.5}], '
        '"output": {"dtype": "uint8", "order": "NCHW", "apply_exif": false}}'
    )
    assert recipes.train(224, dtype="uint8").to_json() == text
    assert Recipe.from_json(text) == recipes.train(224, dtype="uint8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"version": 1, "views": 3}', "must be a list"),
        ('{"version": 2, "views": []}', "recipe version 2"),
        ('{"version": 1, "views": []}', "2 .. 64 recipes, got 0"),
        ('{"version": 1, "views": [], "ops": []}', "no field 'ops'"),
        ('{"version": 1, "views": [{"version": 1}]}', "a view has no field 'version'"),
    ],
)
def test_views_that_do_not_fit_are_named(text: str, message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        read_recipe(text)


def test_the_recipes_people_use() -> None:
    train = recipes.train(224)
    assert train.ops == (RandomResizedCrop((224, 224)), HorizontalFlip(0.5), Normalize())
    assert (train.dtype, train.order) == ("float32", "NCHW")
    assert Normalize().mean == IMAGENET_MEAN
    assert recipes.train((160, 224), dtype="uint8", order="NHWC").ops == (
        RandomResizedCrop((160, 224)),
        HorizontalFlip(0.5),
    )
    assert recipes.eval(224).ops == (Resize(256), CenterCrop((224, 224)), Normalize())


def test_json_is_written_for_people() -> None:
    assert json.loads(recipes.eval(224, dtype="uint8").to_json()) == {
        "version": 1,
        "ops": [
            {"op": "Resize", "size": 256, "filter": "bilinear"},
            {"op": "CenterCrop", "size": [224, 224]},
        ],
        "output": {"dtype": "uint8", "order": "NCHW", "apply_exif": False},
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "recipe version 2: this shardmill reads version 1"),
        ({"extra": 1}, "a recipe has no field 'extra'"),
        ({"ops": {}}, '"ops" of a recipe must be a list'),
        ({"ops": [{"op": "Sharpen"}]}, "unknown op 'Sharpen'"),
        ({"ops": ["Resize"]}, "unknown op 'Resize'"),
        ({"ops": [{"op": ["Resize"]}]}, "unknown op"),
        ({"ops": [{"op": "Resize"}]}, "Resize lacks size"),
        ({"ops": [{"op": "Resize", "size": 4, "antialias": True}]}, "Resize has no field 'antialias'"),
        ({"ops": [{"op": "Resize", "size": "4"}]}, "Resize.size is one side"),
        ({"output": {"dtype": "int8"}}, "Recipe.dtype must be one of uint8, float32, float16, bfloat16, got 'int8'"),
        ({"output": {"device": 0}}, "has no field 'device'"),
        ({"output": [1]}, "must be a JSON object"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    data = {**recipes.eval(224).to_dict(), **change}
    with pytest.raises(OptionsError, match=message):
        Recipe.from_dict(data)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '{"version": 1}', "[" * 100_000])
def test_what_is_not_a_recipe_is_refused(text: str) -> None:
    with pytest.raises(OptionsError, match=r"recipe"):
        Recipe.from_json(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomResizedCrop(0), "RandomResizedCrop.size is one side or"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(224, scale=(0.5, 0.1)), r"scale must be \(low, high\)"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(224, scale=(0, 1)), r"0 < low <= high"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(224, scale=(0.5, 2)), "at most 1"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(224, ratio=(float("nan"), 1)), "ratio"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(224, filter="lanczos"), "bilinear, bicubic, got 'lanczos'"),  # type: ignore[arg-type]
        (lambda: CenterCrop((224, 0)), "CenterCrop.size"),
        (lambda: CenterCrop((224, 2**20)), "16384 pixels"),
        (lambda: Resize(True), "Resize.size"),
        (lambda: HorizontalFlip(1.5), "probability"),
        (lambda: ColorJitter(-1), "ColorJitter.brightness is a distance from 1 or"),
        (lambda: ColorJitter(hue=0.6), r"ColorJitter.hue is a distance from 0 .* within -0.5 .. 0.5"),
        (lambda: GaussianBlur(4), "must be odd"),
        (lambda: RandomCrop(8, padding=9), "padding must be a whole number within 0 .. 8"),  # type: ignore[arg-type]
        (lambda: RandomCrop(8, fill=256), "within 0 .. 255"),  # type: ignore[arg-type]
        (lambda: RandAugment(magnitude=31), "within 0 .. 30"),
        (lambda: RandomErasing(scale=(0.1, 2)), "at most 1"),
        (lambda: MixUp(10, alpha=0), "alpha"),
        (lambda: CutMix(0), "classes"),
        (lambda: Views((recipes.train(8),)), "2 .. 64"),
        (lambda: Views((recipes.train(8), recipes.train(8, dtype="uint8"))), "same dtype"),
        (lambda: Views((recipes.train(8), Recipe((Resize((8, 8)), MixUp(3))))), "not to a view"),
        (lambda: Normalize(std=(0, 1, 1)), "std must be above 0"),
        (lambda: Normalize(mean=(0, 1)), "three numbers"),  # type: ignore[arg-type]
        (lambda: Recipe(("Resize",)), "made of RandomResizedCrop"),  # type: ignore[arg-type]
        (lambda: Recipe((Resize(4), Normalize()), dtype="uint8"), "uint8 cannot hold"),
        (lambda: Recipe((), apply_exif=1), "apply_exif is true or false"),  # type: ignore[arg-type]
    ],
)
def test_options_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        make()
