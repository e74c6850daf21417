"""What the stages ask of storage: one verb each, so that a function asks for exactly what it uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardmill.storage.ranges import FetchPlan


class Get(Protocol):
    """Whole small objects."""

    def get(self, path: str) -> bytes:
        """All bytes of ``path``. Raises `FileNotFoundError`. Cost: one request."""
        ...


class GetRanges(Protocol):
    """Many byte ranges of many objects in one call, into the caller's buffer. Thread-safe."""

    def get_ranges(self, paths: Sequence[str], plan: FetchPlan, out: NDArray[np.uint8]) -> None:
        """Reads fetch ``i`` of ``plan`` into ``out[plan.out_starts[i]:][:plan.sizes[i]]``.

        ``plan.files`` index into ``paths``. Raises `DataError` naming path and offset where a file ends early, and
        `OSError` naming the path where it cannot be read. Cost: one request per fetch.
        """
        ...
