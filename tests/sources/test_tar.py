"""Tars as sources: real ones, and made ones that must be refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import shutil
import tarfile
from pathlib import Path

import pytest

from shardmill.errors import OptionsError, SourceError, TarError
from shardmill.records import Sample
from shardmill.shards.tar import END, member_header, padding, sample_bytes
from shardmill.sources.open import open_source
from shardmill.sources.protocols import RefSource, Source, SplittableSource
from shardmill.sources.reading import load_all

BUNDLE = {"Part1": ["PiC1", "Pic2", "Pic3"], "Part2": ["Pic4", "Pic5", "Pic6"], "Part3": ["Pic7", "Pic8", "Pic9"],
          "Part4": ["Pic10", "PiC11"]}  # fmt: skip
EXTENSION = "JPEG"


def tar_of(*members: tuple[str, bytes]) -> bytes:
    return b"".join(member_header(name, len(data)) + data + bytes(padding(len(data))) for name, data in members) + END


def written(path: Path, *members: tuple[str, bytes]) -> Path:
    path.write_bytes(tar_of(*members))
    return path


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_contract(source: Source) -> list[Sample]:
    """What every source promises: restartable, picklable; parts and refs are the same samples."""
    samples = list(source)
    assert list(source) == samples
    again = pickle.loads(pickle.dumps(source))
    assert list(again) == samples
    assert again.describe() == source.describe()
    if isinstance(source, RefSource):
        assert list(load_all(source.refs())) == samples
    if isinstance(source, SplittableSource):
        assert [s for part in pickle.loads(pickle.dumps(source.split())) for s in part] == samples
    return samples


def test_the_tar_of_tars(imagenettools: Path) -> None:
    source = open_source(imagenettools / "Bundle.tar")
    samples = check_contract(source)
    assert isinstance(source, RefSource)
    assert isinstance(source, SplittableSource)
    assert len(source.split()) == 4
    assert [(s.key, s.label, s.class_name) for s in samples] == [
        (f"{part}/{stem}", label, part) for label, part in enumerate(BUNDLE) for stem in BUNDLE[part]
    ]
    for s in samples:
        file = imagenettools / "Images" / f"{s.key.rpartition('/')[2]}.JPEG"
        assert digest(s.fields[EXTENSION]) == digest(file.read_bytes())
    info = source.describe()
    assert (info.kind, info.label_source) == ("tar-of-tars", "sorted inner tar names")
    assert info.class_names == tuple(BUNDLE)


def test_the_compressed_tar_of_tars_is_the_same(imagenettools: Path) -> None:
    plain, packed = open_source(imagenettools / "Bundle.tar"), open_source(imagenettools / "Bundle.tar.gz")
    assert not isinstance(packed, RefSource)
    assert packed.describe().class_names is None
    assert [(s.key, s.class_name, s.fields) for s in check_contract(packed)] == [
        (s.key, s.class_name, s.fields) for s in plain
    ]


def test_a_tar_with_class_folders(imagenettools: Path) -> None:
    samples = check_contract(open_source(imagenettools / "Bundle_no_tars.tar"))
    with tarfile.open(imagenettools / "Bundle_no_tars.tar") as tar:
        truth = {m.name: digest(tar.extractfile(m).read()) for m in tar if m.isreg()}  # type: ignore[union-attr]
    assert {f"{s.key}.JPEG": digest(s.fields[EXTENSION]) for s in samples} == truth
    assert all(s.class_name == s.key.partition("/")[0] for s in samples)
    assert len(samples) == 11


def test_a_flat_tar(imagenettools: Path, tmp_path: Path) -> None:
    samples = check_contract(open_source(imagenettools / "ValTest.tar"))
    assert [(s.key, s.label, s.class_name) for s in samples] == [(f"Pic{i:08d}", -1, None) for i in range(1, 12)]
    truth = (imagenettools / "groundTruth.txt").read_text().split()
    labels = tmp_path / "truth.json"
    labels.write_text("{" + ",".join(f'"Pic{i + 1:08d}": {label}' for i, label in enumerate(truth)) + "}")
    labelled = check_contract(open_source(imagenettools / "ValTest.tar", labels=labels))
    assert [s.label for s in labelled] == [int(label) for label in truth]


@pytest.mark.parametrize("spec", ["Shards", "Shards/Shards{0..3}.tar", "Shards/*.tar"])
def test_webdataset_tars_of_others(imagenettools: Path, spec: str) -> None:
    source = open_source(f"{imagenettools}/{spec}")
    samples = check_contract(source)
    assert isinstance(source, RefSource)
    truth: dict[str, bytes] = {}
    for path in sorted((imagenettools / "Shards").iterdir()):
        with tarfile.open(path) as tar:
            truth |= {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    assert {f"{s.key}.{ext}": data for s in samples for ext, data in s.fields.items()} == truth
    assert all(s.label == int(s.fields["cls"]) for s in samples)
    assert len(samples) == 11
    assert (source.describe().kind, source.describe().label_source) == ("webdataset", ".cls members")


def test_webdataset_tars_compressed_and_mixed(tmp_path: Path) -> None:
    one = b"".join(sample_bytes("a", {"jpg": b"1", "json": b"{}", "cls": b"ant\n"})) + END
    two = b"".join(sample_bytes("b", {"jpg": b"2", "json": b"{}", "cls": b"bee"})) + END
    (tmp_path / "x-0.tar").write_bytes(one)
    (tmp_path / "x-1.tar.gz").write_bytes(gzip.compress(two[:700]) + gzip.compress(two[700:]))
    samples = check_contract(open_source([tmp_path / "x-0.tar", tmp_path / "x-1.tar.gz"]))
    assert [(s.key, s.label, s.class_name, list(s.fields)) for s in samples] == [
        ("a", -1, "ant", ["jpg", "json", "cls"]),
        ("b", -1, "bee", ["jpg", "json", "cls"]),
    ]


def test_a_folder_of_one_tar_per_class(tmp_path: Path) -> None:
    written(tmp_path / "zebra.tar", ("1.jpg", b"z1"))
    written(tmp_path / "ant.tar", ("1.jpg", b"a1"), ("2.v2.jpg", b"a2"))
    source = open_source(tmp_path)
    assert [(s.key, s.label, s.class_name) for s in check_contract(source)] == [
        ("ant/1", 0, "ant"), ("ant/2%2Ev2", 0, "ant"), ("zebra/1", 1, "zebra")]  # fmt: skip
    assert source.describe().label_source == "sorted tar names"


def test_inner_tars_in_any_order_compressed_or_not(tmp_path: Path) -> None:
    inner = [("b.tar.gz", gzip.compress(tar_of(("1.jpg", b"b1")))), ("a.tar", tar_of(("./1.jpg", b"a1")))]
    path = written(tmp_path / "x.tar", ("._b.tar", b"litter"), *inner)
    expected = [("b/1", 1, "b", {"jpg": b"b1"}), ("a/1", 0, "a", {"jpg": b"a1"})]
    assert [(s.key, s.label, s.class_name, s.fields) for s in check_contract(open_source(path))] == expected
    packed = tmp_path / "x.tar.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [(s.key, s.fields) for s in check_contract(open_source(packed))] == [(e[0], e[3]) for e in expected]


def test_gnu_dots_do_not_reach_the_keys(tmp_path: Path) -> None:
    path = written(tmp_path / "x.tar", ("./a/1.jpg", b"1"), ("./b/1.jpg", b"2"))
    assert [(s.key, s.class_name) for s in check_contract(open_source(path))] == [("a/1", "a"), ("b/1", "b")]


def test_images_with_several_dots_are_no_webdataset(tmp_path: Path) -> None:
    path = written(tmp_path / "x.tar", ("a.v1.jpg", b"1"), ("a.v2.jpg", b"2"), ("b.jpg", b"3"))
    assert [s.key for s in open_source(path)] == ["a%2Ev1", "a%2Ev2", "b"]
    assert [(s.key, list(s.fields)) for s in open_source(path, kind="webdataset")] == [
        ("a", ["v1.jpg", "v2.jpg"]), ("b", ["jpg"])]  # fmt: skip


def test_pairs_of_images_are_webdataset(tmp_path: Path) -> None:
    path = written(tmp_path / "x.tar", *((f"{k}.{e}", b"1") for k in "abc" for e in ("jpg", "seg.png")))
    assert [(s.key, list(s.fields)) for s in open_source(path)] == [(k, ["jpg", "seg.png"]) for k in "abc"]
    assert [s.key for s in open_source(path, kind="images")][:2] == ["a", "a%2Eseg"]


BAD = {
    "one image in a folder, one not": ([("a/1.jpg", b"1"), ("2.jpg", b"2")], "in no folder"),
    "one image in no folder, one in one": ([("1.jpg", b"1"), ("a/2.jpg", b"2")], "in a folder"),
    "an empty image": ([("1.jpg", b"1"), ("2.jpg", b"")], r"@ 1024: '2\.jpg' is empty"),
    "two images for one key": ([("1.jpg", b"1"), ("3.png", b"2"), ("1.PNG", b"3")], "want the same key"),
    "a tar that holds no image": ([("README", b"1")], "no images"),
    "a name that leaves the folder": ([("a/../1.jpg", b"1")], r"'\.\.'"),
    "a label that is out of range": ([("1.jpg", b"1"), ("1.cls", b"99999999999")], "out of range"),
    "a label that is no text": ([("1.jpg", b"1"), ("1.cls", b"\xff\xfe")], "not text"),
    "an empty label": ([("1.jpg", b"1"), ("1.cls", b" ")], "empty"),
    "labels of two forms": ([("1.jpg", b"1"), ("1.cls", b"1"), ("2.jpg", b"1"), ("2.cls", b"ant")], "one form"),
    "inner tar beside an image": ([("a.tar", tar_of(("1.jpg", b"1"))), ("b.jpg", b"1")], r"'b\.jpg' is not a tar"),
    "two inner tars of one class": ([(n, tar_of(("1.jpg", b"1"))) for n in ("a.tar", "x/a.tar")], "both stand for"),
    "tars three deep": ([("a.tar", tar_of(("b.tar", tar_of(("1.jpg", b"1")))))], r"!a\.tar: 'b\.tar' is not an image"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("packed", [False, True])
def test_tars_that_are_refused(case: str, packed: bool, tmp_path: Path) -> None:
    members, words = BAD[case]
    path = tmp_path / "x.tar"
    path.write_bytes(gzip.compress(tar_of(*members)) if packed else tar_of(*members))
    with pytest.raises(SourceError, match=words) as caught:
        list(open_source(path))
    assert "x.tar" in str(caught.value)


def test_a_damaged_inner_tar_is_named(imagenettools: Path, tmp_path: Path) -> None:
    data = bytearray((imagenettools / "Bundle.tar").read_bytes())
    with tarfile.open(imagenettools / "Bundle.tar") as outer:
        inner = outer.getmembers()[2]
    data[inner.offset_data + 5] ^= 0xFF
    for name, content in (("x.tar", bytes(data)), ("x.tar.gz", gzip.compress(bytes(data), 1))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TarError, match=r"!Part3\.tar @ 0: .*checksum"):
            list(open_source(tmp_path / name))
    with pytest.raises(TarError, match=r"!Part3\.tar @ 0: .*checksum"):
        list(open_source(tmp_path / "x.tar").refs())  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [30, 100_000, -1, -9])
def test_a_cut_gzip(size: int, imagenettools: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes((imagenettools / "Bundle.tar.gz").read_bytes()[:size])
    with pytest.raises(TarError, match=r"x\.tar\.gz"):
        list(open_source(path))


def test_a_wrong_crc_in_a_gzip(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(tar_of(("1.jpg", b"1"))))
    data[-6] ^= 1
    (tmp_path / "x.tar.gz").write_bytes(data)
    with pytest.raises(TarError, match="gzip data is cut or damaged"):
        list(open_source(tmp_path / "x.tar.gz"))


def test_a_gzip_bomb_is_refused_before_it_unfolds(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1) as file:
        file.write(member_header("1.jpg", 2**32))
    (tmp_path / "x.tar.gz").write_bytes(stream.getvalue())
    with pytest.raises(SourceError, match="4294967296 bytes"):
        list(open_source(tmp_path / "x.tar.gz"))


def test_bad_calls(imagenettools: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file"):
        open_source(tmp_path / "nothing.tar")
    with pytest.raises(OptionsError, match="matches no file"):
        open_source(f"{tmp_path}/*.tar")
    with pytest.raises(OptionsError, match="labels="):
        open_source(imagenettools / "Bundle.tar", labels=imagenettools / "ClassInfo.json")
    with pytest.raises(OptionsError, match="labels="):
        open_source(imagenettools / "Shards", labels=imagenettools / "ClassInfo.json")
    with pytest.raises(OptionsError, match="is for tars"):
        open_source(imagenettools / "Images", kind="webdataset")
    with pytest.raises(OptionsError, match="a source is"):
        open_source(3)  # type: ignore[arg-type]
    with pytest.raises(TarError, match="not a tar"):
        open_source(imagenettools / "groundTruth.txt")


def test_the_fingerprint_of_tars(imagenettools: Path, tmp_path: Path) -> None:
    path = shutil.copy(imagenettools / "ValTest.tar", tmp_path / "x.tar")
    source = open_source(path)
    before = source.describe().fingerprint
    assert open_source(path).describe().fingerprint == before
    with Path(path).open("ab") as file:
        file.write(bytes(512))
    assert source.describe().fingerprint != before


def test_any_iterable_of_samples() -> None:
    samples = [Sample("a", {"jpg": b"1"}, 3), Sample("b", {"jpg": b"2"}, 4)]
    source = open_source(samples)
    assert check_contract(source) == samples
    assert source.describe().kind == "iterable"
    assert open_source(source) is source
    with pytest.raises(OptionsError, match="only once"):
        open_source(iter(samples))
    with pytest.raises(SourceError, match="item 1 of list is a int"):
        list(open_source([samples[0], 7]))  # type: ignore[arg-type]
