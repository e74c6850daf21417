from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import OptionsError
from shardmill.loading.steps import Last, Steps, default_lanes

lasts = st.sampled_from(["keep", "drop", "pad"])


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, int, list[int]]:
    """(samples, global batch, lanes, every world size that divides the lanes)."""
    lanes = draw(st.integers(1, 24))
    batch = lanes * draw(st.integers(1, 6))
    samples = draw(st.integers(batch, 12 * batch + 5))
    return samples, batch, lanes, [r for r in range(1, lanes + 1) if lanes % r == 0]


def ranks(samples: int, batch: int, lanes: int, world: int, last: Last) -> list[Steps]:
    return [Steps(samples, batch, lanes, world, rank, last) for rank in range(world)]


@given(shapes(), lasts)
def test_every_world_size_sees_the_same_steps_and_nothing_twice(
    shape: tuple[int, int, int, list[int]], last: Last
) -> None:
    samples, batch, lanes, worlds = shape
    for world in worlds:
        all_ranks = ranks(samples, batch, lanes, world, last)
        assert len({len(steps) for steps in all_ranks}) == 1, "unequal step counts hang DDP"
        seen = []
        for step in range(len(all_ranks[0])):
            parts = [steps.positions(step) for steps in all_ranks]
            together = np.sort(np.concatenate(parts))
            end = min((step + 1) * batch, samples)
            assert together.tolist() == list(range(step * batch, end))
            sizes = [len(part) for part in parts]
            assert max(sizes) - min(sizes) <= 1
            if end == (step + 1) * batch:
                assert set(sizes) == {batch // world}
            seen += together.tolist()
        expected = samples - samples % batch if last == "drop" else samples
        assert seen == list(range(expected))


@given(shapes())
def test_a_rank_reads_its_own_lanes(shape: tuple[int, int, int, list[int]]) -> None:
    samples, batch, lanes, worlds = shape
    for world in worlds:
        for steps in ranks(samples, batch, lanes, world, "keep"):
            strangers = 0
            for step in range(len(steps)):
                owner = steps.positions(step) % lanes * world // lanes
                strangers += int((owner != steps.rank).sum())
            assert strangers <= -(-(lanes - 1) // world)


@given(st.integers(1, 100_000))
def test_default_lanes_divide_the_batch(batch: int) -> None:
    lanes = default_lanes(batch)
    assert batch % lanes == 0
    assert lanes == batch or lanes >= 64


@pytest.mark.parametrize(
    ("batch", "lanes"), [(1, 1), (48, 48), (64, 64), (128, 64), (256, 64), (1024, 128), (1536, 192)]
)
def test_default_lanes(batch: int, lanes: int) -> None:
    assert default_lanes(batch) == lanes


@given(st.integers(1, 64), st.integers(1, 64))
def test_default_lanes_fit_world_sizes_with_batches_of_eight(world: int, eights: int) -> None:
    assert default_lanes(world * 8 * eights) % world == 0
    assert math.gcd(default_lanes(world), world) == (world if world < 128 else default_lanes(world))


def test_fewer_samples_than_ranks() -> None:
    sizes = [len(Steps(3, 8, 8, 4, rank, "keep").positions(0)) for rank in range(4)]
    assert sorted(sizes) == [0, 1, 1, 1]
    with pytest.raises(
        OptionsError, match='last="drop" leaves no step: 3 samples are fewer than the global batch of 8'
    ):
        Steps(3, 8, 8, 4, 0, "drop")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"world_size": 6}, "the global batch of 64 is not a multiple of world_size = 6"),
        ({"lanes": 24}, "pass lanes=4 or 8 or 16 or 32 or 64"),
        ({"lanes": 2}, "lanes = 2 must be a multiple of world_size = 4"),
        ({"rank": 4}, "rank must be within 0 .. world_size - 1 = 3, got 4"),
        ({"rank": -1}, "got -1"),
        ({"last": "wrap"}, "last must be .* got 'wrap'"),
        ({"lanes": 0}, "must be at least 1"),
    ],
)
def test_bad_options_name_values_that_fit(change: dict[str, int | str], message: str) -> None:
    options = {"samples": 1000, "global_batch": 64, "lanes": 16, "world_size": 4, "rank": 0, "last": "keep", **change}
    with pytest.raises(OptionsError, match=message):
        Steps(**options)  # type: ignore[arg-type]


def test_a_step_outside_the_epoch_is_refused() -> None:
    with pytest.raises(IndexError, match="step 4 of an epoch of 4"):
        Steps(16, 4, 4, 1, 0, "keep").positions(4)
