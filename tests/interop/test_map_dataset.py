"""The map-style dataset in DataLoaders of every kind, with torchvision's transforms, and as dinov2 uses one."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data.distributed import DistributedSampler
from torchvision.transforms import v2

from shardmill.errors import ImageError, OptionsError
from shardmill.interop.images import SPECS
from shardmill.interop.torch import MapDataset
from shardmill.shards.dataset import Dataset
from shardmill.shards.open import open_dataset

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
SMALL = v2.Compose([v2.ToImage(), v2.Resize((8, 8), antialias=True), v2.ToDtype(torch.float32, scale=True)])


@pytest.fixture(scope="session")
def truth(folder: Path) -> list[tuple[bytes, int]]:
    """(image, label) in shard order, by tarfile."""
    found = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            images: dict[str, bytes] = {}
            labels: dict[str, int] = {}
            for member in tar:
                key, _, extension = member.name.partition(".")
                file = tar.extractfile(member)
                assert file is not None
                if extension in ("jpg", "png", "jpeg"):
                    images[key] = file.read()
                elif extension == "cls":
                    labels[key] = int(file.read())
            found += [(images[key], labels[key]) for key in images]
    return found


def rgb(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


def test_items_are_images_and_labels(dataset: Dataset, truth: list[tuple[bytes, int]]) -> None:
    ours = MapDataset(dataset)
    assert isinstance(ours, TorchDataset)
    assert len(ours) == len(truth) == 13
    for i, (data, label) in enumerate(truth):
        image, target = ours[i]
        assert image.tobytes() == rgb(data).tobytes()
        assert (image.mode, image.size, target) == ("RGB", (19, 13), label)
    assert ours[-1][0].tobytes() == ours[np.int64(12)][0].tobytes()
    for wrong in (13, -14):
        with pytest.raises(IndexError, match="out of range for 13"):
            ours[wrong]


@pytest.mark.parametrize("spec", SPECS)
def test_batched_fetches_are_the_single_ones(dataset: Dataset, spec: str, plain: Any) -> None:
    ours = MapDataset(dataset, decode=spec)
    indices = [7, 0, 12, 7, -1]
    assert plain(ours.__getitems__(indices)) == plain([ours[i] for i in indices])


def test_other_decoders(dataset: Dataset, truth: list[tuple[bytes, int]]) -> None:
    assert [MapDataset(dataset, decode=None)[i] for i in range(13)] == truth
    assert MapDataset(dataset, decode=len)[3] == (len(truth[3][0]), truth[3][1])
    with pytest.raises(OptionsError, match="unknown image spec"):
        MapDataset(dataset, decode="gbr")


def test_transforms(dataset: Dataset) -> None:
    both = MapDataset(dataset, lambda image: image.size, lambda target: -target)
    together = MapDataset(dataset, transforms=lambda image, target: (image.size, -target))
    assert [both[i] for i in range(13)] == [together[i] for i in range(13)]
    assert both[2][0] == (19, 13)
    with pytest.raises(OptionsError, match="not both"):
        MapDataset(dataset, SMALL, transforms=lambda image, target: (image, target))


def test_what_dinov2_calls(dataset: Dataset, truth: list[tuple[bytes, int]]) -> None:
    ours = MapDataset(dataset)
    assert [ours.get_image_data(i) for i in range(13)] == [data for data, _ in truth]
    assert [ours.get_target(i) for i in range(13)] == [label for _, label in truth]
    targets = ours.get_targets()
    assert targets is not None
    assert targets.dtype == np.int64
    assert targets.tolist() == ours.targets == [label for _, label in truth]
    assert ours.classes is None
    assert ours.class_to_idx is None


def test_no_labels_and_named_ones(tmp_path: Path, make_sample: Any, write_tar: Any) -> None:
    def opened(name: str, labels: list[bytes | None]) -> MapDataset:
        samples = [{"__key__": str(i), "png": make_sample(1)["png"], "cls": label} for i, label in enumerate(labels)]
        bare = [{name: value for name, value in each.items() if value is not None} for each in samples]
        return MapDataset(open_dataset(write_tar(tmp_path / f"{name}.tar", bare)))

    none = opened("none", [None, None])
    assert (none.get_targets(), none.targets, none.get_target(1), none[0][1]) == (None, None, None, None)
    some = opened("some", [None, b"3"])
    assert some.targets == [-1, 3]
    assert [some[i][1] for i in range(2)] == [None, 3]
    named = opened("named", [b"dog", b"cat"])
    assert named.classes == ["cat", "dog"]
    assert named.class_to_idx == {"cat": 0, "dog": 1}
    assert named.targets == [1, 0]


def test_a_damaged_image_is_named(tmp_path: Path, make_sample: Any, write_tar: Any) -> None:
    bad = {"__key__": "b", "jpg": make_sample(0)["jpg"][:200]}
    ours = MapDataset(open_dataset(write_tar(tmp_path / "bad.tar", [bad])))
    with pytest.raises(ImageError, match=r"bad\.tar @ \d+ \(key 'b'\): cannot be decoded"):
        ours[0]


def test_pickles_small_and_opens_again(dataset: Dataset) -> None:
    ours = MapDataset(dataset, SMALL)
    ours.get_target(0)
    text = pickle.dumps(ours)
    again = pickle.loads(text)
    assert again._labels is None, "labels travel by value"
    assert torch.equal(again[5][0], ours[5][0])


def batches(ours: MapDataset, workers: int, **options: Any) -> list[tuple[bytes, list[int]]]:
    loader: DataLoader[Any] = DataLoader(ours, batch_size=4, num_workers=workers, **options)
    return [(images.numpy().tobytes(), labels.tolist()) for images, labels in loader]


@pytest.mark.parametrize("workers", range(5))
def test_dataloader_with_any_number_of_workers(dataset: Dataset, workers: int) -> None:
    ours = MapDataset(dataset, SMALL)
    ours[0]  # used before the fork
    found = batches(ours, workers)
    alone = [torch.stack([ours[i][0] for i in range(a, min(a + 4, 13))]).numpy().tobytes() for a in range(0, 13, 4)]
    assert [images for images, _ in found] == alone
    assert [label for _, labels in found for label in labels] == ours.targets


@pytest.mark.parametrize(("method", "transform"), [("forkserver", None), ("spawn", SMALL)])
def test_other_ways_to_start_workers(dataset: Dataset, method: str, transform: Any) -> None:
    ours = MapDataset(dataset, transform, decode="torchrgb8" if transform is None else "pil")
    ours[0]
    assert batches(ours, 1, multiprocessing_context=method) == batches(ours, 0)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("world", [2, 3])
def test_distributed_sampler(dataset: Dataset, world: int) -> None:
    ours = MapDataset(dataset, SMALL)
    seen: list[int] = []
    for rank in range(world):
        sampler: DistributedSampler[Any] = DistributedSampler(ours, world, rank, shuffle=True, seed=3)
        found = batches(ours, 2 if rank == 0 else 0, sampler=sampler)
        labels = [label for _, part in found for label in part]
        assert ours.targets is not None
        assert labels == [ours.targets[i] for i in sampler]
        seen += list(sampler)
    assert set(seen) == set(range(13))


def test_torch_subset_and_concat(dataset: Dataset) -> None:
    ours = MapDataset(dataset, decode="torchrgb8")
    both: ConcatDataset[Any] = ConcatDataset([Subset(ours, [3, 1]), ours])
    loader: DataLoader[Any] = DataLoader(both, batch_size=15)
    _, labels = next(iter(loader))
    assert ours.targets is not None
    assert labels.tolist() == [ours.targets[3], ours.targets[1], *ours.targets]


def test_own_subset(dataset: Dataset) -> None:
    ours, part = MapDataset(dataset), MapDataset(dataset.select([2, 5, 11]))
    assert len(part) == 3
    assert ours.targets is not None
    assert part.targets == [ours.targets[i] for i in (2, 5, 11)]
    assert [image.tobytes() for image, _ in part.__getitems__([2, 0])] == [ours[i][0].tobytes() for i in (11, 2)]


def test_a_batch_is_one_read(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read = Dataset.read
    monkeypatch.setattr(Dataset, "read", lambda self, ids: reads.append(len(ids)) or read(self, ids))  # type: ignore[func-returns-value]
    batches(MapDataset(dataset, SMALL), 0)
    assert reads == [4, 4, 4, 1]
