"""The proof of the promises about order: no sample twice, none missing, the same steps for every world size.

Run with ``-s`` for the table. Nothing is decoded here; `test_resume` and `test_processes` do the same with images and
with real processes.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from shardmill.loading.order import Order, make_order
from shardmill.loading.state import make_state, read_state
from shardmill.loading.steps import Last, Steps

I64 = NDArray[np.int64]

SAMPLES, SHARDS, LANES, BATCH = 100_003, 37, 16, 256
WORLDS = (1, 2, 4, 8, 16)
IDENTITY: dict[str, int | str] = {"dataset": "proof", "lanes": LANES, "global_batch": BATCH}


def uneven_shards() -> I64:
    """First rows of 37 shards whose sizes differ a thousandfold."""
    rng = np.random.default_rng(20)
    share = rng.pareto(0.8, SHARDS) + 0.02
    sizes = np.maximum(1, np.floor(share / share.sum() * (SAMPLES - SHARDS)).astype(np.int64))
    sizes[int(sizes.argmin())] += SAMPLES - sizes.sum()
    return np.concatenate([[0], np.cumsum(sizes)])


def fresh_order(shuffle: bool = True) -> Order:
    return make_order(uneven_shards(), seed=7, lanes=LANES, shuffle=shuffle, window=1000)


def ranks_of(world: int, last: Last) -> list[Steps]:
    return [Steps(SAMPLES, BATCH, LANES, world, rank, last) for rank in range(world)]


@dataclass(frozen=True)
class Seen:
    """All that all ranks see from a step on: ``step`` and ``id``, int64 [n], sorted by step and then by id."""

    step: I64
    id: I64

    @classmethod
    def by(cls, order: Order, ranks: list[Steps], *, epoch: int, first_step: int = 0) -> Seen:
        positions = [[one.positions(step) for step in range(first_step, len(one))] for one in ranks]
        ids = [order.ids(epoch, np.concatenate(own)) for own in positions]
        steps = [np.repeat(np.arange(first_step, first_step + len(own)), list(map(len, own))) for own in positions]
        step, row = np.concatenate(steps), np.concatenate(ids)
        turn = np.lexsort((row, step))
        return cls(step[turn], row[turn])

    def since(self, step: int) -> Seen:
        at = int(np.searchsorted(self.step, step))
        return Seen(self.step[at:], self.id[at:])

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.step.tobytes() + self.id.tobytes()).hexdigest()[:12]


def faults(seen: Seen, expected: int) -> tuple[int, int]:
    """(samples seen twice, samples never seen), by counting."""
    counts = np.bincount(seen.id, minlength=SAMPLES)
    return int((counts > 1).sum()), int(expected - (counts > 0).sum())


@pytest.mark.parametrize("last", ["keep", "drop", "pad"])
def test_the_steps_are_identical_and_exact_for_every_world_size(last: Last) -> None:
    sizes = np.diff(uneven_shards())
    assert (len(sizes), sizes.sum()) == (SHARDS, SAMPLES)
    assert sizes.max() > 1000 * sizes.min()
    kept = SAMPLES - SAMPLES % BATCH if last == "drop" else SAMPLES
    print(
        f"\n{SAMPLES:,} samples in {SHARDS} shards of {sizes.min():,} to {sizes.max():,}, lanes {LANES}, "
        f'global batch {BATCH}, last="{last}"\n'
        "world size  steps of each rank  twice  missing  sets of all steps"
    )
    digests = set()
    for world in WORLDS:
        ranks = ranks_of(world, last)
        seen = Seen.by(fresh_order(), ranks, epoch=3)
        steps = {len(one) for one in ranks}
        twice, missing = faults(seen, kept)
        print(f"{world:10}  {' '.join(map(str, sorted(steps))):>18}  {twice:5}  {missing:7}  {seen.digest}")
        assert len(steps) == 1
        assert (twice, missing) == (0, 0)
        digests.add(seen.digest)
    assert len(digests) == 1


def test_the_measure_sees_what_is_wrong() -> None:
    # The peers' ways: one sample repeated to fill a rank, and another deal for another world size.
    right = Seen.by(fresh_order(), ranks_of(4, "keep"), epoch=3)
    repeated = Seen(right.step, np.where(np.arange(SAMPLES) == 5, right.id[6], right.id))
    assert faults(repeated, SAMPLES) == (1, 1)
    swapped = right.id.copy()
    swapped[[0, BATCH]] = swapped[[BATCH, 0]]
    assert Seen(right.step, swapped).digest != right.digest
    assert Seen.by(fresh_order(), ranks_of(4, "keep"), epoch=4).digest != right.digest


@pytest.mark.parametrize("shuffle", [True, False])
def test_resuming_at_200_steps_in_another_world_size_gives_the_exact_tail(shuffle: bool) -> None:
    rng = random.Random(3)
    whole = {epoch: Seen.by(fresh_order(shuffle), ranks_of(1, "keep"), epoch=epoch) for epoch in (0, 1)}
    steps = len(ranks_of(1, "keep")[0])
    moved: dict[tuple[int, int], int] = {}
    for _ in range(200 if shuffle else 20):
        old = rng.choice(WORLDS)
        new = rng.choice([world for world in WORLDS if world != old])
        epoch, step = rng.randrange(2), rng.randrange(steps)
        before = ranks_of(old, "keep")
        text = json.dumps(make_state(IDENTITY, epoch=epoch, step=step))
        at_epoch, at_step = read_state(json.loads(text), IDENTITY, steps=len(before[0]))
        tail = Seen.by(fresh_order(shuffle), ranks_of(new, "keep"), epoch=at_epoch, first_step=at_step)
        expected = whole[epoch].since(step)
        assert np.array_equal(tail.step, expected.step)
        assert np.array_equal(tail.id, expected.id)
        moved[old, new] = moved.get((old, new), 0) + 1
    print(f"\n{sum(moved.values())} resumes, {len(moved)} pairs of world sizes, every tail exact")
    assert not shuffle or len(moved) == len(WORLDS) * (len(WORLDS) - 1)
