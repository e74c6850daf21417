"""Packing real images: every byte back through other people's readers, the same bytes for any number of workers."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import webdataset
from PIL import Image

from shardmill.errors import DuplicateKeyError, OptionsError, SourceError
from shardmill.records import ByteRange, Sample, SampleRef
from shardmill.shards.manifest import Manifest
from shardmill.shards.open import open_dataset
from shardmill.shards.packing import ProgressEvent, job, pack, packer
from shardmill.shards.packing.options import Means
from shardmill.sources.protocols import Source, SourceInfo

MIB = 2**20
GOLDEN = Path(__file__).parents[1] / "golden" / "pack.json"


@dataclass(frozen=True)
class Samples:
    """A streamed source over given samples, in parts."""

    samples: tuple[Sample, ...]
    parts: int = 1

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def describe(self) -> SourceInfo:
        return SourceInfo("samples", "test", "test", fingerprint=str(len(self.samples)))

    def split(self) -> list[Source]:
        n = len(self.samples)
        return [Samples(self.samples[i * n // self.parts : (i + 1) * n // self.parts]) for i in range(self.parts)]


@dataclass(frozen=True)
class Files:
    """A source of references in any order the test likes."""

    root: Path
    names: tuple[str, ...] = field(repr=False)

    def __iter__(self) -> Iterator[Sample]:
        for ref in self.refs():
            yield Sample(ref.key, {name: (self.root / f"{ref.key}.{name}").read_bytes() for name in ref.fields})

    def refs(self) -> Iterator[SampleRef]:
        for name in self.names:
            key, _, extension = name.partition(".")
            path = self.root / name
            yield SampleRef(key, {extension: ByteRange(str(path), 0, path.stat().st_size)})

    def describe(self) -> SourceInfo:
        return SourceInfo("files", "test", "none")


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file below ``folder``."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def by_webdataset(shards: list[Path]) -> Iterator[dict[str, bytes]]:
    """Samples as webdataset cuts them; its own opener leaves files open, which is a warning, which is an error here."""
    for shard in shards:
        with shard.open("rb") as stream:
            members = webdataset.tariterators.tar_file_expander([{"url": str(shard), "stream": stream}])
            yield from webdataset.tariterators.group_by_keys(members, lcase=True)


def sample(i: int, *, size: int = 700, label: int = -1) -> Sample:
    data = random.Random(i).randbytes(size)
    return Sample(f"dir{i % 3}/s{i:04d}", {"jpg": data, "json": json.dumps({"i": i}).encode()}, label=label)


@pytest.fixture(scope="module")
def truth(imagenet_sample: Path) -> dict[str, str]:
    """Key to sha256 of the 500 real images."""
    return {
        path.name.partition(".")[0]: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in imagenet_sample.iterdir()
        if path.suffix == ".JPEG"
    }


@pytest.fixture(scope="module")
def packed(imagenet_sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dest = tmp_path_factory.mktemp("packed") / "one"
    report = pack(imagenet_sample, dest, workers=1, shard_bytes=8 * MIB, progress=False)
    assert (report.samples, report.passes) == (500, 1)
    return dest


def test_other_readers_give_every_byte_back(packed: Path, truth: dict[str, str], tmp_path: Path) -> None:
    shards = sorted(packed.glob("*.tar"))
    assert all(shard.stat().st_size <= 8 * MIB for shard in shards)

    by_tarfile = {}
    for shard in shards:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                by_tarfile[member.name.partition(".")[0]] = hashlib.sha256(file.read()).hexdigest()
    assert by_tarfile == truth

    assert {str(item["__key__"]): hashlib.sha256(item["jpeg"]).hexdigest() for item in by_webdataset(shards)} == truth

    for shard in shards:
        done = subprocess.run(["tar", "xf", str(shard), "-C", str(tmp_path)], capture_output=True, check=True)
        assert done.stderr == b""
    assert {
        path.name.partition(".")[0]: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.iterdir()
    } == truth


def test_our_reader_gives_every_byte_back(packed: Path, truth: dict[str, str]) -> None:
    dataset = open_dataset(packed)
    images = dataset.read(range(len(dataset)))
    assert {
        key: hashlib.sha256(image.data).hexdigest() for key, image in zip(dataset.keys, images, strict=True)
    } == truth


def test_index_says_what_pillow_says(packed: Path, imagenet_sample: Path) -> None:
    dataset = open_dataset(packed)
    for i in range(0, 500, 7):
        with Image.open(imagenet_sample / f"{dataset.keys[i]}.JPEG") as image:
            assert (dataset.widths[i], dataset.heights[i]) == image.size


@pytest.mark.parametrize(
    ("workers", "memory_bytes", "sequential"), [(2, 2**30, False), (2, 64 * MIB, True), (1, 64 * MIB, False)]
)
def test_same_bytes_for_any_means(
    packed: Path, imagenet_sample: Path, tmp_path: Path, workers: int, memory_bytes: int, sequential: bool
) -> None:
    pack(
        imagenet_sample,
        tmp_path / "other",
        workers=workers,
        memory_bytes=memory_bytes,
        sequential=sequential,
        shard_bytes=8 * MIB,
        scratch=tmp_path / "scratch",
        progress=False,
    )
    assert digests(tmp_path / "other") == digests(packed)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_same_bytes_for_any_listing_order(imagenet_sample: Path, tmp_path: Path) -> None:
    names = sorted(path.name for path in imagenet_sample.iterdir() if path.suffix == ".JPEG")[:60]
    shuffled = names.copy()
    random.Random(1).shuffle(shuffled)
    for dest, order in (("a", names), ("b", shuffled)):
        pack(Files(imagenet_sample, tuple(order)), tmp_path / dest, workers=1, shard_bytes=MIB, progress=False)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_same_bytes_however_small_the_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many runs, many intervals and pieces of a few samples: the shares of a huge dataset on a small machine."""
    source = Samples(tuple(sample(i, label=i % 5) for i in range(400)), parts=7)
    pack(source, tmp_path / "plain", workers=1, shard_samples=33, progress=False)
    monkeypatch.setattr(packer, "share_memory", lambda **_: Means(1, 20_000))
    pack(source, tmp_path / "small", workers=1, shard_samples=33, progress=False)
    assert digests(tmp_path / "small") == digests(tmp_path / "plain")


def test_another_seed_is_another_order(tmp_path: Path) -> None:
    source = Samples(tuple(sample(i) for i in range(50)))
    for seed in (0, 1):
        pack(source, tmp_path / str(seed), seed=seed, workers=1, progress=False)
    one, two = (list(open_dataset(tmp_path / str(seed)).keys) for seed in (0, 1))
    assert one != two
    assert sorted(one) == sorted(two) == sorted(s.key for s in source.samples)
    assert one != sorted(one)


def test_bundle_of_tars(imagenettools: Path, tmp_path: Path) -> None:
    report = pack(imagenettools / "Bundle.tar", tmp_path / "out", shard_samples=2, workers=1, progress=False)
    assert (report.shards, report.samples) == (6, 11)
    dataset = open_dataset(tmp_path / "out")
    assert dataset.classes is not None
    assert list(dataset.classes) == sorted(dataset.classes)
    read = {}
    for item in by_webdataset(sorted((tmp_path / "out").glob("*.tar"))):
        read[str(item["__key__"])] = (int(item["cls"]), hashlib.sha256(item["jpeg"]).hexdigest())
    expected = {}
    with tarfile.open(imagenettools / "Bundle.tar") as outer:
        inner_names = sorted(member.name for member in outer if member.name.endswith(".tar"))
        for label, name in enumerate(inner_names):
            file = outer.extractfile(name)
            assert file is not None
            with tarfile.open(fileobj=io.BytesIO(file.read())) as inner:
                for member in inner:
                    if (data := inner.extractfile(member)) is not None:
                        digest = hashlib.sha256(data.read()).hexdigest()
                        expected[f"{name.removesuffix('.tar')}/{member.name.partition('.')[0]}"] = (label, digest)
    assert read == expected
    assert any("WEBP" in note for note in report.notes)
    assert any("crc32c of another one" in note for note in report.notes)


def test_class_names_become_labels_and_cls_members(tmp_path: Path) -> None:
    names = ["zebra", "ant", "dog"]
    samples = tuple(Sample(f"s{i}", {"jpg": bytes([i]) * 100}, class_name=names[i % 3]) for i in range(30))
    pack(Samples(samples, parts=4), tmp_path / "out", workers=1, progress=False)
    dataset = open_dataset(tmp_path / "out")
    assert dataset.classes == ("ant", "dog", "zebra")
    for i, key in enumerate(dataset.keys):
        expected = sorted(names).index(names[int(key[1:]) % 3])
        assert dataset.labels[i] == expected
        assert dataset[i].fields["cls"] == str(expected).encode()


def test_numbers_and_names_are_not_mixed(tmp_path: Path) -> None:
    samples = (Sample("a", {"jpg": b"1"}, label=3), Sample("b", {"jpg": b"2"}, class_name="dog"))
    with pytest.raises(SourceError, match="some samples have a label number, others a class name"):
        pack(Samples(samples), tmp_path / "out", workers=1, progress=False)


def test_fields_keep_their_order_and_a_cls_of_the_source_stays(tmp_path: Path) -> None:
    fields = {"txt": b"a cat", "cls": b"7\n", "png": b"not really", "seg.png": b""}
    pack(Samples((Sample("a/b", fields, label=7),)), tmp_path / "out", workers=1, progress=False)
    with tarfile.open(tmp_path / "out" / "shard-000000.tar") as tar:
        assert [member.name for member in tar] == ["a/b.txt", "a/b.cls", "a/b.png", "a/b.seg.png"]
    assert dict(open_dataset(tmp_path / "out")[0].fields) == fields


@pytest.mark.parametrize("sequential", [False, True])
def test_duplicate_keys_name_both_places(tmp_path: Path, sequential: bool) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jpg").write_bytes(folder.encode())

    samples: Source = Samples((Sample("x", {"jpg": b"1"}), Sample("x", {"jpg": b"2"})))
    where = r"sample [12] of part 1 of the source and sample [12] of part 1"
    if not sequential:
        samples = Twice(str(tmp_path / "a/x.jpg"), str(tmp_path / "b/x.jpg"))
        where = rf"{tmp_path}/[ab]/x.jpg @ 0 and {tmp_path}/[ab]/x.jpg @ 0"
    with pytest.raises(DuplicateKeyError, match=where):
        pack(samples, tmp_path / "out", workers=1, progress=False)


@dataclass(frozen=True)
class Twice:
    """One key, two files."""

    one: str
    other: str

    def __iter__(self) -> Iterator[Sample]:
        raise NotImplementedError

    def refs(self) -> Iterator[SampleRef]:
        for path in (self.one, self.other):
            yield SampleRef("x", {"jpg": ByteRange(path, 0, 1)})

    def describe(self) -> SourceInfo:
        return SourceInfo("twice", "test", "none")


def test_keys_equal_in_nfc_are_duplicates(tmp_path: Path) -> None:
    samples = (Sample("caf\u00e9", {"jpg": b"1"}), Sample("cafe\u0301", {"jpg": b"2"}))
    with pytest.raises(DuplicateKeyError, match="NFC"):
        pack(Samples(samples), tmp_path / "out", workers=1, progress=False)


@pytest.mark.parametrize("key", ["a.b", "../x", "/x", "", "a//b", "__meta__/x", "x\0y", "bad\udcff"])
def test_keys_that_would_not_come_back_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(SourceError):
        pack(Samples((Sample(key, {"jpg": b"1"}),)), tmp_path / "out", workers=1, progress=False)


@pytest.mark.parametrize("extension", ["", "__x", "a/b"])
def test_extensions_that_would_not_come_back_are_refused(tmp_path: Path, extension: str) -> None:
    with pytest.raises(SourceError, match="extension"):
        pack(Samples((Sample("k", {extension: b"1"}),)), tmp_path / "out", workers=1, progress=False)


def test_long_and_foreign_keys(tmp_path: Path) -> None:
    keys = ["x" * 300, "/".join(["deep" * 20] * 5), "bücher/日本語", "🦓" * 40]
    pack(
        Samples(tuple(Sample(key, {"jpg": key.encode()}, label=3) for key in keys)),
        tmp_path / "out",
        workers=1,
        progress=False,
    )
    with tarfile.open(tmp_path / "out" / "shard-000000.tar") as tar:
        assert sorted(m.name for m in tar if m.name.endswith(".jpg")) == sorted(f"{key}.jpg" for key in keys)
    dataset = open_dataset(tmp_path / "out")
    assert {key: dataset[i].fields["jpg"] for i, key in enumerate(dataset.keys)} == {k: k.encode() for k in keys}


def test_a_sample_larger_than_a_shard(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"sample 'big' .*give shard_bytes=\d+ or more"):
        pack(
            Samples((Sample("big", {"jpg": bytes(9000)}),)),
            tmp_path / "out",
            shard_bytes=8192,
            workers=1,
            progress=False,
        )


def test_an_empty_source(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no samples"):
        pack(Samples(()), tmp_path / "out", workers=1, progress=False)


@pytest.mark.parametrize("change", ["grow", "rewrite", "remove", "fifo"])
def test_a_source_that_changes_is_refused(tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "in"
    root.mkdir()
    names = tuple(f"s{i}.jpg" for i in range(5))
    for name in names:
        (root / name).write_bytes(b"x" * 100)
    victim = root / "s3.jpg"

    original = job.Job._gather

    def meddle(self: job.Job, *args: Any) -> None:
        if change == "grow":
            victim.write_bytes(b"y" * 200)
        elif change == "rewrite":
            os.utime(victim, ns=(1, 1))
        else:
            victim.unlink()
            if change == "fifo":
                os.mkfifo(victim)
        original(self, *args)

    monkeypatch.setattr(job.Job, "_gather", meddle)
    with pytest.raises(SourceError, match=r"s3\.jpg.*(changed|removed|not a plain file)"):
        pack(Files(root, names), tmp_path / "out", workers=1, progress=False)
    assert not list((tmp_path / "out").glob("*.tar"))
    assert not list((tmp_path / "out").glob(".*.tmp"))


def test_destinations_that_are_not_free(tmp_path: Path) -> None:
    source = Samples((sample(1),))
    pack(source, tmp_path / "out", workers=1, progress=False)
    with pytest.raises(OptionsError, match="already holds a dataset"):
        pack(source, tmp_path / "out", workers=1, progress=False)
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars" / "mine.tar").write_bytes(b"")
    with pytest.raises(OptionsError, match=r"mine\.tar"):
        pack(source, tmp_path / "tars", workers=1, progress=False)
    assert (tmp_path / "tars" / "mine.tar").exists()
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    Image.new("RGB", (8, 8)).save(pictures / "a.png")
    with pytest.raises(OptionsError, match="inside the source"):
        pack(pictures, pictures / "out", workers=1, progress=False)


@pytest.mark.parametrize(
    "options",
    [
        {"shard_bytes": 0},
        {"shard_samples": 0},
        {"seed": -1},
        {"seed": 2**64},
        {"workers": -1},
        {"memory_bytes": 1000},
        {"name": "../up"},
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(OptionsError):
        pack(Samples((sample(1),)), tmp_path / "out", progress=False, **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_a_second_packer_fails_at_once_and_names_the_first(tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow(Samples):
        def __iter__(self) -> Iterator[Sample]:
            entered.set()
            leave.wait(30)
            return iter(self.samples)

        def split(self) -> list[Source]:
            return [self]

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(pack, Slow((sample(1),)), tmp_path / "out", workers=1, progress=False)
        assert entered.wait(30)
        with pytest.raises(OptionsError, match=f"is being packed by process {os.getpid()} on "):
            pack(Samples((sample(1),)), tmp_path / "out", workers=1, progress=False)
        leave.set()
        assert first.result().samples == 1


def test_a_brought_executor(tmp_path: Path) -> None:
    source = Samples(tuple(sample(i) for i in range(200)), parts=5)
    pack(source, tmp_path / "plain", workers=1, shard_samples=20, progress=False)
    with ThreadPoolExecutor(3) as threads:
        pack(source, tmp_path / "threads", workers=3, executor=threads, shard_samples=20, progress=False)
    assert digests(tmp_path / "threads") == digests(tmp_path / "plain")


def test_progress_reaches_the_totals(tmp_path: Path) -> None:
    events: list[ProgressEvent] = []
    source = Samples(tuple(sample(i) for i in range(100)))
    report = pack(source, tmp_path / "out", workers=1, progress=events.append)
    last = {event.stage: event for event in events}
    assert list(last) == ["scatter", "cut", "gather", "commit"]
    assert last["scatter"].samples == last["gather"].samples == last["gather"].total_samples == 100
    assert last["gather"].bytes == last["gather"].total_bytes == report.bytes - 1024
    assert all(thread.name != "shardmill-progress" for thread in threading.enumerate())


def test_the_manifest_says_how_it_was_made(tmp_path: Path) -> None:
    pack(Samples(tuple(sample(i, label=i % 2) for i in range(9))), tmp_path / "out", seed=5, workers=1, progress=False)
    path = tmp_path / "out" / "shardmill.json"
    manifest = Manifest.from_bytes(path.read_bytes(), path=str(path))
    assert manifest.shuffle is not None
    assert manifest.shuffle["seed"] == 5
    assert (manifest.samples, manifest.shards, manifest.checksums) == (9, 1, True)
    assert manifest.total_bytes == (tmp_path / "out" / "shard-000000.tar").stat().st_size
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["index", "shard-000000.tar", "shardmill.json"]


def test_golden_shards(tmp_path: Path) -> None:
    """The format must not drift: change the stored digests only together with the format version."""
    pack(Samples(tuple(sample(i, label=i % 4) for i in range(40))), tmp_path / "out", shard_samples=16, seed=42,
         workers=1, progress=False)  # fmt: skip
    found = {name: digest for name, digest in digests(tmp_path / "out").items() if name != "shardmill.json"}
    assert found == json.loads(GOLDEN.read_text())
