"""What the loader's threads do to one epoch: plan a step, read a chunk of it, decode the chunk into the batch.

A step is cut into chunks of neighbouring rows, so that their reads join up, and a chunk that is read into pieces, each
decoded by one call with the GIL released. Planning a read takes some 100 us of Python whatever its size, a
call of the decoder 30: hence many images a read, and fewer a call, so that all threads have work. Slots remember where
each image belongs: the batch comes out in the order of the epoch.
"""

from __future__ import annotations

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
from shardmill.loading.order import Order, draws_of
from shardmill.loading.pipeline import Job
from shardmill.loading.protocols import Column, Reader
from shardmill.loading.steps import Steps
from shardmill.records import NO_LABEL, EncodedImages

OnError = Literal["raise", "skip"]

NO_ID = -1
"""The id of a slot of a padded batch that holds no sample."""

# Samples planned in one go: some hundred numpy calls, of which most cost the same for 256 samples and for 1,024.
_PLANNED_TOGETHER = 1024

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
    """Rows to read and the slots they go to. ``crops`` is ``None`` where sizes are known only after reading.

    ``draws``: what random draws are keyed by, the rows but where a row may come again in an epoch (see `draws_of`).
    """

    batch: StepBatch
    ids: NDArray[np.int64]
    draws: NDArray[np.int64]
    slots: NDArray[np.int64]
    crops: Crops | None


class Arena:
    """A buffer of encoded bytes, which goes back to the others when the last piece that lies in it is decoded."""

    __slots__ = ("_home", "buffer")

    def __init__(self, buffer: NDArray[np.uint8], home: deque[NDArray[np.uint8]]) -> None:
        self.buffer = buffer
        self._home = home

    def __del__(self) -> None:
        self._home.append(self.buffer)


@dataclass(frozen=True)
class Piece:
    """A part of a chunk with its bytes; ``arena`` keeps them where they are."""

    chunk: Chunk
    images: EncodedImages
    arena: Arena


@dataclass(frozen=True)
class Columns:
    """What is asked of the index for every sample. Taken once: a view of some rows makes its columns when asked."""

    labels: Column[np.int32]
    widths: Column[np.uint16]
    heights: Column[np.uint16]
    image_bytes: Column[np.uint32]

    @classmethod
    def of(cls, reader: Reader) -> Columns:
        """The columns of a dataset."""
        return cls(reader.labels, reader.widths, reader.heights, reader.image_bytes)


@dataclass(frozen=True)
class EpochWork:
    """One epoch's work for one rank. Its methods are called from many threads.

    ``arenas``: buffers of encoded bytes at rest. ``read_samples``, ``decode_samples``: at most so many a call.
    """

    reader: Reader
    columns: Columns
    order: Order
    steps: Steps
    plan: FusedPlan
    seed: int
    epoch: int
    slabs: SlabPool
    arenas: deque[NDArray[np.uint8]]
    read_samples: int
    decode_samples: int
    on_error: OnError
    limits: DecodeLimits

    def jobs(self, first_step: int) -> Iterator[Job[StepBatch]]:
        """A job per step, from ``first_step`` on."""
        together = max(1, _PLANNED_TOGETHER // self.steps.batch_size)
        for first in range(first_step, len(self.steps), together):
            yield from self._plan(range(first, min(first + together, len(self.steps))))

    def _plan(self, steps: range) -> Iterator[Job[StepBatch]]:
        """Which rows, where they go and how they are cut, for a few steps; no pixel is touched."""
        positions = [self.steps.positions(step) for step in steps]
        planned = np.concatenate(positions)
        ids = self.order.ids(self.epoch, planned)
        draws = draws_of(self.order, self.epoch, planned, ids)
        labels = self.columns.labels[ids].astype(np.int64)
        crops = self._crops_by_index(ids, draws)
        end = 0
        for step, own in zip(steps, positions, strict=True):
            start, end = end, end + len(own)
            batch = self._batch(step, ids[start:end], labels[start:end])
            # Neighbours in a shard are read together.
            slots = np.argsort(ids[start:end])
            turn = slots + start
            whole = Chunk(batch, ids[turn], draws[turn], slots, None if crops is None else _crops_of(crops, turn))
            chunks = [_part(whole, part) for part in _slices(len(own), self.read_samples)]
            yield Job(batch, chunks)

    def _batch(self, step: int, ids: NDArray[np.int64], labels: NDArray[np.int64]) -> StepBatch:
        """The batch to fill, with whatever padding it needs at its end."""
        count = len(ids)
        rows = self.steps.batch_size if self.steps.last == "pad" else count
        layout = self.plan.layout
        images = self.slabs.take(layout.batch_shape(rows), layout.buffer_dtype)
        if count == rows:
            return StepBatch(step, images, ids.copy(), labels.copy(), np.ones(rows, bool))
        images[count:] = 0
        fill = rows - count
        return StepBatch(
            step,
            images,
            np.concatenate([ids, np.full(fill, NO_ID)]),
            np.concatenate([labels, np.full(fill, NO_LABEL)]),
            np.arange(rows) < count,
        )

    def read(self, chunk: Chunk) -> list[Piece]:
        """The chunk's bytes, checked, in pieces to decode."""
        need = int(self.columns.image_bytes[chunk.ids].sum(dtype=np.int64)) + _SPARE_BYTES_PER_IMAGE * len(chunk.ids)
        arena = self._arena(need)
        try:
            images = self.reader.read(chunk.ids, arena.buffer)
        except DataError:
            if self.on_error == "raise":
                raise
            chunk, images = self._read_one_by_one(chunk, arena.buffer)
        count = len(images)
        return [Piece(_part(chunk, part), _some(images, part), arena) for part in _slices(count, self.decode_samples)]

    def decode(self, piece: Piece) -> None:
        """The piece's pixels into its batch. A bad image raises, or is noted, as ``on_error`` says."""
        chunk, images = piece.chunk, piece.images
        crops = chunk.crops
        if crops is None:
            widths, heights, statuses = read_sizes(images, apply_exif=self.plan.apply_exif, limits=self.limits)
            if statuses.any():
                self._bad(chunk, statuses)
                good = statuses == 0
                chunk, images = _part(chunk, good), _some(images, good)
                widths, heights = widths[good], heights[good]
            crops = self.plan.crops(widths, heights, seed=self.seed, epoch=self.epoch, ids=chunk.draws)
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
        if statuses.any():
            self._bad(chunk, statuses)

    def _crops_by_index(self, ids: NDArray[np.int64], draws: NDArray[np.int64]) -> Crops | None:
        # The index holds sizes as stored; after an EXIF turn they may be the other way round.
        if self.plan.apply_exif:
            return None
        widths, heights = self.columns.widths[ids], self.columns.heights[ids]
        if not (widths.all() and heights.all()):
            return None
        return self.plan.crops(widths, heights, seed=self.seed, epoch=self.epoch, ids=draws)

    def _arena(self, need: int) -> Arena:
        try:
            buffer = self.arenas.pop()
        except IndexError:
            buffer = np.empty(0, np.uint8)
        if len(buffer) < need:
            # Pages of the spare quarter cost nothing until a larger chunk touches them.
            buffer = np.frombuffer(allocate_huge(need + need // 4), np.uint8)
        return Arena(buffer, self.arenas)

    def _read_one_by_one(self, chunk: Chunk, buffer: NDArray[np.uint8]) -> tuple[Chunk, EncodedImages]:
        """With ``on_error="skip"``: exactly the samples whose own bytes are wrong are left out."""
        parts: list[NDArray[np.uint8]] = []
        formats = []
        good = np.ones(len(chunk.ids), bool)
        for i in range(len(chunk.ids)):
            try:
                one = self.reader.read(chunk.ids[i : i + 1], buffer)
            except DataError as error:
                good[i] = False
                chunk.batch.failed.append((int(chunk.slots[i]), error))
            else:
                parts.append(one.data[one.starts[0] : one.starts[0] + one.sizes[0]].copy())
                formats.append(one.formats)
        sizes = np.array([len(part) for part in parts], np.int64)
        data = np.concatenate([np.empty(0, np.uint8), *parts])
        chunk = _part(chunk, good)
        kinds = np.concatenate([np.empty(0, np.uint8), *formats])
        return chunk, EncodedImages(data, np.cumsum(sizes) - sizes, sizes, kinds, chunk.ids)

    def _bad(self, chunk: Chunk, statuses: NDArray[np.int32]) -> None:
        for i in np.flatnonzero(statuses).tolist():
            path, key, offset = self.reader.describe(int(chunk.ids[i]))
            error = status_error(int(statuses[i]), path=path, offset=offset, key=key)
            if self.on_error == "raise":
                raise error
            chunk.batch.failed.append((int(chunk.slots[i]), error))


def _slices(count: int, most: int) -> list[slice]:
    """``count`` things in as few parts as possible of at most ``most``, as equal as can be."""
    parts = -(-count // most)
    return [slice(count * i // parts, count * (i + 1) // parts) for i in range(parts)]


def _part(chunk: Chunk, which: slice | NDArray[np.bool_]) -> Chunk:
    crops = chunk.crops
    if crops is not None:
        crops = _crops_of(crops, which)
    return Chunk(chunk.batch, chunk.ids[which], chunk.draws[which], chunk.slots[which], crops)


def _crops_of(crops: Crops, which: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Crops:
    return Crops(crops.left[which], crops.top[which], crops.width[which], crops.height[which], crops.flip[which])


def _some(images: EncodedImages, which: slice | NDArray[np.bool_]) -> EncodedImages:
    return EncodedImages(
        images.data, images.starts[which], images.sizes[which], images.formats[which], images.ids[which]
    )
