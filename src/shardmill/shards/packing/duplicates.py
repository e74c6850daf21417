"""Images that come more than once: reported, never dropped."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST_CONFIRMED = 20_000
_BYTES_PER_ROW = 40


@dataclass(frozen=True, slots=True)
class Identical:
    """``extra``: images less distinct images. ``example``: keys of two equal ones."""

    extra: int
    example: tuple[str, str]


def find_identical(
    shards: Sequence[Path],
    load: Callable[[int], tuple[NDArray[Any], list[str]]],
    *,
    samples: int,
    memory_bytes: int,
) -> Identical | None:
    """Images with equal bytes. ``load(i)``: rows and keys of shard ``i``.

    First by crc32c and size, from the rows alone; then by sha256 of what those left, read from the shards. ``None``
    where there is none, or where the rows of all samples do not fit ``memory_bytes`` or too many images are alike.
    """
    if samples * _BYTES_PER_ROW > memory_bytes:
        return None
    marks = np.empty(samples, np.uint64)
    firsts = [0]
    for i in range(len(shards)):
        rows, _ = load(i)
        end = firsts[-1] + len(rows)
        marks[firsts[-1] : end] = (rows["image_crc32c"].astype(np.uint64) << np.uint64(32)) | rows["image_bytes"]
        firsts.append(end)
    order = np.argsort(marks, kind="stable")
    ordered = marks[order]
    equal = ordered[1:] == ordered[:-1]
    equal &= (ordered[1:] & np.uint64(0xFFFFFFFF)) != 0
    candidates = np.unique(np.concatenate([order[1:][equal], order[:-1][equal]]))
    if not 0 < len(candidates) <= _MOST_CONFIRMED:
        return None
    found: dict[bytes, list[str]] = defaultdict(list)
    which = np.searchsorted(np.array(firsts), candidates, side="right") - 1
    for shard in np.unique(which).tolist():
        rows, keys = load(shard)
        with shards[shard].open("rb", buffering=0) as file:
            for row in (candidates[which == shard] - firsts[shard]).tolist():
                data = os.pread(file.fileno(), int(rows["image_bytes"][row]), int(rows["image_offset"][row]))
                found[hashlib.sha256(data).digest()].append(keys[row])
    groups = [keys for keys in found.values() if len(keys) > 1]
    if not groups:
        return None
    example = min(tuple(sorted(keys)[:2]) for keys in groups)
    return Identical(sum(len(keys) - 1 for keys in groups), (example[0], example[1]))
