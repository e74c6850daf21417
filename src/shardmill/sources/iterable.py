"""Any Python iterable of `Sample` as a source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from shardmill.errors import OptionsError, SourceError
from shardmill.records import Sample
from shardmill.sources.protocols import SourceInfo


@dataclass(frozen=True, slots=True)
class IterableSource:
    """Wraps an object whose ``iter()`` starts anew each time; it must be picklable to be read by workers."""

    samples: Iterable[Sample] = field(repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.samples, Iterator):
            raise OptionsError(
                f"{type(self.samples).__name__} is an iterator, which gives its samples only once; "
                "pass a list, or an object whose __iter__ starts anew"
            )

    def __iter__(self) -> Iterator[Sample]:
        """Raises `SourceError` with the position where an item is not a `Sample`."""
        for i, sample in enumerate(self.samples):
            if not isinstance(sample, Sample):
                raise SourceError(
                    f"item {i} of {type(self.samples).__name__} is a {type(sample).__name__}, not a Sample"
                )
            yield sample

    def describe(self) -> SourceInfo:
        """Nothing is known in advance; the fingerprint is empty."""
        return SourceInfo(type(self.samples).__name__, "iterable", "given with each sample")
