from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import OptionsError
from shardmill.images import recipes
from shardmill.images.recipe import (
    IMAGENET_MEAN,
    CenterCrop,
    HorizontalFlip,
    Normalize,
    Op,
    RandomResizedCrop,
    Recipe,
    Resize,
)

sides = st.integers(1, 4096)
pairs = st.tuples(sides, sides)
filters = st.sampled_from(["bilinear", "bicubic"])
fractions = st.floats(0.01, 1.0)
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
    st.builds(HorizontalFlip, st.floats(0, 1)),
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
