"""Re-encoding while packing: smaller images for smaller datasets. Deterministic for one Pillow version."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import PIL
from PIL import Image, ImageOps, UnidentifiedImageError

from shardmill.errors import ImageError, OptionsError
from shardmill.records import ImageFormat, ImageInfo

Format = Literal["jpeg", "png", "webp"]

_EXTENSIONS: Final = {"jpeg": "jpg", "png": "png", "webp": "webp"}
_TRUE_FORMATS: Final = {"jpeg": ImageFormat.JPEG, "png": ImageFormat.PNG, "webp": ImageFormat.WEBP}
_MOST_PIXELS: Final = 1 << 28
_USAGE = "write it like resize=512,quality=90,format=jpeg"


@dataclass(frozen=True, slots=True)
class Encode:
    """Shorter side to ``resize`` pixels (antialiased, aspect kept), then ``format`` at ``quality`` 1 to 100.

    An image that is in ``format`` already and whose shorter side is not over ``resize`` keeps its bytes; nothing is
    ever enlarged. EXIF rotation is applied to the pixels, since the new file carries no metadata. CMYK, 16-bit and
    palette images become 8-bit RGB (grey stays grey); alpha is blended on white where the format has none.
    """

    resize: int | None = None
    quality: int = 90
    format: Format = "jpeg"

    def __post_init__(self) -> None:
        if self.resize is not None and not 1 <= self.resize <= 65_535:
            raise OptionsError(f"resize is {self.resize}: it must be 1 to 65,535 pixels")
        if not 1 <= self.quality <= 100:
            raise OptionsError(f"quality is {self.quality}: it must be 1 to 100")
        if self.format not in get_args(Format):
            raise OptionsError(f"format is {self.format!r}: it must be one of {', '.join(get_args(Format))}")

    @classmethod
    def parse(cls, text: str) -> Encode:
        """From ``"resize=512,quality=90,format=webp"``; every part may be left out."""
        values: dict[str, Any] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = part.partition("=")
            if not equals or name not in ("resize", "quality", "format") or name in values:
                raise OptionsError(f"{part!r} is not an encode option: {_USAGE}")
            if name != "format" and not value.isdecimal():
                raise OptionsError(f"{name} is {value!r}, not a whole number: {_USAGE}")
            values[name] = value if name == "format" else int(value)
        if not values:
            raise OptionsError(f"no encode option given: {_USAGE}")
        return cls(**values)

    @property
    def extension(self) -> str:
        """``"jpg"``, ``"png"`` or ``"webp"``."""
        return _EXTENSIONS[self.format]

    def describe(self) -> Mapping[str, Any]:
        """Everything the bytes depend on, the Pillow version included."""
        return {"resize": self.resize, "quality": self.quality, "format": self.format, "pillow": PIL.__version__}

    def __call__(self, data: bytes, info: ImageInfo) -> bytes | None:
        """The new file, or ``None`` to keep ``data``. Raises `ImageError` for what Pillow cannot decode."""
        small = self.resize is None or 0 < min(info.width, info.height) <= self.resize
        if small and info.format is _TRUE_FORMATS[self.format]:
            return None
        try:
            with Image.open(io.BytesIO(data)) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise ImageError(
                        f"{image.width} x {image.height} pixels; 2**28 is the limit", path="image", hint="leave it out"
                    )
                if self.resize is not None and self.format == "jpeg":
                    # Decodes a JPEG at 1/2, 1/4 or 1/8 where that still leaves twice the pixels asked for.
                    shorter = min(image.size)
                    scale = 2 * self.resize / shorter
                    if scale < 1:
                        image.draft(None, (int(image.width * scale) + 1, int(image.height * scale) + 1))
                return self._encode(self._fit(_plain(ImageOps.exif_transpose(image))))
        except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
            raise ImageError(
                f"cannot be decoded to re-encode it ({error})",
                path="image",
                hint="repair or remove it, or pack without encode",
            ) from None

    def _fit(self, image: Image.Image) -> Image.Image:
        shorter = min(image.size)
        if self.resize is None or shorter <= self.resize:
            return image
        width, height = (max(1, round(side * self.resize / shorter)) for side in image.size)
        return image.resize((width, height), Image.Resampling.BICUBIC)

    def _encode(self, image: Image.Image) -> bytes:
        out = io.BytesIO()
        if self.format == "png":
            image.save(out, "PNG")
            return out.getvalue()
        if image.mode in ("RGBA", "LA") and self.format == "jpeg":
            image = _on_white(image)
        # 4:2:0 is what photographs come in; the tables are optimised because a dataset is written once.
        options = {"optimize": True, "subsampling": "4:2:0"} if self.format == "jpeg" else {"method": 4}
        image.save(out, self.format.upper(), quality=self.quality, **options)
        return out.getvalue()


def _plain(image: Image.Image) -> Image.Image:
    """8 bits a channel: L, LA, RGB or RGBA."""
    if image.mode in ("L", "LA", "RGB", "RGBA"):
        return image
    if image.mode.startswith("I;16") or image.mode == "I":
        # convert("L") would clip 16-bit values at 255 and turn the image white.
        return image.convert("I").point(lambda value: value / 257).convert("L")
    if image.mode == "P":
        return image.convert("RGBA" if "transparency" in image.info else "RGB")
    if image.mode == "1":
        return image.convert("L")
    return image.convert("RGBA" if image.mode in ("PA", "RGBa", "La") else "RGB")


def _on_white(image: Image.Image) -> Image.Image:
    mode = "RGB" if image.mode == "RGBA" else "L"
    white = Image.new(mode, image.size, "white")
    white.paste(image.convert(mode), mask=image.getchannel("A"))
    return white
