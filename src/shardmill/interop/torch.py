"""Doors to ``torch.utils.data``: a map-style dataset, and the loader's own batches as an iterable dataset."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ImageError, MissingExtraError, OptionsError
from shardmill.interop.images import ImageDecoder
from shardmill.interop.placement import Ranks, current_ranks, current_workers, in_worker, share_again, shared_number
from shardmill.interop.protocols import Rows
from shardmill.loading.loader import Loader
from shardmill.loading.protocols import Reader
from shardmill.loading.steps import Steps
from shardmill.machine import usable_cores
from shardmill.records import NO_LABEL, Batch

try:
    from torch.utils.data import Dataset, IterableDataset
except ImportError as error:
    raise MissingExtraError("shardmill.interop.torch needs torch: pip install shardmill[torch]") from error

Decode = str | Callable[[bytes], Any] | None


class MapDataset(Dataset[tuple[Any, Any]]):
    """``dataset[i]`` -> (image, target), for ``torch.utils.data.DataLoader`` and its samplers.

    Args:
        dataset: what `shardmill.open` gives, or a subset of it.
        transform: of the image; anything that can be called, torchvision's transforms among them.
        target_transform: of the target.
        transforms: of both together, ``(image, target) -> (image, target)``; instead of the two above.
        decode: an image spec (``"pil"``, ``"rgb8"``, ``"torchrgb"`` ...: see `shardmill.interop.images.ImageDecoder`),
            a function of the encoded bytes, or ``None`` for the bytes.

    The target is the label as an int, ``None`` where the sample has none. Picklable if the transforms are; works under
    fork, forkserver and spawn. Nothing is read before the first item, and no array of the size of the dataset is made
    or pickled. A batch is one planned read (``__getitems__``, which DataLoader calls).

    Any Python transform runs here, at Python's price: `shardmill.Loader` decodes and augments several times faster.
    """

    def __init__(
        self,
        dataset: Rows,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        transforms: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        decode: Decode = "pil",
    ) -> None:
        if transforms is not None and (transform is not None or target_transform is not None):
            raise OptionsError("give transforms, or transform and target_transform, not both")
        self.dataset = dataset
        self.transform = transform
        self.target_transform = target_transform
        self.transforms = transforms
        self.decode = decode
        self._images = ImageDecoder(decode) if isinstance(decode, str) else None
        self._labels: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: SupportsIndex) -> tuple[Any, Any]:
        """(image, target) of row ``index``; negative ones count from the end. One read."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[tuple[Any, Any]]:
        """Those rows, in that order, by one planned read: neighbours in a shard are fetched together."""
        rows = [self._row(index) for index in indices]
        images = self.dataset.read(rows)
        return [self._item(row, image.data) for row, image in zip(rows, images, strict=True)]

    def get_image_data(self, index: SupportsIndex) -> bytes:
        """The encoded image of row ``index``, exactly the bytes of its file."""
        return bytes(self.dataset.read([self._row(index)])[0].data)

    def get_target(self, index: SupportsIndex) -> int | None:
        """The label of row ``index``, ``None`` where it has none. Reads no shard."""
        label = int(self._all_labels()[self._row(index)])
        return None if label == NO_LABEL else label

    def get_targets(self) -> NDArray[np.int64] | None:
        """int64 [len], -1 where one sample has no label; ``None`` where none has. Reads no shard."""
        labels = self._all_labels().astype(np.int64)
        return labels if (labels != NO_LABEL).any() else None

    @property
    def targets(self) -> list[int] | None:
        """As in torchvision's datasets: the labels as a list."""
        labels = self.get_targets()
        return None if labels is None else labels.tolist()

    @property
    def classes(self) -> list[str] | None:
        """As in torchvision's datasets: class names by label, ``None`` where the dataset has numbers only."""
        return None if self.dataset.classes is None else list(self.dataset.classes)

    @property
    def class_to_idx(self) -> dict[str, int] | None:
        """As in torchvision's datasets: the label of each class name."""
        return None if self.dataset.classes is None else {name: i for i, name in enumerate(self.dataset.classes)}

    def _row(self, index: SupportsIndex) -> int:
        row = operator.index(index)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} is out of range for {len(self)} samples")
        return row % len(self)

    def _item(self, row: int, data: memoryview) -> tuple[Any, Any]:
        try:
            image = self._image(data)
        except Exception as error:
            path, key, offset = self.dataset.describe(row)
            problem = f"cannot be decoded: {type(error).__name__}: {error}"
            raise ImageError(problem, path=path, offset=offset, key=key) from error
        target: Any = self.get_target(row)
        if self.transforms is not None:
            return self.transforms(image, target)
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target

    def _image(self, data: memoryview) -> Any:
        if self._images is not None:
            return self._images.decode(data)
        return self.decode(bytes(data)) if callable(self.decode) else bytes(data)

    def _all_labels(self) -> NDArray[np.int32]:
        if self._labels is None:
            self._labels = self.dataset.labels
        return self._labels

    def __getstate__(self) -> dict[str, Any]:
        # A memory map pickles by value: 4 GB of labels for 1e9 samples, into every spawned worker.
        return {**self.__dict__, "_labels": None}

    def __repr__(self) -> str:
        return f"MapDataset({self.dataset!r}, decode={self.decode!r})"


class IterableShards(IterableDataset[Batch]):
    """The batches of `shardmill.Loader`, made in DataLoader workers: ``DataLoader(shards, batch_size=None)``.

    Takes what `Loader` takes. Worker w of W makes steps w, w + W, ... of its rank, each with its own threads (default:
    the usable cores divided by W), so the DataLoader, which asks its workers in turn, gives the loader's batches in the
    loader's order: the same ids, labels and pixels for any number of workers. ``len()`` is the loader's.

    The Loader itself needs no workers and is faster alone, as batches do not cross a process border. This is for code
    that insists on a DataLoader, and for Python transforms of batches (``collate_fn=``). The epoch is what `set_epoch`
    says, 0 at first; persistent workers learn of it. Batches are torch tensors; ``device`` cannot be used in a worker.
    """

    def __init__(self, dataset: Reader, batch_size: int = 256, **options: Any) -> None:
        super().__init__()
        if options.get("device") is not None:
            raise OptionsError("IterableShards gives batches on the host: a forked worker cannot use a GPU")
        self._dataset = dataset
        self._batch_size = batch_size
        self._options = options
        self._seen_ranks: Ranks | None = None
        self._epoch = shared_number(0)
        # Wrong options are an error here, not in a worker; the length is the same on all ranks.
        self._length = len(self._loader())

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration is. Reaches the workers of a DataLoader, persistent ones too."""
        self._epoch[0] = epoch

    def __len__(self) -> int:
        """Steps of an epoch of this rank, all its workers together."""
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        loader = self._loader()
        loader.set_epoch(int(self._epoch[0]))
        return iter(loader)

    def _loader(self) -> Loader:
        workers = current_workers()
        options = dict(self._options)
        if options.get("rank") is None and options.get("world_size") is None:
            ranks = current_ranks() or (self._seen_ranks if in_worker() else None) or Ranks()
            options.update(rank=ranks.rank, world_size=ranks.world_size)
        if options.get("threads") is None and workers.count > 1:
            options["threads"] = max(1, usable_cores() // workers.count)
        return _PartLoader(self._dataset, self._batch_size, options, workers.index, workers.count)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_seen_ranks": current_ranks() or self._seen_ranks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        share_again(self._epoch)

    def __repr__(self) -> str:
        return f"IterableShards({self._dataset!r}, batch_size={self._batch_size}, {len(self)} steps)"


class _PartLoader(Loader):
    """A loader of every ``count``-th step, from step ``index`` on."""

    def __init__(self, dataset: Reader, batch_size: int, options: dict[str, Any], index: int, count: int) -> None:
        super().__init__(dataset, batch_size, **options)
        if count > 1:
            steps = self._steps
            self._steps = _EveryNth(
                steps.samples, steps.global_batch, steps.lanes, steps.world_size, steps.rank, steps.last, index, count
            )


@dataclass(frozen=True)
class _EveryNth(Steps):
    """Step k is step ``index + k * count`` of the whole."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        """Nothing to check: the whole was, and a part may have no step."""

    def __len__(self) -> int:
        return len(range(self.index, super().__len__(), self.count))

    def positions(self, step: int) -> NDArray[np.int64]:
        """See `Steps.positions`."""
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} of {len(self)}")
        # Steps checks the number against its own length, which is that of the part here.
        whole = Steps(self.samples, self.global_batch, self.lanes, self.world_size, self.rank, self.last)
        return whole.positions(self.index + step * self.count)
