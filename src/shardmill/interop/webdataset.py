"""webdataset's names over shardmill: ``import shardmill.interop.webdataset as wds``.

| webdataset | here |
|---|---|
| shards are dealt to workers: few shards leave workers idle and ranks uneven | samples are dealt, whatever the shards |
| several ranks need a ``nodesplitter``, or ``resampled``: samples come twice or never | each sample once |
| the order depends on the number of workers, and on the time of day | a function of seed and epoch |
| ``.pyd`` and ``.pth`` members are unpickled | refused |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from shardmill.errors import MissingExtraError, OptionsError
from shardmill.interop import handlers
from shardmill.interop.collation import collate as default_collation_fn
from shardmill.interop.decoders import Continue, Decoder, handle_extension
from shardmill.interop.handlers import (
    Handle,
    ignore_and_continue,
    ignore_and_stop,
    reraise_exception,
    warn_and_continue,
    warn_and_stop,
)
from shardmill.interop.images import ImageDecoder as imagehandler  # noqa: N813  (webdataset's name for it)
from shardmill.interop.order import ShardOrder
from shardmill.interop.placement import Deal, Ranks, Workers
from shardmill.interop.protocols import Samples
from shardmill.interop.stream import Stream
from shardmill.interop.tars import Urls, open_samples
from shardmill.interop.verbs import Pass, Verbs

__all__ = [
    "Continue",
    "Decoder",
    "WebDataset",
    "WebLoader",
    "default_collation_fn",
    "handle_extension",
    "handlers",
    "ignore_and_continue",
    "ignore_and_stop",
    "imagehandler",
    "reraise_exception",
    "single_node_only",
    "split_by_node",
    "split_by_worker",
    "warn_and_continue",
    "warn_and_stop",
]

L = TypeVar("L", bound="WebLoader")


def split_by_node(source: Iterator[Any]) -> Iterator[Any]:
    """Accepted as ``nodesplitter``: splitting is done anyway, by sample. Gives what it gets."""
    return source


def split_by_worker(source: Iterator[Any]) -> Iterator[Any]:
    """Accepted as ``workersplitter``: splitting is done anyway, by sample. Gives what it gets."""
    return source


def single_node_only(source: Iterator[Any]) -> Iterator[Any]:
    """Accepted as ``nodesplitter``: several nodes are no error here. Gives what it gets."""
    return source


class WebDataset(Stream):
    """A `Stream` over tars, made by webdataset's call.

    ``urls``: a tar (its samples need not hold an image), a pattern (``x-{000..099}.tar``, several with ``::`` between),
    a list of them, a packed directory, or an opened dataset. ``shardshuffle``: true or a number of 1 or more: the
    shards come in an order drawn from seed and epoch, all of them (there is no buffer of shards); otherwise in the
    order given. ``detshuffle``: always so.
    ``nodesplitter``, ``workersplitter``: see `split_by_node`. ``empty_check``: `OptionsError` for a dataset without
    samples. ``ranks``: see `Stream`.

    ``resampled=True`` is refused: samples would come twice or never. ``.with_epoch(n)`` gives every rank the same
    number of steps without.
    """

    def __init__(
        self,
        urls: Urls | Samples,
        handler: Handle = reraise_exception,
        *,
        resampled: bool = False,
        repeat: bool = False,
        shardshuffle: bool | int | None = None,
        detshuffle: bool = True,
        nodesplitter: Callable[..., Any] | None = split_by_node,
        workersplitter: Callable[..., Any] | bool | None = split_by_worker,
        empty_check: bool = True,
        seed: int = 0,
        ranks: Ranks | None = None,
    ) -> None:
        if resampled:
            raise OptionsError(
                "resampled=True draws shards with replacement, so samples come twice or never; leave it out and say "
                ".with_epoch(n): every rank takes n steps, each sample comes once per pass"
            )
        for splitter in (nodesplitter, workersplitter):
            if splitter not in (None, False, True, split_by_node, split_by_worker, single_node_only):
                raise OptionsError(
                    f"{splitter!r}: samples are dealt over ranks and workers by themselves; pass ranks=Ranks(rank, "
                    "world_size) to say which part this process reads"
                )
        dataset: Samples = open_samples(_several(urls)) if isinstance(urls, str | os.PathLike | Sequence) else urls
        if empty_check and not len(dataset):
            raise OptionsError(f"{urls} holds no samples; empty_check=False accepts that")
        order = ShardOrder(np.array(dataset.shard_first), seed) if shardshuffle else None
        super().__init__(dataset, order=order, seed=seed, ranks=ranks, handler=handler)
        if repeat:
            self._passes = self.repeat()._passes


def _several(urls: Urls) -> Urls:
    return urls.split("::") if isinstance(urls, str) and "::" in urls else urls


class WebLoader(Verbs):
    """A torch DataLoader with verbs: ``WebLoader(stream, batch_size=64, num_workers=4).unbatched().shuffle(1000)``.

    Takes what ``torch.utils.data.DataLoader`` takes. Iterating it moves the stream on by one epoch each time, beginning
    with the one set; `set_epoch` says which comes next. Where the DataLoader makes the batches, the stream is dealt in
    runs of ``batch_size``, so the batches do not depend on ``num_workers``.
    """

    def __init__(self, dataset: Any, *args: Any, **options: Any) -> None:
        super().__init__()
        try:
            from torch.utils.data import DataLoader
        except ImportError as error:
            raise MissingExtraError("WebLoader needs torch: pip install shardmill[torch]") from error
        batch_size = args[0] if args else options.get("batch_size", 1)
        if isinstance(dataset, Stream) and batch_size is not None and dataset._run is None:
            dataset = dataset.dealt(batch_size)
        self.loader: Any = DataLoader(dataset, *args, **options)
        self._next = [dataset.epoch if isinstance(dataset, Stream) else 0]

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration is."""
        self._next[0] = epoch

    def __len__(self) -> int:
        return len(self.loader)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        epoch = self._next[0]
        stream = self.loader.dataset
        seed = stream._seed if isinstance(stream, Stream) else 0
        deal = Deal(1, Ranks(), Workers())
        return self._through(self._load, lambda p: Pass(seed, epoch + p, deal))

    def _load(self, at: Pass) -> Iterator[Any]:
        if isinstance(self.loader.dataset, Stream):
            self.loader.dataset.set_epoch(at.epoch)
        self._next[0] = at.epoch + 1
        return iter(self.loader)
