"""What a pack was asked to do, checked before anything is touched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from shardmill.errors import OptionsError
from shardmill.records import ImageInfo

SMALLEST_MEMORY_BYTES: Final = 64 * 2**20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class EncodeSpec(Protocol):
    """How images are re-encoded while they are packed. Picklable; the same input gives the same bytes anywhere."""

    @property
    def extension(self) -> str:
        """Extension of what is written, without a dot: ``"jpg"``."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """For the manifest and for resuming: everything that changes the result, as JSON."""
        ...

    def __call__(self, data: bytes, info: ImageInfo, /) -> bytes | None:
        """The new bytes of the image, or ``None`` where the original is to be kept with its extension."""
        ...


@dataclass(frozen=True, slots=True)
class PackOptions:
    """What shapes the result: two packs of one source with equal options give the same bytes.

    ``shard_bytes``: most bytes of a shard file, the end marker included. ``shard_samples``: most samples of a shard.
    ``seed``: 0 to 2**64 - 1. ``name``: of the shards, ``NAME-000000.tar``.
    """

    name: str
    shard_bytes: int = 256 * 2**20
    shard_samples: int | None = None
    seed: int = 0
    encode: EncodeSpec | None = field(default=None)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise OptionsError(f"name is {self.name!r}: letters, digits, '.', '_' and '-', at most 100, no dot first")
        if self.shard_bytes < 1:
            raise OptionsError(f"shard_bytes is {self.shard_bytes}: it must be at least 1")
        if self.shard_samples is not None and self.shard_samples < 1:
            raise OptionsError(f"shard_samples is {self.shard_samples}: it must be at least 1, or None for no limit")
        if not 0 <= self.seed < 2**64:
            raise OptionsError(f"seed is {self.seed}: it must be between 0 and 2**64 - 1")

    def describe(self) -> dict[str, Any]:
        """As JSON, for the journal."""
        return {
            "name": self.name,
            "shard_bytes": self.shard_bytes,
            "shard_samples": self.shard_samples,
            "seed": self.seed,
            "encode": None if self.encode is None else dict(self.encode.describe()),
        }


@dataclass(frozen=True, slots=True)
class Means:
    """What the work may use; never changes the result. Bytes are a worker's share of the memory budget."""

    workers: int
    worker_bytes: int


_INTERPRETER = 46 * 10**6
_ALLOWANCE = 140 * 10**6
_SMALLEST_SHARE = 12 * 2**20


def share_memory(*, memory_bytes: int, workers: int) -> Means:
    """Divides the budget: the whole process tree stays under ``memory_bytes`` + 150 MB.

    An interpreter with numpy takes about 46 MB; the allowance pays for the parent and two workers, and more workers
    pay for themselves out of the budget. Fewer workers than asked for run where the shares would become too small
    for reads of a useful size.
    """
    if memory_bytes < SMALLEST_MEMORY_BYTES:
        raise OptionsError(f"memory_bytes is {memory_bytes}: it must be at least {SMALLEST_MEMORY_BYTES} (64 MiB)")
    if workers < 1:
        raise OptionsError(f"workers is {workers}: it must be at least 1")
    for count in range(workers, 0, -1):
        processes = 1 if count == 1 else count + 1
        share = (memory_bytes + min(0, _ALLOWANCE - _INTERPRETER * processes)) // count
        if share >= _SMALLEST_SHARE or count == 1:
            return Means(count, share)
    raise AssertionError("unreachable: one worker always gets a share")
