"""Runs: what scatter leaves in the scratch folder and gather reads, each sorted by position.

A run is four files of one name: ``.rows`` (`RUN_ROW` array), ``.text`` (keys, and where the bytes of a reference lie),
``.data`` (finished tar bytes of the samples, for streamed sources) and ``.json``, renamed into place last: a run
without it does not exist. Sorted runs let gather read any interval of positions with one read per run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ShardmillError

POSITION: Final = "S16"
"""Positions compare as bytes; numpy cuts final NULs, which changes no comparison of strings of one length."""

RUN_ROW: Final = np.dtype(
    [
        ("position", POSITION),
        ("total", "<u8"),  # bytes in the shard, the added cls member included
        ("stored", "<u8"),  # bytes in .data; 0 for a reference
        ("data_start", "<u8"),
        ("text_start", "<u8"),
        ("image_start", "<u8"),  # from the sample's first header
        ("image_bytes", "<u4"),
        ("image_crc32c", "<u4"),
        ("stored_crc32c", "<u4"),
        ("width", "<u2"),
        ("height", "<u2"),
        ("image_format", "u1"),
        ("flags", "u1"),
        ("key_bytes", "<u4"),
        ("fields_bytes", "<u4"),
        ("label", "<i4"),
        ("class_index", "<i4"),  # into the run's own list of classes; -1: no class name
        ("ordinal", "<u8"),  # place in the source range, for messages
    ]
)
ADD_CLS: Final = 1
LYING_EXTENSION: Final = 2

_IOV_MAX = 512


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One finished run, as its ``.json`` says. ``consumed``: samples of the range in this run and those before."""

    range_index: int
    number: int
    samples: int
    consumed: int
    total_bytes: int
    data_bytes: int
    text_bytes: int
    classes: tuple[str, ...] = field(repr=False)
    largest_label: int = -1  # of the samples without a class name

    @property
    def name(self) -> str:
        """File name without suffix; sorts by range, then number."""
        return f"{self.range_index:05d}-{self.number:06d}"


def read_info(path: Path) -> RunInfo:
    """Reads one ``.json``; the names of the other files follow from it."""
    body = json.loads(path.read_bytes())
    return RunInfo(**{**body, "classes": tuple(body["classes"])})


def list_runs(folder: Path, range_index: int | None = None) -> list[RunInfo]:
    """The finished runs in ``folder``, of one range or of all, in order."""
    pattern = "*.json" if range_index is None else f"{range_index:05d}-*.json"
    return [read_info(path) for path in sorted(folder.glob(pattern))]


def write_run(
    folder: Path, info: RunInfo, rows: NDArray[Any], texts: Sequence[bytes], data: Sequence[memoryview]
) -> None:
    """Writes one run; ``rows``, ``texts`` and ``data`` are in position order and agree in their offsets.

    Not synced: a killed process leaves the page cache whole, and after a crash of the machine runs are made again
    (the journal knows the boot). Syncing them would cost as much as writing the dataset itself.
    """
    _write(folder / f"{info.name}.rows", [rows.view(np.uint8).data])
    _write(folder / f"{info.name}.text", [memoryview(text) for text in texts])
    if data:
        _write(folder / f"{info.name}.data", data)
    temporary = folder / f".{info.name}.json.tmp"
    _write(temporary, [memoryview(json.dumps(asdict(info)).encode())])
    temporary.replace(folder / f"{info.name}.json")


def _write(path: Path, pieces: Sequence[memoryview]) -> None:
    # O_NOFOLLOW: a scratch folder may be shared, and a link planted there must not redirect the write.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, pieces, path)
    finally:
        os.close(fd)


def write_all(fd: int, pieces: Sequence[memoryview], path: Path) -> None:
    """``writev`` until everything is written; a full disk names ``path``."""
    try:
        for first in range(0, len(pieces), _IOV_MAX):
            batch = [piece for piece in pieces[first : first + _IOV_MAX] if piece.nbytes]
            while batch:
                written = os.writev(fd, batch)
                while batch and written >= batch[0].nbytes:
                    written -= batch.pop(0).nbytes
                if written:
                    batch[0] = batch[0][written:]
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


@dataclass(frozen=True)
class RunSlice:
    """Rows of one run between two positions, with their text. ``text_start``: offset of ``text`` in the file."""

    info: RunInfo
    rows: NDArray[Any] = field(repr=False)
    text: bytes = field(repr=False)
    text_start: int

    def key(self, i: int) -> str:
        """The key of row ``i`` of this slice."""
        start = int(self.rows["text_start"][i]) - self.text_start
        return self.text[start : start + int(self.rows["key_bytes"][i])].decode()

    def fields(self, i: int) -> bytes:
        """Where the fields of row ``i`` lie, as `references` wrote it."""
        start = int(self.rows["text_start"][i]) - self.text_start + int(self.rows["key_bytes"][i])
        return self.text[start : start + int(self.rows["fields_bytes"][i])]


class RunReader:
    """One run, read by interval of positions. Holds two descriptors between `open` and `close`."""

    def __init__(self, folder: Path, info: RunInfo) -> None:
        self.info = info
        self.data_path = folder / f"{info.name}.data"
        self._rows_path = folder / f"{info.name}.rows"
        self._text_path = folder / f"{info.name}.text"
        self._found: tuple[bytes, int] = (b"", 0)

    def find(self, position: bytes | None) -> int:
        """The first row at or after ``position``; all rows for ``None``. O(log rows) reads of 16 bytes.

        Not through a memory map: its pages would count as this process's memory, for a column that may be gigabytes.
        """
        if position is None or position == self._found[0]:
            return self.info.samples if position is None else self._found[1]
        low, high = 0, self.info.samples
        fd = os.open(self._rows_path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while low < high:
                middle = (low + high) // 2
                if os.pread(fd, 16, middle * RUN_ROW.itemsize) < position:
                    low = middle + 1
                else:
                    high = middle
        finally:
            os.close(fd)
        # Pieces follow one another: the end of one is the beginning of the next.
        self._found = position, low
        return low

    def rows(self, first: int, end: int) -> NDArray[Any]:
        """Rows ``first`` to ``end`` (exclusive)."""
        if first == end:
            return np.empty(0, RUN_ROW)
        rows = np.fromfile(self._rows_path, RUN_ROW, end - first, offset=first * RUN_ROW.itemsize)
        if len(rows) != end - first:
            raise ShardmillError(f"{self._rows_path} is shorter than it was: delete the scratch folder and pack again")
        return rows

    def slice(self, first: int, end: int) -> RunSlice:
        """Rows ``first`` to ``end`` with their text: two reads."""
        rows = self.rows(first, end)
        if not len(rows):
            return RunSlice(self.info, rows, b"", 0)
        start = int(rows["text_start"][0])
        stop = int(rows["text_start"][-1]) + int(rows["key_bytes"][-1]) + int(rows["fields_bytes"][-1])
        with self._text_path.open("rb", buffering=0) as file:
            text = os.pread(file.fileno(), stop - start, start)
        if len(text) != stop - start:
            raise ShardmillError(f"{self._text_path} is shorter than it was: delete the scratch folder and pack again")
        return RunSlice(self.info, rows, text, start)


def intervals(total_rows: int, *, rows_at_once: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Equal intervals ``[low, high)`` that cover all positions, about ``rows_at_once`` rows in each.

    Positions are uniform, so equal intervals hold nearly equal counts.
    """
    parts = max(1, -(-total_rows // max(1, rows_at_once)))
    for i in range(parts):
        low = (i << 128) // parts
        high = ((i + 1) << 128) // parts
        yield low.to_bytes(16, "big"), None if i + 1 == parts else high.to_bytes(16, "big")
