"""Photo-like JPEGs of ten classes, drawn from a seed: a stand-in for a photo collection that needs no download.

What is written matches ImageNet where it matters to a loader: sizes around 500 x 375 pixels in both orientations,
4:2:0 JPEGs of about 60 to 120 KB, a few of them gray, one directory per class.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from shardmill.demo import landscapes, objects
from shardmill.demo.light import Pixels
from shardmill.demo.textures import Textures, textures
from shardmill.machine import deaf_children

Scene = Callable[[np.random.Generator, Textures, int, int], Pixels]

SCENES: Mapping[str, Scene] = {
    "balloons": objects.balloons,
    "city": objects.city,
    "clouds": landscapes.clouds,
    "desert": landscapes.desert,
    "fish": objects.fish,
    "flowers": objects.flowers,
    "forest": landscapes.forest,
    "mountains": landscapes.mountains,
    "sea": landscapes.sea,
    "stars": landscapes.stars,
}
"""Class name -> what draws it, in the order of the labels (sorted names)."""

# ImageNet's commonest sizes with rough shares: landscape 4:3 and 3:2 first, then portrait and the odd ones.
_SIZES = ((500, 375), (500, 375), (500, 375), (500, 333), (500, 334), (375, 500), (333, 500), (500, 400), (480, 360))


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture to draw; its bytes follow from these three numbers (and the versions of numpy and Pillow)."""

    seed: int
    label: int
    number: int

    @property
    def path(self) -> Path:
        """Where it goes, relative to its folder: ``class/class_number.jpg``."""
        name = list(SCENES)[self.label]
        return Path(name) / f"{name}_{self.number:05d}.jpg"


def plan(images: int, *, seed: int = 0, first: int = 0) -> list[Picture]:
    """``images`` pictures, spread evenly over the classes, numbered from ``first`` within each.

    Two plans whose numbers do not overlap share no picture: that is how training and validation are kept apart.
    """
    classes = len(SCENES)
    return [Picture(seed, i % classes, first + i // classes) for i in range(images)]


def draw(picture: Picture) -> Image.Image:
    """The picture, before JPEG: mode ``RGB``, or ``L`` for about one in forty. About 10 ms."""
    rng = np.random.default_rng([picture.seed, picture.label, picture.number])
    width, height = _SIZES[int(rng.integers(len(_SIZES)))]
    width, height = width + int(rng.integers(-12, 13)), height + int(rng.integers(-12, 13))
    noise = textures()
    pixels = list(SCENES.values())[picture.label](rng, noise, height, width)
    return _photograph(rng, noise, pixels)


def encode(picture: Picture) -> bytes:
    """The picture as the bytes of a JPEG file: the same on every call."""
    image = draw(picture)
    quality = int(np.random.default_rng([picture.seed, picture.number]).integers(92, 97))
    out = BytesIO()
    image.save(out, "JPEG", quality=quality, subsampling="4:2:0")
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class Written:
    """How many pictures landed, and their bytes."""

    pictures: int
    size: int


def write(pictures: Sequence[Picture], folder: Path, *, workers: int | None = None) -> Iterator[Written]:
    """Draw ``pictures`` and write each as a file under ``folder``; gives the size of each batch as it lands.

    ``workers``: processes, by default one a core where that pays; 1 draws in this process. The files are the
    same for any. Stopping early (Ctrl-C, or closing the iterator) leaves whole files only, and no process.
    """
    for name in SCENES:
        (folder / name).mkdir(parents=True, exist_ok=True)
    batches = [pictures[i : i + _BATCH] for i in range(0, len(pictures), _BATCH)]
    if workers is None:
        # A process needs about 0.8 s to start and make its textures: the time of 60 pictures.
        workers = max(1, min(len(os.sched_getaffinity(0)), len(pictures) // 100))
    if workers == 1:
        for batch in batches:
            yield _write_batch(batch, folder)
        return
    # Fresh interpreters: a forked copy of a process whose threads hold locks (torch has some) may hang.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    try:
        with deaf_children():
            futures = [pool.submit(_write_batch, batch, folder) for batch in batches]
        for done in as_completed(futures):
            yield done.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_BATCH = 8  # a worker stops after at most one: about 0.1 s


def _write_batch(pictures: Sequence[Picture], folder: Path) -> Written:
    size = 0
    for picture in pictures:
        data = encode(picture)
        target = folder / picture.path
        partial = target.with_suffix(".part")
        partial.write_bytes(data)
        partial.replace(target)
        size += len(data)
    return Written(len(pictures), size)


def _photograph(rng: np.random.Generator, noise: Textures, pixels: Pixels) -> Image.Image:
    """What a camera adds: exposure, a colour cast, a darker rim, sensor noise."""
    _, height, width = pixels.shape
    cast = rng.uniform(0.88, 1.12, 3).astype(np.float32) * np.float32(rng.uniform(0.85, 1.25))
    y = np.linspace(-1.0, 1.0, height, dtype=np.float32)[:, None]
    x = np.linspace(-1.0, 1.0, width, dtype=np.float32)[None, :]
    rim = 1.0 - np.float32(rng.uniform(0.0, 0.16)) * (x * x + y * y)
    grain = noise.window(noise.grain, rng, height, width) * np.float32(rng.uniform(0.012, 0.032) * 255.0)
    pixels = np.ascontiguousarray(pixels, np.float32)
    pixels *= cast.reshape(3, 1, 1) * np.float32(255.0)
    pixels *= rim
    pixels += grain
    np.clip(pixels, 0.0, 255.0, out=pixels)
    if rng.random() < 0.025:
        luma = np.tensordot(np.array([0.299, 0.587, 0.114], np.float32), pixels, 1)
        return Image.fromarray(luma.astype(np.uint8))
    return Image.merge("RGB", [Image.fromarray(plane) for plane in pixels.astype(np.uint8)])
