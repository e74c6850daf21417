from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardmill.images.sampling import GOLDEN, MASK64, Stream, hash64, key64, mix64, states, uniforms

GOLDEN_FILE = Path(__file__).resolve().parents[1] / "golden" / "sampling.json"


def splitmix64(state: int, count: int) -> list[int]:
    """Steele, Lea, Flood 2014, as published: the independent truth."""
    out = []
    for _ in range(count):
        state = (state + GOLDEN) & MASK64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK64
        out.append(z ^ (z >> 31))
    return out


def test_splitmix64_gives_the_published_numbers() -> None:
    # The reference implementation's first outputs from seed 1234567 (Vigna, splitmix64.c).
    assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.lists(st.integers(0, MASK64), min_size=1, max_size=10), st.integers(0, 20), st.integers(1, 8))
def test_uniforms_are_splitmix64(seeds: list[int], first: int, count: int) -> None:
    draws = uniforms(np.array(seeds, np.uint64), first, count)
    assert draws.shape == (count, len(seeds))
    for i, seed in enumerate(seeds):
        expected = [(bits >> 11) / 2**53 for bits in splitmix64(seed, first + count)[first:]]
        assert draws[:, i].tolist() == expected


@given(st.integers(0, MASK64), st.integers(0, 1000), st.lists(st.integers(0, 2**62), min_size=1, max_size=20))
def test_a_sample_draws_the_same_whoever_stands_beside_it(seed: int, epoch: int, ids: list[int]) -> None:
    together = states(seed, epoch, np.array(ids), Stream.CROP)
    alone = [int(states(seed, epoch, np.array([i]), Stream.CROP)[0]) for i in ids]
    assert together.tolist() == alone


def test_seed_epoch_stream_and_id_all_matter() -> None:
    ids = np.arange(1000)
    seen = {
        int(value)
        for seed in (0, 1, 2**63)
        for epoch in (0, 1)
        for stream in (Stream.CROP, Stream.FLIP)
        for value in states(seed, epoch, ids, stream)
    }
    assert len(seen) == 3 * 2 * 2 * 1000


def test_draws_are_uniform_and_independent() -> None:
    ids = np.arange(200_000)
    one = uniforms(states(0, 0, ids, Stream.CROP), 0, 2)
    two = uniforms(states(0, 1, ids, Stream.CROP), 0, 1)
    other_seed = uniforms(states(1, 0, ids, Stream.CROP), 0, 1)
    flip = uniforms(states(0, 0, ids, Stream.FLIP), 0, 1)
    columns = [one[0], one[1], two[0], other_seed[0], flip[0]]
    for column in columns:
        assert column.min() >= 0
        assert column.max() < 1
        counts = np.histogram(column, bins=100, range=(0, 1))[0]
        # Chi-square of 100 bins: mean 99, standard deviation 14.
        assert ((counts - 2000) ** 2 / 2000).sum() < 99 + 5 * 14
    correlations = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(correlations).max() < 5 / np.sqrt(len(ids))
    # Neighbouring ids, too.
    assert abs(np.corrcoef(one[0][1:], one[0][:-1])[0, 1]) < 5 / np.sqrt(len(ids))


@given(st.lists(st.integers(0, MASK64), min_size=2, max_size=50, unique=True), st.integers(0, MASK64))
def test_hashes_of_one_key_never_collide(counters: list[int], key: int) -> None:
    assert len(set(hash64(key, np.array(counters, np.uint64)).tolist())) == len(counters)
    assert len(set(mix64(np.array(counters, np.uint64)).tolist())) == len(counters)


def test_golden_draws() -> None:
    golden = json.loads(GOLDEN_FILE.read_text())
    assert key64(golden["parts"]) == golden["key"]
    state = states(golden["seed"], golden["epoch"], np.array(golden["ids"]), Stream.CROP)
    assert state.tolist() == golden["states"]
    assert uniforms(state, 0, 2).tolist() == golden["uniforms"]
