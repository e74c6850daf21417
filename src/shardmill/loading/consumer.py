"""Who takes the batches: which of the processes that share the steps this is, and in what form it wants arrays."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any, Literal

from shardmill.errors import OptionsError
from shardmill.loading.batch import allocate_huge
from shardmill.records import Batch

Framework = Literal["torch", "numpy"]


def place_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world size) as given, or of torch.distributed where that is initialised, or (0, 1)."""
    if (rank is None) != (world_size is None):
        raise OptionsError("give both rank and world_size, or neither")
    if rank is not None and world_size is not None:
        if world_size < 1:
            raise OptionsError(f"world_size must be at least 1, got {world_size}")
        return rank, world_size
    return group_place() or (0, 1)


def group_place() -> tuple[int, int] | None:
    """(rank, world size) of torch.distributed's default group, ``None`` where it is not initialised."""
    # A process that has not imported torch has not initialised torch.distributed.
    if "torch" not in sys.modules:
        return None
    from shardmill.loading.torch import distributed_place

    return distributed_place()


def check_place(rank: int, world_size: int) -> None:
    """Refuses a place that was found before the group was there: every rank would see the whole dataset."""
    now = group_place()
    if now is not None and now != (rank, world_size):
        raise OptionsError(
            f"this loader was made as rank {rank} of {world_size}, and torch.distributed has since been initialised as "
            f"rank {now[0]} of {now[1]}. Make the loader after init_process_group, or pass rank= and world_size="
        )


def hand_over(
    framework: Framework | None, device: object, dtype: str
) -> tuple[Callable[[Batch], Batch], Callable[[int], Any]]:
    """What turns a batch of arrays into what the consumer gets, and where its buffers come from."""
    if framework is None:
        framework = "torch" if importlib.util.find_spec("torch") is not None else "numpy"
    if framework == "numpy":
        if device is not None:
            raise OptionsError(f'device={device!r} needs framework="torch"')
        return _as_it_is, allocate_huge
    if framework != "torch":
        raise OptionsError(f'framework must be "torch" or "numpy", got {framework!r}')
    from shardmill.loading.torch import TensorMaker, allocate_pinned

    maker = TensorMaker(device, dtype)
    return maker, allocate_pinned if maker.cuda else allocate_huge


def _as_it_is(batch: Batch) -> Batch:
    return batch
