from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardmill.errors import IndexFileError
from shardmill.shards.index import CHECKED_AT_OPENING, ROW, Index, check_digests, load_index
from shardmill.shards.index_writer import ShardRows, write_index
from shardmill.shards.manifest import FileDigest, Manifest


def shard(name: str, count: int, seed: int, *, huge: bool = False) -> ShardRows:
    rng = np.random.default_rng(seed)
    rows = np.zeros(count, ROW)
    for field in ROW.names or ():
        info = np.iinfo(ROW[field])
        rows[field] = rng.integers(0, min(info.max, 2**31), count)
    rows["sample_bytes"][:1] = 5 * 2**30 if huge else 1
    return ShardRows(name, 10_000 + seed, bytes([seed]) * 32, rows, [f"k/ä{seed}-{i}" for i in range(count)])


def write(folder: Path, shards: list[ShardRows]) -> tuple[Manifest, Index]:
    samples = sum(len(s.rows) for s in shards)
    files = write_index(folder, iter(shards), samples=samples, shard_count=len(shards))
    manifest = Manifest(
        samples=samples,
        shards=len(shards),
        total_bytes=sum(s.size for s in shards),
        files=files,
        classes=None,
        label_source="none",
        shuffle=None,
        encode=None,
        created_by="test",
    )
    return manifest, load_index(folder / "index", manifest)


@pytest.mark.parametrize("huge", [False, True])
def test_what_is_written_is_what_is_read(tmp_path: Path, huge: bool) -> None:
    shards = [shard("a.tar", 5, 1), shard("b.tar", 0, 2), shard("c.tar", 7, 3, huge=huge), shard("d.tar", 1, 4)]
    manifest, index = write(tmp_path, shards)
    for name in ROW.names or ():
        assert (index.columns[name] == np.concatenate([s.rows[name] for s in shards])).all()
    assert index.columns["sample_bytes"].dtype == ("<u8" if huge else "<u4")
    assert index.shard_first.tolist() == [0, 5, 5, 12, 13]
    assert list(index.shard_names) == ["a.tar", "b.tar", "c.tar", "d.tar"]
    assert index.keys[:] == [key for s in shards for key in s.keys]
    assert index.keys[-1] == "k/ä4-0"
    assert index.shard_sha256[2].tobytes() == b"\x03" * 32
    assert index.shard_of(np.array([0, 4, 5, 11, 12])).tolist() == [0, 0, 2, 2, 3]
    for name, digest in manifest.files.items():
        data = (tmp_path / "index" / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (digest.size, digest.sha256)
    assert not list((tmp_path / "index").glob(".*.tmp"))


def test_plain_numpy_reads_every_column(tmp_path: Path) -> None:
    shards = [shard("a.tar", 5, 1)]
    write(tmp_path, shards)
    assert (np.load(tmp_path / "index" / "label.npy") == shards[0].rows["label"]).all()


def test_forty_one_bytes_a_sample() -> None:
    assert ROW.itemsize - 4 == 41  # sample_bytes is stored in 4 bytes, not 8


def test_a_failed_write_leaves_nothing_half_written(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="announced"):
        write_index(tmp_path, [shard("a.tar", 5, 1)], samples=6, shard_count=1)
    assert not list((tmp_path / "index").glob(".*.tmp"))


def test_a_missing_or_cut_column_is_named(tmp_path: Path) -> None:
    manifest, _ = write(tmp_path, [shard("a.tar", 5, 1)])
    path = tmp_path / "index" / "label.npy"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(IndexFileError, match=r"label\.npy: 147 bytes, the manifest says 148"):
        load_index(tmp_path / "index", manifest)
    path.unlink()
    with pytest.raises(IndexFileError, match=r"label\.npy: the file is missing"):
        load_index(tmp_path / "index", manifest)


def test_a_shard_table_that_lies_is_refused(tmp_path: Path) -> None:
    manifest, _ = write(tmp_path, [shard("a.tar", 5, 1), shard("b.tar", 4, 2)])
    path = tmp_path / "index" / "shard_first.npy"
    np.save(path, np.array([0, 7, 6], "<u8"))
    digest = FileDigest(path.stat().st_size, "", "<u8", 3)
    with pytest.raises(IndexFileError, match="shard table does not divide 9 samples"):
        load_index(tmp_path / "index", replace(manifest, files={**manifest.files, "shard_first.npy": digest}))


def test_another_dtype_than_announced_is_refused(tmp_path: Path) -> None:
    manifest, _ = write(tmp_path, [shard("a.tar", 5, 1)])
    path = tmp_path / "index" / "label.npy"
    np.save(path, np.zeros(5, "<f4"))
    with pytest.raises(IndexFileError, match=r"5 rows of <f4, the manifest says 5 of <i4"):
        load_index(tmp_path / "index", manifest)


def test_a_flipped_byte_in_any_index_file_is_found_at_opening(tmp_path: Path) -> None:
    manifest, _ = write(tmp_path, [shard("a.tar", 5, 1)])
    check_digests(tmp_path / "index", manifest)
    for name in manifest.files:
        path = tmp_path / "index" / name
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(IndexFileError, match=f"{name}: its sha256"):
            check_digests(tmp_path / "index", manifest)
        path.write_bytes(data)


def test_the_digests_of_a_huge_index_are_left_to_verify(tmp_path: Path) -> None:
    huge = {"label.npy": FileDigest(CHECKED_AT_OPENING + 1, "")}
    manifest, _ = write(tmp_path, [shard("a.tar", 5, 1)])
    check_digests(tmp_path / "index", replace(manifest, files=huge))
