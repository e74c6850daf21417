"""Damaged, cut, hostile: every byte string has a status, quickly, and never a crash or silent made-up pixels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from shardmill.images.decode import Crops, DecodeLimits, DecodeStatus, PixelLayout, decode_into, read_sizes
from shardmill.native import native
from shardmill.records import EncodedImages

Photo = Callable[..., Image.Image]
Save = Callable[..., bytes]
Decode = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int32]]]
BOX = (5, 3, 40, 30)


@pytest.fixture
def kinds(photo: Photo, save: Save) -> list[bytes]:
    """Small JPEGs of all kinds, 60 x 40."""
    picture = photo(60, 40)
    return [
        save(picture, subsampling="4:4:4"),
        save(picture, subsampling="4:2:0"),
        save(picture, subsampling="4:2:2", restart_marker_blocks=2),
        save(picture, progressive=True),
        save(picture, progressive=True, subsampling="4:2:0", restart_marker_rows=1),
        save(picture.convert("L")),
        save(picture.convert("CMYK")),
        save(picture, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"),
    ]


def mutations(blob: bytes, count: int, rng: np.random.Generator) -> list[bytes]:
    """Edits as disks and networks make them: flipped bytes, runs of zeros, pieces lost, doubled or swapped."""
    out = []
    for _ in range(count):
        data = bytearray(blob)
        kind = rng.integers(0, 6)
        at = int(rng.integers(0, len(data)))
        run = int(rng.integers(1, 64))
        if kind <= 1:
            for _ in range(int(rng.integers(1, 8))):
                data[rng.integers(0, len(data))] = rng.integers(0, 256)
        elif kind == 2:
            data[at : at + run] = bytes(len(data[at : at + run]))
        elif kind == 3:
            del data[at : at + run]
        elif kind == 4:
            data[at:at] = data[at : at + run]
        else:
            del data[at:]
        out.append(bytes(data))
    return out


@pytest.mark.parametrize("strict", [True, False])
def test_thousands_of_mutations(kinds: list[bytes], strict: bool, decode: Decode, join: Any) -> None:
    rng = np.random.default_rng(1)
    blobs = [mutated for blob in kinds for mutated in mutations(blob, 300, rng)]
    boxes = [(int(rng.integers(0, 30)), int(rng.integers(0, 20)), 30, 20) for _ in blobs]
    pixels, statuses = decode(blobs, boxes, 24, limits=DecodeLimits(max_pixels=10**7, strict=strict))
    assert set(statuses.tolist()) <= {int(status) for status in DecodeStatus}
    # Both happen in quantity, or the mutations test nothing.
    assert (statuses == DecodeStatus.OK).sum() > 100
    assert (statuses != DecodeStatus.OK).sum() > 100
    assert pixels.shape == (len(blobs), 24, 24, 3)
    read_sizes(join(blobs))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_after_a_jpeg_magic(junk: bytes, strict: bool) -> None:
    data = b"\xff\xd8\xff" + junk
    images = EncodedImages(
        np.frombuffer(data, dtype=np.uint8),
        np.zeros(1, dtype=np.int64),
        np.array([len(data)], dtype=np.int64),
        np.ones(1, dtype=np.uint8),
        np.zeros(1, dtype=np.int64),
    )
    one = np.ones(1)
    layout = PixelLayout(4, 4, "uint8", "NHWC")
    out = np.zeros(layout.batch_shape(1), dtype=np.uint8)
    crops = Crops(one * 0, one * 0, one, one, np.zeros(1, dtype=np.bool_))
    statuses = decode_into(images, crops, layout, out, np.zeros(1, dtype=np.int64), limits=DecodeLimits(strict=strict))
    assert statuses[0] != DecodeStatus.OK
    assert read_sizes(images)[2].shape == (1,)


def test_every_cut_is_found_wherever_the_crop_is(kinds: list[bytes], decode: Decode) -> None:
    top = (0, 0, 60, 8)  # so that the kernel has no need of the lower half
    for blob in kinds:
        cuts = [blob[:-2], blob[:-1], *(blob[: len(blob) * k // 16] for k in range(1, 16))]
        for limits in (DecodeLimits(), DecodeLimits(strict=False)):
            _, statuses = decode([*cuts, blob], [top] * 18, limits=limits)
            assert (statuses[:-1] != DecodeStatus.OK).all()
            assert statuses[0] == DecodeStatus.TRUNCATED
            assert statuses[-1] == DecodeStatus.OK


def test_bytes_after_the_end_do_not_matter(kinds: list[bytes], decode: Decode) -> None:
    for blob in kinds:
        pixels, statuses = decode([blob, blob + bytes(1000), blob + blob, blob + b"PK\x03\x04 \xff\xd9"], [BOX] * 4)
        assert not statuses.any()
        for other in pixels[1:]:
            np.testing.assert_array_equal(other, pixels[0])


def test_damaged_entropy_data_is_an_error_unless_asked_otherwise(photo: Photo, save: Save, decode: Decode) -> None:
    """What libjpeg warns of and then makes up pixels for. Damage that is valid code by chance is the checksum's job."""
    jpeg = save(photo(200, 150), quality=95, subsampling="4:4:4")
    rng = np.random.default_rng(0)
    start = jpeg.index(b"\xff\xda") + 20
    damaged = []
    for _ in range(50):
        at = int(rng.integers(start, start + (len(jpeg) - start) // 2))
        damaged += [
            jpeg[:at] + b"\xff\xd5" + jpeg[at:],  # a marker inside the data
            jpeg[:at] + jpeg[at + len(jpeg) // 4 :],  # a piece is missing
        ]
    boxes = [(0, 0, 200, 150)] * len(damaged)
    _, strict = decode(damaged, boxes)
    _, lenient = decode(damaged, boxes, limits=DecodeLimits(strict=False))
    assert (strict == DecodeStatus.CORRUPT).all()
    assert (lenient == DecodeStatus.OK).all()


def test_a_large_claim_in_a_small_file_is_refused(photo: Photo, save: Save, decode: Decode, join: Any) -> None:
    for options in ({}, {"progressive": True}):
        jpeg = save(photo(60, 40), **options)
        frame = jpeg.index(b"\xff\xc2" if options else b"\xff\xc0")
        bomb = jpeg[: frame + 5] + b"\xff\xdc\xff\xdc" + jpeg[frame + 9 :]  # 65500 x 65500
        assert [int(a[0]) for a in read_sizes(join([bomb]))] == [65500, 65500, DecodeStatus.OK]
        _, statuses = decode([bomb], [BOX])
        assert statuses.tolist() == [DecodeStatus.TOO_MANY_PIXELS]
        _, statuses = decode([bomb], [BOX], limits=DecodeLimits(max_pixels=2**40))
        assert statuses.tolist() == [DecodeStatus.TRUNCATED]
        _, statuses = decode([jpeg], [BOX], limits=DecodeLimits(max_pixels=60 * 40 - 1))
        assert statuses.tolist() == [DecodeStatus.TOO_MANY_PIXELS]
        _, statuses = decode([jpeg], [BOX], limits=DecodeLimits(max_pixels=60 * 40))
        assert statuses.tolist() == [DecodeStatus.OK]


def test_thousands_of_scans_are_refused(photo: Photo, save: Save, decode: Decode) -> None:
    jpeg = save(photo(600, 400), progressive=True, quality=30)
    first = jpeg.index(b"\xff\xda")
    second = jpeg.index(b"\xff\xc4", first) if b"\xff\xc4" in jpeg[first:] else jpeg.index(b"\xff\xda", first + 2)
    bomb = jpeg[:second] + jpeg[first:second] * 2000 + jpeg[second:]
    box = (0, 0, 600, 400)
    _, statuses = decode([bomb], [box], limits=DecodeLimits(strict=False))
    assert statuses.tolist() == [DecodeStatus.TOO_MANY_SCANS]
    _, statuses = decode([bomb], [box])  # a scan that repeats another is damage already
    assert statuses[0] in (DecodeStatus.TOO_MANY_SCANS, DecodeStatus.CORRUPT)
    _, statuses = decode([jpeg], [box], limits=DecodeLimits(max_scans=3))
    assert statuses.tolist() == [DecodeStatus.TOO_MANY_SCANS]


def test_a_bad_image_leaves_the_next_one_alone(kinds: list[bytes], decode: Decode) -> None:
    rng = np.random.default_rng(3)
    alone, _ = decode(kinds, [BOX] * len(kinds))
    mixed: list[bytes] = []
    for blob in kinds:
        mixed += [*mutations(blob, 5, rng), blob]
    pixels, statuses = decode(mixed, [BOX] * len(mixed))
    assert not statuses[5::6].any()
    np.testing.assert_array_equal(pixels[5::6], alone)


def test_threads_that_end_and_begin(kinds: list[bytes], decode: Decode) -> None:
    """Every thread has scratch memory of its own, made on its first call and freed at its end."""
    expected, _ = decode(kinds, [BOX] * len(kinds))
    failures: list[int] = []

    def work() -> None:
        pixels, statuses = decode(kinds, [BOX] * len(kinds))
        if statuses.any() or not np.array_equal(pixels, expected):
            failures.append(1)

    for _ in range(10):
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_the_native_door_checks_its_arrays(kinds: list[bytes], join: Any) -> None:
    """Pointers are made from these numbers: none may be believed."""
    assert native is not None
    images = join(kinds[:2])
    for starts, sizes in (([0, -1], [1, 1]), ([0, 10**9], [1, 1]), ([0, 0], [1, 2**62]), ([0, 5], [1, -1])):
        with pytest.raises(IndexError, match="is not inside the data"):
            native.read_jpeg_sizes(images.data, np.array(starts), np.array(sizes))
    with pytest.raises(ValueError, match="differ in length"):
        native.entropy_decode(images.data, images.starts, images.sizes[:1])
    zeros, flips = np.zeros(2), np.zeros(2, dtype=np.bool_)
    options: dict[str, Any] = {
        "dtype": 0,
        "planar": False,
        "out_height": 8,
        "out_width": 8,
        "gain": np.ones(3, dtype=np.float32),
        "bias": np.ones(3, dtype=np.float32),
        "resize_filter": 0,
        "max_pixels": 10**6,
        "max_scans": 9,
        "strict": True,
    }

    def call(slots: list[int], shape: tuple[int, ...], item: Any = np.uint8, **changed: Any) -> None:
        columns = (zeros, zeros, zeros, zeros, flips, np.array(slots, dtype=np.int64))
        out = np.zeros(shape, dtype=item)
        native.decode_jpegs(images.data, images.starts, images.sizes, *columns, out, **(options | changed))

    call([0, 1], (2, 8, 8, 3))
    for slots, shape, item, changed in (
        ([0, 2], (2, 8, 8, 3), np.uint8, {}),
        ([0, -1], (2, 8, 8, 3), np.uint8, {}),
        ([0], (2, 8, 8, 3), np.uint8, {}),
        ([0, 1], (2, 8, 8, 4), np.uint8, {}),
        ([0, 1], (2, 8, 7, 3), np.uint8, {}),
        ([0, 1], (2, 3, 8, 8), np.uint8, {}),
        ([0, 1], (2, 8, 8, 3), np.float32, {}),
        ([0, 1], (2, 8, 8, 3), np.uint8, {"dtype": 4}),
        ([0, 1], (2, 8, 8, 3), np.uint8, {"out_height": 0}),
        ([0, 1], (2, 8, 8, 3), np.uint8, {"resize_filter": 2}),
        ([0, 1], (2, 8, 8, 3), np.uint8, {"gain": np.ones(2, dtype=np.float32)}),
    ):
        with pytest.raises((ValueError, IndexError)):
            call(slots, shape, item, **changed)
