"""What the doors ask of a dataset: `shardmill.shards.dataset.Dataset` and its subsets have it."""

from __future__ import annotations

from typing import Protocol, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardmill.records import EncodedImages, Sample


class Samples(Protocol):
    """Samples by row number, grouped in shards. Picklable, safe after fork."""

    def __len__(self) -> int: ...

    def __getitem__(self, i: SupportsIndex, /) -> Sample:
        """Row ``i`` with all its fields."""
        ...

    @property
    def shard_first(self) -> NDArray[np.int64]:
        """int64 [shards + 1]: the rows of shard ``s`` are ``shard_first[s] .. shard_first[s + 1]``."""
        ...

    def describe(self, i: int, /) -> tuple[str, str, int]:
        """Path of the shard, key, and an offset in it, of row ``i``: for an error."""
        ...


class Rows(Samples, Protocol):
    """Samples that hold an image each, with a label or without."""

    def read(self, ids: ArrayLike, /) -> EncodedImages:
        """The encoded images of rows ``ids``, in that order: one planned read."""
        ...

    @property
    def labels(self) -> NDArray[np.int32]:
        """int32 [len]; -1 where a sample has none."""
        ...

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The class names by label, ``None`` where there are numbers only."""
        ...
