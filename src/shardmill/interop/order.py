"""The order that webdataset's ``shardshuffle`` asks for."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardmill.images.sampling import Stream, hash64, key64


@dataclass(frozen=True)
class ShardOrder:
    """Whole shards in an order drawn from seed and epoch; samples inside a shard stay in theirs.

    ``shard_first``: int64 [shards + 1], row numbers. See `shardmill.loading.order.Order`. A call takes O(shards).
    """

    shard_first: NDArray[np.int64] = field(repr=False)
    seed: int

    @property
    def samples(self) -> int:
        """See `Order`."""
        return int(self.shard_first[-1])

    @property
    def identity(self) -> dict[str, int | str]:
        """See `Order`."""
        return {"shuffle": "shards", "seed": self.seed}

    def ids(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Order`."""
        if len(positions) and (positions.min() < 0 or positions.max() >= self.samples):
            raise IndexError(f"positions {positions.min()} to {positions.max()} of an epoch of {self.samples}")
        sizes = np.diff(self.shard_first)
        shards = np.arange(len(sizes))
        turn = np.argsort(hash64(key64((self.seed, epoch, int(Stream.SHARDS))), shards), kind="stable")
        ends = np.cumsum(sizes[turn])
        place = np.searchsorted(ends, positions, side="right")
        begins = ends - sizes[turn]
        rows: NDArray[np.int64] = positions - begins[place] + self.shard_first[turn][place]
        return rows
