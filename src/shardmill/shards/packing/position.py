"""Where a sample goes: a keyed hash of its key, so that sorting by it is a uniform random permutation."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable
from typing import Final

METHOD: Final = "blake2b-128(NFC key, keyed by the seed)"


def normal_key(key: str) -> str:
    """Keys that are equal in NFC are one key: file systems and other tar readers may not tell them apart."""
    return key if key.isascii() else unicodedata.normalize("NFC", key)


def position_of(seed: int) -> Callable[[str], bytes]:
    """``position(key)``: 16 bytes, compared as a big-endian number, uniform for any set of keys.

    A pure function of seed and key: listing order, workers and the rest of the source do not matter.
    """
    blake2b = hashlib.blake2b
    salt = seed.to_bytes(8, "little")

    def position(key: str) -> bytes:
        return blake2b(normal_key(key).encode("utf-8", "surrogateescape"), digest_size=16, key=salt).digest()

    return position
