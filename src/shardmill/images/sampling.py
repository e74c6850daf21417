"""Random numbers that are a function of (seed, epoch, sample id, stream), never of who draws them or when.

Counter based: nothing is stepped, so any thread, rank or server computes the same draws in any order. A key is hashed
from the seed, the epoch and the stream; a sample's state is hashed from key and id; its draws are the outputs of a
splitmix64 generator started in that state (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
These functions are part of the data format of a run: changing one changes every order and every crop, so golden files
in ``tests/golden`` hold their values.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
"""2^64 / golden ratio, odd: the step of splitmix64."""

_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB
_TO_UNIT = 2.0**-53


class Stream(enum.IntEnum):
    """What a draw is for: streams of one sample are independent of each other. Never renumber."""

    SHARDS = 1
    WINDOWS = 2
    CROP = 3
    FLIP = 4
    VERTICAL_FLIP = 16
    COLOR = 17
    GRAY = 18
    SOLARIZE = 19
    BLUR = 20
    AUGMENT = 21
    ERASE = 22
    NOISE = 23
    MIX = 24
    PARTNER = 25
    PARTS = 32
    CLASSES = 33
    ROWS = 34
    DRAWS = 35


def mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser, a bijection of uint64 in which every input bit moves every output bit. New array."""
    out = x ^ (x >> np.uint64(30))
    out *= np.uint64(_MIX_A)
    out ^= out >> np.uint64(27)
    out *= np.uint64(_MIX_B)
    out ^= out >> np.uint64(31)
    return out


def key64(parts: Sequence[int]) -> int:
    """One uint64 from several integers, in order; each is taken modulo 2^64. For a handful of keys, not for samples."""
    state = 0
    for part in parts:
        state = (state + GOLDEN) & MASK64 ^ part & MASK64
        state = (state ^ state >> 30) * _MIX_A & MASK64
        state = (state ^ state >> 27) * _MIX_B & MASK64
        state ^= state >> 31
    return state


def hash64(key: int, counters: NDArray[np.integer]) -> NDArray[np.uint64]:
    """uint64 of the same shape: a hash of each counter under ``key``. For a fixed key no two counters collide."""
    state = counters.astype(np.uint64)
    state *= np.uint64(GOLDEN)
    state += np.uint64(key)
    # Twice: one finaliser alone leaves keys that differ by a multiple of GOLDEN with shifted copies of one sequence.
    return mix64(mix64(state) ^ np.uint64(key))


def states(
    seed: int, epoch: int, ids: NDArray[np.int64], stream: Stream, *, view: int = 0, nth: int = 0
) -> NDArray[np.uint64]:
    """uint64 [n]: the generator state of each sample for one stream.

    ``view``: which of a recipe's outputs. ``nth``: how many ops of the recipe before this draw from the same stream.
    """
    place = (view, nth) if view or nth else ()
    return hash64(key64((seed, epoch, int(stream), *place)), ids)


def uniforms(state: NDArray[np.uint64], first: int, count: int) -> NDArray[np.float64]:
    """float64 [count, n] in [0, 1), 53 random bits each: draws ``first .. first + count`` of every state."""
    steps = np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    bits = mix64(state[None, :] + steps[:, None])
    bits >>= np.uint64(11)
    return np.multiply(bits, _TO_UNIT, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Draws:
    """The random numbers of some samples in an epoch: ``ids`` int64 [n], and which of the recipe's outputs they are."""

    seed: int
    epoch: int
    ids: NDArray[np.int64]
    view: int = 0

    def states(self, stream: Stream, nth: int) -> NDArray[np.uint64]:
        """uint64 [n]: see `states`."""
        return states(self.seed, self.epoch, self.ids, stream, view=self.view, nth=nth)

    def uniforms(self, stream: Stream, nth: int, count: int) -> NDArray[np.float64]:
        """float64 [count, n] in [0, 1): the first ``count`` draws of every sample."""
        return uniforms(self.states(stream, nth), 0, count)
