"""Checks of the fields of ops: each gives the value in its one form, or an error that names op and field."""

from __future__ import annotations

import math
from typing import Any, get_args

from shardmill.errors import OptionsError

# Larger outputs than this are a slip (a size in the wrong place), and would ask for a batch of many GB.
MAX_OUTPUT = 16_384


def fix(op: object, **fields: object) -> None:
    """Sets fields of a frozen dataclass while it is being made."""
    for name, value in fields.items():
        object.__setattr__(op, name, value)


def is_number(value: object) -> bool:
    """A finite int or float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def pair_of_pixels(op: object, name: str) -> tuple[int, int]:
    """(height, width) from that or from one side."""
    value = getattr(op, name)
    pair = (value, value) if isinstance(value, int) else tuple(value) if isinstance(value, tuple | list) else ()
    fits = len(pair) == 2 and all(type(side) is int and 1 <= side <= MAX_OUTPUT for side in pair)
    if not fits:
        raise OptionsError(
            f"{_place(op, name)} is one side or (height, width), 1 .. {MAX_OUTPUT} pixels, got {value!r}"
        )
    return pair


def positive_range(op: object, name: str) -> tuple[float, float]:
    """(low, high) with 0 < low <= high."""
    value = getattr(op, name)
    fits = isinstance(value, tuple | list) and len(value) == 2 and all(map(is_number, value))
    if not fits or not 0 < value[0] <= value[1]:
        raise OptionsError(f"{_place(op, name)} must be (low, high) with 0 < low <= high, got {value!r}")
    return float(value[0]), float(value[1])


def range_around(op: object, name: str, center: float, low: float, high: float) -> tuple[float, float]:
    """(a, b) within ``low .. high``, from that or from a distance d: (center - d, center + d), cut at ``low``."""
    value = getattr(op, name)
    if is_number(value) and value >= 0:
        value = max(center - value, low) if center > 0 else center - value, center + value
    fits = isinstance(value, tuple | list) and len(value) == 2 and all(map(is_number, value))
    if not fits or not low <= value[0] <= value[1] <= high:
        within = f"{low:g} or more" if high == math.inf else f"within {low:g} .. {high:g}"
        raise OptionsError(
            f"{_place(op, name)} is a distance from {center:g} or (low, high), {within}, got {getattr(op, name)!r}"
        )
    return float(value[0]), float(value[1])


def three(op: object, name: str) -> tuple[float, float, float]:
    """Red, green, blue."""
    value = getattr(op, name)
    if not (isinstance(value, tuple | list) and len(value) == 3 and all(map(is_number, value))):
        raise OptionsError(f"{_place(op, name)} must be three numbers, for red, green and blue, got {value!r}")
    return float(value[0]), float(value[1]), float(value[2])


def gray_or_three(op: object, name: str) -> tuple[float, float, float]:
    """Red, green, blue, from those or from one number for all."""
    value = getattr(op, name)
    return (float(value),) * 3 if is_number(value) else three(op, name)


def color(op: object, name: str) -> tuple[int, int, int]:
    """Red, green, blue, 0 .. 255, from those or from one number for all."""
    value = getattr(op, name)
    found = (value,) * 3 if isinstance(value, int) else value
    fits = isinstance(found, tuple | list) and len(found) == 3 and all(type(v) is int and 0 <= v <= 255 for v in found)
    if not fits:
        raise OptionsError(f"{_place(op, name)} is one level or three, whole numbers within 0 .. 255, got {value!r}")
    return found[0], found[1], found[2]


def whole(op: object, name: str, low: int, high: int) -> int:
    """A whole number within ``low .. high``."""
    value = getattr(op, name)
    if type(value) is not int or not low <= value <= high:
        raise OptionsError(f"{_place(op, name)} must be a whole number within {low} .. {high}, got {value!r}")
    return value


def probability(op: object, name: str) -> float:
    """A number within 0 .. 1."""
    value = getattr(op, name)
    if not is_number(value) or not 0 <= value <= 1:
        raise OptionsError(f"{_place(op, name)} is a probability within 0 .. 1, got {value!r}")
    return float(value)


def one_of(op: object, name: str, choices: Any) -> None:
    """``choices``: a Literal type."""
    value = getattr(op, name)
    if value not in get_args(choices):
        raise OptionsError(f"{_place(op, name)} must be one of {', '.join(get_args(choices))}, got {value!r}")


def _place(op: object, name: str) -> str:
    return f"{type(op).__name__}.{name}"
