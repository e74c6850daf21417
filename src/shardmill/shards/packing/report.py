"""What a pack did, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PackReport:
    """The result of `pack`. ``bytes``: of all shards. ``seconds``: by stage, of this call alone.

    ``passes``: how often the bytes of the source were written, 1 (copied once) or 2 (through the scratch folder).
    ``notes``: what is worth a look, each a sentence; nothing in them was changed or left out.
    """

    dest: Path
    samples: int
    shards: int
    bytes: int
    passes: int
    seconds: Mapping[str, float] = field(repr=False)
    notes: tuple[str, ...] = ()
    resumed: bool = False

    @property
    def total_seconds(self) -> float:
        """Of all stages of this call."""
        return sum(self.seconds.values())
