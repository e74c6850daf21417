"""Every kind of JPEG that Pillow can write or that can be patched from one, against Pillow's own decoding."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from shardmill.errors import OptionsError
from shardmill.images import decode as decode_module
from shardmill.images.decode import DecodeLimits, DecodeStatus, read_sizes
from shardmill.native import native

Photo = Callable[..., Image.Image]
Save = Callable[..., bytes]
Decode = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int32]]]
ByPillow = Callable[..., NDArray[np.uint8]]


def frame_header(jpeg: bytes) -> int:
    """Where the SOF marker is."""
    at = 2
    while jpeg[at + 1] not in (0xC0, 0xC1, 0xC2):
        at += 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
    return at


def with_luma_sampling(jpeg: bytes, factors: int) -> bytes:
    """The same MCUs with other sampling factors of the first component: scrambles the picture, stays valid."""
    at = frame_header(jpeg)
    return jpeg[: at + 11] + bytes([factors]) + jpeg[at + 12 :]


def assert_native_equals_pillow(
    jpeg: bytes, decode: Decode, by_pillow: ByPillow, monkeypatch: pytest.MonkeyPatch, levels: int = 1
) -> None:
    """Crops at every edge and alignment, larger and smaller than the output, without the twin's help."""
    assert native is not None

    def no_twin(*arguments: Any, **options: Any) -> DecodeStatus:
        return DecodeStatus.UNSUPPORTED_FORMAT

    width, height = Image.open(io.BytesIO(jpeg)).size
    rng = np.random.default_rng(width * 1000 + height)
    boxes: list[tuple[float, float, float, float]] = [(0, 0, width, height)]
    for _ in range(24):
        left, top = int(rng.integers(0, width)), int(rng.integers(0, height))
        boxes.append((left, top, int(rng.integers(1, width - left + 1)), int(rng.integers(1, height - top + 1))))
        boxes.append((left * 0.99, top * 0.99, width - left, (height - top) * 0.5))
    monkeypatch.setattr(decode_module, "decode_into_slot", no_twin)
    for size in (16, (40, 50)):
        for filter_ in ("bilinear", "bicubic"):
            pixels, statuses = decode([jpeg] * len(boxes), boxes, size, filter=filter_)
            assert not statuses.any()
            try:
                native.use_fast_path(False)
                by_libjpeg, statuses = decode([jpeg] * len(boxes), boxes, size, filter=filter_)
            finally:
                native.use_fast_path(True)
            assert not statuses.any()
            np.testing.assert_array_equal(pixels, by_libjpeg)
            for i, box in enumerate(boxes):
                difference = np.abs(pixels[i].astype(int) - by_pillow(jpeg, box, size, filter=filter_))
                # Bicubic: Pillow cuts overshoot off between its passes, which shows in crops of a few pixels.
                assert difference.mean() < (1 if filter_ == "bilinear" else 2), (box, size, filter_)
                if filter_ == "bilinear" and min(box[2:]) < 8 * 16:
                    assert difference.max() <= levels, (box, size)


@pytest.mark.parametrize(
    "options",
    [
        {"subsampling": "4:4:4"},
        {"subsampling": "4:2:2"},
        {"subsampling": "4:2:0"},
        {"subsampling": "4:2:0", "progressive": True},
        {"subsampling": "4:4:4", "progressive": True, "optimize": True},
        {"subsampling": "4:2:0", "restart_marker_blocks": 3},
        {"subsampling": "4:4:4", "restart_marker_rows": 1},
        {"subsampling": "4:2:2", "progressive": True, "restart_marker_rows": 2},
        {"quality": 100},
        {"quality": 3},
        {"keep_rgb": True},
    ],
    ids=lambda options: "-".join(f"{name}={value}" for name, value in options.items()),
)
@pytest.mark.parametrize("size", [(131, 97), (64, 200), (33, 17)])
def test_kinds_equal_pillow(
    options: dict[str, Any],
    size: tuple[int, int],
    photo: Photo,
    save: Save,
    decode: Decode,
    by_pillow: ByPillow,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert_native_equals_pillow(save(photo(*size), **options), decode, by_pillow, monkeypatch)


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (40, 1), (2, 3), (7, 9), (8, 8), (15, 16), (17, 31)])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_small_images(
    size: tuple[int, int],
    subsampling: str,
    photo: Photo,
    save: Save,
    decode: Decode,
    by_pillow: ByPillow,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jpeg = save(photo(*size), subsampling=subsampling)
    assert_native_equals_pillow(jpeg, decode, by_pillow, monkeypatch)


@pytest.mark.parametrize(
    ("subsampling", "factors"),
    [("4:2:2", 0x12), ("4:2:0", 0x41), ("4:2:0", 0x14), ("4:4:4", 0x11)],
    ids=["4:4:0", "4:1:1", "1x4", "4:4:4"],
)
@pytest.mark.parametrize("progressive", [False, True])
def test_odd_sampling_factors(
    subsampling: str,
    factors: int,
    progressive: bool,
    photo: Photo,
    save: Save,
    decode: Decode,
    by_pillow: ByPillow,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 128 is a multiple of every MCU, so the number of MCUs stays the same. Progressive scans of one component have
    # another number of blocks in them then only where the image is not a multiple of the MCU.
    jpeg = with_luma_sampling(save(photo(128, 128), subsampling=subsampling, progressive=progressive), factors)
    assert_native_equals_pillow(jpeg, decode, by_pillow, monkeypatch)


@pytest.mark.parametrize("progressive", [False, True])
def test_gray(
    progressive: bool,
    photo: Photo,
    save: Save,
    decode: Decode,
    by_pillow: ByPillow,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jpeg = save(photo(101, 83).convert("L"), progressive=progressive)
    assert_native_equals_pillow(jpeg, decode, by_pillow, monkeypatch)


@pytest.mark.parametrize("kind", ["CMYK", "YCCK", "no Adobe marker"])
def test_four_components(
    kind: str, photo: Photo, save: Save, decode: Decode, by_pillow: ByPillow, monkeypatch: pytest.MonkeyPatch
) -> None:
    ink = [photo(90, 75, seed).convert("L") for seed in range(3)]
    jpeg = save(Image.merge("CMYK", [*ink, photo(90, 75, 9).convert("L").point(lambda v: v // 3)]), quality=95)
    adobe = jpeg.index(b"\xff\xee")
    assert jpeg[adobe + 4 : adobe + 9] == b"Adobe"
    if kind == "YCCK":
        transform = adobe + 15
        assert jpeg[transform] == 0
        jpeg = jpeg[:transform] + b"\x02" + jpeg[transform + 1 :]
    elif kind == "no Adobe marker":
        jpeg = jpeg[:adobe] + jpeg[adobe + 2 + int.from_bytes(jpeg[adobe + 2 : adobe + 4], "big") :]
    assert_native_equals_pillow(jpeg, decode, by_pillow, monkeypatch, levels=2)


def test_exif_orientation(photo: Photo, save: Save, decode: Decode, by_pillow: ByPillow, join: Any) -> None:
    picture = photo(60, 40)
    blobs = []
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        blobs.append(save(picture, exif=exif, quality=95))
    box = (3, 5, 30, 25)
    ignored, statuses = decode(blobs, [box] * 8, 24)
    assert not statuses.any()
    for pixels in ignored:
        np.testing.assert_array_equal(pixels, ignored[0])
    applied, statuses = decode(blobs, [box] * 8, 24, apply_exif=True)
    assert not statuses.any()
    widths, heights, _ = read_sizes(join(blobs), apply_exif=True)
    for i, blob in enumerate(blobs):
        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(blob)))
        assert (widths[i], heights[i]) == upright.size
        assert np.abs(applied[i].astype(int) - by_pillow(upright, box, 24)).max() <= 1
    widths, heights, _ = read_sizes(join(blobs))
    assert set(zip(widths.tolist(), heights.tolist(), strict=True)) == {(60, 40)}


@pytest.mark.parametrize(
    "box",
    [
        (0, 0, 0, 10),
        (0, 0, 10, -1),
        (-0.5, 0, 10, 10),
        (0, 0, 51, 10),
        (45, 0, 10, 10),
        (0, 35, 10, 6),
        (float("nan"), 0, 10, 10),
        (0, 0, float("inf"), 10),
        (0, 0, 10, float("nan")),
    ],
)
@pytest.mark.parametrize("twin", [False, True])
def test_boxes_outside_the_image(
    box: Any, twin: bool, photo: Photo, save: Save, decode: Decode, monkeypatch: pytest.MonkeyPatch
) -> None:
    if twin:
        monkeypatch.setattr(decode_module, "native", None)
    _, statuses = decode([save(photo(50, 40))] * 2, [(0, 0, 50, 40), box])
    assert statuses.tolist() == [DecodeStatus.OK, DecodeStatus.BAD_CROP]


def test_an_edge_missed_by_a_rounding_error_is_not_outside(photo: Photo, save: Save, decode: Decode) -> None:
    _, statuses = decode([save(photo(50, 40))], [(0.1 + 0.2, 0, 50 - 0.3, 40 + 1e-9)])
    assert statuses.tolist() == [DecodeStatus.OK]


def test_formats_can_be_forbidden(photo: Photo, save: Save, decode: Decode) -> None:
    blobs = [save(photo(50, 40)), save(photo(50, 40), "PNG")]
    _, statuses = decode(blobs, [(0, 0, 50, 40)] * 2, limits=DecodeLimits(formats=("PNG",)))
    assert statuses.tolist() == [DecodeStatus.UNSUPPORTED_FORMAT, DecodeStatus.OK]


def test_unknown_levels_are_refused() -> None:
    assert native is not None
    with pytest.raises(ValueError, match="does not have sse9"):
        native.set_simd_level("sse9")
    assert issubclass(OptionsError, ValueError)
