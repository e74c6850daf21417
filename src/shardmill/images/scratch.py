"""Memory that a thread uses again and again: fresh arrays of an image's size cost a page fault every 4 kB."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.named: dict[str, NDArray[np.uint8]] = {}


_BUFFERS = _Buffers()


def scratch(name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An array with undefined contents, this thread's own until it asks for the same ``name`` again.

    Kept until the thread ends: the largest that was asked for under each name.
    """
    count = math.prod(shape)
    need = count * np.dtype(dtype).itemsize
    buffer = _BUFFERS.named.get(name)
    if buffer is None or len(buffer) < need:
        buffer = _BUFFERS.named[name] = np.empty(need, np.uint8)
    array: NDArray[Any] = buffer[:need].view(dtype).reshape(shape)
    return array
