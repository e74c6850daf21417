"""Streams in DataLoader workers and over ranks: each sample once, the same order for any number of workers."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from shardmill.errors import OptionsError
from shardmill.interop import webdataset as wds
from shardmill.interop.placement import Ranks
from shardmill.interop.stream import Stream
from shardmill.loading.order import FullOrder
from shardmill.shards.dataset import Dataset

# The machine may have fewer cores than the workers asked for.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
KEYS = [f"folder/s{i:03d}" for i in range(13)]


def loaded(stream: Any, workers: int, **options: Any) -> list[Any]:
    return list(DataLoader(stream, batch_size=None, num_workers=workers, **options))


def flat(batches: list[Any]) -> list[str]:
    return [key for batch in batches for key in batch[0]]


@pytest.mark.parametrize("workers", range(5))
def test_batches_do_not_depend_on_the_number_of_workers(dataset: Dataset, workers: int) -> None:
    stream = Stream(dataset, order=FullOrder(13, 5)).decode("torchrgb8").to_tuple("__key__", "cls").batched(3)
    alone = list(stream)
    batches = loaded(stream, workers)
    assert [batch[0] for batch in batches] == [batch[0] for batch in alone]
    assert [batch[1].tolist() for batch in batches] == [batch[1].tolist() for batch in alone]
    assert sorted(flat(batches)) == KEYS
    assert flat(batches) != KEYS


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_samples_come_once_each(urls: str, workers: int) -> None:
    keys = [key for (key,) in loaded(wds.WebDataset(urls, shardshuffle=True).shuffle(5).to_tuple("__key__"), workers)]
    assert sorted(keys) == KEYS


def test_forkserver_workers(urls: str) -> None:
    stream = wds.WebDataset(urls).decode("rgb8").to_tuple("__key__", "cls").batched(4)
    assert flat(loaded(stream, 1, multiprocessing_context="forkserver")) == KEYS


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_slice_and_with_epoch_count_all_workers_together(urls: str, workers: int) -> None:
    stream = wds.WebDataset(urls).to_tuple("__key__")
    assert [key for (key,) in loaded(stream.slice(7), workers)] == KEYS[:7]
    assert flat(loaded(stream.batched(3).slice(2), workers)) == KEYS[:6]
    # A DataLoader asks worker 0 first, whoever has the first item of a slice that begins later.
    assert sorted(key for (key,) in loaded(stream.slice(2, 11, 3), workers)) == KEYS[2:11:3]
    assert sorted(flat(loaded(stream.batched(3).slice(1, 3), workers))) == KEYS[3:9]
    endless = [key for (key,) in loaded(stream.with_epoch(30), workers)]
    assert len(endless) == 30
    assert max(endless.count(key) for key in KEYS) - min(endless.count(key) for key in KEYS) <= 1
    assert len(loaded(stream.batched(4).with_epoch(7), workers)) == 7


def test_a_pass_without_samples_is_not_repeated_for_ever(urls: str) -> None:
    with pytest.raises(OptionsError, match="worker 0 of 1"):
        list(wds.WebDataset(urls).select(lambda each: False).with_epoch(3))


@pytest.mark.parametrize("world", [2, 3, 5])
def test_ranks_share_the_samples(urls: str, world: int) -> None:
    parts = [
        list(wds.WebDataset(urls, shardshuffle=True, ranks=Ranks(rank, world)).to_tuple("__key__"))
        for rank in range(world)
    ]
    assert sorted(key for part in parts for (key,) in part) == KEYS
    batches = [
        len(list(wds.WebDataset(urls, ranks=Ranks(rank, world)).to_tuple("__key__").batched(2, partial=False)))
        for rank in range(world)
    ]
    assert len(set(batches)) == 1, "steps differ between ranks"


def order(stream: Any) -> list[str]:
    return [each["__key__"] for each in stream]


def test_order_is_a_function_of_seed_and_epoch(urls: str) -> None:
    def make(seed: int) -> wds.WebDataset:
        return wds.WebDataset(urls, shardshuffle=True, seed=seed).shuffle(6)

    one = make(1)
    epochs = []
    for epoch in range(4):
        one.set_epoch(epoch)
        epochs.append(order(one))
        assert order(one) == epochs[-1]
        other = make(1)
        other.set_epoch(epoch)
        assert order(other) == epochs[-1]
    assert len({tuple(each) for each in epochs}) == 4
    assert order(make(2)) != epochs[0]


def test_shardshuffle_moves_whole_shards(urls: str) -> None:
    stream = wds.WebDataset(urls, shardshuffle=100)
    seen = set()
    for epoch in range(20):
        stream.set_epoch(epoch)
        keys = order(stream)
        parts = [tuple(KEYS[:5]), tuple(KEYS[5:6]), tuple(KEYS[6:])]
        assert [key for part in sorted(parts, key=lambda part: keys.index(part[0])) for key in part] == keys
        seen.add(tuple(keys))
    assert len(seen) == 6


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_epoch_reaches_persistent_workers(urls: str, method: str) -> None:
    stream = pickle.loads(pickle.dumps(wds.WebDataset(urls).shuffle(8).to_tuple("__key__").batched(13)))
    loader: DataLoader[Any] = DataLoader(
        stream, batch_size=None, num_workers=1, persistent_workers=True, multiprocessing_context=method
    )
    epochs = []
    for epoch in (0, 1, 1, 0):
        stream.set_epoch(epoch)
        epochs.append(flat(list(loader)))
    assert epochs[0] == epochs[3]
    assert epochs[1] == epochs[2]
    assert epochs[0] != epochs[1]


def test_verbs_do_not_share_the_epoch(urls: str) -> None:
    first = wds.WebDataset(urls)
    second = first.shuffle(3)
    second.set_epoch(4)
    assert (first.epoch, second.epoch) == (0, 4)
    assert second.batched(2).epoch == 4


def test_streams_pickle(urls: str) -> None:
    stream = wds.WebDataset(urls, shardshuffle=True).shuffle(6).decode("l8", only="jpg").rsample(0.7)
    stream.set_epoch(3)
    again = pickle.loads(pickle.dumps(stream))
    assert order(again) == order(stream)
    assert 0 < len(order(stream)) < 13


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_webloader_makes_the_same_batches_with_any_number_of_workers(urls: str, workers: int) -> None:
    stream = wds.WebDataset(urls, shardshuffle=True).to_tuple("__key__", "cls").map_tuple(None, int)
    loader = wds.WebLoader(stream, batch_size=4, num_workers=workers)
    first, second = list(loader), list(loader)
    assert [len(batch[0]) for batch in first] == [4, 4, 4, 1]
    assert flat(first) == [key for key, _ in stream]
    stream.set_epoch(1)
    assert flat(second) == [key for key, _ in stream], "the second iteration is the next epoch"
    loader.set_epoch(0)
    assert flat(list(loader)) == flat(first)


def test_webloader_has_verbs(urls: str) -> None:
    stream = wds.WebDataset(urls).to_tuple("__key__", "cls").map_tuple(None, int).batched(4)
    loader = wds.WebLoader(stream, batch_size=None, num_workers=2).unbatched().shuffle(100).batched(5)
    assert loader
    batches = list(loader)
    assert [len(batch[0]) for batch in batches] == [5, 5, 3]
    assert sorted(flat(batches)) == KEYS
    assert flat(batches) != KEYS
    assert isinstance(batches[0][1], torch.Tensor)
    assert len(list(loader.with_epoch(7))) == 7


def test_leaving_early_leaves_no_worker(urls: str) -> None:
    import multiprocessing

    for _ in DataLoader(wds.WebDataset(urls).with_epoch(), batch_size=None, num_workers=2):
        break
    assert not multiprocessing.active_children()
