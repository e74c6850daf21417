from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import shardmill as sm
from shardmill.errors import OptionsError, StateError
from shardmill.images.recipe import RandomResizedCrop, Recipe
from shardmill.loading.loader import Loader
from shardmill.loading.sampling_orders import Balanced, Weighted

SMALL = Recipe((RandomResizedCrop((8, 8)),), dtype="uint8")
Make = Callable[[list[int]], Any]
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "mixing.json"
FEW = settings(max_examples=30, deadline=None)
LABELS = st.lists(st.integers(-1, 5), min_size=1, max_size=60).filter(lambda labels: max(labels) >= 0)


class Labelled:
    """As much of a dataset as these orders ask for."""

    def __init__(self, labels: list[int]) -> None:
        self.labels = np.array(labels, np.int32)

    def __len__(self) -> int:
        return len(self.labels)


def made(dataset: Any, seed: int = 0, shuffle: bool = True) -> Any:
    return dataset.make_order(seed=seed, lanes=8, shuffle=shuffle, window=4096)


def epoch_of(dataset: Any, epoch: int = 0, **options: Any) -> NDArray[np.int64]:
    rows: NDArray[np.int64] = made(dataset, **options).ids(epoch, np.arange(dataset.samples_per_epoch))
    return rows


def balanced(labels: list[int], rounds: int | None = None) -> Balanced:
    return Balanced(Labelled(labels), rounds=rounds)  # type: ignore[arg-type]


def weighted(weights: Any, samples: int | None = None) -> Weighted:
    return Weighted(Labelled([0] * len(weights)), weights, samples_per_epoch=samples)  # type: ignore[arg-type]


@FEW
@given(LABELS, st.integers(1, 30), st.integers(0, 2), st.booleans(), st.integers(0, 9))
def test_at_every_prefix_classes_differ_by_at_most_one(
    labels: list[int], rounds: int, epoch: int, shuffle: bool, seed: int
) -> None:
    dataset = balanced(labels, rounds)
    seen = np.array(labels)[epoch_of(dataset, epoch, seed=seed, shuffle=shuffle)]
    counts = np.stack([np.cumsum(seen == label) for label in sorted({*labels} - {-1})])
    assert (counts.max(axis=0) - counts.min(axis=0) <= 1).all()
    assert (counts[:, -1] == rounds).all()


@FEW
@given(LABELS, st.integers(1, 30), st.integers(0, 9))
def test_a_class_is_seen_to_its_end_before_a_sample_comes_again(labels: list[int], rounds: int, seed: int) -> None:
    dataset = balanced(labels, rounds)
    seen = np.zeros(len(labels), np.int64)
    for epoch in range(3):
        for row in epoch_of(dataset, epoch, seed=seed).tolist():
            seen[row] += 1
        for label in {*labels}:
            part = seen[np.array(labels) == label]
            assert part.max() - part.min() <= 1
    assert (seen[np.array(labels) == -1] == 0).all()


def test_the_epoch_of_a_balanced_dataset_is_about_its_size() -> None:
    dataset = balanced([0] * 70 + [1] * 20 + [5] * 9)
    assert (dataset.rounds, dataset.samples_per_epoch) == (33, 99)
    assert balanced([0] * 70 + [1] * 20 + [5] * 10).samples_per_epoch == 102
    assert epoch_of(balanced([1, 0, 1, 0]), shuffle=False).tolist() == [1, 0, 3, 2]


def test_classes_and_samples_come_in_another_order_each_time() -> None:
    dataset = balanced([k for k in range(6) for _ in range(5)], 50)
    rows = epoch_of(dataset).reshape(50, 6)
    assert len({tuple(line) for line in (rows // 5).tolist()}) > 40
    passes = [tuple(row for row in rows.reshape(-1).tolist() if row // 5 == 3)[i * 5 : i * 5 + 5] for i in range(10)]
    assert all(sorted(one) == [15, 16, 17, 18, 19] for one in passes)
    assert len(set(passes)) > 5
    assert epoch_of(dataset, 1).tolist() != rows.reshape(-1).tolist() != epoch_of(dataset, seed=1).tolist()


WEIGHTS = st.lists(st.sampled_from([0, 0.1, 0.5, 1, 3, 40]), min_size=1, max_size=50).filter(lambda w: max(w) > 0)


@FEW
@given(WEIGHTS, st.integers(1, 200), st.integers(0, 3), st.booleans(), st.integers(0, 9))
def test_a_sample_comes_as_often_as_its_weight_says_rounded_up_or_down(
    weights: list[float], samples: int, epoch: int, shuffle: bool, seed: int
) -> None:
    counts = np.bincount(
        epoch_of(weighted(weights, samples), epoch, seed=seed, shuffle=shuffle), minlength=len(weights)
    )
    exact = np.array(weights) / sum(weights) * samples
    assert counts.sum() == samples
    assert (np.abs(counts - exact) < 1 + 1e-9).all()
    assert (counts[np.array(weights) == 0] == 0).all()


@FEW
@given(WEIGHTS, st.integers(1, 100), st.integers(0, 3), st.integers(0, 9))
def test_over_a_power_of_two_of_epochs_too(weights: list[float], samples: int, power: int, seed: int) -> None:
    counts = np.zeros(len(weights))
    for epoch in range(2**power):
        counts += np.bincount(epoch_of(weighted(weights, samples), epoch, seed=seed), minlength=len(weights))
    exact = np.array(weights) / sum(weights) * samples * 2**power
    assert (np.abs(counts - exact) < 1 + 1e-9).all()


def test_draws_with_replacement_would_be_seen() -> None:
    drawn = np.bincount(np.random.default_rng(0).integers(0, 50, 50), minlength=50)
    assert np.abs(drawn - 1).max() >= 1
    assert np.bincount(epoch_of(weighted([1] * 50)), minlength=50).tolist() == [1] * 50


def test_draws_come_in_another_order_each_time() -> None:
    dataset = weighted(np.arange(1, 40))
    rows = epoch_of(dataset)
    assert np.abs(np.corrcoef(rows, np.arange(39))[0, 1]) < 0.5
    assert epoch_of(dataset, 1).tolist() != rows.tolist() != epoch_of(dataset, seed=1).tolist()


def test_equal_weights_without_shuffling_are_the_dataset() -> None:
    assert epoch_of(weighted([2] * 17), shuffle=False).tolist() == list(range(17))


@FEW
@given(LABELS, st.integers(1, 9), st.integers(0, 3), st.booleans(), st.data())
def test_positions_stand_alone_and_draws_are_never_keyed_alike(
    labels: list[int], rounds: int, epoch: int, shuffle: bool, data: st.DataObject
) -> None:
    for dataset in (balanced(labels, rounds), weighted([label + 1 for label in labels], 3 * len(labels))):
        order, everything = made(dataset, shuffle=shuffle), np.arange(dataset.samples_per_epoch)
        ids, draws = order.ids_and_draws(epoch, everything)
        assert order.ids(epoch, everything).tolist() == ids.tolist()
        assert len(set(draws.tolist())) == len(draws)
        assert (draws % len(labels) == ids).all()
        some = np.array(data.draw(st.lists(st.integers(0, len(everything) - 1), max_size=9)), np.int64)
        assert order.ids(epoch, some).tolist() == ids[some].tolist()
        with pytest.raises(IndexError, match="of an epoch of"):
            order.ids(epoch, everything[-1:] + 1)


def golden_orders() -> dict[str, Any]:
    labels = [k * k % 4 for k in range(14)]
    datasets: dict[str, Any] = {
        "balanced": balanced(labels, 5),
        "weighted": weighted([k % 5 for k in range(14)], 20),
        "mix": sm.Mix([(balanced(labels, 4), 0.5), (weighted(np.arange(9)), 0.3), (balanced([0, 1, 1]), 0.2)], stop=25),
    }
    return {name: [epoch_of(one, epoch, seed=7).tolist() for epoch in (0, 3)] for name, one in datasets.items()}


def test_golden_orders() -> None:
    """A change here changes every run that is resumed: the format version of the state must change with it."""
    assert golden_orders() == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("kind", ["balanced", "weighted", "mixed"])
def test_loaders_resume_in_another_world(make_reader: Make, kind: str) -> None:
    reader = make_reader([20, 11])

    def loader(rank: int = 0, world_size: int = 1) -> Loader:
        one: Any = Weighted(reader, np.arange(31)) if kind == "weighted" else Balanced(reader)
        dataset = sm.Mix([(one, 1), (reader, 2)]) if kind == "mixed" else one
        options: Any = {"recipe": SMALL, "framework": "numpy", "threads": 1, "lanes": 4}
        return Loader(dataset, 8 // world_size, rank=rank, world_size=world_size, **options)

    def step_of(batches: Any) -> list[tuple[int, int, bytes]]:
        rows = [
            (int(i), int(y), x.tobytes()) for b in batches for i, y, x in zip(b.ids, b.labels, b.images, strict=True)
        ]
        assert all(label == row % 10 for row, label, _ in rows if row < 31)
        return sorted(rows)

    whole, full, states = loader(), [], []
    for batch in whole:
        full.append(step_of([batch]))
        states.append(whole.state_dict())
    rng = random.Random(0)
    for step, state in enumerate(states[:-1], 1):
        world_size = rng.choice([1, 2, 4])
        ranks = [loader(rank, world_size) for rank in range(world_size)]
        for one in ranks:
            one.load_state_dict(state)
        assert [step_of(batches) for batches in zip(*ranks, strict=True)] == full[step:]


def test_a_state_names_what_differs(make_reader: Make) -> None:
    reader = make_reader([12])
    plain = Loader(Weighted(reader, [1] * 12), 4, framework="numpy").state_dict()
    with pytest.raises(StateError, match="samples_per_epoch: the state has 12, this loader 24"):
        Loader(Weighted(reader, [1] * 12, samples_per_epoch=24), 4, framework="numpy").load_state_dict(plain)
    with pytest.raises(StateError, match="weights: "):
        Loader(Weighted(reader, [1] * 11 + [2]), 4, framework="numpy").load_state_dict(plain)
    with pytest.raises(StateError, match="rounds: the state has 2, this loader 3"):
        Loader(Balanced(reader, rounds=3), 4, framework="numpy").load_state_dict(
            Loader(Balanced(reader, rounds=2), 4, framework="numpy").state_dict()
        )


def test_what_is_read_is_the_datasets(make_reader: Make) -> None:
    reader = make_reader([5, 4])
    for dataset in (Balanced(reader), Weighted(reader, np.ones(9))):
        assert dataset.read(np.array([7])).ids.tolist() == [7]
        assert dataset.describe(7) == reader.describe(7)
        assert (len(dataset), dataset.digest) == (9, "memory")
        assert np.asarray(dataset.widths).tolist() == reader.widths.tolist()
        assert np.asarray(dataset.heights).tolist() == reader.heights.tolist()
        assert dataset.shard_first.tolist() == [0, 5, 9]
    assert Counter(epoch_of(Balanced(reader)).tolist()) == Counter(range(9))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: balanced([-1, -1]), "no labels"),
        (lambda: balanced([]), "no samples"),
        (lambda: balanced([0], 0), "rounds must be"),
        (lambda: weighted([]), "no samples"),
        (lambda: weighted([[1]]), r"got \[1, 1\]"),
        (lambda: weighted([0, 0]), "above 0"),
        (lambda: weighted([1, -1]), "none negative"),
        (lambda: weighted([1, np.nan]), "finite"),
        (lambda: weighted([1], 0), "samples_per_epoch must be"),
    ],
)
def test_options_that_make_no_sense(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        make()


def test_a_long_tail_at_scale_stays_quick_and_exact() -> None:
    labels = (np.random.default_rng(0).pareto(1, 200_000) * 20).astype(np.int32).clip(0, 999)
    dataset = Balanced(Labelled(labels.tolist()))  # type: ignore[arg-type]
    seen = labels[epoch_of(dataset, 3)]
    assert set(np.bincount(seen)[np.unique(labels)].tolist()) == {dataset.rounds}
