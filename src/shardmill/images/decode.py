"""Encoded images to pixels: crop, antialiased resize, flip, normalise, straight into the slots of a batch.

JPEG goes through the native kernel; what the kernel does not do, and everything where it is not installed, goes
through Pillow (`shardmill.images.pillow`) into the same slots. One image's pixels are those of
``img.convert("RGB").resize((width, height), filter, box=crop)``, within the tolerance that the tests state.

| | JPEG | PNG, WebP, GIF, BMP, TIFF, AVIF |
|---|---|---|
| gray, RGB, CMYK, YCCK; baseline, progressive, arithmetic | native | Pillow |
| EXIF orientation applied (``apply_exif=True``) where there is one | Pillow | Pillow |
| 16-bit gray | | Pillow, scaled to 8 bits |

The kernel stops reading a baseline JPEG at the last row that the crop needs. A file that is cut anywhere is still
found (its end marker is missing), but damage below the crop is not: that is what the checksum of the shard is for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import OptionsError
from shardmill.imageinfo import probe
from shardmill.images.pillow import decode_into_slot, read_size
from shardmill.images.pixels import (
    Crops,
    DecodeLimits,
    DecodeStatus,
    PixelDtype,
    PixelLayout,
    PixelOrder,
    ResizeFilter,
    status_error,
    status_text,
)
from shardmill.native import native
from shardmill.records import EncodedImages, ImageFormat

__all__ = [
    "Crops",
    "DecodeLimits",
    "DecodeStatus",
    "PixelDtype",
    "PixelLayout",
    "PixelOrder",
    "ResizeFilter",
    "decode_into",
    "read_sizes",
    "status_error",
    "status_text",
]

_NATIVE_DTYPES = {"uint8": 0, "float32": 1, "float16": 2, "bfloat16": 3}
_NATIVE_FILTERS = {"bilinear": 0, "bicubic": 1}
_SIZE_IN_HEADER = (ImageFormat.PNG, ImageFormat.WEBP, ImageFormat.GIF, ImageFormat.BMP)
_DEFAULT_LIMITS = DecodeLimits()


def read_sizes(
    images: EncodedImages, *, apply_exif: bool = False, limits: DecodeLimits = _DEFAULT_LIMITS
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Widths, heights and statuses by the headers, int32 [n] each; sizes are 0 where the status is not OK.

    With ``apply_exif`` the sizes are those of the images turned upright, which is what crops then refer to.
    Cost: under 1 us for a JPEG in native code with the GIL released; 10 us and more for other formats.
    """
    if native is not None:
        widths, heights, orientations, statuses = native.read_jpeg_sizes(images.data, images.starts, images.sizes)
        if apply_exif:
            turned = orientations >= 5
            widths[turned], heights[turned] = heights[turned], widths[turned]
        todo = np.flatnonzero(statuses == DecodeStatus.UNSUPPORTED_FORMAT)
    else:
        widths, heights, statuses = (np.zeros(len(images), dtype=np.int32) for _ in range(3))
        todo = np.arange(len(images))
    for i in todo:
        data = images[int(i)].data
        info = probe(data)
        if info.width and info.format in _SIZE_IN_HEADER and not apply_exif:
            widths[i], heights[i], statuses[i] = info.width, info.height, DecodeStatus.OK
        else:
            widths[i], heights[i], statuses[i] = read_size(data, apply_exif=apply_exif, limits=limits)
    bad = statuses != DecodeStatus.OK
    widths[bad] = heights[bad] = 0
    return widths, heights, statuses


def decode_into(
    images: EncodedImages,
    crops: Crops,
    layout: PixelLayout,
    out: NDArray[Any],
    slots: NDArray[np.int64],
    *,
    filter: ResizeFilter = "bilinear",  # noqa: A002  (Pillow's word for it)
    apply_exif: bool = False,
    limits: DecodeLimits = _DEFAULT_LIMITS,
) -> NDArray[np.int32]:
    """Write image ``i``'s crop into ``out[slots[i]]``, and return a `DecodeStatus` per image, int32 [n].

    ``out``: C-contiguous, ``layout.batch_shape(...)`` of ``layout.buffer_dtype``; pages that have been written before
    are faster. A slot whose image has a status other than OK holds undefined pixels. Never raises for a bad image;
    `OptionsError` for arrays that do not fit each other.

    With ``apply_exif`` an image is turned upright as its EXIF orientation says, and its crop refers to that; by
    default the orientation is ignored, as torchvision does.

    Thread-safe: any number of calls at once, also into one ``out`` if their slots differ. The GIL is released during
    the native part, which is all of it for JPEGs; each thread that calls keeps a few hundred kB of scratch memory.
    """
    n = len(images)
    if len(crops) != n or len(slots) != n:
        raise OptionsError(f"{n} images, but {len(crops)} crops and {len(slots)} slots")
    if out.dtype != layout.buffer_dtype or out.shape != layout.batch_shape(len(out)) or not out.flags.c_contiguous:
        raise OptionsError(
            f"out is {out.dtype} {list(out.shape)}; expected C-contiguous {layout.buffer_dtype} "
            f"{list(layout.batch_shape(len(out)))}"
        )
    if n and (slots.min() < 0 or slots.max() >= len(out)):
        raise OptionsError(f"slots are {slots.min()}..{slots.max()}, but out has {len(out)}")

    statuses = _decode_native(images, crops, layout, out, slots, filter, apply_exif, limits)
    if not statuses.any():
        return statuses
    for i in np.flatnonzero(statuses == DecodeStatus.UNSUPPORTED_FORMAT):
        box = (float(crops.left[i]), float(crops.top[i]), float(crops.width[i]), float(crops.height[i]))
        statuses[i] = decode_into_slot(
            images[int(i)].data,
            box,
            bool(crops.flip[i]),
            layout,
            out[slots[i]],
            filter=filter,
            apply_exif=apply_exif,
            limits=limits,
        )
    return statuses


def _decode_native(
    images: EncodedImages,
    crops: Crops,
    layout: PixelLayout,
    out: NDArray[Any],
    slots: NDArray[np.int64],
    filter: ResizeFilter,  # noqa: A002
    apply_exif: bool,
    limits: DecodeLimits,
) -> NDArray[np.int32]:
    """Decode what the kernel can; UNSUPPORTED_FORMAT for the rest."""
    # As an int: numpy takes 3 us to look at an enum.
    statuses = np.full(len(images), int(DecodeStatus.UNSUPPORTED_FORMAT), dtype=np.int32)
    if native is None or "JPEG" not in limits.formats:
        return statuses
    chosen: slice | NDArray[np.intp] = slice(None)
    if apply_exif:
        # The kernel does not turn images: leave the turned ones to Pillow.
        _, _, orientations, _ = native.read_jpeg_sizes(images.data, images.starts, images.sizes)
        chosen = np.flatnonzero(orientations == 1)
    gain, bias = layout.gain_and_bias()
    statuses[chosen] = native.decode_jpegs(
        images.data,
        images.starts[chosen],
        images.sizes[chosen],
        *(
            np.ascontiguousarray(column[chosen], dtype=np.float64)
            for column in (crops.left, crops.top, crops.width, crops.height)
        ),
        np.ascontiguousarray(crops.flip[chosen], dtype=np.bool_),
        np.ascontiguousarray(slots[chosen], dtype=np.int64),
        out,
        dtype=_NATIVE_DTYPES[layout.dtype],
        planar=layout.order == "NCHW",
        out_height=layout.height,
        out_width=layout.width,
        gain=gain,
        bias=bias,
        resize_filter=_NATIVE_FILTERS[filter],
        max_pixels=limits.max_pixels,
        max_scans=limits.max_scans,
        strict=limits.strict,
    )
    return statuses
