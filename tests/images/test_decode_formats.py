"""What is not a JPEG goes through Pillow into the same slots; the rules for alpha, depth, palettes and frames."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from shardmill.images import decode as decode_module
from shardmill.images.decode import DecodeLimits, DecodeStatus, read_sizes, status_error, status_text

Photo = Callable[..., Image.Image]
Save = Callable[..., bytes]
Decode = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int32]]]

BOX = (5, 3, 40, 30)


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"quality": 80}),
        ("BMP", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("GIF", {}),
    ],
)
def test_formats(
    format: str,  # noqa: A002
    options: dict[str, Any],
    photo: Photo,
    save: Save,
    decode: Decode,
    by_pillow: Any,
    join: Any,
) -> None:
    jpeg, other = save(photo(60, 40, 1)), save(photo(60, 40), format, **options)
    pixels, statuses = decode([jpeg, other, jpeg], [BOX] * 3, flips=[False, True, False])
    assert not statuses.any()
    np.testing.assert_array_equal(pixels[1], by_pillow(other, BOX, flip=True))
    np.testing.assert_array_equal(pixels[0], pixels[2])
    widths, heights, statuses = read_sizes(join([jpeg, other]))
    assert (widths.tolist(), heights.tolist(), statuses.tolist()) == ([60, 60], [40, 40], [0, 0])


def test_a_png_named_jpeg_is_decoded_as_png(photo: Photo, save: Save, decode: Decode, by_pillow: Any) -> None:
    png = save(photo(60, 40), "PNG")  # names do not reach the decoder at all
    pixels, _ = decode([png], [BOX])
    np.testing.assert_array_equal(pixels[0], by_pillow(png, BOX))


def test_alpha_is_dropped_not_composed(photo: Photo, save: Save, decode: Decode, by_pillow: Any) -> None:
    colour = photo(60, 40)
    clear = colour.copy()
    clear.putalpha(0)
    pixels, _ = decode([save(clear, "PNG"), save(clear.convert("LA"), "PNG")], [BOX] * 2)
    np.testing.assert_array_equal(pixels[0], by_pillow(colour, BOX))
    np.testing.assert_array_equal(pixels[1], by_pillow(colour.convert("L"), BOX))


def test_palette_with_transparency(photo: Photo, save: Save, decode: Decode, by_pillow: Any) -> None:
    palette = photo(60, 40).quantize(16)
    png = save(palette, "PNG", transparency=bytes(range(16)))
    pixels, statuses = decode([png], [BOX])  # and no warning, which the test run would turn into an error
    assert not statuses.any()
    np.testing.assert_array_equal(pixels[0], by_pillow(palette, BOX))


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_16_bit_gray_is_scaled_not_clipped(format: str, save: Save, decode: Decode) -> None:  # noqa: A002
    deep = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    pixels, statuses = decode([save(Image.fromarray(deep), format)], [(0, 0, 64, 64)], 64)
    assert not statuses.any()
    expected = np.round(deep / 257)
    assert np.abs(pixels[0] - expected[..., None]).max() <= 0.5


def test_1_bit_and_one_frame_of_many(photo: Photo, save: Save, decode: Decode, by_pillow: Any) -> None:
    bits = photo(60, 40).convert("1")
    frames = [photo(60, 40, seed).convert("P") for seed in range(3)]
    gif = save(frames[0], "GIF", save_all=True, append_images=frames[1:])
    pixels, statuses = decode([save(bits, "PNG"), gif], [BOX] * 2)
    assert not statuses.any()
    np.testing.assert_array_equal(pixels[0], by_pillow(bits, BOX))
    first = Image.open(io.BytesIO(gif))
    np.testing.assert_array_equal(pixels[1], by_pillow(first, BOX))


@pytest.mark.parametrize("mode", ["F", "I"])
def test_modes_without_a_range_are_refused(mode: str, save: Save, decode: Decode) -> None:
    image = Image.fromarray(np.full((40, 60), 100_000, dtype=np.float32 if mode == "F" else np.int32))
    _, statuses = decode([save(image, "TIFF")], [BOX])
    assert statuses.tolist() == [DecodeStatus.UNSUPPORTED_FORMAT]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", DecodeStatus.UNSUPPORTED_FORMAT),
        (b"not an image", DecodeStatus.UNSUPPORTED_FORMAT),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", DecodeStatus.UNSUPPORTED_FORMAT),
        (b"P6\n60 40\n255\n" + bytes(7200), DecodeStatus.UNSUPPORTED_FORMAT),
    ],
)
def test_formats_outside_the_list_are_refused(data: bytes, status: int, decode: Decode, join: Any) -> None:
    _, statuses = decode([data], [BOX])
    assert statuses.tolist() == [status]
    widths, heights, statuses = read_sizes(join([data]))
    assert (widths.tolist(), heights.tolist(), statuses.tolist()) == ([0], [0], [status])


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF", "TIFF", "BMP"])
def test_cut_files_have_a_status(format: str, photo: Photo, save: Save, decode: Decode) -> None:  # noqa: A002
    whole = save(photo(60, 40), format)
    cuts = [whole[: len(whole) * k // 16] for k in range(16)]
    _, statuses = decode([*cuts, whole], [BOX] * 17)
    assert statuses[-1] == DecodeStatus.OK
    assert (statuses[:14] != DecodeStatus.OK).all(), statuses


def test_pixel_limit_of_other_formats(photo: Photo, save: Save, decode: Decode) -> None:
    limits = DecodeLimits(max_pixels=60 * 40 - 1)
    blobs = [save(photo(60, 40), name) for name in ("PNG", "WEBP", "TIFF", "JPEG")]
    _, statuses = decode(blobs, [BOX] * 4, limits=limits)
    assert set(statuses.tolist()) == {DecodeStatus.TOO_MANY_PIXELS}
    bomb = save(Image.new("1", (20_000, 20_000)), "PNG")
    _, statuses = decode([bomb], [BOX])
    assert statuses.tolist() == [DecodeStatus.TOO_MANY_PIXELS]


def test_the_twin_counts_scans_and_misses_no_end(
    photo: Photo, save: Save, decode: Decode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_module, "native", None)
    jpeg = save(photo(60, 40), progressive=True)
    blobs = [jpeg, jpeg[:-2], jpeg + b"trailing \xff\xd9 garbage", jpeg[: len(jpeg) // 2]]
    _, statuses = decode(blobs, [BOX] * 4)
    assert statuses.tolist() == [DecodeStatus.OK, DecodeStatus.TRUNCATED, DecodeStatus.OK, DecodeStatus.TRUNCATED]
    _, statuses = decode(blobs[:1], [BOX], limits=DecodeLimits(max_scans=3))
    assert statuses.tolist() == [DecodeStatus.TOO_MANY_SCANS]


def test_every_status_has_a_text_and_an_error() -> None:
    assert status_text(0) == "decoded"
    for status in DecodeStatus:
        if status is DecodeStatus.OK:
            continue
        error = status_error(status, path="a-000001.tar", offset=512, key="n01/x")
        assert str(error).startswith("a-000001.tar @ 512 (key 'n01/x'): ")
        assert status_text(status) in str(error)
        assert error.hint
