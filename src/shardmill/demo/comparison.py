"""shardmill beside torchvision's ImageFolder on the same files, in the same run, round about."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np

BATCH = 64
SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class Rates:
    """Images per second, one value a round."""

    name: str
    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle round."""
        return median(self.rounds)


class _Batches:
    """Random batches of row numbers; ``count`` may change between passes of a DataLoader that holds it."""

    def __init__(self, images: int, count: int) -> None:
        self.images, self.count = images, count
        self._rng = np.random.default_rng(0)

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.count):
            yield self._rng.integers(self.images, size=BATCH).tolist()

    def __len__(self) -> int:
        return self.count


class Entrant(Protocol):
    """Something that loads images and can be timed."""

    @property
    def name(self) -> str:
        """What the chart calls it."""
        ...

    def warm(self) -> None:
        """Do what happens once in a training: start workers, touch the files."""

    def round(self) -> float:
        """Load for a while; images per second, from the first request to the last batch."""
        ...


class TorchvisionFolder:
    """The usual way: ``ImageFolder`` + ``DataLoader`` with worker processes that stay alive between rounds."""

    def __init__(self, folder: Path, *, workers: int, batches: int) -> None:
        from torch.utils.data import DataLoader
        from torchvision import datasets, transforms

        recipe = transforms.Compose(
            [
                transforms.RandomResizedCrop(SIZE),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )
        dataset = datasets.ImageFolder(str(folder), recipe)
        self.name = f"torchvision ({workers} workers)"
        self._full = batches
        self._batches = _Batches(len(dataset), 1)
        self._loader: Any = DataLoader(
            dataset,
            batch_sampler=self._batches,
            num_workers=workers,
            persistent_workers=workers > 0,
        )

    def warm(self) -> None:
        """Start the workers; their start-up is not part of a round."""
        self._batches.count = 2 * max(1, self._loader.num_workers)
        for _ in self._loader:
            pass

    def round(self) -> float:
        """Images per second over one pass."""
        self._batches.count = self._full
        return _rate(self._loader)


class ShardmillLoader:
    """Any of our loaders, one pass a round."""

    def __init__(self, loader: Any) -> None:
        self.name = "shardmill"
        self._loader = loader
        self._epoch = 0

    def warm(self) -> None:
        """Touch the files once."""
        for i, _ in enumerate(self._loader):
            if i == 3:
                break

    def round(self) -> float:
        """Images per second over one pass, a new order and new crops each time."""
        self._epoch += 1
        self._loader.set_epoch(self._epoch)
        return _rate(self._loader)


def _rate(batches: Iterable[Any]) -> float:
    start = time.perf_counter()
    seen = sum(len(labels) for _, labels in batches)
    return seen / (time.perf_counter() - start)


def race(entrants: Sequence[Entrant], *, rounds: int) -> Iterator[list[Rates]]:
    """Run each entrant in turn, ``rounds`` times, giving the rates so far after each run.

    Interleaved, so that a machine that slows down slows all of them.
    """
    rates: list[list[float]] = [[] for _ in entrants]
    for entrant in entrants:
        entrant.warm()
    for i in range(rounds * len(entrants)):
        rates[i % len(entrants)].append(entrants[i % len(entrants)].round())
        yield [Rates(e.name, tuple(r)) for e, r in zip(entrants, rates, strict=True) if r]


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0))
