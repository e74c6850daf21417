"""The loader's batches through DataLoader workers: the same ids, labels and pixels in the same order."""

from __future__ import annotations

import hashlib
import multiprocessing
from typing import Any

import pytest
from torch.utils.data import DataLoader

from shardmill.errors import OptionsError
from shardmill.images import recipes
from shardmill.interop.torch import IterableShards
from shardmill.loading.loader import Loader
from shardmill.records import Batch
from shardmill.shards.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
OPTIONS: dict[str, Any] = {"recipe": recipes.train(16), "seed": 9, "window": 4, "threads": 1}


def facts(batches: Any) -> list[tuple[list[int], list[int], str, list[bool] | None]]:
    return [
        (
            batch.ids.tolist(),
            batch.labels.tolist(),
            hashlib.sha256(batch.images.contiguous().numpy().tobytes()).hexdigest(),
            None if batch.valid is None else batch.valid.tolist(),
        )
        for batch in batches
    ]


def through(shards: IterableShards, workers: int, **options: Any) -> DataLoader[Batch]:
    return DataLoader(shards, batch_size=None, num_workers=workers, **options)


@pytest.mark.parametrize("last", ["keep", "drop", "pad"])
@pytest.mark.parametrize("workers", range(5))
def test_batches_are_the_loaders(dataset: Dataset, workers: int, last: Any) -> None:
    loader = Loader(dataset, 3, last=last, **OPTIONS)
    shards = IterableShards(dataset, 3, last=last, **OPTIONS)
    through_workers = through(shards, workers)
    assert len(shards) == len(through_workers) == len(loader)
    for epoch in (0, 2):
        shards.set_epoch(epoch)
        loader.set_epoch(epoch)
        found = facts(through_workers)
        assert found == facts(loader)
        ids = sorted(i for each in found for i in each[0] if i >= 0)
        assert ids == (list(range(13)) if last != "drop" else sorted(set(ids)))
        assert len(ids) == (12 if last == "drop" else 13)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_steps(dataset: Dataset, world: int) -> None:
    seen: list[int] = []
    for rank in range(world):
        options = {**OPTIONS, "rank": rank, "world_size": world, "lanes": world}
        found = facts(through(IterableShards(dataset, 2, **options), 2))
        assert found == facts(Loader(dataset, 2, **options))
        seen += [i for each in found for i in each[0]]
    assert sorted(seen) == list(range(13))


def test_spawned_persistent_workers(dataset: Dataset) -> None:
    shards = IterableShards(dataset, 3, **OPTIONS)
    loader = through(shards, 1, multiprocessing_context="spawn", persistent_workers=True)
    plain = Loader(dataset, 3, **OPTIONS)
    for epoch in (0, 1):
        shards.set_epoch(epoch)
        plain.set_epoch(epoch)
        assert facts(loader) == facts(plain)


def test_leaving_early_leaves_no_worker(dataset: Dataset) -> None:
    for _ in through(IterableShards(dataset, 2, **OPTIONS), 2):
        break
    assert not multiprocessing.active_children()


def test_wrong_options_are_an_error_at_once(dataset: Dataset) -> None:
    with pytest.raises(OptionsError, match="last must be"):
        IterableShards(dataset, 3, last="throw")
    with pytest.raises(OptionsError, match="on the host"):
        IterableShards(dataset, 3, device="cuda")
