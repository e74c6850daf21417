from __future__ import annotations

import io
import json
import pickle
import random
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import shardmill as sm
from shardmill.errors import OptionsError, StateError
from shardmill.images.recipe import HorizontalFlip, RandomResizedCrop, Recipe
from shardmill.loading.loader import Loader
from shardmill.loading.mix import Mix
from shardmill.loading.order import Order, ids_and_draws

SMALL = Recipe((RandomResizedCrop((8, 8)), HorizontalFlip()), dtype="uint8")
Make = Callable[[list[int]], Any]


class Rows:
    """As much of a dataset as an order asks for."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.shard_first = np.array([0, samples // 3, samples], np.int64)

    def __len__(self) -> int:
        return self.samples


def order(mix: Mix, seed: int = 0, lanes: int = 4, shuffle: bool = True, window: int | Literal["all"] = 5) -> Order:
    return mix.make_order(seed=seed, lanes=lanes, shuffle=shuffle, window=window)


def epoch_of(mix: Mix, epoch: int = 0, **options: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    return order(mix, **options).ids(epoch, np.arange(mix.samples_per_epoch))


FEW = settings(max_examples=25, deadline=None)
PARTS = st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0.1, 0.25, 1, 2.5, 3])), min_size=1, max_size=5)
STOPS = st.sampled_from(["first_exhausted", "all_exhausted", 1, 17, 300])


def mix_of(parts: list[tuple[int, float]], stop: Any = "first_exhausted") -> Mix:
    return Mix([(Rows(samples), weight) for samples, weight in parts], stop=stop)


@FEW
@given(PARTS, STOPS, st.integers(0, 3), st.integers(0, 99))
def test_every_prefix_has_each_datasets_share_to_within_one(
    parts: list[tuple[int, float]], stop: Any, epoch: int, seed: int
) -> None:
    mix = mix_of(parts, stop)
    source = mix.source_of(epoch_of(mix, epoch, seed=seed))
    total = sum(Fraction(repr(float(weight))) for _, weight in parts)
    n = np.arange(1, len(source) + 1)
    for k, (_, weight) in enumerate(parts):
        share = Fraction(repr(float(weight))) / total
        away = np.cumsum(source == k) * share.denominator - n * share.numerator
        assert (np.abs(away) < share.denominator).all()
    assert mix.counts == tuple(np.bincount(source, minlength=len(parts)).tolist())


@FEW
@given(PARTS)
def test_first_exhausted_ends_before_a_sample_would_come_again(parts: list[tuple[int, float]]) -> None:
    mix = mix_of(parts, "first_exhausted")
    rows = epoch_of(mix)
    assert max(Counter(rows.tolist()).values(), default=0) == 1
    counts = mix.counts
    assert all(count <= samples for count, (samples, _) in zip(counts, parts, strict=True))
    # The next turn would be that of a dataset which has been seen to its end.
    longer = Mix([(part, weight) for part, (_, weight) in zip(mix.parts, parts, strict=True)], stop=len(rows) + 1)
    after = longer.counts
    (next_one,) = [k for k in range(len(parts)) if after[k] > counts[k]]
    assert counts[next_one] == parts[next_one][0]


@FEW
@given(PARTS)
def test_all_exhausted_ends_with_the_last_unseen_sample(parts: list[tuple[int, float]]) -> None:
    mix = mix_of(parts, "all_exhausted")
    rows = epoch_of(mix).tolist()
    assert set(rows) == set(range(len(mix)))
    assert len(set(rows[:-1])) == len(mix) - 1


@FEW
@given(PARTS, STOPS, st.integers(0, 9))
def test_over_epochs_every_sample_of_a_dataset_is_seen_equally_often(
    parts: list[tuple[int, float]], stop: Any, seed: int
) -> None:
    mix = mix_of(parts, stop)
    seen = np.zeros(len(mix), np.int64)
    for epoch in range(4):
        np.add.at(seen, epoch_of(mix, epoch, seed=seed), 1)
        for k in range(len(parts)):
            part = seen[mix.first[k] : mix.first[k + 1]]
            assert part.max() - part.min() <= 1


@FEW
@given(PARTS, STOPS, st.integers(0, 3), st.booleans(), st.data())
def test_one_by_one_is_the_same_as_in_bulk(
    parts: list[tuple[int, float]], stop: Any, epoch: int, shuffle: bool, data: st.DataObject
) -> None:
    mix = mix_of(parts, stop)
    made = order(mix, shuffle=shuffle)
    positions = np.array(data.draw(st.lists(st.integers(0, mix.samples_per_epoch - 1), max_size=20)), np.int64)
    everything = np.arange(mix.samples_per_epoch)
    assert made.ids(epoch, positions).tolist() == made.ids(epoch, everything)[positions].tolist()
    alone = [ids_and_draws(made, epoch, positions[i : i + 1])[1].item() for i in range(len(positions))]
    ids, draws = ids_and_draws(made, epoch, everything)
    assert ids.tolist() == made.ids(epoch, everything).tolist()
    assert alone == draws[positions].tolist()


@FEW
@given(PARTS, STOPS, st.integers(0, 3))
def test_random_draws_are_never_keyed_alike_twice_in_an_epoch(
    parts: list[tuple[int, float]], stop: Any, epoch: int
) -> None:
    mix = mix_of(parts, stop)
    nested = Mix([(mix, 2), (Rows(3), 1)], stop=60)
    for one in (mix, nested):
        made, everything = order(one), np.arange(one.samples_per_epoch)
        ids, draws = ids_and_draws(made, epoch, everything)
        assert len(set(draws.tolist())) == len(draws)
        assert (draws % len(one) == ids).all()
        if one is mix and epoch == 0:
            first = np.unique(ids, return_index=True)[1]
            assert (draws[first] == ids[first]).all()


def test_equal_datasets_are_not_seen_in_step() -> None:
    mix = Mix([(Rows(50), 1), (Rows(50), 1)])
    rows = epoch_of(mix)
    source = mix.source_of(rows)
    assert rows[source == 0].tolist() != (rows[source == 1] - 50).tolist()
    assert epoch_of(mix, 1).tolist() != rows.tolist() != epoch_of(mix, seed=1).tolist()


def test_a_mix_of_one_dataset_without_shuffling_is_the_dataset() -> None:
    assert epoch_of(Mix([(Rows(10), 3)]), shuffle=False).tolist() == list(range(10))


def pair(make_reader: Make) -> tuple[Any, Any]:
    a, b = make_reader([20, 11]), make_reader([13])
    b.digest = "other"
    return a, b


def loader(mix: Mix, batch_size: int = 8, **options: Any) -> Loader:
    options = {"recipe": SMALL, "framework": "numpy", "threads": 2, "window": 6, **options}
    return Loader(mix, batch_size, **options)


def test_batches_hold_the_pixels_and_labels_of_the_right_dataset(make_reader: Make) -> None:
    a, b = pair(make_reader)
    b.labels[:3] = -1
    mix = Mix([(a, 0.7), (b, 0.3)], stop="all_exhausted", label_offsets=[0, 10])
    seen = Counter[int]()
    for batch in loader(mix):
        for image, label, row, source in zip(
            batch.images, batch.labels, batch.ids.tolist(), mix.source_of(batch.ids), strict=True
        ):
            part, local = mix.parts[source], row - int(mix.first[source])
            own = int(part.labels[np.array([local])][0])
            assert label == (own + 10 * source if own >= 0 else -1)
            assert np.abs(image.astype(int) - (20 + local * 7 % 220)).max() <= 3
            seen[int(source)] += 1
    assert tuple(seen[k] for k in range(2)) == mix.counts
    assert sum(mix.counts) == mix.samples_per_epoch


def test_a_sample_that_comes_again_comes_with_another_crop(make_reader: Make) -> None:
    reader = make_reader([4])
    # Not flat: another crop must show.
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    for row in range(4):
        out = io.BytesIO()
        Image.fromarray(noise).save(out, "JPEG")
        reader.images[row], reader.widths[row], reader.heights[row] = out.getvalue(), 40, 40
    for known in (True, False):
        if not known:
            reader.widths[:] = 0
        (batch,) = loader(Mix([(reader, 1)], stop=12), 12)
        assert len({image.tobytes() for image in batch.images}) == 12
        alone = np.concatenate([image for image, _ in loader(Mix([(reader, 1)]), 4)])
        assert {image.tobytes() for image in alone} <= {image.tobytes() for image in batch.images}


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted", 100])
@pytest.mark.parametrize("last", ["keep", "drop", "pad"])
def test_the_steps_are_the_same_for_every_world_size(make_reader: Make, stop: Any, last: Any) -> None:
    a, b = pair(make_reader)
    expected: list[Any] | None = None
    for world_size in (1, 2, 4):
        ranks = [
            loader(
                Mix([(a, 0.7), (b, 0.3)], stop=stop), 8 // world_size, rank=r, world_size=world_size, lanes=8, last=last
            )
            for r in range(world_size)
        ]
        assert len({len(one) for one in ranks}) == 1
        steps: list[Any] = []
        for batches in zip(*ranks, strict=True):
            pixels = {int(i): x.tobytes() for batch in batches for i, x in zip(batch.ids, batch.images, strict=True)}
            rows = sorted(int(i) for batch in batches for i in batch.ids if i >= 0)
            steps.append([rows, sorted((i, p) for i, p in pixels.items() if i >= 0)])
        if expected is None:
            expected = steps
        assert steps == expected


def test_resume_before_every_step_in_another_world(make_reader: Make) -> None:
    a, b = pair(make_reader)

    def mixed(rank: int = 0, world_size: int = 1) -> Loader:
        mix = Mix([(a, 3), (b, 2)], stop="all_exhausted")
        return loader(mix, 8 // world_size, rank=rank, world_size=world_size, lanes=8)

    full, states = [], []
    whole = mixed()
    for _ in range(2):
        states.append(json.loads(json.dumps(whole.state_dict())))
        for batch in whole:
            full.append(sorted(batch.ids.tolist()))
            states.append(json.loads(json.dumps(whole.state_dict())))
        states.pop()
    assert len(full) == len(states) == 2 * len(whole)
    rng = random.Random(0)
    for step, state in enumerate(states):
        world_size = rng.choice([1, 2, 4])
        ranks = [mixed(rank, world_size) for rank in range(world_size)]
        for one in ranks:
            one.load_state_dict(state)
        tail = [sorted(i for batch in batches for i in batch.ids.tolist()) for batches in zip(*ranks, strict=True)]
        assert tail == full[step : (step // len(whole) + 1) * len(whole)]


def test_a_state_of_another_mix_names_what_differs(make_reader: Make) -> None:
    a, b = pair(make_reader)
    state = loader(Mix([(a, 3), (b, 2)])).state_dict()
    assert len(json.dumps(state)) < 1000
    with pytest.raises(StateError, match="mix: the state has '3:2', this loader '2:3'"):
        loader(Mix([(a, 2), (b, 3)])).load_state_dict(state)
    with pytest.raises(StateError, match="stop: the state has 'first_exhausted', this loader 40"):
        loader(Mix([(a, 3), (b, 2)], stop=40)).load_state_dict(state)
    with pytest.raises(StateError, match="dataset: "):
        loader(Mix([(b, 3), (a, 2)])).load_state_dict(state)
    with pytest.raises(StateError, match="dataset: "):
        loader(Mix([(a, 3), (b, 2)], label_offsets=[0, 1])).load_state_dict(state)
    nested = loader(Mix([(Mix([(a, 1), (b, 2)]), 1), (b, 1)])).state_dict()
    with pytest.raises(StateError, match="mix 0 mix: the state has '1:2', this loader '2:1'"):
        loader(Mix([(Mix([(a, 2), (b, 1)]), 1), (b, 1)])).load_state_dict(nested)


def test_a_bad_sample_is_named_by_its_own_dataset(make_reader: Make) -> None:
    a, b = pair(make_reader)
    b.images[5] = b"not a jpeg"
    skipping = loader(Mix([(a, 1), (b, 1)]), on_error="skip")
    ids = [i for batch in skipping for i in batch.ids.tolist()]
    assert 31 + 5 not in ids
    (skipped,) = skipping.skipped
    assert skipped.id == 31 + 5
    assert (skipped.error.path, skipped.error.key) == ("memory-000000.tar", "key5")


def test_reading_puts_every_part_into_the_given_buffer(make_reader: Make) -> None:
    a, b = pair(make_reader)
    mix = Mix([(a, 1), (b, 1)])
    ids = np.array([40, 3, 31, 3, 0, 43])
    roomy, tight = np.zeros(10**6, np.uint8), np.zeros(10, np.uint8)
    for out in (roomy, tight, None):
        images = mix.read(ids, out)
        assert (images.data is out) == (out is roomy)
        assert images.ids.tolist() == ids.tolist()
        for row, image in zip(ids.tolist(), images, strict=True):
            assert bytes(image.data) == (a.images[row] if row < 31 else b.images[row - 31])
    assert len(mix.read(np.empty(0, np.int64))) == 0
    for bad in (-1, 44):
        with pytest.raises(IndexError, match="the mix has 0 to 43"):
            mix.read(np.array([bad]))


def test_columns_are_joined_without_a_copy(make_reader: Make) -> None:
    a, b = pair(make_reader)
    mix = Mix([(a, 1), (b, 1)])
    for name in ("labels", "widths", "heights", "image_bytes"):
        joined = np.concatenate([getattr(a, name), getattr(b, name)])
        column = np.asarray(getattr(mix, name))
        assert column.dtype == joined.dtype
        assert column.tolist() == joined.tolist()
        assert len(getattr(mix, name)) == 44
    assert mix.shard_first.tolist() == [0, 20, 31, 44]
    assert mix.source_of([-1, 0, 30, 31, 43]).tolist() == [-1, 0, 0, 1, 1]
    assert mix.source_of(np.array([[0], [31]])).tolist() == [[0], [1]]
    assert mix.describe(31 + 12) == b.describe(12)


def test_packed_datasets_mix(tmp_path: Path) -> None:
    for name, color in (("red", (1, 0, 0)), ("blue", (0, 0, 1))):
        folder = tmp_path / name / "one"
        folder.mkdir(parents=True)
        for i in range(9):
            Image.new("RGB", (32, 32), tuple((255 - i) * c for c in color)).save(folder / f"{i}.jpg")
        sm.pack(tmp_path / name, tmp_path / f"{name}-shards", progress=False, workers=1)
    red, blue = sm.open(tmp_path / "red-shards"), sm.open(tmp_path / "blue-shards")
    mix = sm.Mix({red: 2, blue.select(range(6)): 1}, label_offsets=[0, 1])
    assert "stop='first_exhausted'" in repr(mix)
    images = np.concatenate([x for x, _ in sm.Loader(mix, 4, recipe=SMALL, framework="numpy", threads=1)])
    assert len(images) == 14
    assert sorted(int(image[2].mean() > 128) for image in images) == [0] * 9 + [1] * 5


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ([], {}, "no dataset"),
        ([(Rows(0), 1)], {}, "no samples"),
        ([(Rows(3), 0)], {}, "above 0"),
        ([(Rows(3), 1)], {"stop": "never"}, "'never'"),
        ([(Rows(3), 1)], {"stop": 0}, "at least 1"),
        ([(Rows(3), 1)], {"stop": True}, "True"),
        ([(Rows(3), 1)], {"label_offsets": [1, 2]}, "2 label_offsets for 1"),
    ],
)
def test_options_that_make_no_sense(parts: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        Mix(parts, **options)


@FEW
@given(st.integers(0, 10**6))
def test_a_billion_samples_by_position(epoch: int) -> None:
    mix = Mix([(Rows(10**9), 0.9), (Rows(10**8), 0.1)], stop="all_exhausted")
    positions = np.array([0, 5 * 10**8, mix.samples_per_epoch - 1])
    rows = order(mix, window="all").ids(epoch, positions)
    assert ((rows >= 0) & (rows < len(mix))).all()


def test_a_mix_pickles_with_what_it_is_of(make_reader: Make) -> None:
    a, b = pair(make_reader)
    mix = Mix([(sm.Balanced(a), 3), (sm.Weighted(b, np.arange(13)), 2)], stop=40, label_offsets=[0, 10])
    assert len(np.asarray(mix.labels)) == 44
    again: Mix = pickle.loads(pickle.dumps(mix))
    assert epoch_of(again, 2).tolist() == epoch_of(mix, 2).tolist()
    assert np.asarray(again.labels).tolist() == np.asarray(mix.labels).tolist()
    assert (again.digest, again.counts) == (mix.digest, mix.counts)
