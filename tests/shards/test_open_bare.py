"""Opening tars that others wrote. Truth: Python's tarfile, and webdataset as the writer."""

from __future__ import annotations

import hashlib
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import webdataset

from shardmill.errors import ChecksumError, OptionsError, TarError
from shardmill.shards.bare import index_tars
from shardmill.shards.open import open_dataset


def image(seed: int) -> bytes:
    return b"\xff\xd8\xff\xe0" + np.random.default_rng(seed).bytes(1000 + seed)


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """Two shards of 5 samples by webdataset: jpg, cls and json each."""
    with webdataset.ShardWriter(str(tmp_path / "part-%02d.tar"), maxcount=5, verbose=0) as sink:
        for i in range(10):
            sink.write({"__key__": f"dir.x/k{i:03d}", "jpg": image(i), "cls": i % 3, "json": {"i": i}})
    return tmp_path


def truth(folder: Path) -> list[tuple[str, str]]:
    found = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            for member in archive:
                data = archive.extractfile(member)
                assert data is not None
                found.append((member.name, hashlib.sha256(data.read()).hexdigest()))
    return found


def delivered(ds: object) -> list[tuple[str, str]]:
    return [
        (f"{sample.key}.{name}", hashlib.sha256(data).hexdigest())
        for sample in ds  # type: ignore[attr-defined]
        for name, data in sample.fields.items()
    ]


@pytest.mark.parametrize("form", ["folder", "glob", "braces", "list", "url"])
def test_every_member_is_what_tarfile_reads(tars: Path, tmp_path_factory: pytest.TempPathFactory, form: str) -> None:
    cache = tmp_path_factory.mktemp("cache")
    url: str | list[Path] = {
        "folder": str(tars),
        "glob": f"{tars}/part-*.tar",
        "braces": f"{tars}/part-{{00..01}}.tar",
        "list": sorted(tars.glob("*.tar")),
        "url": f"file://{tars}",
    }[form]  # type: ignore[assignment]
    ds = open_dataset(url, cache_dir=cache)
    assert delivered(ds) == truth(tars)
    assert len(ds) == 10
    assert ds.labels.tolist() == [i % 3 for i in range(10)]
    images = ds.read([9, 0, 3, 3])
    assert [bytes(one.data) for one in images] == [image(i) for i in (9, 0, 3, 3)]


def test_the_index_is_kept_and_made_again_when_a_tar_changes(tars: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    open_dataset(tars / "part-00.tar", cache_dir=cache)
    (kept,) = (cache / "index").iterdir()
    stamp = (kept / "shardmill.json").stat().st_mtime_ns
    ds = open_dataset(tars / "part-00.tar", cache_dir=cache)
    assert (kept / "shardmill.json").stat().st_mtime_ns == stamp
    assert len(pickle.loads(pickle.dumps(ds))) == 5
    (tars / "part-01.tar").replace(tars / "part-00.tar")
    assert open_dataset(tars / "part-00.tar", cache_dir=cache).keys[0] == "dir.x/k005"
    assert len(list((cache / "index").iterdir())) == 2


def test_an_index_with_checksums_finds_a_flipped_byte(tars: Path) -> None:
    paths = sorted(tars.glob("*.tar"))
    index_tars(paths, root=tars, dest=tars, checksums=True)
    ds = open_dataset(tars)
    assert delivered(ds) == truth(tars)
    for s, path in enumerate(paths):
        assert ds.index.shard_sha256[s].tobytes() == hashlib.sha256(path.read_bytes()).digest()
    row = 7
    offset = int(ds.index.columns["image_offset"][row])
    with (tars / "part-01.tar").open("r+b") as file:
        file.seek(offset + 500)
        byte = file.read(1)[0]
        file.seek(offset + 500)
        file.write(bytes([byte ^ 1]))
    ds.read([6, 8])
    with pytest.raises(ChecksumError, match=rf"part-01\.tar @ {offset} \(key 'dir\.x/k007'\)"):
        ds.read([6, 7, 8])
    with pytest.raises(ChecksumError, match="k007"):
        ds[7]
    assert len(open_dataset(tars, verify=False).read([7])) == 1


def test_labels_that_are_words_become_numbers_in_sorted_order(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as sink:
        for i, word in enumerate(["newt", "hen", "newt", "cock"]):
            sink.write({"__key__": f"{i}", "jpg": image(i), "cls": word.encode()})
    ds = open_dataset(tmp_path, cache_dir=tmp_path / "cache")
    assert ds.classes == ("cock", "hen", "newt")
    assert ds.labels.tolist() == [2, 1, 2, 0]
    assert ds[1].class_name == "hen"


def test_a_sample_without_image_is_an_error_with_its_key(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as sink:
        sink.write({"__key__": "x", "txt": "words"})
    with pytest.raises(TarError, match=r"a\.tar @ 0 \(key 'x'\): the sample has no image among txt"):
        open_dataset(tmp_path, cache_dir=tmp_path / "cache")
    assert list((tmp_path / "cache" / "index").iterdir()) == []


def test_what_cannot_be_opened_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="pack the images first"):
        open_dataset(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        open_dataset(tmp_path / "nowhere")
    with pytest.raises(OptionsError, match="local paths only"):
        open_dataset("s3://bucket/prefix")
    (tmp_path / "x.tar.gz").write_bytes(b"")
    with pytest.raises(OptionsError, match="is compressed"):
        open_dataset(tmp_path / "x.tar.gz")
    with pytest.raises(OptionsError, match="matches no file"):
        open_dataset(f"{tmp_path}/*.nothing")


def test_rows_out_of_range_are_refused(tars: Path, tmp_path: Path) -> None:
    ds = open_dataset(tars, cache_dir=tmp_path / "cache")
    with pytest.raises(IndexError, match="rows 3 to 10 asked for, the dataset has 0 to 9"):
        ds.read([3, 10])
    with pytest.raises(IndexError, match="row 10"):
        ds[10]
    with pytest.raises(OptionsError, match="row numbers"):
        ds.read([0.5])
    assert ds[-1].key == "dir.x/k009"
    assert len(ds.read([])) == 0
