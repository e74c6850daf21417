from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import webdataset

from shardmill.errors import OptionsError
from shardmill.shards.dataset import Dataset
from shardmill.shards.open import open_dataset


def image(seed: int) -> bytes:
    return b"\xff\xd8\xff\xe0" + np.random.default_rng(seed).bytes(500)


def write(folder: Path, count: int) -> Dataset:
    folder.mkdir()
    with webdataset.ShardWriter(str(folder / "%02d.tar"), maxcount=7, verbose=0) as sink:
        for i in range(count):
            sink.write({"__key__": f"k{i:03d}", "jpg": image(i), "cls": i % 5})
    return open_dataset(folder, cache_dir=folder / "cache")


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write(tmp_path_factory.mktemp("subset") / "data", 40)


def test_rows_in_any_order_and_a_mask_choose_the_same(ds: Dataset) -> None:
    chosen = ds.select([31, 2, 2, 17])
    assert chosen.rows.tolist() == [2, 17, 31]
    mask = np.zeros(40, bool)
    mask[[2, 17, 31]] = True
    assert ds.select(mask).rows.tolist() == [2, 17, 31]
    assert chosen.keys == ["k002", "k017", "k031"]
    assert chosen.labels.tolist() == [2, 2, 1]
    assert [bytes(one.data) for one in chosen.read([2, 0])] == [image(31), image(2)]
    assert chosen.read([2, 0]).ids.tolist() == [2, 0]
    assert chosen[-1].key == "k031"
    assert chosen.describe(1)[1] == "k017"


def test_the_shard_table_counts_chosen_rows_per_shard(ds: Dataset) -> None:
    chosen = ds.select([0, 6, 7, 39])
    counts = np.diff(chosen.shard_first)
    assert counts.tolist() == [2, 1, 0, 0, 0, 1]


def test_where_and_select_of_a_subset(ds: Dataset) -> None:
    some = ds.where(label=[1, 3])
    assert set(some.labels.tolist()) == {1, 3}
    assert len(some) == 16
    assert some.select([0, 15]).keys == ["k001", "k038"]


def test_a_split_is_a_partition_and_keys_stay_when_the_dataset_grows(ds: Dataset, tmp_path: Path) -> None:
    a, b = ds.split(0.3, seed=4)
    assert sorted([*a.keys, *b.keys]) == list(ds.keys)
    assert 3 <= len(a) <= 22
    larger = write(tmp_path / "larger", 60)
    assert set(larger.split(0.3, seed=4)[0].keys) & set(ds.keys) == set(a.keys)
    assert set(ds.split(0.3, seed=5)[0].keys) != set(a.keys)
    assert [len(part) for part in ds.split(0.0)] == [0, 40]
    assert [len(part) for part in ds.split(1.0)] == [40, 0]


def test_identity_depends_on_the_rows(ds: Dataset) -> None:
    assert ds.select([1, 2]).digest == ds.select([2, 1]).digest
    assert len({ds.digest, ds.select([1, 2]).digest, ds.select([1, 3]).digest}) == 3


def test_pickle(ds: Dataset) -> None:
    assert pickle.loads(pickle.dumps(ds.select([3, 5]))).keys == ["k003", "k005"]


def test_nonsense_is_refused(ds: Dataset) -> None:
    with pytest.raises(IndexError, match="rows 3 to 40 asked for, the dataset has 0 to 39"):
        ds.select([3, 40])
    with pytest.raises(OptionsError, match="the mask has 3 values, the dataset 40 rows"):
        ds.select([True, False, True])
    with pytest.raises(OptionsError, match="got float64"):
        ds.select([0.5])
    with pytest.raises(OptionsError, match=r"fraction is 1\.5"):
        ds.split(1.5)
    with pytest.raises(IndexError, match="the subset has 0 to 1"):
        ds.select([3, 5]).read([2])
