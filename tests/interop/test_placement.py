"""Positions dealt to workers and ranks: all of them once, in an order that a DataLoader puts together again."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import OptionsError
from shardmill.interop import placement
from shardmill.interop.placement import Deal, Ranks, Workers
from shardmill.loading.steps import Steps


def dealt(samples: int, run: int, world: int, workers: int) -> list[list[list[int]]]:
    """By rank, by worker: positions."""
    return [
        [
            [
                int(p)
                for block in Deal(run, Ranks(rank, world), Workers(worker, workers)).positions(samples)
                for p in block
            ]
            for worker in range(workers)
        ]
        for rank in range(world)
    ]


SHAPES = {
    "samples": st.integers(0, 400),
    "run": st.integers(1, 20),
    "world": st.integers(1, 5),
    "workers": st.integers(1, 5),
}


@given(**SHAPES)
def test_every_position_goes_to_one_worker_of_one_rank(samples: int, run: int, world: int, workers: int) -> None:
    parts = dealt(samples, run, world, workers)
    assert sorted(p for rank in parts for worker in rank for p in worker) == list(range(samples))
    counts = [sum(map(len, rank)) for rank in parts]
    assert max(counts) - min(counts) <= 1


@given(**SHAPES)
def test_runs_in_turn_are_the_steps_of_the_loader(samples: int, run: int, world: int, workers: int) -> None:
    for rank, parts in enumerate(dealt(samples, run, world, workers)):
        runs = [[part[i : i + run] for i in range(0, len(part), run)] for part in parts]
        together = [each for turn in zip_longest(*runs) for each in turn if each]
        steps = Steps(samples, run * world, run * world, world, rank, "keep")
        assert together == [p for p in (steps.positions(t).tolist() for t in range(len(steps))) if p]


@given(**SHAPES)
def test_place_is_where_an_item_stands_in_the_rank(samples: int, run: int, world: int, workers: int) -> None:
    whole = samples // (run * world) * run * world
    for rank, parts in enumerate(dealt(whole, run, world, workers)):
        order = sorted(p for part in parts for p in part)
        for worker, part in enumerate(parts):
            deal = Deal(run, Ranks(rank, world), Workers(worker, workers))
            assert [order[deal.place(k, run)] for k in range(len(part))] == part


def test_blocks_stay_small() -> None:
    blocks = [len(block) for block in Deal(64, Ranks(1, 3), Workers(0, 2)).positions(10**6)]
    assert max(blocks) <= 4096
    first = next(Deal(1, Ranks(), Workers()).positions(10**12))
    assert np.array_equal(first, np.arange(4096))


def test_ranks_that_make_no_sense() -> None:
    with pytest.raises(OptionsError, match="rank must be within"):
        Ranks(2, 2)


def test_outside_of_torch_there_is_one_rank_and_one_worker() -> None:
    assert placement.current_ranks() is None
    assert placement.current_workers() == Workers(0, 1)
    assert not placement.in_worker()
