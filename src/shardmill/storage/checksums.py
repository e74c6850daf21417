"""crc32c of byte ranges, in bulk. google-crc32c is the reference that the compiled loop is tested against."""

from __future__ import annotations

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from shardmill.native import native


def crc32c_ranges(data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint32]:
    """crc32c (Castagnoli) of ``data[starts[i]:][:sizes[i]]``, uint32 [n]. Without the GIL where the module is built."""
    out = np.empty(len(starts), np.uint32)
    if native is not None:
        native.crc32c_ranges(data, starts, sizes, out)
        return out
    view = data.data
    for i, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        out[i] = google_crc32c.value(bytes(view[start : start + size]))
    return out
