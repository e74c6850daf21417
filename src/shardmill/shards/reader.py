"""From rows to encoded images: a plan over the index, one bulk read, one bulk check."""

from __future__ import annotations

from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ChecksumError, IndexFileError
from shardmill.records import EncodedImages, ImageFormat
from shardmill.shards.index import Index
from shardmill.storage.protocols import GetRanges
from shardmill.storage.ranges import FetchPlan, plan_fetches

# Reading on over a gap costs a copy of the gap, a second request costs a system call: about 1 us each at 8 KiB. Members
# of neighbouring samples are 512 to 3,000 bytes apart (headers, padding, the label), so whole windows join up.
MAX_GAP_BYTES = 8192


class Reader(Protocol):
    """Rows of a dataset to encoded images. Thread-safe."""

    def __len__(self) -> int: ...

    def read(self, ids: NDArray[np.int64], out: NDArray[np.uint8] | None = None) -> EncodedImages:
        """The images of rows ``ids``, in that order; ``out`` is used as the buffer where it is large enough."""
        ...


class ShardReader:
    """Reads images of an index's shards from a store by byte ranges.

    ``verify`` compares every image with the crc32c recorded at packing (about 12 us for 110 KB) and raises
    `ChecksumError` naming shard, key and offset.
    """

    def __init__(self, index: Index, store: GetRanges, *, verify: bool) -> None:
        self.index = index
        self.store = store
        self.verify = verify

    def __len__(self) -> int:
        return len(self.index)

    def read(self, ids: NDArray[np.int64], out: NDArray[np.uint8] | None = None) -> EncodedImages:
        """See `Reader`. Neighbouring images are fetched together; each byte is read once."""
        columns = self.index.columns
        starts = columns["image_offset"][ids].astype(np.int64)
        sizes = columns["image_bytes"][ids].astype(np.int64)
        formats = columns["image_format"][ids]
        if (formats > _LAST_FORMAT).any():
            i = int(np.argmax(formats > _LAST_FORMAT))
            self._refuse(int(ids[i]), f"the index has an image format {formats[i]}, which is none")
        plan, data = self._fetch(ids, starts, sizes, out, columns["image_crc32c"])
        return EncodedImages(data, plan.positions, sizes, formats, ids)

    def read_samples(self, ids: NDArray[np.int64]) -> list[memoryview]:
        """The whole byte range of each row's sample, all members with their headers, checked as a whole."""
        columns = self.index.columns
        starts = columns["sample_start"][ids].astype(np.int64)
        sizes = columns["sample_bytes"][ids].astype(np.int64)
        plan, data = self._fetch(ids, starts, sizes, None, columns["sample_crc32c"])
        view = data.data
        return [view[a : a + n] for a, n in zip(plan.positions.tolist(), sizes.tolist(), strict=True)]

    def place(self, i: int) -> tuple[str, str, int]:
        """Shard name, key and image offset of row ``i``: what an error message needs."""
        shard = int(self.index.shard_of(np.array([i]))[0])
        return self.index.shard_names[shard], self.index.keys[i], int(self.index.columns["image_offset"][i])

    def _fetch(
        self,
        ids: NDArray[np.int64],
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        out: NDArray[np.uint8] | None,
        recorded: NDArray[np.uint32],
    ) -> tuple[FetchPlan, NDArray[np.uint8]]:
        shards = self.index.shard_of(ids)
        # Subtracted, not added: an offset near 2**63 must not wrap around.
        room = self.index.shard_bytes[shards].astype(np.int64) - sizes
        outside = (starts < 0) | (sizes < 0) | (starts > room)
        if outside.any():
            row = int(ids[int(np.argmax(outside))])
            self._refuse(row, f"the index points outside the shard of row {row}")
        plan = plan_fetches(shards, starts, sizes, max_gap_bytes=MAX_GAP_BYTES)
        try:
            data = out if out is not None and len(out) >= plan.total else np.empty(plan.total, np.uint8)
        except (MemoryError, ValueError):
            row = int(ids[int(np.argmax(sizes))])
            self._refuse(row, f"there is no memory for {plan.total} bytes at once, {sizes.max()} of them for row {row}")
        crcs = np.empty(len(ids), np.uint32) if self.verify else None
        self.store.get_ranges(self.index.shard_names, plan, data, crcs)
        if crcs is not None and (wrong := np.flatnonzero(crcs != recorded[ids])).size:
            i = int(wrong[0])
            name, key, _ = self.place(int(ids[i]))
            raise ChecksumError(
                f"crc32c is {crcs[i]:08x}, recorded at packing {recorded[ids[i]]:08x}",
                path=name,
                offset=int(starts[i]),
                key=key,
                hint=_HINT,
            )
        return plan, data

    def _refuse(self, row: int, problem: str) -> NoReturn:
        name, key, offset = self.place(row)
        raise IndexFileError(problem, path=name, offset=offset, key=key, hint=_HINT)


_LAST_FORMAT = max(ImageFormat)
_HINT = "run `shardmill verify`, then copy or pack the dataset again"
