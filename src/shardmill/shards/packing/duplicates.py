"""Images that come more than once: reported, never dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BYTES_PER_ROW = 40


@dataclass(frozen=True, slots=True)
class Identical:
    """``extra``: images less distinct images. ``example``: keys of two equal ones."""

    extra: int
    example: tuple[str, str]


def find_identical(
    load: Callable[[int], tuple[NDArray[Any], list[str]]], *, shards: int, samples: int, memory_bytes: int
) -> Identical | None:
    """Images that agree in size and crc32c. ``load(i)``: rows and keys of shard ``i``.

    Among a million different images of about 100 KB, the chance that any two agree by accident is about 1 in 1,000.
    ``None`` where there is none, or where the rows of all samples do not fit ``memory_bytes``. Reads no image.
    """
    if samples * _BYTES_PER_ROW > memory_bytes:
        return None
    marks = np.empty(samples, np.uint64)
    firsts = [0]
    for i in range(shards):
        rows, _ = load(i)
        end = firsts[-1] + len(rows)
        marks[firsts[-1] : end] = (rows["image_crc32c"].astype(np.uint64) << np.uint64(32)) | rows["image_bytes"]
        firsts.append(end)
    order = np.argsort(marks, kind="stable")
    ordered = marks[order]
    equal = (ordered[1:] == ordered[:-1]) & ((ordered[1:] & np.uint64(0xFFFFFFFF)) != 0)
    pairs = np.flatnonzero(equal)
    if not len(pairs):
        return None

    def key(row: int) -> str:
        shard = int(np.searchsorted(np.array(firsts), row, side="right")) - 1
        return load(shard)[1][row - firsts[shard]]

    one, other = sorted(key(int(order[pairs[0] + i])) for i in (0, 1))
    return Identical(len(pairs), (one, other))
