"""Which positions of the epoch's order a rank takes in a step. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import OptionsError

Last = Literal["keep", "drop", "pad"]


def default_lanes(global_batch: int) -> int:
    """The number of lanes where none is asked for: a function of the global batch alone, so no world size changes it.

    global_batch / g, with g the largest of 8, 4, 2 and 1 that divides the batch and leaves 64 lanes or more: 64 lanes
    for 256 samples, 256 for 2,048, the batch itself below 64. Every world size whose batch per rank is a multiple of g
    fits; more samples of a lane in each step (a larger g) mean fewer shards in use at once.
    """
    for together in (8, 4, 2):
        if global_batch % together == 0 and global_batch // together >= 64:
            return global_batch // together
    return global_batch


@dataclass(frozen=True)
class Steps:
    """The steps of an epoch of ``samples`` positions, as one rank sees them.

    Step t of all ranks together is positions ``t * global_batch .. (t + 1) * global_batch``, whatever the world size.
    Rank r owns lanes ``r * lanes / world_size .. (r + 1) * lanes / world_size`` and takes the positions of its lanes.

    The last step is short where ``global_batch`` does not divide ``samples``. Its whole rounds of ``lanes`` positions
    are shared as above; the fewer than ``lanes`` positions that remain are dealt in ``world_size`` runs whose sizes
    differ by at most one, so a rank may take a few samples of another rank's lanes here and nowhere else.

    - ``"keep"``: the last step is short; sizes on the ranks differ by at most one. With fewer positions left than
      ranks some ranks get an empty batch, but every rank gets the step: step counts are always equal.
    - ``"drop"``: the short step is left out.
    - ``"pad"``: every rank gets its full shape, its positions first; the rest is marked not valid.
    """

    samples: int
    global_batch: int
    lanes: int
    world_size: int
    rank: int
    last: Last

    def __post_init__(self) -> None:
        if self.last not in get_args(Last):
            raise OptionsError(f'last must be "keep", "drop" or "pad", got {self.last!r}')
        if self.global_batch < 1 or self.world_size < 1 or self.lanes < 1:
            raise OptionsError(
                f"batch size, world_size and lanes must be at least 1, got {self.global_batch}, {self.world_size} and "
                f"{self.lanes}"
            )
        if not 0 <= self.rank < self.world_size:
            raise OptionsError(f"rank must be within 0 .. world_size - 1 = {self.world_size - 1}, got {self.rank}")
        if self.global_batch % self.lanes or self.lanes % self.world_size:
            raise OptionsError(_misfit(self.global_batch, self.lanes, self.world_size))
        if len(self) == 0 and self.samples:
            raise OptionsError(
                f'last="drop" leaves no step: {self.samples} samples are fewer than the global batch of '
                f'{self.global_batch}; use "keep" or "pad", or a smaller batch'
            )

    @property
    def batch_size(self) -> int:
        """Samples of one rank in a full step."""
        return self.global_batch // self.world_size

    def __len__(self) -> int:
        if self.last == "drop":
            return self.samples // self.global_batch
        return -(-self.samples // self.global_batch)

    def positions(self, step: int) -> NDArray[np.int64]:
        """int64 [n]: this rank's positions in ``step``, ascending; n is ``batch_size`` but in a short last step."""
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} of an epoch of {len(self)}")
        first = step * self.global_batch
        count = min(self.global_batch, self.samples - first)
        rounds, rest = divmod(count, self.lanes)
        own = self.lanes // self.world_size
        starts = first + self.rank * own + self.lanes * np.arange(rounds, dtype=np.int64)
        whole = (starts[:, None] + np.arange(own, dtype=np.int64)).reshape(-1)
        if not rest:
            return whole
        tail = first + rounds * self.lanes
        dealt = np.arange(tail + self.rank * rest // self.world_size, tail + (self.rank + 1) * rest // self.world_size)
        return np.concatenate([whole, dealt])


def _misfit(global_batch: int, lanes: int, world_size: int) -> str:
    if global_batch % world_size:
        return f"the global batch of {global_batch} is not a multiple of world_size = {world_size}"
    fits = [n for n in range(world_size, global_batch + 1, world_size) if global_batch % n == 0]
    # The nearest to what was asked for: a list of all of them can be long.
    fits = sorted(sorted(fits, key=lambda n: abs(n - lanes))[:6])
    return (
        f"lanes = {lanes} must be a multiple of world_size = {world_size} and divide the global batch of "
        f"{global_batch}; pass lanes={' or '.join(map(str, fits))} "
        "(lanes are part of the order: keep the number for all runs that are to see the same order)"
    )
