"""A dataset in memory: what the loader asks of a `Reader`, and nothing of shards or storage."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from shardmill.errors import ChecksumError
from shardmill.records import EncodedImages, ImageFormat

I64 = NDArray[np.int64]


def gray_of(row: int) -> int:
    """The gray level of row ``row``'s image."""
    return 20 + row * 7 % 220


def jpeg(row: int, width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (gray_of(row),) * 3).save(out, "JPEG", quality=95)
    return out.getvalue()


@dataclass
class MemoryReader:
    """Flat gray JPEGs; ``bad_bytes`` are rows whose checksum does not match, ``reads`` counts rows read."""

    shard_first: I64
    images: list[bytes]
    labels: NDArray[np.int32]
    widths: NDArray[np.uint16]
    heights: NDArray[np.uint16]
    digest: str = "memory"
    bad_bytes: frozenset[int] = frozenset()
    reads: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def image_bytes(self) -> NDArray[np.uint32]:
        return np.array([len(data) for data in self.images], np.uint32)

    def read(self, ids: I64, out: NDArray[np.uint8] | None = None) -> EncodedImages:
        self.reads += ids.tolist()
        for row in ids.tolist():
            if row in self.bad_bytes:
                path, key, offset = self.describe(row)
                raise ChecksumError("crc32c is wrong", path=path, key=key, offset=offset)
        parts = [np.frombuffer(self.images[row], np.uint8) for row in ids.tolist()]
        sizes = np.array([len(part) for part in parts], np.int64)
        data = np.concatenate([np.empty(0, np.uint8), *parts])
        if out is not None and len(out) >= len(data):
            out[: len(data)] = data
            data = out
        formats = np.full(len(ids), ImageFormat.JPEG, np.uint8)
        return EncodedImages(data, np.cumsum(sizes) - sizes, sizes, formats, ids)

    def describe(self, i: int, /) -> tuple[str, str, int]:
        shard = int(np.searchsorted(self.shard_first, i, side="right")) - 1
        return f"memory-{shard:06d}.tar", f"key{i}", 512 + 1024 * i


def memory_reader(shard_sizes: list[int]) -> MemoryReader:
    count = sum(shard_sizes)
    rng = np.random.default_rng(0)
    widths, heights = rng.integers(16, 48, count), rng.integers(16, 48, count)
    return MemoryReader(
        shard_first=np.concatenate([[0], np.cumsum(shard_sizes)]).astype(np.int64),
        images=[jpeg(row, int(widths[row]), int(heights[row])) for row in range(count)],
        labels=(np.arange(count) % 10).astype(np.int32),
        widths=widths.astype(np.uint16),
        heights=heights.astype(np.uint16),
    )


@pytest.fixture
def make_reader() -> Callable[[list[int]], MemoryReader]:
    return memory_reader


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive(), thread.name
