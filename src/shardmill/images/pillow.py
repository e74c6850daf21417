"""Decode one image with Pillow: what the native kernel leaves over, and everything where it is not installed.

The twin of the kernel: the same box, filter, rounding and normalisation, so both give the same pixels (see the
tolerance in tests/images/test_decode.py). Rules for what JPEG does not have:

- Alpha is dropped, not composed, as torchvision's ``convert("RGB")`` does: hidden colours show.
- 16-bit gray is scaled to 8 bits (Pillow's own conversion would clip it to white).
- Of an animation, the first frame counts.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from shardmill.images.pixels import DecodeLimits, DecodeStatus, PixelLayout, ResizeFilter

Box = tuple[float, float, float, float]

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_ORIENTATION_TAG = 0x0112
_EDGE_TOLERANCE = 1e-6


def decode_into_slot(
    data: memoryview,
    box: Box,
    flip: bool,
    layout: PixelLayout,
    slot: NDArray[Any],
    *,
    filter: ResizeFilter,  # noqa: A002  (Pillow's word for it)
    apply_exif: bool,
    limits: DecodeLimits,
) -> DecodeStatus:
    """Decode the image in ``data`` into ``slot``, one image of a batch; never raises for a bad image.

    ``box`` is (left, top, width, height) in pixels. With ``apply_exif`` it refers to the image turned upright.
    Cost: decodes the whole image, whatever the box; holds the GIL except inside Pillow's codecs.
    """
    try:
        opened = _open(data, limits)
        if isinstance(opened, DecodeStatus):
            return opened
        with opened as image:
            image.load()
            upright = ImageOps.exif_transpose(image) if apply_exif else image
            rgb = _to_rgb(upright)
        if rgb is None:
            return DecodeStatus.UNSUPPORTED_FORMAT
        left, top, width, height = box
        right, bottom = left + width, top + height
        inside = right <= rgb.width + _EDGE_TOLERANCE and bottom <= rgb.height + _EDGE_TOLERANCE
        if not (left >= 0 and top >= 0 and width > 0 and height > 0 and inside):
            return DecodeStatus.BAD_CROP
        exact = (left, top, min(right, rgb.width), min(bottom, rgb.height))
        rgb = rgb.resize((layout.width, layout.height), _FILTERS[filter], box=exact)
        write_pixels(np.asarray(rgb), flip, layout, slot)
    except MemoryError:
        return DecodeStatus.OUT_OF_MEMORY
    except UnidentifiedImageError:
        return DecodeStatus.UNSUPPORTED_FORMAT
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return DecodeStatus.TOO_MANY_PIXELS
    except OSError as error:
        return DecodeStatus.TRUNCATED if "truncated" in str(error) else DecodeStatus.CORRUPT
    except Exception:  # Pillow's plugins let struct.error, IndexError, SyntaxError and more through on damaged data
        return DecodeStatus.CORRUPT
    return DecodeStatus.OK


def read_size(data: memoryview, *, apply_exif: bool, limits: DecodeLimits) -> tuple[int, int, DecodeStatus]:
    """Width and height by the header (with ``apply_exif``, of the image turned upright), and a status."""
    try:
        opened = _open(data, limits)
        if isinstance(opened, DecodeStatus):
            return 0, 0, opened
        with opened as image:
            width, height = image.size
            # TIFF is turned by Pillow itself, and its size is already that of the upright image.
            turned = apply_exif and image.format != "TIFF" and image.getexif().get(_ORIENTATION_TAG, 1) in (5, 6, 7, 8)
            return (height, width, DecodeStatus.OK) if turned else (width, height, DecodeStatus.OK)
    except UnidentifiedImageError:
        return 0, 0, DecodeStatus.UNSUPPORTED_FORMAT
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return 0, 0, DecodeStatus.TOO_MANY_PIXELS
    except Exception:  # as above
        return 0, 0, DecodeStatus.CORRUPT


def write_pixels(rgb: NDArray[np.uint8], flip: bool, layout: PixelLayout, slot: NDArray[Any]) -> None:
    """Flip, normalise and convert uint8 [height, width, 3] into ``slot``, bit for bit as the kernel does."""
    if flip:
        rgb = rgb[:, ::-1]
    if layout.dtype == "uint8":
        pixels: NDArray[Any] = rgb
    else:
        gain, bias = layout.gain_and_bias()
        pixels = rgb.astype(np.float32) * gain + bias
        if layout.dtype == "bfloat16":
            bits = pixels.view(np.uint32)
            # Round to nearest even: half an ulp of the upper 16 bits, less one where they are even.
            pixels = ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    slot[...] = pixels.transpose(2, 0, 1) if layout.order == "NCHW" else pixels


def _open(data: memoryview, limits: DecodeLimits) -> Image.Image | DecodeStatus:
    """The image with its header read, or why not. Pillow reads pixels only at ``load``."""
    image = Image.open(io.BytesIO(data), formats=limits.formats)
    if image.width * image.height > limits.max_pixels:
        image.close()
        return DecodeStatus.TOO_MANY_PIXELS
    if image.format in ("JPEG", "MPO"):
        encoded = bytes(data)
        # Neither marker can occur inside entropy-coded data; a thumbnail in EXIF adds one scan.
        if encoded.count(b"\xff\xda") > limits.max_scans + 1:
            return DecodeStatus.TOO_MANY_SCANS
        if encoded.rfind(b"\xff\xd9") < encoded.rfind(b"\xff\xda"):
            return DecodeStatus.TRUNCATED
    return image


def _to_rgb(image: Image.Image) -> Image.Image | None:
    """The image as 8-bit RGB; ``None`` for modes that have no fixed range (32-bit integers, floats)."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        deep = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((deep * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F", "LAB", "HSV"):
        return None
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        # The same pixels as straight to RGB, without Pillow's warning about transparency in bytes.
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")
