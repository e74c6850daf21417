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

    def get_ranges(
        self, paths: Sequence[str], plan: FetchPlan, out: NDArray[np.uint8], crcs: NDArray[np.uint32] | None = None
    ) -> None:
        """Reads fetch ``i`` of ``plan`` into ``out[plan.out_starts[i]:][:plan.sizes[i]]``.

        ``crcs``, uint32 [wanted], is filled with the crc32c of each wanted range, in the order they were asked for:
        the store does it because the bytes are still in the processor's cache then.

        ``plan.files`` index into ``paths``. Raises `DataError` naming path and offset where a file ends early, and
        `OSError` naming the path where it cannot be read. Cost: one request per fetch.
        """
        ...
