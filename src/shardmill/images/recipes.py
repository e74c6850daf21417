"""The recipes that most people train and evaluate with."""

from __future__ import annotations

from shardmill.images.pixels import PixelDtype, PixelOrder
from shardmill.images.recipe import (
    CenterCrop,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    Normalize,
    Op,
    RandomErasing,
    RandomResizedCrop,
    Recipe,
    Resize,
    Solarize,
    TrivialAugmentWide,
    Views,
)

__all__ = ["eval", "multicrop", "simclr", "train", "train_strong"]


def train(size: int | tuple[int, int], *, dtype: PixelDtype = "float32", order: PixelOrder = "NCHW") -> Recipe:
    """RandomResizedCrop(size, scale 0.08 .. 1, ratio 3/4 .. 4/3) + HorizontalFlip + Normalize(ImageNet).

    ``dtype="uint8"`` leaves Normalize out: a quarter of the memory, and the device normalises.
    """
    return _finish((RandomResizedCrop(_pair(size)), HorizontalFlip()), dtype, order)


# The name hides the built-in where it is imported by itself; everybody writes `recipes.eval`.
def eval(  # noqa: A001
    size: int | tuple[int, int], *, resize: int = 256, dtype: PixelDtype = "float32", order: PixelOrder = "NCHW"
) -> Recipe:
    """Resize(resize) of the shorter side + CenterCrop(size) + Normalize(ImageNet); nothing random.

    ``dtype="uint8"`` leaves Normalize out.
    """
    return _finish((Resize(resize), CenterCrop(_pair(size))), dtype, order)


def train_strong(
    size: int | tuple[int, int], *, erase: float = 0.1, dtype: PixelDtype = "float32", order: PixelOrder = "NCHW"
) -> Recipe:
    """`train` with TrivialAugmentWide before Normalize and RandomErasing(p=``erase``) after it.

    What torchvision's newer ImageNet weights are trained with, but for MixUp and CutMix: append those to ``ops``.
    """
    recipe = _finish((RandomResizedCrop(_pair(size)), HorizontalFlip(), TrivialAugmentWide()), dtype, order)
    return Recipe((*recipe.ops, RandomErasing(erase)), dtype, order)


def simclr(
    size: int = 224, *, strength: float = 1.0, dtype: PixelDtype = "float32", order: PixelOrder = "NCHW"
) -> Views:
    """Two views of every image as in SimCLR (Chen et al., 2020): crop, flip, jitter, gray (p 0.2), blur (p 0.5)."""
    s = strength
    kernel = max(size // 10, 1) | 1
    jitter = ColorJitter(0.8 * s, 0.8 * s, 0.8 * s, 0.2 * s, p=0.8)
    blur = GaussianBlur(kernel, (0.1, 2.0), p=0.5)
    one = _finish((RandomResizedCrop(_pair(size)), HorizontalFlip(), jitter, Grayscale(0.2), blur), dtype, order)
    return Views((one, one))


def multicrop(
    global_size: int = 224,
    local_size: int = 96,
    *,
    globals: int = 2,  # noqa: A002 - DINO's words
    locals: int = 8,  # noqa: A002
    global_scale: tuple[float, float] = (0.4, 1.0),
    local_scale: tuple[float, float] = (0.05, 0.4),
    dtype: PixelDtype = "float32",
    order: PixelOrder = "NCHW",
) -> Views:
    """DINO's multi-crop (Caron et al., 2021): ``globals`` large views and then ``locals`` small ones of every image.

    Each: crop (bicubic), flip, jitter (0.4, 0.4, 0.2, 0.1; p 0.8), gray (p 0.2), blur, Normalize. The first global view
    is always blurred; the others with p 0.1 and solarised with p 0.2; local views are blurred with p 0.5. The blur is
    torchvision's with 9 taps, as in DINOv2. An image is read once, and decoded once for each view.
    """
    jitter, gray = ColorJitter(0.4, 0.4, 0.2, 0.1, p=0.8), Grayscale(0.2)

    def view(size: int, scale: tuple[float, float], *last: Op) -> Recipe:
        crop = RandomResizedCrop(_pair(size), scale, filter="bicubic")
        return _finish((crop, HorizontalFlip(), jitter, gray, *last), dtype, order)

    first = view(global_size, global_scale, GaussianBlur(9))
    other = view(global_size, global_scale, GaussianBlur(9, p=0.1), Solarize(128, p=0.2))
    local = view(local_size, local_scale, GaussianBlur(9, p=0.5))
    return Views((*(first if i == 0 else other for i in range(globals)), *(local for _ in range(locals))))


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _finish(ops: tuple[Op, ...], dtype: PixelDtype, order: PixelOrder) -> Recipe:
    return Recipe(ops if dtype == "uint8" else (*ops, Normalize()), dtype, order)
