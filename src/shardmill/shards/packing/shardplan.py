"""The cut over all runs: every shard, its size, and the intervals of positions that workers read for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import DuplicateKeyError, SourceError
from shardmill.shards.packing.cut import Cutter, Limits, SampleTooLargeError
from shardmill.shards.packing.gather import Piece, ShardPlan
from shardmill.shards.packing.position import normal_key
from shardmill.shards.packing.references import Reference, decode_fields
from shardmill.shards.packing.runs import RUN_ROW, RunInfo, RunReader, intervals

_COPIES = 6  # of a row, while an interval is joined and sorted
_PIECE_ROW_MEMORY = 2500  # Python objects of one sample in gather


def plan_shards(
    folder: Path, runs: Sequence[RunInfo], limits: Limits, *, memory_bytes: int, piece_bytes: int, row_bytes: int
) -> Iterator[ShardPlan]:
    """Yields the shards in order. Reads every run's rows once, front to back, ``memory_bytes`` of them at a time.

    Pieces hold at most ``piece_bytes`` of samples (one sample at least), and as many rows as fit ``row_bytes`` of
    memory; they shape reads, never the result. Raises `DuplicateKeyError` naming both places of a key.
    """
    readers = [RunReader(folder, info) for info in runs]
    cutter = Cutter(limits)
    rows_at_once = max(1, memory_bytes // (RUN_ROW.itemsize * _COPIES))
    most_rows = max(1, row_bytes // _PIECE_ROW_MEMORY)
    open_pieces: list[Piece] = []
    index = 0

    def close() -> ShardPlan:
        nonlocal open_pieces, index
        samples = sum(piece.samples for piece in open_pieces)
        size = sum(piece.bytes for piece in open_pieces) + limits.overhead_bytes
        shard = ShardPlan(index, samples, size, tuple(open_pieces))
        open_pieces, index = [], index + 1
        return shard

    firsts = [0] * len(readers)
    for low, high in intervals(sum(info.samples for info in runs), rows_at_once=rows_at_once):
        del low  # every run goes on where it stopped
        ends = [reader.find(high) for reader in readers]
        spans = list(zip(firsts, ends, strict=True))
        firsts = ends
        positions, sizes, order = _sorted(readers, spans)
        _refuse_duplicates(readers, spans, positions, order)
        try:
            shard_ends = cutter.feed(sizes)
        except SampleTooLargeError as error:
            key, place = _who(readers, spans, int(order[error.row]))
            raise SourceError(str(SampleTooLargeError(0, error.size, limits, f"sample {key!r} ({place})"))) from None
        at = 0
        for end in [*shard_ends, len(sizes)]:
            open_pieces += _pieces(positions, sizes, at, end, high, piece_bytes=piece_bytes, most_rows=most_rows)
            at = end
            if end < len(sizes):
                yield close()
    if open_pieces:
        yield close()


def _sorted(
    readers: Sequence[RunReader], spans: Sequence[tuple[int, int]]
) -> tuple[NDArray[Any], NDArray[np.uint64], NDArray[np.int64]]:
    """Positions and sizes of the spans in order, and for each its place in the concatenation of the spans."""
    positions, sizes = [np.empty(0, "S16")], [np.empty(0, np.uint64)]
    for reader, (first, end) in zip(readers, spans, strict=True):
        rows = reader.rows(first, end)
        positions.append(rows["position"].copy())
        sizes.append(rows["total"].copy())
    joined = np.concatenate(positions)
    order = np.argsort(joined, kind="stable")
    return joined[order], np.concatenate(sizes)[order], order


def _pieces(
    positions: NDArray[Any], sizes: NDArray[np.uint64], first: int, end: int, high: bytes | None, *,
    piece_bytes: int, most_rows: int,
) -> Iterator[Piece]:  # fmt: skip
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(sizes[first:end], dtype=np.uint64)])
    at = 0
    while at < end - first:
        fit = int(np.searchsorted(sums, sums[at] + np.uint64(piece_bytes), side="right")) - 1
        stop = min(max(fit, at + 1), at + most_rows)
        low = bytes(positions[first + at]).ljust(16, b"\0")
        after = bytes(positions[first + stop]).ljust(16, b"\0") if first + stop < len(positions) else high
        yield Piece(low, after, stop - at, int(sums[stop] - sums[at]))
        at = stop


def _refuse_duplicates(
    readers: Sequence[RunReader], spans: Sequence[tuple[int, int]], positions: NDArray[Any], order: NDArray[np.int64]
) -> None:
    """Equal keys have equal positions, so they stand side by side."""
    same = np.flatnonzero(positions[1:] == positions[:-1])
    if not len(same):
        return
    i = int(same[0])
    (one, here), (other, there) = (_who(readers, spans, int(order[j])) for j in (i, i + 1))
    if normal_key(one) != normal_key(other):
        raise SourceError(f"keys {one!r} and {other!r} have one position: pack with another seed")
    more = f" (and {len(same) - 1} more pairs)" if len(same) > 1 else ""
    how = "" if one == other else ", which are equal in Unicode NFC"
    raise DuplicateKeyError(
        f"key {one!r} comes twice{more}: {here} and {there}{how}; rename one, or pack the parts separately"
    )


def _who(readers: Sequence[RunReader], spans: Sequence[tuple[int, int]], place: int) -> tuple[str, str]:
    """The key of a row of the concatenated spans, and in words where it came from."""
    for reader, (first, end) in zip(readers, spans, strict=True):
        if place < end - first:
            part = reader.slice(first + place, first + place + 1)
            for value in decode_fields(part.fields(0) or b"[]").values():
                if isinstance(value, Reference):
                    return part.key(0), f"{value.path} @ {value.start}"
            info = reader.info
            return part.key(0), f"sample {int(part.rows['ordinal'][0])} of part {info.range_index + 1} of the source"
        place -= end - first
    raise AssertionError("the place is outside the spans")
