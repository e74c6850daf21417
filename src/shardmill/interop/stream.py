"""A fluent stream of samples over a dataset: webdataset's verbs, dealt exactly once over workers and ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from shardmill.errors import OptionsError
from shardmill.interop.decoders import SampleDict
from shardmill.interop.handlers import Handle, reraise_exception
from shardmill.interop.placement import (
    Deal,
    Ranks,
    current_ranks,
    current_workers,
    in_worker,
    share_again,
    shared_number,
)
from shardmill.interop.protocols import Samples
from shardmill.interop.stages import map_items
from shardmill.interop.verbs import Pass, Verbs
from shardmill.loading.order import Order, SequentialOrder

T = TypeVar("T")

try:
    from torch.utils.data import IterableDataset
except ImportError:  # without torch a stream is an iterable like any other

    class IterableDataset(Generic[T]):  # type: ignore[no-redef]
        """Stands for torch's class of that name."""


S = TypeVar("S", bound="Stream")


class Stream(Verbs, IterableDataset[Any]):
    """Samples as webdataset has them (``__key__``, ``__url__``, bytes by extension in lower case), through verbs.

    ``order``: which row comes at which position (default: as they lie in the shards). ``seed``: of everything random.
    ``ranks``: this process among those that train together (default: torch.distributed where it is initialised).
    ``handler``: what to do with a sample that cannot be read.

    An ``IterableDataset`` of torch: in a DataLoader each sample is delivered once, over all workers of all ranks. With
    ``.batched(n)`` and ``DataLoader(batch_size=None)`` the batches and their order do not depend on the number of
    workers, as long as every stage before ``batched`` gives one item for one. Picklable where its functions are; the
    order and all draws are a function of (dataset, seed, epoch), see `set_epoch`.
    """

    def __init__(
        self,
        dataset: Samples,
        *,
        order: Order | None = None,
        seed: int = 0,
        ranks: Ranks | None = None,
        handler: Handle = reraise_exception,
    ) -> None:
        super().__init__()
        self.dataset = dataset
        self._order = SequentialOrder(len(dataset)) if order is None else order
        if self._order.samples > len(dataset):
            raise OptionsError(f"an order of {self._order.samples} samples for a dataset of {len(dataset)}")
        self._seed = seed
        self._ranks = ranks
        self._seen_ranks: Ranks | None = None
        self._handler = handler
        self._dealt = 1
        self._length: int | None = None
        self._epoch = shared_number(0)

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration is; 0 until then. Reaches the workers of a DataLoader, persistent ones too."""
        self._epoch[0] = epoch

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return int(self._epoch[0])

    def dealt(self: S, run: int) -> S:
        """Deals positions to workers in runs of ``run``: the batch size, where the DataLoader makes the batches."""
        if run < 1:
            raise OptionsError(f"dealt takes a number of samples, got {run}")
        return self._changed(_dealt=run)

    def with_length(self: S, n: int, silent: bool = True) -> S:
        """Gives the stream a ``len()`` of ``n``, for code that asks for one. What comes out stays the same."""
        return self._changed(_length=n)

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("what a stream gives is known only after its stages: say with_length(n)")
        return self._length

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        workers = current_workers()
        # A spawned DataLoader worker has no process group; it was told at pickling what its parent's ranks were.
        ranks = self._ranks or current_ranks() or (self._seen_ranks if in_worker() else None) or Ranks()
        deal = Deal(self._run or self._dealt, ranks, workers)
        epoch = self.epoch
        # Passes of one epoch differ, and meet no pass of another epoch.
        return self._through(self._read, lambda p: Pass(self._seed, epoch + (p << 32), deal))

    def _read(self, at: Pass) -> Iterator[SampleDict]:
        rows = (
            row
            for positions in at.deal.positions(self._order.samples)
            for row in self._order.ids(at.epoch, positions).tolist()
        )
        return map_items(rows, f=self._sample, handler=self._handler)

    def _sample(self, row: int) -> SampleDict:
        sample = self.dataset[row]
        shard, _, _ = self.dataset.describe(row)
        fields = {name.lower(): data for name, data in sample.fields.items()}
        return {"__key__": sample.key, "__url__": shard, **fields}

    def _changed(self: S, **attributes: Any) -> S:
        # An epoch of its own: setting the one of a stream leaves those it was made from alone.
        return super()._changed(_epoch=shared_number(self.epoch), **attributes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_seen_ranks": current_ranks() or self._seen_ranks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        share_again(self._epoch)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dataset!r}, {len(self._stages)} stages)"
