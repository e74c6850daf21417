"""From a recipe to what is done where: a source box and a flip per image for the native kernel, then the rest. Pure.

The kernel does one thing: cut a box out of the source, resize it to the output, maybe flip, maybe normalise. So a chain
of geometric ops must fold into one box. Resize + CenterCrop does: torchvision resizes to integer sizes (new_w, new_h),
so a pixel of the resized image is w / new_w by h / new_h source pixels, and the crop at (x, y) of the resized image is
the source box at (x * w / new_w, y * h / new_h). The resize looks outside the box (Pillow's ``box=``), so the pixels at
the crop's edge are the same too, but for the one rounding to uint8 between the two steps that no longer happens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import OptionsError
from shardmill.images.augmentations import Mix, PixelOp, RandAugment, RandomErasing, TrivialAugmentWide
from shardmill.images.boxes import random_crops, random_resized_boxes, resized_boxes
from shardmill.images.ops import (
    CenterCrop,
    Geometry,
    HorizontalFlip,
    Normalize,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    VerticalFlip,
)
from shardmill.images.pixels import Crops, PixelLayout, ResizeFilter
from shardmill.images.recipe import Op, Recipe, Views
from shardmill.images.sampling import Stream, states, uniforms

I64 = NDArray[np.int64]

Flip = HorizontalFlip | VerticalFlip
O = TypeVar("O")  # noqa: E741


@dataclass(frozen=True)
class Placed(Generic[O]):
    """An op in its place: ``nth`` ops of the recipe before it draw from the same stream."""

    op: O
    nth: int = 0


@dataclass(frozen=True)
class FusedPlan:
    """What `compile_recipe` gives: everything that is needed but the images.

    The kernel does ``geometry``, a flip, and the conversion to ``layout``. Where there are ``pixel_ops`` it writes
    8-bit pixels instead, the ops change those, and only then they are converted (`shardmill.images.render`).
    ``slot_ops`` are done to the result where it lies, ``mix`` to the whole batch (`shardmill.images.mix`).
    """

    layout: PixelLayout
    filter: ResizeFilter
    apply_exif: bool
    geometry: tuple[Geometry, ...]
    flip_p: float
    pixel_ops: tuple[Placed[PixelOp | Flip], ...] = ()
    slot_ops: tuple[Placed[RandomErasing | Flip], ...] = ()
    mix: tuple[Mix, ...] = ()
    view: int = 0

    @property
    def random(self) -> bool:
        """Whether pixels depend on seed and epoch."""
        moved = any(isinstance(op, RandomResizedCrop | RandomCrop) for op in self.geometry)
        return moved or self.flip_p > 0 or bool(self.pixel_ops or self.slot_ops or self.mix)

    @property
    def raw_layout(self) -> PixelLayout:
        """What the kernel writes for ``pixel_ops``: 8 bits, plane after plane."""
        return PixelLayout(self.layout.height, self.layout.width, "uint8", "NCHW")

    @property
    def fill(self) -> tuple[int, int, int] | None:
        """Levels of the padding of a crop; ``None`` where there is none."""
        last = self.geometry[-1]
        if not isinstance(last, RandomCrop) or not last.padding:
            return None
        assert isinstance(last.fill, tuple)
        return last.fill

    def crops(
        self, widths: NDArray[np.integer], heights: NDArray[np.integer], *, seed: int, epoch: int, ids: I64
    ) -> Crops:
        """One box per image, in source pixels.

        ``widths``, ``heights``: [n], at least 1, as the kernel sees the image (after EXIF, where that is applied).
        ``ids``: int64 [n]. Each row is a function of (seed, epoch, its id, its size) alone. 0.1 to 0.3 us an image at
        n = 256.
        """
        w, h = widths.astype(np.float64), heights.astype(np.float64)
        if len(w) and (w.min() < 1 or h.min() < 1):
            raise ValueError("an image of no size: read the sizes before planning its crop")
        first, last = self.geometry[0], self.geometry[-1]
        flip = np.zeros(len(w), bool)
        if self.flip_p > 0:
            flip = uniforms(states(seed, epoch, ids, Stream.FLIP, view=self.view), 0, 1)[0] < self.flip_p
        if isinstance(first, RandomResizedCrop):
            state = states(seed, epoch, ids, Stream.CROP, view=self.view)
            return Crops(*random_resized_boxes(first, w, h, state), flip)
        resize = first if isinstance(first, Resize) else None
        if isinstance(last, RandomCrop):
            draws = uniforms(states(seed, epoch, ids, Stream.CROP, view=self.view), 0, 2)
            return random_crops(resize, last, w, h, draws, flip)
        assert resize is not None
        return Crops(*resized_boxes(resize, last if isinstance(last, CenterCrop) else None, w, h), flip)


def compile_views(recipe: Recipe | Views) -> tuple[FusedPlan, ...]:
    """A plan for every output of a recipe. Raises `OptionsError` saying which op of which view cannot come where."""
    if isinstance(recipe, Recipe):
        return (compile_recipe(recipe),)
    plans = []
    for view, one in enumerate(recipe.views):
        try:
            plans.append(replace(compile_recipe(one), view=view))
        except OptionsError as error:
            raise OptionsError(f"view {view}: {error}") from None
    return tuple(plans)


def compile_recipe(recipe: Recipe) -> FusedPlan:
    """Deals ops to kernel, pixels, slots and batch. Raises `OptionsError` saying which op cannot come where it is."""
    left = list(recipe.ops)
    geometry = _take(left, Geometry)
    chain = _take(left, PixelOp | Flip)
    normalize = left.pop(0) if left and isinstance(left[0], Normalize) else None
    erasing = _take(left, RandomErasing)
    mix = _take(left, Mix)
    if left:
        raise OptionsError(f"{_names(recipe.ops)}: {type(left[0]).__name__} cannot come there. {_CAN}")
    size = _output_size(geometry, recipe.ops)
    flip = chain.pop(0) if chain and isinstance(chain[0], HorizontalFlip) else None
    for kind in (HorizontalFlip, VerticalFlip):
        if sum(isinstance(op, kind) for op in (flip, *chain)) > 1:
            raise OptionsError(f"{_names(recipe.ops)}: a second {kind.__name__} cannot come there. {_CAN}")
    # Flips by themselves can be done to the result, whatever its form.
    flips = [] if any(isinstance(op, PixelOp) for op in chain) else chain
    _check_late(recipe, erasing, mix)
    layout = PixelLayout(
        height=size[0],
        width=size[1],
        dtype=recipe.dtype,
        order=recipe.order,
        mean=normalize.mean if isinstance(normalize, Normalize) else None,
        std=normalize.std if isinstance(normalize, Normalize) else None,
    )
    return FusedPlan(
        layout,
        geometry[0].filter if isinstance(geometry[0], RandomResizedCrop | Resize) else "bilinear",
        recipe.apply_exif,
        tuple(geometry),
        flip.p if isinstance(flip, HorizontalFlip) else 0.0,
        _placed([] if flips else chain),
        _placed([*flips, *erasing]),
        tuple(mix),
    )


_CAN = (
    "First comes one of RandomResizedCrop, Resize((height, width)), Resize + CenterCrop, RandomCrop or Resize + "
    "RandomCrop; then flips, one of a kind, and ops on colours and shapes, in any order; then Normalize, then "
    "RandomErasing, then MixUp and CutMix, each if wanted"
)


def _take(left: list[Op], kinds: Any) -> list[Any]:
    taken = []
    while left and isinstance(left[0], kinds):
        taken.append(left.pop(0))
    return taken


def _placed(ops: list[Any]) -> tuple[Placed[Any], ...]:
    # RandAugment and TrivialAugmentWide share a stream.
    streams = ["auto" if isinstance(op, RandAugment | TrivialAugmentWide) else type(op).__name__ for op in ops]
    return tuple(Placed(op, streams[:i].count(streams[i])) for i, op in enumerate(ops))


def _check_late(recipe: Recipe, erasing: list[RandomErasing], mix: list[Mix]) -> None:
    for op in erasing:
        if recipe.dtype != "uint8":
            continue
        if isinstance(op.value, str):
            raise OptionsError('RandomErasing(value="random") draws around 0, which uint8 cannot hold: ask for a float')
        assert isinstance(op.value, tuple)
        if not all(0 <= value <= 255 for value in op.value):
            raise OptionsError(f"RandomErasing.value must be within 0 .. 255 for uint8, got {op.value}")
    if len({type(op) for op in mix}) < len(mix) or len({op.classes for op in mix}) > 1 or sum(op.p for op in mix) > 1:
        raise OptionsError(
            f"{_names(recipe.ops)}: MixUp and CutMix come once each, with the same classes, and share the images by "
            f"their p, whose sum may be 1 at most: for one or the other by turns give each p=0.5"
        )


def _names(ops: tuple[Op, ...]) -> str:
    return " + ".join(type(op).__name__ for op in ops) or "an empty recipe"


def _output_size(geometry: list[Geometry], ops: tuple[Op, ...]) -> tuple[int, int]:
    match geometry:
        case [RandomResizedCrop(size=size)] | [RandomCrop(size=size)]:
            return size
        case [Resize(size=(height, width))]:
            return height, width
        case [Resize(size=int())]:
            raise OptionsError(
                f"{_names(ops)}: Resize of the shorter side gives images of different shapes, which make no batch; add "
                "CenterCrop, or give (height, width)"
            )
        case [Resize(size=resized), (CenterCrop(size=size) | RandomCrop(size=size)) as crop]:
            room = (resized, resized) if isinstance(resized, int) else resized
            if size[0] > room[0] or size[1] > room[1]:
                raise OptionsError(
                    f"{type(crop).__name__}({size}) after Resize({resized}) would have to invent pixels around small "
                    "images; resize to the size of the crop or more"
                )
            return size
    raise OptionsError(f"{_names(ops)}: cannot be one box of the source. {_CAN}")
