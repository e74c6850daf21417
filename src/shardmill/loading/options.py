"""The loader's knobs that most people never turn."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardmill.errors import OptionsError
from shardmill.images.decode import DecodeLimits


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How the loader's threads work. No value changes an order or a pixel.

    ``prefetch``: steps begun ahead of the one being used, at least; more where that is too few to keep all threads
    busy. Each costs the memory of a batch. ``read_samples``, ``decode_samples``: images read, and decoded, in one call:
    more means less Python time an image, fewer means less memory and a first batch sooner. ``read_threads``: ``None``
    for a quarter of the decoding threads, at least 2; slow storage wants more. ``wait_seconds``: how long nothing may
    move before `StalledError`. ``limits``: what is refused rather than decoded.
    """

    prefetch: int = 2
    read_samples: int = 128
    decode_samples: int = 32
    read_threads: int | None = None
    wait_seconds: float = 120.0
    limits: DecodeLimits = field(default_factory=DecodeLimits)

    def __post_init__(self) -> None:
        for name in ("prefetch", "read_samples", "decode_samples", "read_threads"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise OptionsError(f"{name} must be an integer of at least 1, got {value!r}")
        if not self.wait_seconds > 0:
            raise OptionsError(f"wait_seconds must be above 0, got {self.wait_seconds!r}")
