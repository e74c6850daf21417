"""Who reads what: the share of one DataLoader worker of one rank, exactly once and in an order that fits together."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import OptionsError
from shardmill.loading.steps import Steps

_BLOCK = 4096


@dataclass(frozen=True)
class Ranks:
    """One of ``world_size`` processes that train together."""

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise OptionsError(f"rank must be within 0 .. world_size - 1 = {self.world_size - 1}, got {self.rank}")


@dataclass(frozen=True)
class Workers:
    """One of ``count`` DataLoader workers of a rank; one of one where there are none."""

    index: int = 0
    count: int = 1


def current_ranks() -> Ranks | None:
    """What torch.distributed says, ``None`` where it is not initialised. Never from environment variables."""
    # A process that has not imported torch has no process group; importing it here would take a second.
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size())


def current_workers() -> Workers:
    """Which DataLoader worker this process is; one of one where it is none."""
    data: Any = sys.modules.get("torch.utils.data")
    info = None if data is None else data.get_worker_info()
    return Workers() if info is None else Workers(info.id, info.num_workers)


def in_worker() -> bool:
    """Whether this process is a DataLoader worker."""
    data: Any = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def shared_number(value: int) -> Any:
    """A cell ``[value]`` that this process shares with the workers it forks or spawns later.

    So that ``set_epoch`` reaches the persistent workers of a DataLoader. Without torch, a list.
    """
    torch: Any = sys.modules.get("torch")
    return [value] if torch is None else torch.tensor([value], dtype=torch.int64).share_memory_()


def share_again(cell: Any) -> None:
    """Makes a cell that came out of a pickle shareable; one that a worker got from its parent is left as it is."""
    if not isinstance(cell, list) and not cell.is_shared():
        cell.share_memory_()


@dataclass(frozen=True)
class Deal:
    """How the positions of a stream are dealt: to the ranks in runs of ``run`` positions, then to each rank's workers.

    Step t is positions ``t * run * world_size ..``; rank r takes run r of it, and its worker ``t % workers`` delivers
    it. A DataLoader asks its workers in turn, so runs as long as its batches come out in the order of the stream,
    whatever the number of workers. The last, short step is shared evenly among the ranks, as by
    ``Loader(last="keep")``.
    """

    run: int
    ranks: Ranks
    workers: Workers

    def positions(self, samples: int) -> Iterator[NDArray[np.int64]]:
        """int64 arrays of this worker's positions within 0 .. samples - 1, ascending, some thousand at a time."""
        across = self.run * self.ranks.world_size
        whole = samples // across
        per_block = max(1, _BLOCK // self.run)
        mine = range(self.workers.index, whole, self.workers.count)
        for i in range(0, len(mine), per_block):
            steps = np.asarray(mine[i : i + per_block], np.int64)
            starts = steps * across + self.ranks.rank * self.run
            yield (starts[:, None] + np.arange(self.run)).reshape(-1)
        if samples % across and whole % self.workers.count == self.workers.index:
            r, world = self.ranks.rank, self.ranks.world_size
            yield Steps(samples, across, across, world, r, "keep").positions(whole)

    def place(self, k: int, unit: int) -> int:
        """Where among the rank's items the ``k``-th item of this worker stands, with ``unit`` items to a run."""
        turn, within = divmod(k, unit)
        return (turn * self.workers.count + self.workers.index) * unit + within
