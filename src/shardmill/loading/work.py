"""What the loader's threads do to one epoch: plan a step, read a chunk of it, decode the chunk into the batch.

A step is cut into chunks of neighbouring rows, so that a chunk's reads join up and one call decodes many images with
the GIL released. Slots remember where each image belongs: the batch comes out in the order of the epoch.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import DataError
from shardmill.images.decode import Crops, DecodeLimits, decode_into, read_sizes, status_error
from shardmill.images.plan import FusedPlan
from shardmill.loading.batch import SlabPool, allocate_huge
from shardmill.loading.order import Order
from shardmill.loading.pipeline import Job
from shardmill.loading.protocols import Reader
from shardmill.loading.steps import Steps
from shardmill.records import NO_LABEL, EncodedImages

OnError = Literal["raise", "skip"]

NO_ID = -1
"""The id of a slot of a padded batch that holds no sample."""

# A read may also fetch the gaps between neighbours and round to blocks; an arena this much larger is never too small.
_SPARE_BYTES_PER_IMAGE = 12 * 1024


@dataclass
class StepBatch:
    """One step under way. ``images`` [rows, ...]; ``ids``, ``labels`` int64 [rows]; ``valid`` bool [rows].

    ``failed``: (slot, error) of the samples that cannot be read or decoded, in no order, with ``on_error="skip"``.
    """

    step: int
    images: NDArray[Any]
    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    valid: NDArray[np.bool_]
    failed: list[tuple[int, DataError]] = field(default_factory=list)


@dataclass(frozen=True)
class Chunk:
    """Rows to read and the slots they go to. ``crops`` is ``None`` where sizes are known only after reading."""

    batch: StepBatch
    ids: NDArray[np.int64]
    slots: NDArray[np.int64]
    crops: Crops | None


@dataclass(frozen=True)
class ReadChunk:
    """A chunk with its bytes. ``arena`` is the buffer behind them, to be used again after decoding."""

    chunk: Chunk
    images: EncodedImages
    arena: NDArray[np.uint8]


@dataclass(frozen=True)
class EpochWork:
    """One epoch's work for one rank. Its methods are called from many threads.

    ``pad``: the last batch gets the full shape. ``arenas``: buffers of encoded bytes at rest.
    """

    reader: Reader
    order: Order
    steps: Steps
    plan: FusedPlan
    seed: int
    epoch: int
    slabs: SlabPool
    arenas: deque[NDArray[np.uint8]]
    chunk_samples: int
    on_error: OnError
    limits: DecodeLimits

    def jobs(self, first_step: int) -> Iterator[Job[StepBatch]]:
        """A job per step, from ``first_step`` on."""
        for step in range(first_step, len(self.steps)):
            yield self.plan_step(step)

    def plan_step(self, step: int) -> Job[StepBatch]:
        """Which rows, where they go and how they are cut; no pixel is touched."""
        ids = self.order.ids(self.epoch, self.steps.positions(step))
        count = len(ids)
        rows = self.steps.batch_size if self.steps.last == "pad" else count
        layout = self.plan.layout
        images = self.slabs.take(layout.batch_shape(rows), layout.buffer_dtype)
        all_ids = np.full(rows, NO_ID, np.int64)
        labels = np.full(rows, NO_LABEL, np.int64)
        all_ids[:count] = ids
        labels[:count] = self.reader.labels[ids]
        images[count:] = 0
        batch = StepBatch(step, images, all_ids, labels, np.arange(rows) < count)

        turn = np.argsort(ids, kind="stable")
        ids = ids[turn]
        crops = self._crops_by_index(ids)
        pieces = -(-count // self.chunk_samples)
        cuts = [count * i // pieces for i in range(pieces + 1)] if pieces else [0]
        chunks = [
            Chunk(batch, ids[a:b], turn[a:b], None if crops is None else _part(crops, a, b))
            for a, b in itertools.pairwise(cuts)
        ]
        return Job(batch, chunks)

    def read(self, chunk: Chunk) -> ReadChunk:
        """The chunk's bytes, checked."""
        need = int(self.reader.image_bytes[chunk.ids].sum(dtype=np.int64)) + _SPARE_BYTES_PER_IMAGE * len(chunk.ids)
        arena = self._arena(need)
        try:
            return ReadChunk(chunk, self.reader.read(chunk.ids, arena), arena)
        except DataError:
            if self.on_error == "raise":
                raise
        return self._read_one_by_one(chunk, arena)

    def decode(self, work: ReadChunk) -> None:
        """The chunk's pixels into its batch. A bad image raises, or is noted, as ``on_error`` says."""
        chunk, images = work.chunk, work.images
        crops = chunk.crops
        if crops is None:
            widths, heights, statuses = read_sizes(images, apply_exif=self.plan.apply_exif, limits=self.limits)
            if statuses.any():
                self._bad(chunk, statuses)
                good = statuses == 0
                chunk, images = _select(chunk, good), _only(images, good)
                widths, heights = widths[good], heights[good]
            crops = self.plan.crops(widths, heights, seed=self.seed, epoch=self.epoch, ids=chunk.ids)
        statuses = decode_into(
            images,
            crops,
            self.plan.layout,
            chunk.batch.images,
            chunk.slots,
            filter=self.plan.filter,
            apply_exif=self.plan.apply_exif,
            limits=self.limits,
        )
        self.arenas.append(work.arena)
        if statuses.any():
            self._bad(chunk, statuses)

    def _crops_by_index(self, ids: NDArray[np.int64]) -> Crops | None:
        # The index holds sizes as stored; after an EXIF turn they may be the other way round.
        if self.plan.apply_exif:
            return None
        widths, heights = self.reader.widths[ids], self.reader.heights[ids]
        if not (widths.all() and heights.all()):
            return None
        return self.plan.crops(widths, heights, seed=self.seed, epoch=self.epoch, ids=ids)

    def _arena(self, need: int) -> NDArray[np.uint8]:
        try:
            arena = self.arenas.pop()
        except IndexError:
            arena = np.empty(0, np.uint8)
        if len(arena) < need:
            arena = np.frombuffer(allocate_huge(need + need // 4), np.uint8)
        return arena

    def _read_one_by_one(self, chunk: Chunk, arena: NDArray[np.uint8]) -> ReadChunk:
        """With ``on_error="skip"``: exactly the samples whose own bytes are wrong are left out."""
        parts: list[NDArray[np.uint8]] = []
        formats = []
        good = np.ones(len(chunk.ids), bool)
        for i in range(len(chunk.ids)):
            try:
                one = self.reader.read(chunk.ids[i : i + 1], arena)
            except DataError as error:
                good[i] = False
                chunk.batch.failed.append((int(chunk.slots[i]), error))
            else:
                parts.append(one.data[one.starts[0] : one.starts[0] + one.sizes[0]].copy())
                formats.append(one.formats)
        sizes = np.array([len(part) for part in parts], np.int64)
        data = np.concatenate([np.empty(0, np.uint8), *parts])
        chunk = _select(chunk, good)
        kinds = np.concatenate([np.empty(0, np.uint8), *formats])
        return ReadChunk(chunk, EncodedImages(data, np.cumsum(sizes) - sizes, sizes, kinds, chunk.ids), arena)

    def _bad(self, chunk: Chunk, statuses: NDArray[np.int32]) -> None:
        for i in np.flatnonzero(statuses).tolist():
            path, key, offset = self.reader.describe(int(chunk.ids[i]))
            error = status_error(int(statuses[i]), path=path, offset=offset, key=key)
            if self.on_error == "raise":
                raise error
            chunk.batch.failed.append((int(chunk.slots[i]), error))


def _part(crops: Crops, a: int, b: int) -> Crops:
    return Crops(crops.left[a:b], crops.top[a:b], crops.width[a:b], crops.height[a:b], crops.flip[a:b])


def _select(chunk: Chunk, good: NDArray[np.bool_]) -> Chunk:
    crops = chunk.crops
    if crops is not None:
        crops = Crops(crops.left[good], crops.top[good], crops.width[good], crops.height[good], crops.flip[good])
    return Chunk(chunk.batch, chunk.ids[good], chunk.slots[good], crops)


def _only(images: EncodedImages, good: NDArray[np.bool_]) -> EncodedImages:
    return EncodedImages(images.data, images.starts[good], images.sizes[good], images.formats[good], images.ids[good])
