"""A recipe: what is done to an image between its bytes and the batch. Data, not code.

A recipe round-trips through JSON, so the same one runs in the loader, in a server beside the data and on Ray, and
nothing is pickled. `shardmill.images.plan` turns it into boxes for the native kernel.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any, get_args

from shardmill.errors import OptionsError
from shardmill.images.pixels import PixelDtype, PixelOrder, ResizeFilter

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

RECIPE_VERSION = 1
# Larger outputs than this are a slip (a size in the wrong place), and would ask for a batch of many GB.
MAX_OUTPUT = 16_384


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random box of ``scale`` of the area and ``ratio`` width / height, resized to ``size``, antialiased.

    ``size``: pixels, one number for a square or (height, width). ``scale``: fractions of the area, 0 < low <= high
    <= 1. ``ratio``: 0 < low <= high, drawn uniformly in its logarithm. Drawn as torchvision's RandomResizedCrop: ten
    attempts, then the largest central box within the ratio. One difference: the resize looks at pixels just outside
    the box, as Pillow's ``resize(box=...)`` does, where torchvision cuts first.
    """

    size: tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    filter: ResizeFilter = "bilinear"

    def __post_init__(self) -> None:
        _set(self, size=_pair_of_pixels(self, "size"), scale=_range(self, "scale"), ratio=_range(self, "ratio"))
        if self.scale[1] > 1:
            raise OptionsError(f"RandomResizedCrop.scale are fractions of the area, at most 1, got {self.scale}")
        _one_of(self, "filter", ResizeFilter)


@dataclass(frozen=True)
class Resize:
    """Resizes the whole image, antialiased: one number for the shorter side, or exactly (height, width), in pixels.

    With one number the longer side is cut down to an integer, as in torchvision: int(size * long / short).
    """

    size: int | tuple[int, int]
    filter: ResizeFilter = "bilinear"

    def __post_init__(self) -> None:
        if isinstance(self.size, int):
            _pair_of_pixels(self, "size")
        else:
            _set(self, size=_pair_of_pixels(self, "size"))
        _one_of(self, "filter", ResizeFilter)


@dataclass(frozen=True)
class CenterCrop:
    """The central ``size`` pixels, one number for a square or (height, width); offsets round half to even."""

    size: tuple[int, int]

    def __post_init__(self) -> None:
        _set(self, size=_pair_of_pixels(self, "size"))


@dataclass(frozen=True)
class HorizontalFlip:
    """Left becomes right with probability ``p``."""

    p: float = 0.5

    def __post_init__(self) -> None:
        if not _is_number(self.p) or not 0 <= self.p <= 1:
            raise OptionsError(f"HorizontalFlip.p is a probability within 0 .. 1, got {self.p!r}")


@dataclass(frozen=True)
class Normalize:
    """(pixel - mean) / std per channel (red, green, blue), pixels on the scale 0 .. 1."""

    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def __post_init__(self) -> None:
        _set(self, mean=_three(self, "mean"), std=_three(self, "std"))
        if min(self.std) <= 0:
            raise OptionsError(f"Normalize.std must be above 0, got {self.std}")


Op = RandomResizedCrop | Resize | CenterCrop | HorizontalFlip | Normalize

_OPS: dict[str, type[Op]] = {cls.__name__: cls for cls in get_args(Op)}


@dataclass(frozen=True)
class Recipe:
    """``ops`` in order, then the form of the result.

    ``dtype`` uint8 (0 .. 255) or a float type (0 .. 1, or normalised). ``order`` NCHW or NHWC. ``apply_exif`` turns the
    image as its EXIF orientation says; off by default, as in torchvision's decoders.
    """

    ops: tuple[Op, ...]
    dtype: PixelDtype = "float32"
    order: PixelOrder = "NCHW"
    apply_exif: bool = False

    def __post_init__(self) -> None:
        _set(self, ops=tuple(self.ops))
        for op in self.ops:
            if not isinstance(op, get_args(Op)):
                raise OptionsError(f"a recipe is made of {', '.join(_OPS)}, got {op!r}")
        _one_of(self, "dtype", PixelDtype)
        _one_of(self, "order", PixelOrder)
        if not isinstance(self.apply_exif, bool):
            raise OptionsError(f"Recipe.apply_exif is true or false, got {self.apply_exif!r}")
        if self.dtype == "uint8" and any(isinstance(op, Normalize) for op in self.ops):
            raise OptionsError(
                "Normalize gives fractions, which uint8 cannot hold: leave it out, or ask for a float dtype"
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `Recipe.from_dict` gives back an equal recipe."""
        return {
            "version": RECIPE_VERSION,
            "ops": [{"op": type(op).__name__, **_jsonable(dataclasses.asdict(op))} for op in self.ops],
            "output": {"dtype": self.dtype, "order": self.order, "apply_exif": self.apply_exif},
        }

    def to_json(self) -> str:
        """One line of JSON; `Recipe.from_json` gives back an equal recipe."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> Recipe:
        """Reads what `to_json` wrote. Raises `OptionsError` for anything else."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise OptionsError(f"a recipe must be JSON: {error}") from None
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: object) -> Recipe:
        """Reads what `to_dict` gave. An unknown op or field, or a version from the future, is an error naming it."""
        fields = _object(data, "a recipe", {"version", "ops", "output"})
        if fields.get("version") != RECIPE_VERSION:
            raise OptionsError(
                f"recipe version {fields.get('version')!r}: this shardmill reads version {RECIPE_VERSION}"
            )
        ops = fields.get("ops")
        if not isinstance(ops, list):
            raise OptionsError(f'"ops" of a recipe must be a list, got {ops!r}')
        output = _object(fields.get("output", {}), '"output" of a recipe', {"dtype", "order", "apply_exif"})
        return cls(tuple(_op(item) for item in ops), **output)


def _op(data: object) -> Op:
    name = data.get("op") if isinstance(data, dict) else data
    if not isinstance(data, dict) or not isinstance(name, str) or name not in _OPS:
        raise OptionsError(f"unknown op {name!r} in a recipe; there are {', '.join(_OPS)}")
    cls: Any = _OPS[name]
    known = {field.name for field in dataclasses.fields(cls)}
    fields = _object({k: v for k, v in data.items() if k != "op"}, cls.__name__, known)
    required = {field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING}
    if missing := sorted(required - set(fields)):
        raise OptionsError(f"{cls.__name__} lacks {', '.join(missing)}")
    op: Op = cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})
    return op


def _object(data: object, what: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise OptionsError(f"{what} must be a JSON object, got {data!r}")
    if unknown := sorted(set(data) - known):
        raise OptionsError(f"{what} has no field {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return data


def _jsonable(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}


def _set(op: object, **fields: object) -> None:
    for name, value in fields.items():
        object.__setattr__(op, name, value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _place(op: object, name: str) -> str:
    return f"{type(op).__name__}.{name}"


def _pair_of_pixels(op: object, name: str) -> tuple[int, int]:
    value = getattr(op, name)
    pair = (value, value) if isinstance(value, int) else tuple(value) if isinstance(value, tuple | list) else ()
    fits = len(pair) == 2 and all(type(side) is int and 1 <= side <= MAX_OUTPUT for side in pair)
    if not fits:
        raise OptionsError(
            f"{_place(op, name)} is one side or (height, width), 1 .. {MAX_OUTPUT} pixels, got {value!r}"
        )
    return pair


def _range(op: object, name: str) -> tuple[float, float]:
    value = getattr(op, name)
    fits = isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_number, value))
    if not fits or not 0 < value[0] <= value[1]:
        raise OptionsError(f"{_place(op, name)} must be (low, high) with 0 < low <= high, got {value!r}")
    return float(value[0]), float(value[1])


def _three(op: object, name: str) -> tuple[float, float, float]:
    value = getattr(op, name)
    if not (isinstance(value, tuple | list) and len(value) == 3 and all(map(_is_number, value))):
        raise OptionsError(f"{_place(op, name)} must be three numbers, for red, green and blue, got {value!r}")
    return float(value[0]), float(value[1]), float(value[2])


def _one_of(op: object, name: str, choices: Any) -> None:
    value = getattr(op, name)
    if value not in get_args(choices):
        raise OptionsError(f"{_place(op, name)} must be one of {', '.join(get_args(choices))}, got {value!r}")
