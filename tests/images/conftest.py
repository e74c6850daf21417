"""Encoded images, crops, and Pillow as the independent truth of what their pixels are."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from shardmill.imageinfo import probe
from shardmill.images.decode import Crops, DecodeLimits, PixelLayout, ResizeFilter, decode_into
from shardmill.native import native
from shardmill.records import EncodedImages

Box: TypeAlias = tuple[float, float, float, float]
Pixels: TypeAlias = NDArray[np.uint8]


def _join(blobs: Iterable[bytes]) -> EncodedImages:
    blobs = list(blobs)
    sizes = np.array([len(blob) for blob in blobs], dtype=np.int64)
    return EncodedImages(
        data=np.frombuffer(b"".join(blobs), dtype=np.uint8),
        starts=np.cumsum(sizes) - sizes,
        sizes=sizes,
        formats=np.array([probe(blob).format for blob in blobs], dtype=np.uint8),
        ids=np.arange(len(blobs), dtype=np.int64),
    )


def _crops(boxes: Sequence[Box], flips: Sequence[bool] | None = None) -> Crops:
    left, top, width, height = np.array(boxes, dtype=np.float64).reshape(-1, 4).T.copy()
    flip = np.zeros(len(boxes), dtype=np.bool_) if flips is None else np.array(flips, dtype=np.bool_)
    return Crops(left, top, width, height, flip)


@pytest.fixture(scope="session")
def join() -> Callable[[Iterable[bytes]], EncodedImages]:
    """Blobs side by side, as the reader hands them over."""
    return _join


@pytest.fixture(scope="session")
def crops_of() -> Callable[..., Crops]:
    """`Crops` from (left, top, width, height) tuples and flips."""
    return _crops


@pytest.fixture(scope="session")
def decode() -> Callable[..., tuple[NDArray[Any], NDArray[np.int32]]]:
    """Decode blobs with boxes into a new batch: (pixels, statuses). uint8 NHWC unless a layout is given."""

    def run(
        blobs: Sequence[bytes],
        boxes: Sequence[Box],
        size: int | tuple[int, int] = 32,
        flips: Sequence[bool] | None = None,
        layout: PixelLayout | None = None,
        filter: ResizeFilter = "bilinear",  # noqa: A002
        apply_exif: bool = False,
        limits: DecodeLimits | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.int32]]:
        height, width = (size, size) if isinstance(size, int) else size
        layout = layout or PixelLayout(height, width, "uint8", "NHWC")
        out = np.zeros(layout.batch_shape(len(blobs)), dtype=layout.buffer_dtype)
        statuses = decode_into(
            _join(blobs),
            _crops(boxes, flips),
            layout,
            out,
            np.arange(len(blobs)),
            filter=filter,
            apply_exif=apply_exif,
            limits=limits or DecodeLimits(),
        )
        return out, statuses

    return run


@pytest.fixture(scope="session")
def by_pillow() -> Callable[..., Pixels]:
    """The truth: Pillow's own decode, crop and resize, uint8 [height, width, 3]."""

    def run(
        image: bytes | Image.Image,
        box: Box,
        size: int | tuple[int, int] = 32,
        flip: bool = False,
        filter: ResizeFilter = "bilinear",  # noqa: A002
    ) -> Pixels:
        opened = Image.open(io.BytesIO(image)) if isinstance(image, bytes) else image
        height, width = (size, size) if isinstance(size, int) else size
        resample = Image.Resampling[filter.upper()]
        left, top, across, down = box
        resized = opened.convert("RGB").resize((width, height), resample, box=(left, top, left + across, top + down))
        pixels = np.asarray(resized)
        return pixels[:, ::-1] if flip else pixels

    return run


@pytest.fixture(scope="session")
def photo() -> Callable[..., Image.Image]:
    """A seeded picture with what photographs have: gradients, edges, texture, strong colours."""

    def make(width: int, height: int, seed: int = 0) -> Image.Image:
        rng = np.random.default_rng(seed)
        y, x = np.mgrid[0:height, 0:width].astype(np.float64)
        planes = []
        for _ in range(3):
            fx, fy, phase = rng.uniform(0.5, 6, 3).tolist()
            wave = np.sin(2 * np.pi * (fx * x / max(width, 8) + fy * y / max(height, 8)) + phase)
            planes.append(128 + 90 * wave + rng.normal(0, 6, (height, width)))
        pixels = np.stack(planes, axis=-1)
        cx, cy, radius = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(0.1, 0.4) * (width + height)
        pixels[(x - cx) ** 2 + (y - cy) ** 2 < radius**2 / 4] = rng.uniform(0, 255, 3)
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))

    return make


@pytest.fixture(scope="session")
def save() -> Callable[..., bytes]:
    """The bytes of an image file of any format that Pillow writes."""

    def run(image: Image.Image, format: str = "JPEG", **options: Any) -> bytes:  # noqa: A002
        file = io.BytesIO()
        image.save(file, format, **options)
        return file.getvalue()

    return run


@pytest.fixture(scope="session")
def real_jpegs(imagenet_sample: Path) -> list[bytes]:
    """500 real JPEGs in the order of their names."""
    blobs = [path.read_bytes() for path in sorted(imagenet_sample.glob("*.JPEG"))]
    assert len(blobs) == 500
    return blobs


@pytest.fixture(params=["portable", "avx2", "avx512"])
def simd_level(request: pytest.FixtureRequest) -> Iterable[str]:
    """Each instruction set this machine has, forced while the test runs."""
    assert native is not None, "the native module must be built where tests run"
    if request.param not in native.native_features()["simd_levels"]:
        pytest.skip(f"this CPU has no {request.param}")
    native.set_simd_level(request.param)
    yield request.param
    native.set_simd_level("best")
