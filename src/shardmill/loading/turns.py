"""Whose turn it is when several take turns by weight: at every moment each has had its share, to within one turn."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import OptionsError

MAX_PERIOD = 1 << 16
"""Turns after which the sequence repeats, at most: 6 bytes each are kept."""


def shares_of(weights: Sequence[float | Fraction]) -> tuple[int, ...]:
    """Turns of each in a period, whose sum is the period's length.

    Exact where the shares have a common denominator of at most `MAX_PERIOD`: (0.7, 0.3) is (7, 3), a float meaning the
    decimal number that it prints as. Otherwise rounded to 1/65,536, and never to zero. Raises `OptionsError`.
    """
    exact = []
    for weight in weights:
        if isinstance(weight, bool) or not math.isfinite(weight) or weight <= 0:
            raise OptionsError(f"a weight must be a number above 0, got {weight!r}; leave out what is not to be seen")
        # Fraction(0.1) is 3602879701896397 / 2^55; what was meant is 1 / 10.
        exact.append(Fraction(weight) if isinstance(weight, int | Fraction) else Fraction(repr(float(weight))))
    total = sum(exact, Fraction(0))
    shares = [weight / total for weight in exact]
    period = math.lcm(*(share.denominator for share in shares))
    if period <= MAX_PERIOD:
        return tuple(int(share * period) for share in shares)
    if len(shares) > MAX_PERIOD:
        raise OptionsError(f"at most {MAX_PERIOD} weights, got {len(shares)}")
    # Largest remainders, after one turn for each.
    spare = MAX_PERIOD - len(shares)
    turns = [1 + int(share * spare) for share in shares]
    order = sorted(range(len(shares)), key=lambda k: (int(shares[k] * spare) - shares[k] * spare, k))
    for k in order[: MAX_PERIOD - sum(turns)]:
        turns[k] += 1
    divisor = math.gcd(*turns)
    return tuple(turn // divisor for turn in turns)


@dataclass(frozen=True)
class Turns:
    """An endless sequence of turns among K, as a function of the position.

    ``shares``: turns of each in a period of D = sum(shares). ``who``: uint16 [D], whose turn each of a period is.
    ``nth``: int32 [D], how many turns that one has had before, in the period.

    R. Tijdeman, The chairman assignment problem, Discrete Mathematics 32 (1980) 323-330: after n turns each k has had
    ``n * shares[k] / D`` to within 1 - 1 / (2K - 2), for every n, which is best possible for all shares together.
    """

    shares: tuple[int, ...]
    who: NDArray[np.uint16]
    nth: NDArray[np.int32]

    @classmethod
    def of(cls, shares: Sequence[int]) -> Turns:
        """The sequence for these shares. Cost: about 2 us a turn of the period, once."""
        who = _sequence(tuple(shares))
        nth = np.empty(len(who), np.int32)
        for k, share in enumerate(shares):
            nth[who == k] = np.arange(share, dtype=np.int32)
        return cls(tuple(shares), who, nth)

    @property
    def period(self) -> int:
        """D."""
        return len(self.who)

    def at(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Two int64 [n]: whose turn each position is, and how many turns that one has had before it."""
        periods, place = np.divmod(positions, self.period)
        who = self.who[place].astype(np.int64)
        return who, periods * np.array(self.shares, np.int64)[who] + self.nth[place]

    def counts(self, position: int) -> tuple[int, ...]:
        """Turns of each before ``position``; their sum is ``position``."""
        periods, place = divmod(position, self.period)
        part = np.bincount(self.who[:place], minlength=len(self.shares)).tolist()
        return tuple(periods * share + more for share, more in zip(self.shares, part, strict=True))

    def position_of(self, k: int, turn: int) -> int:
        """The position of ``k``'s turn number ``turn``, from 0."""
        periods, nth = divmod(turn, self.shares[k])
        return periods * self.period + int(np.flatnonzero(self.who == k)[nth])


def _sequence(shares: tuple[int, ...]) -> NDArray[np.uint16]:
    """Tijdeman's rule in integers: of those who may come, whoever must come first.

    With e = 1 / (2K - 2), the j-th turn of k (from 0) may come once its claim ``n * share / D`` has reached j + e, and
    must come before the claim passes j + 1 - e. ``n`` counts from 1.
    """
    period = sum(shares)
    scale = max(1, 2 * len(shares) - 2)

    def may(k: int, j: int) -> int:
        return -(-(j * scale + 1) * period // (scale * shares[k]))

    def must(k: int, j: int) -> int:
        return ((j + 1) * scale - 1) * period // (scale * shares[k]) + 1

    if len(shares) == 1:
        return np.zeros(period, np.uint16)
    waiting = [(may(k, 0), k, 0) for k in range(len(shares))]
    heapq.heapify(waiting)
    ready: list[tuple[int, int, int]] = []
    who = np.empty(period, np.uint16)
    for n in range(1, period + 1):
        while waiting and waiting[0][0] <= n:
            _, k, j = heapq.heappop(waiting)
            heapq.heappush(ready, (must(k, j), k, j))
        deadline, k, j = heapq.heappop(ready)
        assert deadline >= n, "Tijdeman's theorem"
        who[n - 1] = k
        if j + 1 < shares[k]:
            heapq.heappush(waiting, (may(k, j + 1), k, j + 1))
    return who
