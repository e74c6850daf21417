"""Where pixels come from: the geometric ops of a recipe, and Normalize. Data, which `shardmill.images.plan` folds.

The ops that change colours and shapes afterwards are in `shardmill.images.augmentations`.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardmill.errors import OptionsError
from shardmill.images.fields import color, fix, one_of, pair_of_pixels, positive_range, probability, three, whole
from shardmill.images.pixels import ResizeFilter

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


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
        size = pair_of_pixels(self, "size")
        fix(self, size=size, scale=positive_range(self, "scale"), ratio=positive_range(self, "ratio"))
        if self.scale[1] > 1:
            raise OptionsError(f"RandomResizedCrop.scale are fractions of the area, at most 1, got {self.scale}")
        one_of(self, "filter", ResizeFilter)


@dataclass(frozen=True)
class Resize:
    """Resizes the whole image, antialiased: one number for the shorter side, or exactly (height, width), in pixels.

    With one number the longer side is cut down to an integer, as in torchvision: int(size * long / short).
    """

    size: int | tuple[int, int]
    filter: ResizeFilter = "bilinear"

    def __post_init__(self) -> None:
        if isinstance(self.size, int):
            pair_of_pixels(self, "size")
        else:
            fix(self, size=pair_of_pixels(self, "size"))
        one_of(self, "filter", ResizeFilter)


@dataclass(frozen=True)
class CenterCrop:
    """The central ``size`` pixels, one number for a square or (height, width); offsets round half to even."""

    size: tuple[int, int]

    def __post_init__(self) -> None:
        fix(self, size=pair_of_pixels(self, "size"))


@dataclass(frozen=True)
class RandomCrop:
    """``size`` pixels from anywhere in the image and ``padding`` pixels of ``fill`` around it, each place as likely.

    By itself, or after Resize. As torchvision's RandomCrop with a constant fill. The image (as resized) must be at
    least ``size`` without its padding: put `Resize` first where some are smaller. ``padding`` is at most the shorter
    side of ``size``. ``fill``: 0 .. 255, one level or (red, green, blue).
    """

    size: tuple[int, int]
    padding: int = 0
    fill: int | tuple[int, int, int] = 0

    def __post_init__(self) -> None:
        size = pair_of_pixels(self, "size")
        fix(self, size=size, padding=whole(self, "padding", 0, min(size)), fill=color(self, "fill"))


@dataclass(frozen=True)
class HorizontalFlip:
    """Left becomes right with probability ``p``."""

    p: float = 0.5

    def __post_init__(self) -> None:
        fix(self, p=probability(self, "p"))


@dataclass(frozen=True)
class VerticalFlip:
    """Top becomes bottom with probability ``p``."""

    p: float = 0.5

    def __post_init__(self) -> None:
        fix(self, p=probability(self, "p"))


@dataclass(frozen=True)
class Normalize:
    """(pixel - mean) / std per channel (red, green, blue), pixels on the scale 0 .. 1."""

    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def __post_init__(self) -> None:
        fix(self, mean=three(self, "mean"), std=three(self, "std"))
        if min(self.std) <= 0:
            raise OptionsError(f"Normalize.std must be above 0, got {self.std}")


Geometry = RandomResizedCrop | Resize | CenterCrop | RandomCrop
