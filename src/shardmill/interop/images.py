"""webdataset's image specs: what ``.decode("pil")`` and its sixteen brothers mean."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from shardmill.errors import OptionsError

SPECS: dict[str, tuple[str, str, str]] = {
    "l8": ("numpy", "uint8", "L"),
    "rgb8": ("numpy", "uint8", "RGB"),
    "rgba8": ("numpy", "uint8", "RGBA"),
    "l": ("numpy", "float32", "L"),
    "rgb": ("numpy", "float32", "RGB"),
    "rgba": ("numpy", "float32", "RGBA"),
    "torchl8": ("torch", "uint8", "L"),
    "torchrgb8": ("torch", "uint8", "RGB"),
    "torchrgba8": ("torch", "uint8", "RGBA"),
    "torchl": ("torch", "float32", "L"),
    "torchrgb": ("torch", "float32", "RGB"),
    "torch": ("torch", "float32", "RGB"),
    "torchrgba": ("torch", "float32", "RGBA"),
    "pill": ("pil", "", "L"),
    "pil": ("pil", "", "RGB"),
    "pilrgb": ("pil", "", "RGB"),
    "pilrgba": ("pil", "", "RGBA"),
}
"""Name of the spec: (what it gives, its dtype, its Pillow mode). Floats lie within 0 .. 1."""

EXTENSIONS = frozenset((
    "apng", "avif", "avifs", "bmp", "bw", "cur", "dds", "dib", "gif", "icb", "icns", "ico", "j2c", "j2k", "jfif",
    "jp2", "jpc", "jpe", "jpeg", "jpf", "jpg", "jpx", "pbm", "pcx", "pgm", "png", "pnm", "ppm", "psd", "ras", "rgb",
    "rgba", "sgi", "tga", "tif", "tiff", "vda", "vst", "webp", "xbm", "xpm",
))  # fmt: skip
"""Extensions that an image decoder is invoked for."""

# Pillow runs Ghostscript, a whole programming language, on what begins like PostScript, whatever its extension says.
# So a format must be in this list of plain pixel formats to be tried at all.
FORMATS = (
    "JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM", "DIB", "ICO", "CUR", "ICNS", "TGA", "PCX",
    "SGI", "SUN", "DDS", "PSD", "XBM", "XPM",
)  # fmt: skip


@dataclass(frozen=True)
class ImageDecoder:
    """Encoded image to what ``spec`` says, as a decode handler: ``None`` for a field that is no image.

    | spec | gives |
    |---|---|
    | ``"pil"``, ``"pilrgb"``, ``"pill"``, ``"pilrgba"`` | a loaded ``PIL.Image`` |
    | ``"rgb8"``, ``"l8"``, ``"rgba8"`` | numpy uint8 [H, W, C], ``l``: [H, W] |
    | ``"rgb"``, ``"l"``, ``"rgba"`` | numpy float32, the same shape, 0 .. 1 |
    | ``"torchrgb8"`` ... | torch uint8 [C, H, W], ``l``: [H, W] |
    | ``"torchrgb"`` (= ``"torch"``) ... | torch float32, the same shape, 0 .. 1 |

    The pixels are Pillow's, as in webdataset, but for 16-bit gray: that is scaled to 8 bits, where Pillow's own
    conversion clips it to white.
    """

    spec: str

    def __post_init__(self) -> None:
        if self.spec not in SPECS:
            raise OptionsError(f"unknown image spec {self.spec!r}; there are {', '.join(SPECS)}")

    def __call__(self, key: str, data: bytes) -> Any:
        """``key`` is the extension with a dot before it, as webdataset's handlers get it."""
        return self.decode(data) if key.rpartition(".")[2].lower() in EXTENSIONS else None

    def decode(self, data: bytes | memoryview) -> Any:
        """The image. Raises what Pillow raises for a damaged one."""
        container, dtype, mode = SPECS[self.spec]
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            image = _converted(opened, mode)
        if container == "pil":
            return image
        pixels = np.array(image)
        if dtype == "float32":
            pixels = pixels.astype(np.float32) / 255.0
        if container == "numpy":
            return pixels
        import torch

        return torch.from_numpy(pixels if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _converted(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        deep = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((deep * 255 + 32767) // 65535).astype(np.uint8)).convert(mode)
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        # The same pixels as straight to the mode, without Pillow's warning about transparency in bytes.
        return image.convert("RGBA").convert(mode)
    image.load()
    return image.convert(mode)
