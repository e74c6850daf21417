"""TrivialAugmentWide and RandAugment: fourteen ops, one or some of them drawn for each image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardmill.images import color, shape
from shardmill.images.augmentations import RandAugment, TrivialAugmentWide
from shardmill.images.sampling import Draws, Stream

OPS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
)
"""In torchvision's order. The position is what is drawn: never reorder."""

_SIGNED = frozenset(OPS[1:10])


def augment(op: TrivialAugmentWide | RandAugment, images: NDArray[np.uint8], draws: Draws, nth: int) -> None:
    """``images`` uint8 [n, 3, height, width], in place. Draws, for each op: which, the sign, the strength."""
    count = op.ops if isinstance(op, RandAugment) else 1
    u = draws.uniforms(Stream.AUGMENT, nth, 3 * count)
    for i, image in enumerate(images):
        for which, sign, strength in u[:, i].reshape(count, 3).tolist():
            name = OPS[int(which * len(OPS))]
            level = op.magnitude if isinstance(op, RandAugment) else int(strength * op.bins)
            size = magnitude(op, name, level, image.shape[1], image.shape[2])
            apply(op, image, name, -size if name in _SIGNED and sign < 0.5 else size)


def magnitude(op: TrivialAugmentWide | RandAugment, name: str, level: int, height: int, width: int) -> float:
    """Strength ``level`` (0 .. bins - 1) in the unit of the op: torchvision's ``_AUGMENTATION_SPACE``."""
    wide = isinstance(op, TrivialAugmentWide)
    share = level / (op.bins - 1)
    match name:
        case "ShearX" | "ShearY":
            return share * (0.99 if wide else 0.3)
        case "TranslateX":
            return share * (32.0 if wide else 150 / 331 * width)
        case "TranslateY":
            return share * (32.0 if wide else 150 / 331 * height)
        case "Rotate":
            return share * (135.0 if wide else 30.0)
        case "Brightness" | "Color" | "Contrast" | "Sharpness":
            return share * (0.99 if wide else 0.9)
        case "Posterize":
            return float(round(8 - share * (6 if wide else 4)))
        case "Solarize":
            return 1 - share
    return 0.0


def apply(op: TrivialAugmentWide | RandAugment, image: NDArray[np.uint8], name: str, size: float) -> None:
    """One op of ``OPS``, at ``size`` as `magnitude` gives it with its sign, to uint8 [3, height, width] in place."""
    assert isinstance(op.fill, tuple)
    match name:
        case "ShearX":
            shape.shear(image, size, 0.0, op.filter, op.fill)
        case "ShearY":
            shape.shear(image, 0.0, size, op.filter, op.fill)
        case "TranslateX":
            shape.translate(image, int(size), 0, op.fill)
        case "TranslateY":
            shape.translate(image, 0, int(size), op.fill)
        case "Rotate":
            shape.rotate(image, size, op.filter, op.fill)
        case "Brightness":
            color.brightness(image, 1 + size)
        case "Color":
            color.saturation(image, 1 + size)
        case "Contrast":
            color.contrast(image, 1 + size)
        case "Sharpness":
            color.sharpness(image, 1 + size)
        case "Posterize":
            color.posterize(image, int(size))
        case "Solarize":
            color.solarize(image, 255 * size)
        case "AutoContrast":
            color.autocontrast(image)
        case "Equalize":
            color.equalize(image)
