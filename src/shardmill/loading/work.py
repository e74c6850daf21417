"""What the loader's threads do to one epoch: plan a step, read a chunk of it, decode the chunk into the batch.

A step is cut into chunks of neighbouring rows, so that their reads join up, and a chunk that is read into pieces, each
decoded by one call with the GIL released. Planning a read takes some 100 us of Python whatever its size, a
call of the decoder 30: hence many images a read, and fewer a call, so that all threads have work. Slots remember where
each image belongs: the batch comes out in the order of the epoch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import DataError
from shardmill.images.decode import Crops, DecodeLimits, read_sizes, status_error
from shardmill.images.mix import mix_images, plan_mix, soft_labels
from shardmill.images.plan import FusedPlan
from shardmill.images.render import render
from shardmill.images.sampling import Draws
from shardmill.loading.batch import SlabPool, allocate_huge
from shardmill.loading.order import Order, ids_and_draws
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
    """One step under way. ``views``: an array [rows, ...] for each output of the recipe. ``ids``, ``labels`` int64
    [rows], the labels float32 [rows, classes] once they are mixed; ``valid`` bool [rows]. ``draws`` int64: what
    the random draws of its samples are keyed by. ``undone``: samples that no thread has finished yet, under ``lock``.

    ``failed``: (slot, error) of the samples that cannot be read or decoded, in no order, with ``on_error="skip"``.
    """

    step: int
    views: tuple[NDArray[Any], ...]
    ids: NDArray[np.int64]
    labels: NDArray[Any]
    valid: NDArray[np.bool_]
    undone: int
    draws: NDArray[np.int64]
    failed: list[tuple[int, DataError]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class Chunk:
    """Rows to read and the slots they go to. ``crops``: of every view; ``None`` where sizes are known only later.

    ``draws``: what random draws are keyed by: the rows, but where one may come again (see `ids_and_draws`).
    """

    batch: StepBatch
    ids: NDArray[np.int64]
    draws: NDArray[np.int64]
    slots: NDArray[np.int64]
    crops: tuple[Crops, ...] | None


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
    plans: tuple[FusedPlan, ...]
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
        ids, draws = ids_and_draws(self.order, self.epoch, np.concatenate(positions))
        labels = self.columns.labels[ids].astype(np.int64)
        crops = self._crops_by_index(ids, draws)
        end = 0
        for step, own in zip(steps, positions, strict=True):
            start, end = end, end + len(own)
            batch = self._batch(step, ids[start:end], labels[start:end], draws[start:end])
            # Neighbours in a shard are read together.
            slots = np.argsort(ids[start:end])
            turn = slots + start
            whole = Chunk(batch, ids[turn], draws[turn], slots, _crops_of(crops, turn))
            chunks = [_part(whole, part) for part in _slices(len(own), self.read_samples)]
            yield Job(batch, chunks)

    def _batch(
        self, step: int, ids: NDArray[np.int64], labels: NDArray[np.int64], draws: NDArray[np.int64]
    ) -> StepBatch:
        """The batch to fill, with whatever padding it needs at its end."""
        count = len(ids)
        rows = self.steps.batch_size if self.steps.last == "pad" else count
        views = take_views(self.slabs, self.plans, rows)
        if not count and self.plans[0].mix:
            # Nobody finishes the last of no samples; the labels have their form all the same.
            labels = np.zeros((0, self.plans[0].mix[0].classes), np.float32)
        if count == rows:
            return StepBatch(step, views, ids.copy(), labels.copy(), np.ones(rows, bool), count, draws)
        for view in views:
            view[count:] = 0
        fill = rows - count
        return StepBatch(
            step,
            views,
            np.concatenate([ids, np.full(fill, NO_ID)]),
            np.concatenate(
                [labels, np.full((fill, *labels.shape[1:]), 0 if labels.ndim > 1 else NO_LABEL, labels.dtype)]
            ),
            np.arange(rows) < count,
            count,
            draws,
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
            asked = len(chunk.ids)
            chunk, images = self._read_one_by_one(chunk, arena.buffer)
            self._done(chunk.batch, asked - len(images))
        count = len(images)
        return [Piece(_part(chunk, part), _some(images, part), arena) for part in _slices(count, self.decode_samples)]

    def decode(self, piece: Piece) -> None:
        """The piece's pixels into its batch. A bad image raises, or is noted, as ``on_error`` says."""
        self._decode(piece.chunk, piece.images)
        self._done(piece.chunk.batch, len(piece.images))

    def _decode(self, chunk: Chunk, images: EncodedImages) -> None:
        crops = chunk.crops
        if crops is None:
            widths, heights, statuses = read_sizes(images, apply_exif=self.plans[0].apply_exif, limits=self.limits)
            if statuses.any():
                self._bad(chunk, statuses)
                good = statuses == 0
                chunk, images = _part(chunk, good), _some(images, good)
                widths, heights = widths[good], heights[good]
            crops = self._crops(widths, heights, chunk.draws)
        for plan, view, boxes in zip(self.plans, chunk.batch.views, crops, strict=True):
            statuses = render(
                plan,
                images,
                boxes,
                view,
                chunk.slots,
                seed=self.seed,
                epoch=self.epoch,
                ids=chunk.draws,
                limits=self.limits,
            )
            if statuses.any():
                # What one view cannot show no view can.
                self._bad(chunk, statuses)
                return

    def _done(self, batch: StepBatch, rows: int) -> None:
        """``rows`` more are finished, for better or worse; whoever finishes the last mixes the batch."""
        plan = self.plans[0]
        if not plan.mix:
            return
        with batch.lock:
            batch.undone -= rows
            if batch.undone or not rows:
                return
        count = int(batch.valid.sum())
        usable = np.ones(count, bool)
        usable[[slot for slot, _ in batch.failed]] = False
        draws = Draws(self.seed, self.epoch, batch.draws)
        lanes = self.steps.lanes // self.steps.world_size
        mix = plan_mix(plan.mix, plan.layout, draws, step=batch.step, lanes=lanes, usable=usable)
        mix_images(mix, batch.views[0][:count], plan.layout)
        labels = np.zeros((len(batch.ids), plan.mix[0].classes), np.float32)
        labels[:count] = soft_labels(mix, batch.labels[:count], labels.shape[1])
        batch.labels = labels

    def _crops(
        self, widths: NDArray[np.integer], heights: NDArray[np.integer], draws: NDArray[np.int64]
    ) -> tuple[Crops, ...]:
        return tuple(plan.crops(widths, heights, seed=self.seed, epoch=self.epoch, ids=draws) for plan in self.plans)

    def _crops_by_index(self, ids: NDArray[np.int64], draws: NDArray[np.int64]) -> tuple[Crops, ...] | None:
        # The index holds sizes as stored; after an EXIF turn they may be the other way round.
        if self.plans[0].apply_exif:
            return None
        widths, heights = self.columns.widths[ids], self.columns.heights[ids]
        if not (widths.all() and heights.all()):
            return None
        return self._crops(widths, heights, draws)

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


def batch_bytes(plans: Sequence[FusedPlan], rows: int) -> int:
    """What the slab of a batch of ``rows`` has to hold."""
    return sum(_padded_bytes(plan, rows) for plan in plans)


def take_views(slabs: SlabPool, plans: Sequence[FusedPlan], rows: int) -> tuple[NDArray[Any], ...]:
    """An array of ``rows`` images for each output, one after the other in one slab; undefined contents."""
    if len(plans) == 1:
        layout = plans[0].layout
        return (slabs.take(layout.batch_shape(rows), layout.buffer_dtype),)
    slab = slabs.take((batch_bytes(plans, rows),), np.dtype(np.uint8))
    views, start = [], 0
    for plan in plans:
        shape, dtype = plan.layout.batch_shape(rows), plan.layout.buffer_dtype
        views.append(slab[start : start + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape))
        start += _padded_bytes(plan, rows)
    return tuple(views)


def _padded_bytes(plan: FusedPlan, rows: int) -> int:
    size = int(np.prod(plan.layout.batch_shape(rows))) * plan.layout.buffer_dtype.itemsize
    # Whole cache lines, so that each view begins on one as the slab does.
    return -(-size // 64) * 64


def _slices(count: int, most: int) -> list[slice]:
    """``count`` things in as few parts as possible of at most ``most``, as equal as can be."""
    parts = -(-count // most)
    return [slice(count * i // parts, count * (i + 1) // parts) for i in range(parts)]


def _part(chunk: Chunk, which: slice | NDArray[np.bool_]) -> Chunk:
    return Chunk(chunk.batch, chunk.ids[which], chunk.draws[which], chunk.slots[which], _crops_of(chunk.crops, which))


def _crops_of(
    crops: tuple[Crops, ...] | None, which: slice | NDArray[np.bool_] | NDArray[np.intp]
) -> tuple[Crops, ...] | None:
    return None if crops is None else tuple(boxes.part(which) for boxes in crops)


def _some(images: EncodedImages, which: slice | NDArray[np.bool_]) -> EncodedImages:
    return EncodedImages(
        images.data, images.starts[which], images.sizes[which], images.formats[which], images.ids[which]
    )
