"""What packing asks of a source. Nothing to inherit: any class with these methods is one.

Every source must be picklable (workers are spawned) and restartable: iterating it twice gives the same samples in
the same order, as long as what it reads has not changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from shardmill.records import Sample, SampleRef


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """What is known of a source before its samples are read.

    ``name`` is what the user gave (a path or pattern). ``kind`` says how it was understood. ``label_source`` goes
    into the manifest: in words, where labels come from. ``class_names`` are the names of labels 0, 1, ... where
    known in advance. ``estimated_bytes`` of all fields together, ``None`` where it cannot be told cheaply.
    ``fingerprint`` is a cheap identity (paths, sizes, modification times) that refuses a resume with another
    source; ``""`` where there is none. ``ignored`` counts the files passed over as litter.
    """

    name: str
    kind: str
    label_source: str
    class_names: tuple[str, ...] | None = field(default=None, repr=False)
    estimated_bytes: int | None = None
    fingerprint: str = ""
    ignored: int = 0


@runtime_checkable
class Source(Protocol):
    """An iterable of samples in a deterministic order, restartable and picklable."""

    def __iter__(self) -> Iterator[Sample]:
        """Start anew and give every sample, reading front to back. Raises `SourceError`, or `TarError` for tars."""

    def describe(self) -> SourceInfo:
        """What is known in advance. May list files and read headers, never payloads; cheap to ask twice."""


@runtime_checkable
class RefSource(Source, Protocol):
    """A source whose bytes are cheap to read in any order, so that packing needs one pass over them."""

    def refs(self) -> Iterator[SampleRef]:
        """Every sample, in the order of iteration, with its bytes still at (path, offset, size)."""


@runtime_checkable
class SplittableSource(Source, Protocol):
    """A source of parts that different workers can read, each front to back."""

    def split(self) -> Sequence[Source]:
        """The parts: one class directory, one tar, one inner tar. One after another they are the whole.

        Deterministic; each part is itself a source, small to pickle.
        """
