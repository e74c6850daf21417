"""What the decoder takes and gives besides bytes: how pixels are written, where from, within which limits."""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ImageError, OptionsError

PixelDtype: TypeAlias = Literal["uint8", "float32", "float16", "bfloat16"]
PixelOrder: TypeAlias = Literal["NCHW", "NHWC"]
ResizeFilter: TypeAlias = Literal["bilinear", "bicubic"]

_BUFFER_DTYPES: dict[str, np.dtype[Any]] = {
    "uint8": np.dtype(np.uint8),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
}


@dataclass(frozen=True, slots=True)
class PixelLayout:
    """How the pixels of a batch are written.

    ``height``, ``width`` in pixels. ``mean`` and ``std`` are per channel (R, G, B) in units of pixel values scaled to
    [0, 1], both or neither: a float pixel is ``(v / 255 - mean) / std``, or ``v / 255`` without them, where ``v`` is
    the rounded 8-bit value that ``"uint8"`` would hold. ``"bfloat16"`` is written into a uint16 buffer, as numpy has
    no such type; float16 and bfloat16 are the float32 value rounded to nearest even.
    """

    height: int
    width: int
    dtype: PixelDtype = "float32"
    order: PixelOrder = "NCHW"
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1:
            raise OptionsError(f"output size is {self.height} x {self.width}; both must be 1 or more")
        if self.dtype not in _BUFFER_DTYPES:
            raise OptionsError(f"dtype is {self.dtype!r}; expected one of {', '.join(_BUFFER_DTYPES)}")
        if self.order not in ("NCHW", "NHWC"):
            raise OptionsError(f"order is {self.order!r}; expected 'NCHW' or 'NHWC'")
        if (self.mean is None) != (self.std is None):
            raise OptionsError("mean and std belong together: give both, or neither")
        if self.mean is not None and self.dtype == "uint8":
            raise OptionsError("uint8 pixels are not normalised; drop mean and std, or choose a float dtype")
        if self.std is not None and not all(std > 0 for std in self.std):
            raise OptionsError(f"std is {self.std}; every entry must be positive")

    @property
    def buffer_dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the buffer the pixels are written into."""
        return _BUFFER_DTYPES[self.dtype]

    def batch_shape(self, n: int) -> tuple[int, int, int, int]:
        """The shape of a buffer of ``n`` images."""
        if self.order == "NCHW":
            return n, 3, self.height, self.width
        return n, self.height, self.width, 3

    def gain_and_bias(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """float32 [3] each: a float pixel is ``float32(v) * gain + bias``, rounded after each step."""
        gain, bias = _gain_and_bias(tuple(self.mean or (0.0, 0.0, 0.0)), tuple(self.std or (1.0, 1.0, 1.0)))
        return gain.copy(), bias.copy()


@functools.lru_cache(maxsize=32)
def _gain_and_bias(mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    # Asked for in every call of the decoder, and a quarter of its Python if computed each time.
    means, stds = np.array(mean, np.float64), np.array(std, np.float64)
    return (1 / (255 * stds)).astype(np.float32), (-means / stds).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Crops:
    """One geometric operation per image, as columns of length n.

    ``left``, ``top``, ``width``, ``height``: float64, the source box in pixels of the full-resolution image, fractions
    allowed, as in Pillow's ``Image.resize(box=...)``. ``flip``: bool, mirror left to right after the resize.
    ``right``, ``down``: int64, pixels by which the decoded image is then moved, where a crop takes in padding.
    """

    left: NDArray[np.float64]
    top: NDArray[np.float64]
    width: NDArray[np.float64]
    height: NDArray[np.float64]
    flip: NDArray[np.bool_]
    right: NDArray[np.int64] | None = None
    down: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.left)

    def part(self, which: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Crops:
        """Some of the rows."""
        moves = (None if self.right is None else self.right[which], None if self.down is None else self.down[which])
        return Crops(self.left[which], self.top[which], self.width[which], self.height[which], self.flip[which], *moves)

    def __repr__(self) -> str:
        return f"Crops({len(self)} images)"


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """What is refused rather than decoded; the defaults keep bombs out and real photographs in.

    ``max_pixels``: width x height by the header, checked before anything is allocated; the default is where Pillow
    refuses. ``max_scans``: of a progressive JPEG; 2,000 scans in 38 kB take a minute of CPU time. ``strict``: a JPEG
    for which libjpeg warns that it makes up pixels is an error instead of grey or smeared; needs the native module, as
    Pillow hides libjpeg's warnings. Damage that is valid code by chance, or below the crop, is for the checksum.
    ``formats``: Pillow's names of the formats that may be decoded.
    """

    max_pixels: int = 178_956_970
    max_scans: int = 500
    strict: bool = True
    formats: tuple[str, ...] = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")


class DecodeStatus(enum.IntEnum):
    """What became of one image. The numbers are shared with native/image.h: never renumber."""

    OK = 0
    UNSUPPORTED_FORMAT = 1
    TRUNCATED = 2
    CORRUPT = 3
    TOO_MANY_PIXELS = 4
    TOO_MANY_SCANS = 5
    BAD_CROP = 6
    OUT_OF_MEMORY = 7


_TEXTS: dict[DecodeStatus, tuple[str, str]] = {
    DecodeStatus.UNSUPPORTED_FORMAT: (
        "not an image of an allowed format",
        "convert it, or allow its format (DecodeLimits.formats)",
    ),
    DecodeStatus.TRUNCATED: ("the image ends early", "fetch the file again from its source"),
    DecodeStatus.CORRUPT: ("the image is damaged", "fetch the file again from its source"),
    DecodeStatus.TOO_MANY_PIXELS: (
        "the image has more pixels than allowed",
        "raise DecodeLimits.max_pixels if you trust it",
    ),
    DecodeStatus.TOO_MANY_SCANS: (
        "the progressive JPEG has more scans than allowed",
        "raise DecodeLimits.max_scans if you trust it",
    ),
    DecodeStatus.BAD_CROP: ("the crop is empty or not inside the image", "compute it from the size of this image"),
    DecodeStatus.OUT_OF_MEMORY: ("memory ran out while decoding", "use fewer threads or smaller images"),
}


def status_text(status: int) -> str:
    """What a status means, in a few words."""
    known = DecodeStatus(status)
    return "decoded" if known is DecodeStatus.OK else _TEXTS[known][0]


def status_error(status: int, *, path: str, offset: int | None = None, key: str | None = None) -> ImageError:
    """The error for a status other than OK: which image (``path``, ``offset``, ``key``), what, and what to do."""
    problem, hint = _TEXTS[DecodeStatus(status)]
    return ImageError(problem, path=path, offset=offset, key=key, hint=hint)
