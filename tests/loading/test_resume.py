"""A state taken before every step of two epochs, restored into every world size: the same ids, the same pixels."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardmill.errors import StateError
from shardmill.images import recipes
from shardmill.images.recipe import HorizontalFlip, RandomResizedCrop, Recipe
from shardmill.loading.loader import Loader
from shardmill.loading.options import Tuning

Make = Callable[[list[int]], Any]
SMALL = Recipe((RandomResizedCrop((8, 8)), HorizontalFlip()), dtype="uint8")
GLOBAL_BATCH, EPOCHS = 16, 2


@pytest.fixture
def make_reader(make_reader: Make) -> Make:
    """With a picture in each image: on flat ones every crop and flip looks the same."""

    def make(shard_sizes: list[int]) -> Any:
        reader = make_reader(shard_sizes)
        rng = np.random.default_rng(1)
        for row, (width, height) in enumerate(zip(reader.widths.tolist(), reader.heights.tolist(), strict=True)):
            pixels = rng.integers(0, 255, (3, 3, 3), np.uint8)
            out = io.BytesIO()
            Image.fromarray(pixels).resize((width, height)).save(out, "JPEG", quality=95)
            reader.images[row] = out.getvalue()
        return reader

    return make


Pixels = dict[int, str]
"""Digest of the pixels by row."""


def ranks_of(reader: Any, world: int, **options: Any) -> list[Loader]:
    options = {"recipe": SMALL, "framework": "numpy", "threads": 1, "window": 20, "lanes": 8, **options}
    return [Loader(reader, GLOBAL_BATCH // world, rank=r, world_size=world, **options) for r in range(world)]


def step_of(batches: list[Any]) -> Pixels:
    """What all ranks together see in a step."""
    pixels: Pixels = {}
    for batch in batches:
        valid = np.ones(len(batch), bool) if batch.valid is None else batch.valid
        for row, label, image in zip(batch.ids[valid], batch.labels[valid], batch.images[valid], strict=True):
            assert int(row) not in pixels, "a sample twice in a step"
            assert label == row % 10
            pixels[int(row)] = hashlib.sha256(image.tobytes()).hexdigest()
    return pixels


def go_on(ranks: list[Loader], steps: int) -> tuple[list[Pixels], list[str]]:
    """The next ``steps`` steps of all ranks, over the ends of epochs, and the state before each, as JSON."""
    seen: list[Pixels] = []
    states: list[str] = []
    while len(seen) < steps:
        running = [iter(one) for one in ranks]
        for _ in range(len(ranks[0]) - ranks[0].state_dict()["step"]):  # type: ignore[operator]
            if len(seen) == steps:
                break
            found = {json.dumps(one.state_dict(), sort_keys=True) for one in ranks}
            assert len(found) == 1, "ranks disagree about the state"
            states += found
            seen.append(step_of([next(it) for it in running]))
    for one in ranks:
        one.close()
    return seen, states


@pytest.mark.parametrize(
    "options",
    [{}, {"last": "drop"}, {"last": "pad"}, {"window": "all"}, {"shuffle": False, "on_error": "skip"}],
    ids=lambda options: " ".join(map(str, options.values())) or "windows",
)
@pytest.mark.parametrize("old_world", [1, 4])
def test_before_every_step_and_across_the_epoch_end(make_reader: Make, options: Any, old_world: int) -> None:
    reader = make_reader([20, 0, 23, 10])
    total = EPOCHS * (3 if options.get("last") == "drop" else 4)
    expected, states = go_on(ranks_of(reader, old_world, **options), total)
    # Epochs differ, in order (or in crops alone, where it is sequential).
    assert expected[: total // 2] != expected[total // 2 :]
    for at in range(total):
        # Every pair of world sizes comes by within three steps.
        world = (1, 2, 4)[at % 3]
        resumed = ranks_of(reader, world, **options)
        for one in resumed:
            one.load_state_dict(json.loads(states[at]))
        reader.reads.clear()
        got, _ = go_on(resumed, total - at)
        assert got == expected[at:]
        if at // (total // 2) == 1:
            # O(1): nothing of the steps before is read again.
            assert sorted(reader.reads) == sorted(row for step in expected[at:] for row in step)


def test_a_chain_of_restarts_is_one_run(make_reader: Make) -> None:
    # Stopped at every single step, each time another world size, threads and prefetch.
    reader = make_reader([20, 23, 10])
    expected, _ = go_on(ranks_of(reader, 1), 8)
    state: dict[str, Any] | None = None
    got: list[Pixels] = []
    for at in range(8):
        ranks = ranks_of(
            reader, (4, 1, 8, 2)[at % 4], threads=1 + at % 3, tuning=Tuning(prefetch=1 + at % 2, decode_samples=1 + at)
        )
        for one in ranks:
            if state is not None:
                one.load_state_dict(state)
        got += go_on(ranks, 1)[0]
        state = json.loads(json.dumps(ranks[0].state_dict()))
    assert got == expected


def test_a_state_is_taken_after_the_batch_in_hand_however_far_ahead_the_threads_are(make_reader: Make) -> None:
    (one,) = ranks_of(make_reader([80]), 1, tuning=Tuning(prefetch=4))
    assert one.state_dict()["step"] == 0
    running = iter(one)
    for step in range(1, 5):
        next(running)
        assert (one.state_dict()["epoch"], one.state_dict()["step"]) == (0, step)
    next(running)
    assert (one.state_dict()["epoch"], one.state_dict()["step"]) == (1, 0)
    assert next(running, None) is None
    assert (one.state_dict()["epoch"], one.state_dict()["step"]) == (1, 0)
    assert len(json.dumps(one.state_dict())) < 1000


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"seed": 1}, "seed"),
    ({"lanes": 4}, "lanes"),
    ({"window": 7}, "window"),
    ({"window": "all"}, "shuffle"),
    ({"shuffle": False}, "shuffle"),
    ({"last": "drop"}, "last"),
    ({"last": "pad"}, "last"),
    ({"recipe": recipes.train(8)}, "recipe"),
]


@pytest.mark.parametrize(("change", "field"), REFUSED)
def test_a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing(
    make_reader: Make, change: dict[str, Any], field: str
) -> None:
    reader = make_reader([50])
    state = ranks_of(reader, 1)[0].state_dict() | {"epoch": 3, "step": 2}
    (other,) = ranks_of(reader, 2, **change)[:1]
    with pytest.raises(StateError, match=f"^{field}: ") as caught:
        other.load_state_dict(state)
    assert repr(state[field]) in str(caught.value)
    assert (other.state_dict()["epoch"], other.state_dict()["step"]) == (0, 0)


def test_another_dataset_and_another_global_batch_are_refused(make_reader: Make) -> None:
    reader = make_reader([50])
    state = ranks_of(reader, 1)[0].state_dict()
    with pytest.raises(StateError, match=r"^dataset: .* packed again or is another one"):
        ranks_of(replace(reader, digest="other"), 1)[0].load_state_dict(state)
    with pytest.raises(StateError, match=r"^global_batch: the state has 16, this loader 32; batch_size"):
        Loader(reader, 16, rank=0, world_size=2, recipe=SMALL, window=20, lanes=8).load_state_dict(state)


def test_another_recipe_may_be_meant(make_reader: Make) -> None:
    reader = make_reader([50])
    (first,) = ranks_of(reader, 1)
    expected, states = go_on([first], 4)
    (larger,) = ranks_of(reader, 1, recipe=recipes.train(12))
    larger.load_state_dict(json.loads(states[2]), new_recipe=True)
    got, after = go_on([larger], 2)
    assert [sorted(step) for step in got] == [sorted(step) for step in expected[2:]]
    # From there on it is the state of the new recipe.
    (again,) = ranks_of(reader, 1, recipe=recipes.train(12))
    again.load_state_dict(json.loads(after[1]))
    assert go_on([again], 1)[0] == got[1:]
