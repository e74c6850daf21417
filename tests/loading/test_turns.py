from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import OptionsError
from shardmill.loading.turns import MAX_PERIOD, Turns, shares_of

FEW = settings(max_examples=50, deadline=None)
SHARES = st.lists(st.integers(1, 300), min_size=1, max_size=8).map(tuple)


@FEW
@given(SHARES)
def test_at_every_prefix_each_has_its_share_to_within_tijdemans_bound(shares: tuple[int, ...]) -> None:
    turns = Turns.of(shares)
    period = sum(shares)
    n = np.arange(1, 2 * period + 1)
    who = turns.at(n - 1)[0]
    # |count - n * share / D| <= 1 - 1 / (2K - 2), in integers; for one alone the difference is 0.
    scale = max(1, 2 * len(shares) - 2)
    for k, share in enumerate(shares):
        away = np.abs(np.cumsum(who == k) * period - n * share)
        assert (away * scale <= (scale - 1) * period).all()


def test_a_wrong_sequence_would_be_seen() -> None:
    """Drawing at random, or one dataset after the other, breaks the bound that the test above asserts."""
    n = np.arange(1, 1001)
    for who in (np.random.default_rng(0).random(1000) < 0.3, np.arange(1000) % 10 >= 7):
        assert np.abs(np.cumsum(who) * 10 - n * 3).max() > 10


@FEW
@given(SHARES, st.data())
def test_positions_counts_and_turns_agree(shares: tuple[int, ...], data: st.DataObject) -> None:
    turns = Turns.of(shares)
    position = data.draw(st.integers(0, 10**12))
    (who,), (nth,) = turns.at(np.array([position]))
    before, after = turns.counts(position), turns.counts(position + 1)
    assert before[who] == nth
    assert [b - a for a, b in zip(before, after, strict=True)] == [int(k == who) for k in range(len(shares))]
    assert sum(before) == position
    assert turns.position_of(int(who), int(nth)) == position


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([0.7, 0.3], (7, 3)),
        ([np.float64(0.25), 0.75], (1, 3)),
        ([1, 2, 3], (1, 2, 3)),
        ([Fraction(1, 3), Fraction(2, 3)], (1, 2)),
        ([0.1, 0.2], (1, 2)),
        ([5], (1,)),
        ([1e-9, 1], (1, MAX_PERIOD - 1)),
        ([2**70, 2**71], (1, 2)),
    ],
)
def test_shares(weights: list[Any], shares: tuple[int, ...]) -> None:
    assert shares_of(weights) == shares


@FEW
@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=20))
def test_shares_are_close_and_none_is_lost(weights: list[float]) -> None:
    shares = shares_of(weights)
    total, exact = sum(shares), [Fraction(repr(weight)) for weight in weights]
    assert total <= MAX_PERIOD
    assert min(shares) >= 1
    for share, weight in zip(shares, exact, strict=True):
        assert abs(Fraction(share, total) - weight / sum(exact)) <= Fraction(len(weights), MAX_PERIOD)


@pytest.mark.parametrize("weight", [0, -1, 0.0, float("nan"), float("inf"), True])
def test_a_weight_that_makes_no_sense_is_refused(weight: float) -> None:
    with pytest.raises(OptionsError, match=re.escape(repr(weight))):
        shares_of([1, weight])
