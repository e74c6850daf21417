"""Manifests, indexes and tars made to do harm: refused in a line that says where, never followed.

Digests are made to fit each time, as one who means harm would: they tell damage, not intent.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import resource
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from shardmill.errors import DataError, IndexFileError, OptionsError, ShardmillError, TarError
from shardmill.shards import bare, index_writer
from shardmill.shards.bare import index_tars
from shardmill.shards.dataset import Dataset, load_dataset
from shardmill.shards.index import Strings
from shardmill.shards.manifest import Manifest
from shardmill.shards.open import open_dataset
from shardmill.shards.verify import verify


def jpeg(value: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (16, 12), (value % 256, 7, 9)).save(out, "JPEG")
    return out.getvalue()


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Two tars of four samples, indexed with checksums."""
    folder = tmp_path / "data"
    tars = [
        write_tar(
            folder / f"s{s}.tar", [(f"k{s}{i}.{e}", d) for i in range(4) for e, d in (("jpg", jpeg(i)), ("cls", b"1"))]
        )
        for s in range(2)
    ]
    index_tars(tars, root=folder, dest=folder, checksums=True)
    return folder


def reseal(folder: Path, change: Callable[[dict[str, Any]], None] = lambda body: None) -> None:
    """Writes the manifest again so that every digest fits the files as they are now; ``change`` edits it first."""
    body = json.loads((folder / "shardmill.json").read_bytes())
    for name, entry in body["files"].items():
        data = (folder / "index" / name).read_bytes()
        entry["size"], entry["sha256"] = len(data), hashlib.sha256(data).hexdigest()
    change(body)
    del body["sha256"]
    canonical = json.dumps(body, sort_keys=True, ensure_ascii=False)
    body["sha256"] = hashlib.sha256(canonical.encode()).hexdigest()
    (folder / "shardmill.json").write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")


def edit(folder: Path, column: str, change: Callable[[NDArray[Any]], object]) -> None:
    values = np.load(folder / "index" / f"{column}.npy")
    change(values)
    np.save(folder / "index" / f"{column}.npy", values)
    reseal(folder)


def opened(folder: Path) -> Dataset:
    return load_dataset(folder, folder, verify=True)


def rename_shards(folder: Path, names: list[bytes]) -> None:
    (folder / "index" / "shard_names.utf8").write_bytes(b"".join(names))
    ends = np.cumsum([0, *map(len, names)])
    edit(folder, "shard_names_offsets", lambda values: np.copyto(values, ends.astype(np.uint64)))


def test_the_helpers_keep_a_sound_dataset_sound(dataset: Path) -> None:
    reseal(dataset)
    assert bytes(opened(dataset).read([3])[0].data) == jpeg(3)


@pytest.mark.parametrize(
    "name",
    [b"../out.tar", b"/etc/passwd", b"a/../../out.tar", b"..", b"", b"a\0.tar", b"C:\\x.tar", b"./s0.tar", b"\xff"],
)
def test_shard_names_do_not_lead_out_of_the_dataset(dataset: Path, name: bytes) -> None:
    (dataset / "s0.tar").rename(dataset.parent / "out.tar")
    rename_shards(dataset, [name, b"s1.tar"])
    with pytest.raises(IndexFileError, match=r"shard name|not UTF-8"):
        opened(dataset)


@pytest.mark.parametrize("name", [b"sub/s0.tar", b"a b:c.tar", b"x..y.tar", "sché.tar".encode()])
def test_odd_but_harmless_shard_names_open(dataset: Path, name: bytes) -> None:
    target = dataset / name.decode()
    target.parent.mkdir(exist_ok=True)
    (dataset / "s0.tar").rename(target)
    rename_shards(dataset, [name, b"s1.tar"])
    assert bytes(opened(dataset).read([3])[0].data) == jpeg(3)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("image_offset", 2**63 - 1),
        ("image_offset", 2**63 + 9),
        ("image_offset", 10**9),
        ("image_bytes", 2**32 - 1),
        ("image_format", 77),
    ],
)
def test_rows_that_cannot_be_true_are_refused_where_they_are_read(dataset: Path, column: str, value: int) -> None:
    edit(dataset, column, lambda values: values.__setitem__(2, value))
    found = opened(dataset)
    with pytest.raises(IndexFileError, match=r"s0\.tar @ .*k02"):
        found.read(np.arange(8))
    assert bytes(found.read([3])[0].data) == jpeg(3)


@pytest.mark.parametrize("size", [2**63 + 5, 2**62, 2**64 - 1])
def test_sample_sizes_that_cannot_be_true_are_refused(dataset: Path, size: int) -> None:
    np.save(dataset / "index" / "sample_bytes.npy", np.full(8, size, "<u8"))
    np.save(dataset / "index" / "shard_bytes.npy", np.full(2, 2**63 - 1, "<u8"))
    reseal(dataset, lambda body: body["files"]["sample_bytes.npy"].update(dtype="<u8"))
    with pytest.raises(IndexFileError, match=r"outside the shard|no memory for"):
        opened(dataset)[1]


@pytest.mark.parametrize("offset", [2**63, 2**64 - 1, 1])
def test_key_offsets_that_fall_or_point_outside_are_refused(dataset: Path, offset: int) -> None:
    edit(dataset, "keys_offsets", lambda values: values.__setitem__(4, offset))
    keys = opened(dataset).keys
    with pytest.raises(IndexFileError, match=r"keys\.utf8.*string"):
        list(keys)


def test_a_key_that_is_not_utf8_is_refused_with_its_place(dataset: Path) -> None:
    blob = bytearray((dataset / "index" / "keys.utf8").read_bytes())
    blob[4] = 0xFF
    (dataset / "index" / "keys.utf8").write_bytes(blob)
    reseal(dataset)
    with pytest.raises(IndexFileError, match=r"keys\.utf8 @ 4: string 1 is not UTF-8"):
        opened(dataset)[1]


@pytest.mark.parametrize(
    "column", ["label", "image_offset", "keys_offsets", "shard_first", "shard_bytes", "shard_sha256"]
)
@pytest.mark.parametrize("kind", ["float", "2-d", "0-d", "npz", "empty", "object", "huge"])
def test_arrays_of_another_kind_are_refused(dataset: Path, column: str, kind: str) -> None:
    path = dataset / "index" / f"{column}.npy"
    old = np.load(path)
    dtype, rows = old.dtype.str, len(old)
    if kind == "float":
        np.save(path, old.astype("<f8"))
        dtype = "<f8"
    elif kind == "2-d":
        np.save(path, old.reshape(rows, -1, 1))
    elif kind == "0-d":
        np.save(path, old.flat[0])
    elif kind == "npz":
        with path.open("wb") as out:
            np.savez(out, old)
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "object":
        np.save(path, old.astype(object), allow_pickle=True)
        dtype = "|O"
    else:
        rows = 2**62
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": dtype, "fortran_order": False, "shape": (rows,)})
        path.write_bytes(header.getvalue())
    reseal(dataset, lambda body: body["files"][path.name].update(dtype=dtype, rows=rows))
    with pytest.raises(IndexFileError):
        opened(dataset)


def test_a_dataset_without_a_sample_is_refused(dataset: Path) -> None:
    for path in (dataset / "index").glob("*.npy"):
        old = np.load(path)
        keep = {"shard_first": 2, "shard_bytes": 1, "shard_sha256": 1, "shard_names_offsets": 2, "keys_offsets": 1}
        np.save(path, np.zeros_like(old[: keep.get(path.stem, 0)]))
    (dataset / "index" / "keys.utf8").write_bytes(b"")
    rename = np.array([0, 6], "<u8")
    np.save(dataset / "index" / "shard_names_offsets.npy", rename)
    (dataset / "index" / "shard_names.utf8").write_bytes(b"s0.tar")

    def change(body: dict[str, Any]) -> None:
        body["samples"], body["shards"] = 0, 1
        for name, entry in body["files"].items():
            if "rows" in entry:
                entry["rows"] = len(np.load(dataset / "index" / name))

    reseal(dataset, change)
    with pytest.raises(IndexFileError):
        opened(dataset)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("samples", "8"),
        ("samples", True),
        ("total_bytes", -1),
        ("total_bytes", 1.5),
        ("classes", [1, 2]),
        ("classes", "ab"),
        ("shuffle", "yes"),
        ("encode", []),
        ("created_by", None),
        ("checksums", "no"),
        ("files", []),
        ("files", {"label.npy": 3}),
        ("files", {"label.npy": {"size": "1", "sha256": "x"}}),
    ],
)
def test_manifest_fields_of_another_type_are_refused(dataset: Path, field: str, value: object) -> None:
    reseal(dataset, lambda body: body.update({field: value}))
    with pytest.raises(IndexFileError, match="manifest"):
        opened(dataset)


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"format":"shardmill","version":1,"a":"\\ud800"}', "1" * 5000, "NaN", ""]
)
def test_manifests_that_trip_the_parser_are_refused(text: str) -> None:
    with pytest.raises(IndexFileError):
        Manifest.from_bytes(text.encode(), path="x")


def test_a_fifo_in_place_of_a_shard_is_an_error_not_a_wait(dataset: Path) -> None:
    (dataset / "s0.tar").unlink()
    os.mkfifo(dataset / "s0.tar")
    with pytest.raises(OSError, match=r"s0\.tar"):
        opened(dataset).read([0])


def test_rows_of_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    for i in range(60):
        write_tar(tmp_path / "many" / f"{i:02}.tar", [(f"k{i}.jpg", jpeg(i))])
    script = (
        "import resource, sys, hashlib, numpy as np, shardmill\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))\n"
        "ds = shardmill.open(sys.argv[1], cache_dir=sys.argv[2])\n"
        "order = np.random.default_rng(0).permutation(60)\n"
        "for one in (ds.read(order), ds.read(order)):\n"
        "    print(hashlib.sha256(b''.join(bytes(image.data) for image in one)).hexdigest())\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "many"), str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    order = np.random.default_rng(0).permutation(60)
    expected = hashlib.sha256(b"".join(jpeg(int(i)) for i in order)).hexdigest()
    assert (done.stdout.split(), done.stderr) == ([expected, expected], "")


def test_checksums_are_taken_when_a_read_crosses_many_shards(tmp_path: Path) -> None:
    tars = [write_tar(tmp_path / f"{i:02}.tar", [(f"k{i}.jpg", jpeg(i))]) for i in range(40)]
    index_tars(tars, root=tmp_path, dest=tmp_path, checksums=True)
    ds = opened(tmp_path)
    ds._reader.store.__setstate__({"root": str(tmp_path), "max_open_files": 16, "stamps": None})  # type: ignore[attr-defined]
    assert [bytes(image.data) for image in ds.read([39, 0, 0, 17])] == [jpeg(i) for i in (39, 0, 0, 17)]
    edit(tmp_path, "image_crc32c", lambda values: values.__setitem__(17, 5))
    again = opened(tmp_path)
    again._reader.store.__setstate__({"root": str(tmp_path), "max_open_files": 16, "stamps": None})  # type: ignore[attr-defined]
    with pytest.raises(ShardmillError, match=r"17\.tar @ .*k17.*crc32c"):
        again.read(np.arange(40))


def verify_names_a_fault(folder: Path, match: str) -> None:
    report = verify(folder, workers=1)
    assert not report.ok
    assert any(match in str(fault) for fault in report.faults), report.faults


@pytest.mark.parametrize(
    ("column", "value", "match"),
    [
        ("sample_start", 2**64 - 1, "row 2 points outside its shard"),
        ("sample_bytes", 2**32 - 1, "row 2 points outside its shard"),
        ("image_offset", 2**63 - 1, "row 2 points outside its shard"),
        ("image_offset", 0, "row 2 points outside its shard or its sample"),
        ("image_bytes", 2**32 - 1, "row 2 points outside its shard"),
        ("image_format", 77, "row 2 has an image format that is none"),
        ("label", -5, "row 2 has a label that is none"),
        ("keys_offsets", 2**63, "row 2 has a key without bytes"),
    ],
)
def test_verify_names_rows_that_cannot_be_true(dataset: Path, column: str, value: int, match: str) -> None:
    assert verify(dataset, workers=1).ok
    edit(dataset, column, lambda values: values.__setitem__(2, value))
    verify_names_a_fault(dataset, match)


def test_verify_does_not_follow_what_leads_out_of_the_dataset(dataset: Path) -> None:
    (dataset / "s0.tar").rename(dataset.parent / "out.tar")
    rename_shards(dataset, [b"../out.tar", b"s1.tar"])
    verify_names_a_fault(dataset, "shard name '../out.tar'")
    # Its digest would be waited for without end.
    reseal(dataset, lambda body: body["files"].update({"/dev/zero": {"size": 1, "sha256": ""}}))
    verify_names_a_fault(dataset, "named without folders")


def test_verify_names_a_label_beyond_the_classes(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.jpg", jpeg(0)), ("a.cls", b"cat")])
    index_tars([path], root=tmp_path, dest=tmp_path, checksums=True)
    edit(tmp_path, "label", lambda values: values.__setitem__(0, 1))
    verify_names_a_fault(tmp_path, "row 0 has a label that is none")


def test_verify_does_not_wait_for_a_fifo(dataset: Path) -> None:
    (dataset / "s0.tar").unlink()
    os.mkfifo(dataset / "s0.tar")
    verify_names_a_fault(dataset, "s0.tar")


# -- tars of others ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        (b"--5", None),
        ("²".encode(), None),
        ("٣".encode(), None),
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"\xff", "is not text"),
        (b"1" * 5000, "has over 4096 bytes"),
        (b"1" * 4000, "is out of range"),
        (b"2147483648", "is out of range"),
        (b"-2", "is out of range"),
    ],
)
def test_labels_of_others_are_numbers_names_or_errors(tmp_path: Path, label: bytes, problem: str | None) -> None:
    write_tar(tmp_path / "d" / "a.tar", [("a.jpg", jpeg(0)), ("a.cls", label)])
    if problem is None:
        ds = open_dataset(tmp_path / "d", cache_dir=tmp_path / "cache")
        assert (ds.classes, ds.labels.tolist()) == ((label.decode(),), [0])
        return
    with pytest.raises(TarError, match=rf"a\.tar @ 2048 \(key 'a'\): the label {problem}|{problem}"):
        open_dataset(tmp_path / "d", cache_dir=tmp_path / "cache")


def test_labels_in_upper_case_are_labels(tmp_path: Path) -> None:
    write_tar(tmp_path / "d" / "a.tar", [("a.JPG", jpeg(0)), ("a.CLS", b"3")])
    assert open_dataset(tmp_path / "d", cache_dir=tmp_path / "cache").labels.tolist() == [3]


def test_keys_that_are_not_utf8_are_refused_by_name(tmp_path: Path) -> None:
    write_tar(tmp_path / "d" / "a.tar", [("ok.jpg", jpeg(0)), ("b\udcff.jpg", jpeg(1))])
    with pytest.raises(TarError, match=r"'b\\udcff'\): the key is not UTF-8"):
        open_dataset(tmp_path / "d", cache_dir=tmp_path / "cache")


def test_tar_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "d" / "a\udcff.tar", [("ok.jpg", jpeg(0))])
    with pytest.raises(OptionsError, match="not UTF-8"):
        open_dataset(tmp_path / "d", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_what_is_called_tar_but_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "d" / "a.tar"
    target.parent.mkdir()
    if kind == "fifo":
        os.mkfifo(target)
    else:
        target.mkdir()
    with pytest.raises(OptionsError, match="is not a file"):
        open_dataset(tmp_path / "d", cache_dir=tmp_path / "cache")
    with pytest.raises(OptionsError, match="is not a file"):
        index_tars([target], root=tmp_path / "d", dest=tmp_path, checksums=True)


def test_an_empty_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="empty list"):
        open_dataset([], cache_dir=tmp_path)


def test_tars_named_by_way_of_dots_open(tmp_path: Path) -> None:
    write_tar(tmp_path / "d" / "x.tar", [("x.jpg", jpeg(0))])
    write_tar(tmp_path / "e" / "y.tar", [("y.jpg", jpeg(1))])
    ds = open_dataset([f"{tmp_path}/d/x.tar", f"{tmp_path}/d/../e/y.tar"], cache_dir=tmp_path / "cache")
    assert [bytes(image.data) for image in ds.read([0, 1])] == [jpeg(0), jpeg(1)]


def test_an_image_too_large_for_the_index_is_refused(tmp_path: Path) -> None:
    size = 2**32
    with (tmp_path / "a.tar").open("wb") as out:
        info = tarfile.TarInfo("a.jpg")
        info.size = size
        out.write(info.tobuf(tarfile.USTAR_FORMAT))
        out.truncate(512 + size + 1024)  # sparse: takes no space
    with pytest.raises(TarError, match="4294967296 bytes; at most"):
        index_tars([tmp_path / "a.tar"], root=tmp_path, dest=tmp_path, checksums=False)


class ShortReads:
    """``os`` whose pread gives what Linux gives for a request above 2 GiB: less than was asked for."""

    def __init__(self, most: int, ends: int | None = None) -> None:
        self.most, self.ends = most, ends

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def pread(self, fd: int, size: int, at: int) -> bytes:
        size = min(size, self.most)
        return os.pread(fd, size if self.ends is None else max(0, min(size, self.ends - at)), at)


def test_checksums_do_not_trust_that_a_read_gives_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.bin", b"x" * 30_000), ("a.jpg", jpeg(0)), ("a.txt", b"y" * 20_000)])
    monkeypatch.setattr(bare, "os", ShortReads(4096))
    index_tars([path], root=tmp_path, dest=tmp_path, checksums=True)
    ds = opened(tmp_path)
    assert ds[0].fields == {"a.bin"[2:]: b"x" * 30_000, "jpg": jpeg(0), "txt": b"y" * 20_000}
    assert (ds.widths[0], ds.heights[0]) == (16, 12)
    assert bytes(ds.index.shard_sha256[0]) == hashlib.sha256(path.read_bytes()).digest()


def test_a_tar_cut_while_it_is_indexed_is_an_error_not_a_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.jpg", jpeg(0))])
    monkeypatch.setattr(bare, "os", ShortReads(4096, ends=1500))
    with pytest.raises(TarError, match=r"a\.tar @ 1500: the file became shorter"):
        index_tars([path], root=tmp_path, dest=tmp_path, checksums=True)


# -- what is left behind -------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["cut", "edited", "half removed", "empty"])
def test_a_damaged_index_in_the_cache_is_made_again(tmp_path: Path, damage: str) -> None:
    write_tar(tmp_path / "d" / "a.tar", [("a.jpg", jpeg(0))])
    open_dataset(tmp_path / "d", cache_dir=tmp_path / "cache")
    (folder,) = (tmp_path / "cache" / "index").iterdir()
    if damage == "cut":
        os.truncate(folder / "index" / "label.npy", 130)
    elif damage == "edited":
        (folder / "shardmill.json").write_bytes(b"{}")
    elif damage == "half removed":
        (folder / "shardmill.json").unlink()
    else:
        (folder / "shardmill.json").unlink()
        for path in (folder / "index").iterdir():
            path.unlink()
    assert bytes(open_dataset(tmp_path / "d", cache_dir=tmp_path / "cache").read([0])[0].data) == jpeg(0)
    assert [path.name for path in (tmp_path / "cache" / "index").iterdir()] == [folder.name]


def test_processes_that_open_the_same_tars_at_once_agree(tmp_path: Path) -> None:
    write_tar(tmp_path / "d" / "a.tar", [(f"k{i:03}.jpg", jpeg(i)) for i in range(200)])
    script = "import sys, shardmill; print(shardmill.open(sys.argv[1], cache_dir=sys.argv[2]).digest)"
    command = [sys.executable, "-c", script, str(tmp_path / "d"), str(tmp_path / "cache")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate() for process in running]
    assert [text for _, text in said] == ["", "", ""]
    assert len({text for text, _ in said}) == 1
    assert len(list((tmp_path / "cache" / "index").iterdir())) == 1


@pytest.mark.parametrize("pickled", [False, True])
def test_tars_replaced_after_opening_are_noticed(tmp_path: Path, pickled: bool) -> None:
    """Same sizes, other images and labels: there is no checksum that would tell."""
    path = write_tar(tmp_path / "d" / "a.tar", [(f"k{i}.jpg", bytes([255, 216, 255, i]) + bytes(99)) for i in range(3)])
    ds = open_dataset(tmp_path / "d", cache_dir=tmp_path / "cache")
    write_tar(tmp_path / "new.tar", [(f"k{i}.jpg", bytes([255, 216, 255, 9 - i]) + bytes(99)) for i in range(3)])
    os.utime(tmp_path / "new.tar", ns=(1, 1))
    (tmp_path / "new.tar").replace(path)
    if pickled:
        ds = pickle.loads(pickle.dumps(ds))
    for _ in range(2):
        with pytest.raises(DataError, match=r"a\.tar: the file was changed or replaced"):
            ds.read([0])
    assert bytes(open_dataset(tmp_path / "d", cache_dir=tmp_path / "cache").read([0])[0].data)[3] == 9


def test_an_index_replaced_halfway_leaves_no_dataset(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old and new columns have the same sizes here, so the old manifest would open the mixture."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bare, "write_manifest", killed)
    tars = sorted(dataset.glob("*.tar"))
    write_tar(
        tars[0], [(f"n{s}{i}.{e}", d) for s in (0,) for i in range(4) for e, d in (("jpg", jpeg(i)), ("cls", b"0"))]
    )
    with pytest.raises(KeyboardInterrupt):
        index_tars(tars, root=dataset, dest=dataset, checksums=True)
    assert not (dataset / "shardmill.json").exists()


def test_a_full_disk_leaves_no_temporary_files_and_says_where(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [(f"k{i:05}.jpg", jpeg(i)) for i in range(4000)])
    dest = tmp_path / "dest"
    dest.mkdir()
    script = (
        "import resource, signal, sys, pathlib\n"
        "from shardmill.shards.bare import index_tars\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))\n"
        "a, b = map(pathlib.Path, sys.argv[1:])\n"
        "try:\n"
        "    index_tars([a], root=a.parent, dest=b, checksums=False)\n"
        "except OSError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), str(dest)], capture_output=True, text=True, check=False
    )
    assert "File too large" in done.stdout, done
    assert str(dest / "index") in done.stdout
    assert [p.name for p in dest.rglob("*") if p.name.endswith(".tmp")] == []
    assert not (dest / "shardmill.json").exists()


def test_a_manifest_that_cannot_be_written_leaves_no_temporary_file(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = opened(dataset).manifest

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shardmill.shards.index_writer.os.fsync", full)
    with pytest.raises(OSError, match=r"No space.*data/shardmill\.json"):
        index_writer.write_manifest(dataset, manifest)
    assert not list(dataset.glob(".shardmill*"))
    (dataset / "shardmill.json").unlink()
    with pytest.raises(OSError, match=r"No space.*data/index/.*\.npy"):
        index_tars(sorted(dataset.glob("*.tar")), root=dataset, dest=dataset, checksums=False)
    assert not list(dataset.rglob("*.tmp"))


@pytest.mark.parametrize("ids", [[0.7], [True, False], [[0]], ["0"]])
def test_subsets_refuse_what_are_no_row_numbers(dataset: Path, ids: list[Any]) -> None:
    ds = opened(dataset)
    for one in (ds, ds.select([1, 2])):
        with pytest.raises(OptionsError, match="row numbers"):
            one.read(ids)


def test_strings_are_searched_without_a_crash_for_what_no_string_can_be() -> None:
    strings = Strings(np.frombuffer(b"abcd", np.uint8), np.array([0, 2, 4], np.uint64))
    assert (strings.find("\udcff"), strings.find("cd"), strings.find("bc")) == (-1, 1, -1)


def test_descriptors_are_given_back(dataset: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        ds = opened(dataset)
        ds.read(np.arange(8))
        ds.close()
        del ds
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0
