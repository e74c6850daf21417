"""The header probe against Pillow, on real and made files, and on damaged ones."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardmill.imageinfo import IMAGE_EXTENSIONS, image_field, probe
from shardmill.records import ImageFormat, ImageInfo

UNKNOWN = ImageInfo(ImageFormat.UNKNOWN, 0, 0)
SIZE = (37, 21)


def encoded(form: str, size: tuple[int, int] = SIZE, mode: str = "RGB", **options: object) -> bytes:
    stream = io.BytesIO()
    Image.new(mode, size, 99).save(stream, form, **options)
    return stream.getvalue()


MADE: dict[str, tuple[ImageFormat, bytes]] = {
    "jpeg": (ImageFormat.JPEG, encoded("JPEG")),
    "progressive jpeg": (ImageFormat.JPEG, encoded("JPEG", progressive=True)),
    "gray jpeg": (ImageFormat.JPEG, encoded("JPEG", mode="L")),
    "cmyk jpeg": (ImageFormat.JPEG, encoded("JPEG", mode="CMYK")),
    "jpeg with exif and icc": (
        ImageFormat.JPEG,
        encoded("JPEG", exif=b"Exif\0\0" + bytes(60000), icc_profile=bytes(9999)),
    ),
    "png": (ImageFormat.PNG, encoded("PNG")),
    "16-bit png": (ImageFormat.PNG, encoded("PNG", mode="I;16")),
    "webp": (ImageFormat.WEBP, encoded("WEBP")),
    "lossless webp": (ImageFormat.WEBP, encoded("WEBP", lossless=True)),
    "webp with alpha": (ImageFormat.WEBP, encoded("WEBP", mode="RGBA", exif=b"Exif\0\0II*\0" + bytes(8))),
    "gif": (ImageFormat.GIF, encoded("GIF", mode="L")),
    "bmp": (ImageFormat.BMP, encoded("BMP")),
    "1-bit bmp": (ImageFormat.BMP, encoded("BMP", mode="1")),
    "tiff": (ImageFormat.TIFF, encoded("TIFF")),
    "jp2": (ImageFormat.JPEG2000, encoded("JPEG2000")),
    "j2k": (ImageFormat.JPEG2000, encoded("JPEG2000", no_jp2=True)),
}


@pytest.mark.parametrize("name", MADE)
def test_format_and_size_are_pillows(name: str) -> None:
    form, data = MADE[name]
    for buffer in (data, bytearray(data), memoryview(data)):
        assert probe(buffer) == ImageInfo(form, *SIZE)
    with Image.open(io.BytesIO(data)) as image:
        assert (image.format, image.size) == (form.name, SIZE)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]),
    st.integers(1, 300),
    st.integers(1, 300),
    st.booleans(),
)
def test_any_size(form: str, width: int, height: int, other: bool) -> None:
    options = {"JPEG": {"progressive": other}, "WEBP": {"lossless": other}}.get(form, {})
    assert probe(encoded(form, (width, height), "L" if other and form != "WEBP" else "RGB", **options)) == ImageInfo(
        ImageFormat[form], width, height
    )


def test_the_real_images(imagenet_sample: Path) -> None:
    paths = sorted(imagenet_sample.glob("*.JPEG"))
    assert len(paths) == 500
    for path in paths:
        data = path.read_bytes()
        with Image.open(io.BytesIO(data)) as image:
            assert probe(data) == ImageInfo(ImageFormat[str(image.format)], *image.size), path.name


def test_webp_files_called_jpeg_are_told(imagenettools: Path) -> None:
    assert probe((imagenettools / "Images" / "PiC1.JPEG").read_bytes()).format is ImageFormat.WEBP


@pytest.mark.parametrize("brand", [b"avif", b"avis", b"heic", b"mif1"])
def test_avif_and_heif_by_brand(brand: bytes) -> None:
    expected = ImageFormat.AVIF if brand.startswith(b"avi") else ImageFormat.HEIF
    assert probe(struct.pack(">I", 24) + b"ftyp" + brand + bytes(4) + b"mif1miaf" + bytes(100)).format is expected
    assert probe(struct.pack(">I", 24) + b"ftyp" + b"mif1" + bytes(4) + brand + b"miaf").format is expected


def test_an_mp4_is_no_image() -> None:
    assert probe(struct.pack(">I", 20) + b"ftypisom" + bytes(4) + b"mp41" + bytes(50)) == UNKNOWN


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"BM", b"<html>", b"\xff\xd8", b"MZ" + bytes(100), b"BMW is a car, not a bitmap"]
)
def test_what_is_no_image(data: bytes) -> None:
    assert probe(data) == UNKNOWN


@settings(deadline=None)
@given(st.sampled_from(sorted(MADE)), st.data())
def test_damage_never_raises_nor_hangs(name: str, draws: st.DataObject) -> None:
    data = bytearray(MADE[name][1][:2000])
    for at, value in draws.draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=8)):
        data[at] = value
    info = probe(bytes(data[: draws.draw(st.integers(0, len(data)))]))
    assert 0 <= info.width < 2**32
    assert 0 <= info.height < 2**32


MAGICS = [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFFxxxxWEBPVP8", b"II*\0", b"\xff\x4f\xff\x51", b"BM"]
MAGICS += [b"\0\0\0\x0cjP  \r\n\x87\n", b"\0\0\0\x18ftyp"]


@given(st.sampled_from(MAGICS), st.binary(max_size=300))
def test_garbage_behind_a_magic(magic: bytes, rest: bytes) -> None:
    info = probe(magic + rest)
    assert info.width >= 0
    assert info.height >= 0


def test_a_jpeg_of_nothing_but_segments_ends() -> None:
    assert probe(b"\xff\xd8" + b"\xff\xe0\x00\x02" * 200_000) == ImageInfo(ImageFormat.JPEG, 0, 0)
    assert probe(b"\xff\xd8" + b"\xff" * 500_000) == ImageInfo(ImageFormat.JPEG, 0, 0)


def test_the_image_among_the_fields() -> None:
    png = MADE["png"][1]
    assert image_field({"cls": b"3", "JPG": b"", "png": png}) == "JPG"
    assert image_field({"json": b"{}", "seg.Png": b""}) == "seg.Png"
    assert image_field({"json": b"{}", "data": png}) == "data"
    assert image_field({"cls": b"3"}) is None
    assert all(name == name.lower() and "." not in name for name in IMAGE_EXTENSIONS)
