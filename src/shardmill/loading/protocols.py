"""What the loader asks of a dataset."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardmill.records import EncodedImages

T = TypeVar("T", bound=np.generic, covariant=True)


class Column(Protocol[T]):
    """A value for every row: an array, or something that makes the values asked for, as a mix of datasets does."""

    def __len__(self) -> int: ...

    def __getitem__(self, ids: NDArray[np.int64], /) -> np.ndarray[Any, np.dtype[T]]:
        """[n]: the values of rows ``ids``."""
        ...


class Reader(Protocol):
    """A dataset of encoded images by row number. `shardmill.open` gives one. Thread-safe."""

    def __len__(self) -> int: ...

    def read(self, ids: NDArray[np.int64], out: NDArray[np.uint8] | None = None) -> EncodedImages:
        """The images of rows ``ids``, in that order, checked against their checksums.

        ``out`` is used as the buffer where it is large enough: the result's ``data`` may be ``out`` then.
        """
        ...

    @property
    def shard_first(self) -> NDArray[np.int64]:
        """int64 [shards + 1], ascending from 0: shard ``s`` holds rows ``shard_first[s] .. shard_first[s + 1]``."""
        ...

    @property
    def labels(self) -> Column[np.int32]:
        """int32 [len], -1 where a sample has none. May be memory-mapped."""
        ...

    @property
    def widths(self) -> Column[np.uint16]:
        """Pixels before any EXIF turn, uint16 [len]; 0 where not known, then the loader looks into the header."""
        ...

    @property
    def heights(self) -> Column[np.uint16]:
        """As ``widths``."""
        ...

    @property
    def image_bytes(self) -> Column[np.uint32]:
        """Size of every encoded image, uint32 [len]."""
        ...

    def describe(self, i: int, /) -> tuple[str, str, int]:
        """Path of the shard, key, and byte offset of the image of row ``i``: for error messages."""
        ...

    @property
    def digest(self) -> str:
        """What a saved loader state calls this dataset: changes when any row does."""
        ...
