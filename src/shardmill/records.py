"""The values that cross the borders between stages. Small, frozen, with a repr that never shows contents."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_LABEL = -1
"""The label of a sample that has none."""


class ImageFormat(enum.IntEnum):
    """The true format of an image, by its first bytes, as stored in the index (one byte; never renumber)."""

    UNKNOWN = 0
    JPEG = 1
    PNG = 2
    WEBP = 3
    GIF = 4
    BMP = 5
    TIFF = 6
    AVIF = 7
    HEIF = 8
    JPEG2000 = 9


@dataclass(frozen=True, slots=True)
class ByteRange:
    """``size`` bytes of the file or object ``path``, from byte ``start``."""

    path: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One training example: a key and its fields, as they lie in a tar.

    ``fields`` maps an extension (``"jpg"``, ``"seg.png"``, ``"cls"``) to its bytes, in file order.
    ``label`` is ``NO_LABEL`` where there is none. A source that learns its classes only while reading gives
    ``class_name`` instead; packing numbers the sorted names.
    """

    key: str
    fields: Mapping[str, bytes] = field(repr=False)
    label: int = NO_LABEL
    class_name: str | None = None

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {len(data)} B" for name, data in self.fields.items())
        return f"Sample({self.key!r}, {{{parts}}}, label={self.label})"


@dataclass(frozen=True, slots=True)
class SampleRef:
    """A sample whose bytes still lie where the source has them.

    A field is a ``ByteRange`` to read later, or bytes already at hand (a label, a caption). A source that can
    give refs is cheap to read in any order, so packing needs one pass over its bytes instead of two.
    """

    key: str
    fields: Mapping[str, ByteRange | bytes] = field(repr=False)
    label: int = NO_LABEL
    class_name: str | None = None


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """What the header of an encoded image says. ``width`` and ``height`` in pixels; 0 where not known."""

    format: ImageFormat
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """One encoded image: ``data`` are the bytes of its file, ``id`` its row in the dataset."""

    data: memoryview = field(repr=False)
    format: ImageFormat
    id: int


@dataclass(frozen=True, slots=True)
class EncodedImages:
    """``n`` encoded images side by side in one buffer.

    ``data``: uint8 [total bytes]. Image ``i`` is ``data[starts[i] : starts[i] + sizes[i]]``.
    ``starts``, ``sizes``, ``ids``: int64 [n]. ``formats``: uint8 [n], values of `ImageFormat`.
    ``ids`` are rows of the dataset, in the order they were asked for.
    """

    data: NDArray[np.uint8] = field(repr=False)
    starts: NDArray[np.int64] = field(repr=False)
    sizes: NDArray[np.int64] = field(repr=False)
    formats: NDArray[np.uint8] = field(repr=False)
    ids: NDArray[np.int64] = field(repr=False)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> EncodedImage:
        start, size = int(self.starts[i]), int(self.sizes[i])
        data = self.data.data[start : start + size]
        return EncodedImage(data, ImageFormat(int(self.formats[i])), int(self.ids[i]))

    def __iter__(self) -> Iterator[EncodedImage]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"EncodedImages({len(self)} images, {int(self.sizes.sum())} B)"


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's images with their labels and ids; unpacks as ``images, labels = batch``.

    ``images``: [n, 3, H, W] or [n, H, W, 3], as the recipe says; a tuple of them where it has several outputs.
    ``labels``: int64 [n], -1 where a sample has none; float32 [n, classes] with MixUp or CutMix. ``ids``: int64 [n],
    rows of the dataset. ``valid``: bool [n], False for the filling of a padded last batch. torch tensors, or numpy
    arrays with ``framework="numpy"``.
    """

    images: Any
    labels: Any
    ids: Any
    valid: Any = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.images, self.labels))

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        views = self.images if isinstance(self.images, tuple) else (self.images,)
        shapes = " and ".join(str(list(view.shape)) for view in views)
        return f"Batch(images: {views[0].dtype} {shapes}, labels: {self.labels.dtype} {list(self.labels.shape)})"
