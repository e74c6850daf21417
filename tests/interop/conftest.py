"""Small tars written by webdataset itself, and what compares two streams."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from PIL import Image

from shardmill.shards.dataset import Dataset
from shardmill.shards.open import open_dataset

SIZES = (5, 1, 7)
"""Samples of the three shards."""


@pytest.fixture(scope="session", autouse=True)
def _index_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Indexes of bare tars go here, not into the home directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def _encoded(mode: str, image_format: str, seed: int, size: tuple[int, int] = (19, 13)) -> bytes:
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], len(mode))
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels, mode).save(stream, image_format)
    return stream.getvalue()


def _npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def _sample(i: int) -> dict[str, Any]:
    """Three kinds of images, a label, text, JSON, an array, a mask, and something that nobody decodes."""
    image = [("jpg", "RGB", "JPEG"), ("png", "RGBA", "PNG"), ("jpeg", "L", "JPEG")][i % 3]
    return {
        "__key__": f"folder/s{i:03d}",
        image[0]: _encoded(image[1], image[2], i),
        "cls": str(i % 4).encode(),
        "txt": f"Grüße {i}".encode(),
        "json": b'{"i": %d}' % i,
        "npy": _npy(np.arange(i, i + 3, dtype=np.float32)),
        "seg.png": _encoded("L", "PNG", 100 + i),
        "notes.json.gz": gzip.compress(b"[%d]" % i, mtime=0),
        "blob": bytes([i]),
    }


def _write_tar(path: Path, samples: list[dict[str, Any]]) -> Path:
    with path.open("wb") as stream, webdataset.TarWriter(stream, encoder=False, mtime=0.0) as writer:
        for each in samples:
            writer.write(each)
    return path


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``x-000000.tar`` to ``x-000002.tar``, 13 samples."""
    place = tmp_path_factory.mktemp("tars")
    first = 0
    for number, size in enumerate(SIZES):
        _write_tar(place / f"x-{number:06d}.tar", [_sample(i) for i in range(first, first + size)])
        first += size
    return place


@pytest.fixture(scope="session")
def urls(folder: Path) -> str:
    return str(folder / "x-{000000..000002}.tar")


@pytest.fixture
def dataset(urls: str) -> Dataset:
    return open_dataset(urls)


def _plain(value: Any) -> Any:
    """A value that ``==`` compares down to the last pixel, types, dtypes and shapes included."""
    import torch

    if isinstance(value, torch.Tensor):
        return ("tensor", *_plain(value.numpy()))
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, Image.Image):
        return ("image", value.mode, value.size, value.tobytes())
    if isinstance(value, dict):
        # webdataset adds the path a second time where the file is local.
        return {name: _plain(each) for name, each in value.items() if name != "__local_path__"}
    if isinstance(value, list | tuple):
        return (type(value).__name__, [_plain(each) for each in value])
    return (type(value).__name__, value)


@pytest.fixture(scope="session")
def plain() -> Callable[[Any], Any]:
    return _plain


@pytest.fixture(scope="session")
def make_sample() -> Callable[[int], dict[str, Any]]:
    return _sample


@pytest.fixture(scope="session")
def write_tar() -> Callable[[Path, list[dict[str, Any]]], Path]:
    return _write_tar


@pytest.fixture(scope="session")
def npy() -> Callable[[Any], bytes]:
    """An array as the bytes of a .npy file; pickled where it holds objects."""
    return _npy
