"""The drawn pictures: the same every time, like ImageNet in size, and not to be told apart by colour alone."""

from __future__ import annotations

import hashlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from shardmill.demo.generator import SCENES, Picture, draw, encode, plan, write
from shardmill.demo.textures import TILE, textures


def digests(folder: Path) -> dict[str, str]:
    files = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_classes_are_sorted_so_that_labels_follow_the_names() -> None:
    assert len(SCENES) == 10
    assert list(SCENES) == sorted(SCENES)


def test_a_plan_is_even_over_the_classes_and_names_every_picture_once() -> None:
    pictures = plan(105)
    counts = np.bincount([p.label for p in pictures])
    assert len(counts) == 10
    assert counts.max() - counts.min() <= 1
    assert len({p.path for p in pictures}) == 105
    later = plan(40, first=1000)
    assert not {(p.label, p.number) for p in pictures} & {(p.label, p.number) for p in later}


def test_the_same_files_whatever_the_number_of_processes(tmp_path: Path) -> None:
    pictures = plan(30, seed=3)
    # In another order too: a picture depends on nothing but its own numbers.
    alone = sum(w.pictures for w in write(pictures[::-1], tmp_path / "alone", workers=1))
    together = sum(w.pictures for w in write(pictures, tmp_path / "together", workers=2))
    assert alone == together == 30
    found = digests(tmp_path / "alone")
    assert sorted(found) == sorted(str(p.path) for p in pictures)
    assert found == digests(tmp_path / "together")
    assert len(set(found.values())) == 30


def test_another_seed_gives_other_pictures() -> None:
    assert encode(Picture(0, 4, 7)) == encode(Picture(0, 4, 7))
    assert encode(Picture(0, 4, 7)) != encode(Picture(1, 4, 7))
    assert encode(Picture(0, 4, 7)) != encode(Picture(0, 4, 8))


@pytest.mark.parametrize("label", range(10), ids=list(SCENES))
def test_every_scene_fills_a_picture_with_something_to_see(label: int) -> None:
    for number in range(6):
        image = draw(Picture(5, label, number))
        pixels = np.asarray(image.convert("RGB"), np.float64)
        assert pixels.std() > 8, "flat"
        assert pixels.mean() > 8, "black"
        assert max(image.size) < TILE


@pytest.fixture(scope="module")
def encoded() -> list[tuple[int, bytes]]:
    return [(p.label, encode(p)) for p in plan(240, seed=11)]


def test_sizes_are_those_of_imagenet(encoded: list[tuple[int, bytes]]) -> None:
    images = [Image.open(BytesIO(data)) for _, data in encoded]
    for image in images:
        assert image.format == "JPEG"
        image.load()
    widths, heights = (np.array([image.size[i] for image in images]) for i in (0, 1))
    assert min(widths.min(), heights.min()) > 300
    assert max(widths.max(), heights.max()) < 520
    assert len({image.size for image in images}) > 50
    assert 0.1 < (heights > widths).mean() < 0.4
    assert {image.mode for image in images} == {"RGB", "L"}
    kilobytes = np.array([len(data) for _, data in encoded]) / 1e3
    assert 60 < np.median(kilobytes) < 110
    assert kilobytes.max() < 200


def test_colour_alone_does_not_tell_the_classes_apart(encoded: list[tuple[int, bytes]]) -> None:
    """Nearest mean colour stays far from the network's 90 %: what is learned is in the shapes."""
    labels = np.array([label for label, _ in encoded])
    colours = np.array([_mean_colour(data) for _, data in encoded])
    half = np.arange(len(labels)) < len(labels) // 2
    centres = np.array([colours[half & (labels == label)].mean(0) for label in range(10)])
    guesses = np.argmin(((colours[~half, None] - centres) ** 2).sum(-1), axis=1)
    accuracy = (guesses == labels[~half]).mean()
    assert 0.1 < accuracy < 0.6, accuracy


def _mean_colour(data: bytes) -> NDArray[np.float64]:
    pixels = np.asarray(Image.open(BytesIO(data)).convert("RGB"), np.float64)
    return np.asarray(pixels.mean((0, 1)))


def test_textures_are_scaled_noise_that_repeats() -> None:
    noise = textures()
    assert noise is textures()
    for tile in (noise.rough, noise.cloud, noise.smooth, noise.wave, noise.bark, noise.leaf, noise.grain):
        assert tile.shape == (TILE, TILE)
        assert tile.dtype == np.float32
        assert abs(float(tile.mean())) < 1e-3
        assert abs(float(tile.std()) - 1.0) < 1e-3
    rng = np.random.default_rng(0)
    assert noise.window(noise.cloud, rng, TILE, TILE).shape == (TILE, TILE)
    assert np.abs(noise.line(noise.cloud, rng, 100)).max() == pytest.approx(1.0)


def test_stopping_early_leaves_whole_files_only(tmp_path: Path) -> None:
    landed = next(iter(write(plan(200), tmp_path, workers=1)))
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) == landed.pictures < 200
    assert sum(p.stat().st_size for p in files) == landed.size
    for path in files:
        assert path.suffix == ".jpg"
        Image.open(path).load()
