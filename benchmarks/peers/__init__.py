"""The loaders that benchmarks/loader.py measures: one file a loader, each with a `Peer` called ``PEER``.

These files also run under another interpreter (``--python-for ffcv=...``), so they import nothing of shardmill and
nothing but the standard library and numpy at the top.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

# By their row in the table, which is also the order within a round.
NAMES: Final = {
    "ceiling": "ceiling",
    "shardmill": "shardmill_loader",
    "webdataset": "webdataset_loader",
    "torchvision": "torchvision_tensor",
    "torchvision-pil": "torchvision_pil",
    "opencv": "opencv_threads",
    "dali": "dali_cpu",
    "ffcv": "ffcv_jpg",
}


@dataclass(frozen=True, slots=True)
class Job:
    """One epoch to load: RandomResizedCrop(``size``), flip, normalise, NCHW, shuffled.

    ``dataset``: directory packed by shardmill (tars of it: ``shards``). ``folder``: the same images as files,
    ``folder/<class>/<name>.JPEG``, classes in label order. ``scratch``: where a peer keeps the form it needs itself.
    ``samples``: images in the epoch. ``workers``: threads or processes, as the peer has it.
    """

    dataset: str
    shards: tuple[str, ...]
    folder: str
    scratch: str
    samples: int
    workers: int
    dtype: Literal["float32", "uint8"]
    batch_size: int = 64
    size: int = 224
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Peer:
    """How to run one loader.

    ``load`` gives the epoch's batches ``(images, labels)``, anything `numpy.asarray` takes; ``images`` is ``None`` for
    the ceiling, which makes none. ``imports``: modules imported before the clock starts; one that is missing means
    "not installed". ``reads``: which files to bring into the page cache first. ``prepare`` writes the peer's own form
    of the data into ``job.scratch``, once, in a process of its own. ``extra_workers``: default workers beyond the
    cores; ``max_extra_workers``: the most that tuning tries.
    """

    title: str
    imports: tuple[str, ...]
    reads: Literal["dataset", "folder", "scratch"]
    load: Callable[[Job], Iterator[tuple[Any, Any]]]
    prepare: Callable[[Job], None] | None = None
    extra_workers: int = 0
    max_extra_workers: int = 2


def find(name: str) -> Peer:
    """The peer of row ``name`` of `NAMES`."""
    peer = importlib.import_module(f"{__name__}.{NAMES[name]}").PEER
    assert isinstance(peer, Peer)
    return peer


MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)
"""ImageNet's, of images scaled to 0..1."""
