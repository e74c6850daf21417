"""Every flipped byte of a packed dataset is found and named; whatever is edited, a read is exact or an error."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.errors import DataError, OptionsError
from shardmill.records import Sample
from shardmill.shards.open import open_dataset
from shardmill.shards.packing import pack
from shardmill.shards.verify import verify
from shardmill.sources.iterable import IterableSource

SLOW = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
EDIT = settings(SLOW, max_examples=60)
COLUMNS = ["label", "width", "image_crc32c", "image_offset", "sample_start", "image_format"]


class Contents(dict[Path, bytes]):
    """Every file of the dataset; hypothesis prints arguments, and must not print this."""

    def __repr__(self) -> str:
        return f"{len(self)} files"


def samples() -> list[Sample]:
    draw = random.Random(7)
    made = []
    for i in range(24):
        fields = {"JPEG": b"\xff\xd8\xff" + draw.randbytes(draw.randrange(200, 2000))}
        if i % 4 == 0:
            fields["json"] = draw.randbytes(draw.randrange(1, 700))
        made.append(Sample(f"klasse-{i % 3}/bild-{i}", fields, label=i * 37 % 1000))
    return made


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dest = tmp_path_factory.mktemp("verify") / "set"
    pack(IterableSource(samples()), dest, shard_samples=9, workers=1, progress=False)
    return dest


@pytest.fixture(scope="module")
def contents(pristine: Path) -> Contents:
    return Contents({path: path.read_bytes() for path in sorted(pristine.rglob("*")) if path.is_file()})


def test_nothing_is_wrong(pristine: Path) -> None:
    report = verify(pristine)
    assert report.ok
    assert (report.samples, report.shards, report.checksums) == (24, 3, True)
    assert report.bytes == sum(path.stat().st_size for path in pristine.glob("*.tar"))


@SLOW
@given(which=st.integers(0, 2**16), place=st.integers(0, 2**32), bit=st.integers(0, 7))
def test_one_flipped_bit_anywhere_is_found_and_named(
    pristine: Path, contents: Contents, which: int, place: int, bit: int
) -> None:
    path = list(contents)[which % len(contents)]
    right = contents[path]
    at = place % len(right)
    wrong = bytearray(right)
    wrong[at] ^= 1 << bit
    path.write_bytes(wrong)
    try:
        report = verify(pristine, workers=1)
    finally:
        path.write_bytes(right)
    name = str(path.relative_to(pristine))
    assert report.faults
    assert {fault.path for fault in report.faults} == {name}
    if path.suffix != ".tar":
        return
    # The tar says itself which sample the byte belongs to, and whether it lies in a payload.
    (fault,) = report.faults
    assert fault.offset is not None
    dataset = open_dataset(pristine)
    shard = dataset.shard_names[:].index(name)
    first, end = (int(dataset.shard_first[shard + i]) for i in (0, 1))
    columns = dataset.index.columns
    for row in range(first, end):
        start, size = int(columns["sample_start"][row]), int(columns["sample_bytes"][row])
        if start <= at < start + size:
            assert fault.key == dataset.keys[row]
            image, image_bytes = int(columns["image_offset"][row]), int(columns["image_bytes"][row])
            if image <= at < image + image_bytes:
                assert fault.offset == image
            elif _in_json(right, start, size, at):
                assert start <= fault.offset <= at
            else:
                assert fault.offset == at
            return
    assert (fault.key, fault.offset) == (None, at)


def _in_json(shard: bytes, start: int, size: int, at: int) -> bool:
    """Whether ``at`` lies in a payload that has no checksum of its own."""
    with tarfile.open(fileobj=io.BytesIO(shard[start : start + size])) as tar:
        return any(
            member.name.endswith(".json") and 0 <= at - start - member.offset_data < member.size for member in tar
        )


@EDIT
@given(name=st.sampled_from(COLUMNS), place=st.integers(0, 2**16))
def test_a_flipped_byte_of_a_column_names_the_row(pristine: Path, contents: Contents, name: str, place: int) -> None:
    path = pristine / "index" / f"{name}.npy"
    right = contents[path]
    column = np.load(path)
    header = len(right) - column.nbytes
    at = place % len(right)
    wrong = bytearray(right)
    wrong[at] ^= 0x55
    path.write_bytes(wrong)
    try:
        faults = verify(pristine, workers=1).faults
    finally:
        path.write_bytes(right)
    if at < header:
        assert [fault.offset for fault in faults] == [at]
    else:
        row = (at - header) // column.itemsize
        assert [fault.offset for fault in faults] == [None, header + row * column.itemsize]
        assert faults[1].key == open_dataset(pristine).keys[row]


@EDIT
@given(
    edits=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 2**32), st.integers(0, 255)), min_size=1, max_size=8)
)
def test_whatever_is_edited_a_read_is_exact_or_an_error(
    pristine: Path, contents: Contents, edits: list[tuple[int, int, int]]
) -> None:
    truth = {sample.key: (sample.label, dict(sample.fields)) for sample in samples()}
    edited: dict[Path, bytearray] = {}
    for which, place, value in edits:
        path = list(contents)[which % len(contents)]
        body = edited.setdefault(path, bytearray(contents[path]))
        body[place % len(body)] = value
    changed = {path for path, body in edited.items() if body != contents[path]}
    for path in changed:
        path.write_bytes(edited[path])
    try:
        found = {fault.path for fault in verify(pristine, workers=1).faults}
        names = {str(path.relative_to(pristine)) for path in changed}
        # What would prove a file wrong may be damaged itself; that is named then.
        unproven = set()
        if "shardmill.json" in names:
            unproven = names - {"shardmill.json"}
        elif "index/shard_sha256.npy" in names:
            unproven = {name for name in names if name.endswith(".tar")}
        assert names - unproven <= found
        delivered = _read_all(pristine)
    finally:
        for path in changed:
            path.write_bytes(contents[path])
    assert delivered <= {(key, label, fields["JPEG"]) for key, (label, fields) in truth.items()}


def _read_all(path: Path) -> set[tuple[str, int, bytes]]:
    """Key, label and image of every row that is delivered; the rest must be errors of ours that name a place."""
    try:
        dataset = open_dataset(path)
    except DataError:
        return set()
    delivered = set()
    for i in range(len(dataset)):
        with contextlib.suppress(DataError):
            delivered.add((dataset.keys[i], int(dataset.labels[i]), bytes(dataset.read([i])[0].data)))
    dataset.close()
    return delivered


def test_every_fault_is_listed_not_just_the_first(pristine: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(pristine, copy)
    dataset = open_dataset(copy)
    rows = [0, 3, 10, 11, 23]
    expected = []
    for row in rows:
        name, key, offset = dataset.describe(row)
        expected.append((Path(name).name, key))
        del offset
    dataset.close()
    columns = {row: int(dataset.index.columns["image_offset"][row]) for row in rows}
    for row, (name, _) in zip(rows, expected, strict=True):
        with (copy / name).open("r+b") as file:
            file.seek(columns[row] + 5)
            file.write(b"#")
    report = verify(copy)
    assert sorted((fault.path, fault.key) for fault in report.faults) == sorted(expected)


@pytest.mark.parametrize("what", ["missing", "cut", "longer", "extra", "extra index", "missing index", "no manifest"])
def test_files_that_are_missing_cut_or_foreign(what: str, pristine: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(pristine, copy)
    shard = copy / "shard-000001.tar"
    size = shard.stat().st_size
    if what == "missing":
        shard.unlink()
    elif what == "cut":
        with shard.open("r+b") as file:
            file.truncate(5000)
    elif what == "longer":
        with shard.open("ab") as file:
            file.write(bytes(512))
    elif what == "extra":
        (copy / "shard-000009.tar").write_bytes(bytes(1024))
    elif what == "extra index":
        (copy / "index" / "more.npy").write_bytes(b"")
    elif what == "missing index":
        (copy / "index" / "width.npy").unlink()
    else:
        (copy / "shardmill.json").unlink()
    faults = verify(copy, workers=1).faults
    first = faults[0]
    expected = {
        "missing": ("shard-000001.tar", None, "missing"),
        "cut": ("shard-000001.tar", 5000, "cut off"),
        "longer": ("shard-000001.tar", size, "behind its end"),
        "extra": ("shard-000009.tar", None, "not a shard"),
        "extra index": ("index/more.npy", None, "not a file of this dataset"),
        "missing index": ("index/width.npy", None, "missing"),
        "no manifest": ("shardmill.json", None, "missing"),
    }[what]
    assert (first.path, first.offset) == expected[:2]
    assert expected[2] in first.problem
    assert what == "cut" or len(faults) == 1


def test_a_damaged_manifest_does_not_stop_the_search(pristine: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(pristine, copy)
    (copy / "shardmill.json").write_bytes(b"{}")
    with (copy / "shard-000000.tar").open("r+b") as file:
        file.seek(10)
        file.write(b"#")
    faults = verify(copy, workers=1).faults
    assert [fault.path for fault in faults] == ["shard-000000.tar", "shardmill.json"]
    assert faults[0].offset == 0


def test_workers_find_the_same(pristine: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(pristine, copy)
    for path in copy.glob("*.tar"):
        with path.open("r+b") as file:
            file.seek(700)
            file.write(b"##")
    alone = verify(copy, workers=1)
    assert len(alone.faults) == 3
    assert verify(copy, workers=2) == alone
    with ThreadPoolExecutor(2) as threads:
        assert verify(copy, workers=2, executor=threads) == alone


def test_progress_counts_bytes(pristine: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = verify(pristine, workers=1, progress=lambda done, total: seen.append((done, total)))
    assert len(seen) == 3
    assert seen[-1] == (report.bytes, report.bytes)


def test_no_dataset_at_all(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="holds no dataset"):
        verify(tmp_path)
