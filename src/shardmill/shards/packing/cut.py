"""Where one shard ends and the next begins: a function of the sample sizes in final order, and of the limits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SourceError


@dataclass(frozen=True, slots=True)
class Limits:
    """Most bytes and samples of one shard. ``overhead_bytes``: what a shard holds besides samples (its end marker)."""

    shard_bytes: int
    shard_samples: int | None
    overhead_bytes: int


class Cutter:
    """Cuts a stream of sizes. Every shard takes as many samples as the limits let it.

    Fed with consecutive arrays of any length: how the stream is divided into arrays changes nothing.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._room = limits.shard_bytes - limits.overhead_bytes
        self._most = limits.shard_samples or np.iinfo(np.int64).max
        self._held_bytes = 0
        self._held_samples = 0

    def feed(self, sizes: NDArray[np.uint64]) -> list[int]:
        """The places in ``sizes`` where a shard ends: it holds the rows before that place, from the end before it.

        0 closes a shard with the rows of earlier arrays alone. What follows the last place stays open. Raises
        `SampleTooLargeError` where one sample alone exceeds ``shard_bytes``.
        """
        n = len(sizes)
        if n == 0:
            return []
        if int(sizes.max()) > self._room:
            raise SampleTooLargeError(int(np.argmax(sizes)), int(sizes.max()), self._limits)
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(sizes, dtype=np.uint64)])
        ends: list[int] = []
        at = 0
        while True:
            most_bytes = int(sums[at]) + self._room - self._held_bytes
            by_bytes = int(np.searchsorted(sums, np.uint64(most_bytes), side="right")) - 1
            stop = min(by_bytes, at + self._most - self._held_samples)
            if stop >= n:
                self._held_bytes += int(sums[n]) - int(sums[at])
                self._held_samples += n - at
                return ends
            ends.append(stop)
            at = stop
            self._held_bytes = self._held_samples = 0


class SampleTooLargeError(SourceError):
    """One sample alone exceeds ``shard_bytes``; ``row`` is its place in the array that was fed."""

    def __init__(self, row: int, size: int, limits: Limits, who: str = "a sample") -> None:
        self.row = row
        self.size = size
        self.limits = limits
        super().__init__(
            f"{who} takes {size} bytes in a shard, but shard_bytes={limits.shard_bytes} leaves "
            f"{max(0, limits.shard_bytes - limits.overhead_bytes)}: give shard_bytes={size + limits.overhead_bytes} "
            "or more"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.row, self.size, self.limits)
