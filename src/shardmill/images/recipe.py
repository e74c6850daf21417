"""A recipe: what is done to an image between its bytes and the batch. Data, not code.

A recipe round-trips through JSON, so the same one runs in the loader, in a server beside the data and on Ray, and
nothing is pickled. `shardmill.images.plan` turns it into boxes for the native kernel and the ops that follow it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, get_args

from shardmill.errors import OptionsError
from shardmill.images.augmentations import (
    ColorJitter,
    CutMix,
    GaussianBlur,
    Grayscale,
    MixUp,
    RandAugment,
    RandomErasing,
    Solarize,
    TrivialAugmentWide,
)
from shardmill.images.fields import fix, one_of
from shardmill.images.ops import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CenterCrop,
    HorizontalFlip,
    Normalize,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    VerticalFlip,
)
from shardmill.images.pixels import PixelDtype, PixelOrder

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "CenterCrop",
    "ColorJitter",
    "CutMix",
    "GaussianBlur",
    "Grayscale",
    "HorizontalFlip",
    "MixUp",
    "Normalize",
    "Op",
    "RandAugment",
    "RandomCrop",
    "RandomErasing",
    "RandomResizedCrop",
    "Recipe",
    "Resize",
    "Solarize",
    "TrivialAugmentWide",
    "VerticalFlip",
    "Views",
    "read_recipe",
]

RECIPE_VERSION = 1
MAX_VIEWS = 64

Op = (
    RandomResizedCrop
    | Resize
    | CenterCrop
    | RandomCrop
    | HorizontalFlip
    | VerticalFlip
    | ColorJitter
    | Grayscale
    | Solarize
    | GaussianBlur
    | TrivialAugmentWide
    | RandAugment
    | Normalize
    | RandomErasing
    | MixUp
    | CutMix
)

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
        fix(self, ops=tuple(self.ops))
        for op in self.ops:
            if not isinstance(op, get_args(Op)):
                raise OptionsError(f"a recipe is made of {', '.join(_OPS)}, got {op!r}")
        one_of(self, "dtype", PixelDtype)
        one_of(self, "order", PixelOrder)
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
        return cls.from_dict(_load(text))

    @classmethod
    def from_dict(cls, data: object) -> Recipe:
        """Reads what `to_dict` gave. An unknown op or field, or a version from the future, is an error naming it."""
        fields = _object(data, "a recipe", {"version", "ops", "output"})
        _check_version(fields)
        ops = fields.get("ops")
        if not isinstance(ops, list):
            raise OptionsError(f'"ops" of a recipe must be a list, got {ops!r}')
        output = _object(fields.get("output", {}), '"output" of a recipe', {"dtype", "order", "apply_exif"})
        return cls(tuple(_op(item) for item in ops), **output)


@dataclass(frozen=True)
class Views:
    """Several outputs of one image, each by its own recipe: `Batch.images` is a tuple of arrays, in this order.

    Every view is drawn independently. Two to 64 views that agree in dtype, order and apply_exif; no MixUp or CutMix.
    """

    views: tuple[Recipe, ...]

    def __post_init__(self) -> None:
        fix(self, views=tuple(self.views))
        if not 2 <= len(self.views) <= MAX_VIEWS:
            raise OptionsError(f"Views are 2 .. {MAX_VIEWS} recipes, got {len(self.views)}")
        for view in self.views:
            if not isinstance(view, Recipe):
                raise OptionsError(f"Views are made of Recipe, got {view!r}")
            if any(isinstance(op, MixUp | CutMix) for op in view.ops):
                raise OptionsError("MixUp and CutMix belong to a recipe of one output, not to a view")
        if len({(view.dtype, view.order, view.apply_exif) for view in self.views}) > 1:
            raise OptionsError("all views need the same dtype, order and apply_exif")

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `read_recipe` gives back equal views."""
        return {"version": RECIPE_VERSION, "views": [_without_version(view.to_dict()) for view in self.views]}

    def to_json(self) -> str:
        """One line of JSON; `read_recipe` gives back equal views."""
        return json.dumps(self.to_dict())


def read_recipe(text: str | bytes) -> Recipe | Views:
    """Reads what `Recipe.to_json` or `Views.to_json` wrote. Raises `OptionsError` for anything else."""
    data = _load(text)
    if not isinstance(data, dict) or "views" not in data:
        return Recipe.from_dict(data)
    fields = _object(data, "a recipe of several views", {"version", "views"})
    _check_version(fields)
    views = fields["views"]
    if not isinstance(views, list):
        raise OptionsError(f'"views" of a recipe must be a list, got {views!r}')
    known = {"ops", "output"}
    return Views(tuple(Recipe.from_dict({"version": RECIPE_VERSION, **_object(v, "a view", known)}) for v in views))


def _without_version(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != "version"}


def _load(text: str | bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionsError(f"a recipe must be JSON: {error}") from None


def _check_version(fields: dict[str, Any]) -> None:
    version = fields.get("version")
    if version != RECIPE_VERSION:
        raise OptionsError(f"recipe version {version!r}: this shardmill reads version {RECIPE_VERSION}")


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
