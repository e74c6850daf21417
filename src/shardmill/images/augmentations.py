"""What is done to pixels after they are decoded: the colour, shape and batch ops of a recipe. Each is data.

Ops before Normalize see 8-bit pixels, and round to them, as torchvision's v2 transforms do with uint8 images. Every
random number is a function of (seed, epoch, sample id); see `shardmill.images.sampling`. ``p``: the probability that
the op is done to an image at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from shardmill.errors import OptionsError
from shardmill.images.fields import (
    color,
    fix,
    gray_or_three,
    is_number,
    one_of,
    positive_range,
    probability,
    range_around,
    whole,
)

Spread = float | tuple[float, float]
ShapeFilter = Literal["nearest", "bilinear"]


@dataclass(frozen=True)
class ColorJitter:
    """Brightness, contrast, saturation and hue by random factors, in random order.

    Each is drawn uniformly from (low, high); one number d stands for (1 - d, 1 + d), not below 0, and for the hue for
    (-d, d), at most 0.5 of a turn. What is left at 0 is not done. As torchvision's ColorJitter within RandomApply(p).
    """

    brightness: Spread = 0.0
    contrast: Spread = 0.0
    saturation: Spread = 0.0
    hue: Spread = 0.0
    p: float = 1.0

    def __post_init__(self) -> None:
        factors = {name: range_around(self, name, 1, 0, math.inf) for name in ("brightness", "contrast", "saturation")}
        fix(self, **factors, hue=range_around(self, "hue", 0, -0.5, 0.5), p=probability(self, "p"))

    @property
    def ranges(self) -> tuple[tuple[float, float] | None, ...]:
        """Of brightness, contrast, saturation and hue; ``None`` where nothing is done."""
        found: list[tuple[float, float] | None] = []
        for value, center in ((self.brightness, 1), (self.contrast, 1), (self.saturation, 1), (self.hue, 0)):
            assert isinstance(value, tuple)
            found.append(None if value == (center, center) else value)
        return tuple(found)


@dataclass(frozen=True)
class Grayscale:
    """All three channels become 0.2989 R + 0.587 G + 0.114 B. torchvision's RandomGrayscale has ``p=0.1``."""

    p: float = 1.0

    def __post_init__(self) -> None:
        fix(self, p=probability(self, "p"))


@dataclass(frozen=True)
class Solarize:
    """Levels of ``threshold`` and more are inverted. ``threshold``: 0 .. 256. torchvision's RandomSolarize."""

    threshold: float = 128
    p: float = 1.0

    def __post_init__(self) -> None:
        if not is_number(self.threshold) or not 0 <= self.threshold <= 256:
            raise OptionsError(f"Solarize.threshold is a level within 0 .. 256, got {self.threshold!r}")
        fix(self, threshold=float(self.threshold), p=probability(self, "p"))


@dataclass(frozen=True)
class GaussianBlur:
    """A Gaussian of ``kernel_size`` taps each way, standard deviation drawn from ``sigma`` (low, high), in pixels.

    Borders are mirrored. As torchvision's GaussianBlur within RandomApply(p).
    """

    kernel_size: int
    sigma: tuple[float, float] = (0.1, 2.0)
    p: float = 1.0

    def __post_init__(self) -> None:
        if whole(self, "kernel_size", 1, 999) % 2 == 0:
            raise OptionsError(f"GaussianBlur.kernel_size must be odd, got {self.kernel_size}")
        fix(self, sigma=positive_range(self, "sigma"), p=probability(self, "p"))


@dataclass(frozen=True)
class TrivialAugmentWide:
    """One op of fourteen at one of ``bins`` strengths, all drawn evenly. As torchvision's TrivialAugmentWide.

    ``filter`` and ``fill`` (0 .. 255, one level or (red, green, blue)) are those of the ops that move pixels.
    """

    bins: int = 31
    filter: ShapeFilter = "nearest"
    fill: int | tuple[int, int, int] = 0

    def __post_init__(self) -> None:
        fix(self, bins=whole(self, "bins", 2, 1000), fill=color(self, "fill"))
        one_of(self, "filter", ShapeFilter)


@dataclass(frozen=True)
class RandAugment:
    """``ops`` ops of fourteen, drawn evenly, at strength ``magnitude`` of ``bins``. As torchvision's RandAugment."""

    ops: int = 2
    magnitude: int = 9
    bins: int = 31
    filter: ShapeFilter = "nearest"
    fill: int | tuple[int, int, int] = 0

    def __post_init__(self) -> None:
        bins = whole(self, "bins", 2, 1000)
        fix(self, ops=whole(self, "ops", 0, 100), bins=bins, magnitude=whole(self, "magnitude", 0, bins - 1))
        fix(self, fill=color(self, "fill"))
        one_of(self, "filter", ShapeFilter)


@dataclass(frozen=True)
class RandomErasing:
    """A random box of ``scale`` of the area and ``ratio`` height / width is overwritten by ``value``.

    Comes after Normalize, and ``value`` is on the scale of the result: 0 is the mean of a normalised image. One number,
    (red, green, blue), or ``"random"``: a standard normal draw a value, for float results only. As torchvision's.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float | tuple[float, float, float] | Literal["random"] = 0.0

    def __post_init__(self) -> None:
        scale, ratio = positive_range(self, "scale"), positive_range(self, "ratio")
        fix(self, p=probability(self, "p"), scale=scale, ratio=ratio)
        if self.scale[1] > 1:
            raise OptionsError(f"RandomErasing.scale are fractions of the area, at most 1, got {self.scale}")
        if self.value != "random":
            fix(self, value=gray_or_three(self, "value"))


@dataclass(frozen=True)
class MixUp:
    """An image becomes w times itself and 1 - w times its partner in the batch; w is drawn from Beta(alpha, alpha).

    Labels become float32 [n, ``classes``]: w at the image's own class, 1 - w at its partner's. Every image draws its
    own w. With `CutMix` in the same recipe an image gets one of the two, with the probabilities ``p``, whose sum is at
    most 1. Who is whose partner: see `shardmill.images.mix`.
    """

    classes: int
    alpha: float = 1.0
    p: float = 1.0

    def __post_init__(self) -> None:
        _check_mix(self, self.alpha)
        fix(self, alpha=float(self.alpha))


@dataclass(frozen=True)
class CutMix:
    """A box of an image is replaced by that of its partner in the batch; its share of the area is 1 - w.

    w is drawn from Beta(alpha, alpha), the middle of the box anywhere in the image; the box is cut at the edges and w
    then set right. Labels and ``p`` are those of `MixUp`.
    """

    classes: int
    alpha: float = 1.0
    p: float = 1.0

    def __post_init__(self) -> None:
        _check_mix(self, self.alpha)
        fix(self, alpha=float(self.alpha))


PixelOp = ColorJitter | Grayscale | Solarize | GaussianBlur | TrivialAugmentWide | RandAugment
Mix = MixUp | CutMix


def _check_mix(op: MixUp | CutMix, alpha: float) -> None:
    fix(op, classes=whole(op, "classes", 1, 10_000_000), p=probability(op, "p"))
    if not is_number(alpha) or not 0.01 <= alpha <= 100:
        raise OptionsError(f"{type(op).__name__}.alpha must be within 0.01 .. 100, got {alpha!r}")
