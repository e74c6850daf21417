"""Our tar writer and reader against Python's tarfile, GNU tar and webdataset."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import webdataset
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardmill.errors import OptionsError, TarError
from shardmill.shards.tar import (
    END,
    Member,
    file_members,
    header_bytes,
    member_header,
    padded,
    padding,
    read_members,
    read_stream,
    sample_bytes,
    sample_layout,
)

# Names a tar can hold: any text but NUL, in parts that no reader rewrites ("a//b", "./a", a final slash).
PART = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=60).filter(
    lambda part: part not in (".", "..")
)
NAMES = st.lists(PART, min_size=1, max_size=6).map("/".join)
MEMBERS = st.lists(st.tuples(NAMES, st.binary(max_size=1500)), min_size=1, max_size=6)


def members_of(data: bytes) -> list[Member]:
    return list(read_members(lambda at, n: data[at : at + n], len(data), "x.tar"))


def contents(data: bytes) -> list[tuple[str, bytes]]:
    return [(m.name, data[m.payload_offset : m.payload_offset + m.size]) for m in members_of(data)]


def streamed(data: bytes) -> list[tuple[str, bytes]]:
    return [(member.name, payload.read()) for member, payload in read_stream(io.BytesIO(data), "x.tar")]


def by_tarfile(data: bytes) -> list[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(m.name, tar.extractfile(m).read()) for m in tar]  # type: ignore[union-attr]


def written(members: list[tuple[str, bytes]]) -> bytes:
    return b"".join(member_header(name, len(data)) + data + bytes(padding(len(data))) for name, data in members) + END


@given(MEMBERS)
def test_tarfile_reads_what_we_write(members: list[tuple[str, bytes]]) -> None:
    data = written(members)
    assert by_tarfile(data) == members
    assert contents(data) == members
    assert streamed(data) == members


@given(MEMBERS, st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]), st.booleans())
def test_we_read_what_tarfile_writes(members: list[tuple[str, bytes]], form: int, float_time: bool) -> None:
    stream = io.BytesIO()
    try:
        with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                info.mtime = 1.5 if float_time else 1  # a float brings a PAX record
                tar.addfile(info, io.BytesIO(data))
    except ValueError:  # ustar cannot hold the name
        assume(False)
    data = stream.getvalue()
    assert contents(data) == members
    assert streamed(data) == members


LONG_NAMES = ["x" * 100, "x" * 101, "d/" * 60 + "f", "x" * 4096]
AT_THE_PREFIX = ["p" * 155 + "/" + "n" * 100, "p" * 156 + "/" + "n" * 100, "p" * 155 + "/" + "n" * 101]


@pytest.mark.parametrize("name", ["a.jpg", "é.jpg", "a\nb\\c", "👩‍🔬/‮x", *LONG_NAMES, *AT_THE_PREFIX])
@pytest.mark.parametrize("size", [0, 1, 511, 512, 513])
def test_names_and_sizes_at_their_limits(name: str, size: int, tmp_path: Path) -> None:
    data = written([(name, bytes(size))])
    assert contents(data) == by_tarfile(data) == [(name, bytes(size))]
    assert header_bytes(name, size) == len(member_header(name, size))


def test_bytes_that_are_not_utf8_round_trip() -> None:
    name = b"caf\xe9/\xff.jpg".decode("utf-8", "surrogateescape")
    data = written([(name, b"x")])
    assert contents(data) == by_tarfile(data) == [(name, b"x")]


@pytest.mark.parametrize("name", ["", "a\0b", "folder/", "x" * 4097])
def test_names_that_no_tar_can_hold_are_refused(name: str) -> None:
    with pytest.raises(OptionsError):
        member_header(name, 1)


@pytest.mark.parametrize("size", [-1, 2**63])
def test_sizes_that_no_tar_can_hold_are_refused(size: int) -> None:
    with pytest.raises(OptionsError):
        member_header("a", size)


@pytest.mark.parametrize("size", [2**33 - 1, 2**33, 9 * 2**30, 2**62])
def test_headers_of_large_members(size: int) -> None:
    # tarfile.fromtarfile wants a seekable file that long; a header alone is enough for both.
    info = tarfile.TarFile.open(fileobj=io.BytesIO(member_header("big.bin", size) + bytes(1024))).next()
    assert info is not None
    assert info.size == size


@pytest.mark.parametrize("form", ["base-256", "pax"])
def test_a_member_of_nine_gib_in_a_sparse_file(form: str, tmp_path: Path) -> None:
    size = 9 * 2**30
    info = tarfile.TarInfo("big.bin")
    info.size = size
    head = info.tobuf(tarfile.GNU_FORMAT if form == "base-256" else tarfile.PAX_FORMAT)
    path = tmp_path / "big.tar"
    with path.open("wb") as file:
        file.write(head)
        file.seek(len(head) + size)
        file.write(member_header("after.txt", 3) + b"abc" + bytes(509) + END)
    first, second = file_members(path)
    assert (first.name, first.payload_offset, first.size) == ("big.bin", len(head), size)
    with path.open("rb") as file:
        file.seek(second.payload_offset)
        assert file.read(second.size) == b"abc"


def test_gnu_tar_reads_what_we_write_without_a_word(tmp_path: Path) -> None:
    members = [
        ("a.jpg", b"1"),
        ("é/" + "n" * 200 + ".jpg", b"22"),
        ("p" * 90 + "/" + "q" * 90, b""),
        ("z.cls", b"9" * 600),
    ]
    path = tmp_path / "x.tar"
    path.write_bytes(written(members))
    result = subprocess.run(
        ["tar", "-xf", path, "-C", tmp_path], capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    assert result.stderr == b""
    assert [(name, (tmp_path / name).read_bytes()) for name, _ in members] == members


@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_we_read_what_gnu_tar_writes(form: str, tmp_path: Path) -> None:
    names = ["a.jpg", "d/b.jpg", "d/" + "n" * 90 + ".jpg"]
    if form in ("oldgnu", "gnu", "posix"):
        names += ["e/" + "m" * 200 + ".jpg", "é.jpg"]
    for name in names:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(name.encode() * 7)
    path = tmp_path / "x.tar"
    subprocess.run(["tar", f"--format={form}", "-cf", path, "-C", tmp_path / "in", "."], check=True)
    assert sorted(contents(path.read_bytes())) == sorted((f"./{name}", name.encode() * 7) for name in names)


KEYS = st.lists(st.text("abcXYZ09_-é/", min_size=1, max_size=30), min_size=1, max_size=6, unique=True).map(
    lambda keys: [f"k{i}/" + "/".join(part or "_" for part in key.split("/")) for i, key in enumerate(keys)]
)


@settings(deadline=None, max_examples=30)
@given(KEYS, st.dictionaries(st.sampled_from(["jpg", "cls", "seg.png", "json"]), st.binary(max_size=700), min_size=1))
def test_webdataset_reads_samples_and_the_layout_tells_where_they_are(
    keys: list[str], fields: dict[str, bytes]
) -> None:
    data = b""
    for key in keys:
        layout = sample_layout(key, {name: len(value) for name, value in fields.items()})
        sample = b"".join(sample_bytes(key, fields))
        assert len(sample) == layout.total
        for name, value in fields.items():
            assert sample[layout.payloads[name] : layout.payloads[name] + len(value)] == value
        data += sample
    source = [{"url": "x.tar", "stream": io.BytesIO(data + END)}]
    samples = list(webdataset.tariterators.group_by_keys(webdataset.tariterators.tar_file_expander(source)))
    assert [sample["__key__"] for sample in samples] == keys
    for sample in samples:
        assert {name: sample[name] for name in fields} == fields


def test_the_writer_is_fixed_for_ever() -> None:
    data = written([("n01440764/n01440764_10026.JPEG", b"abc"), ("é.jpg", b""), ("x" * 120, b"12")])
    assert hashlib.sha256(data).hexdigest() == "28694994467fb016772c0843a10017e62aa8f04f7dd2a5927697d6bd9aa31a1e"


def found_or_error(read: Callable[[bytes], list[Any]], data: bytes) -> list[Any] | None:
    """What ``read`` finds; ``None`` for a `TarError`, which must name a place inside the data."""
    try:
        return read(data)
    except TarError as problem:
        error = problem
    assert error.path
    assert error.offset is not None
    assert 0 <= error.offset <= len(data)
    return None


def cpython_tars() -> Iterator[Path]:
    """CPython's own collection of odd tars, where an interpreter on this machine brought its tests."""
    here = Path(os.__file__).parent / "test"
    places = [here, *Path.home().glob(".pyenv/versions/*/lib/python3*/test")]
    for place, folder in itertools.product(places, ("", "archivetestdata")):
        path = place / folder / "testtar.tar"
        if path.is_file():
            yield path


def test_every_member_of_cpythons_testtar(tmp_path: Path) -> None:
    path = next(cpython_tars(), None)
    if path is None:
        pytest.skip("no Python on this machine came with its test data (testtar.tar)")
    data = path.read_bytes()
    with tarfile.open(path, encoding="utf-8", errors="surrogateescape") as tar:
        infos = tar.getmembers()
    assert len(infos) >= 39
    ends = [info.offset for info in infos[1:]] + [len(data)]
    refused = []
    for info, end in zip(infos, ends, strict=True):
        # Member by member, since a refusal ends the reading of a tar.
        piece = data[info.offset : end].rstrip(b"\0")
        piece += bytes(padded(len(piece)) - len(piece)) + bytes(padded(info.size)) + END
        try:
            found = next(read_members(lambda at, n, p=piece: p[at : at + n], None, "x", special="list"))  # type: ignore[misc]
        except TarError as error:
            refused.append((info.name, error.problem))
            continue
        assert found.name.rstrip("/") == info.name
        if info.isreg():
            assert (found.payload_offset + info.offset, found.size) == (info.offset_data, info.size)
        assert (found.typeflag == "0") == info.isreg(), info.name
        assert (found.typeflag == "5") == info.isdir(), info.name
    for name, problem in refused:
        assert ("sparse" in name and "sparse" in problem) or "ambiguous" in problem or "readers disagree" in problem, (
            name,
            problem,
        )
    assert len(infos) - len(refused) >= 26


@settings(deadline=None)
@given(st.data())
def test_any_edit_of_header_bytes_is_an_error_or_changes_nothing(draws: st.DataObject) -> None:
    members = [
        ("a/1.cls", b"3"),
        ("a/1.jpg", b"payload" * 100),
        ("b/2.jpg", bytes(512)),
        ("p" * 90 + "/" + "q" * 40, b"x"),
    ]
    data = bytearray(written(members))
    headers = [m.header_offset for m in members_of(bytes(data))]
    places = st.sampled_from(headers).flatmap(lambda at: st.integers(at, at + 511))
    edits = draws.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=8))
    before = bytes(data)
    for at, value in edits:
        data[at] = value
    after = bytes(data)
    # Edits that cancel out in a header's sum are invisible to every tar reader; the index's crc32c finds those.
    changed = [at for at in headers if before[at : at + 512] != after[at : at + 512]]
    for at in changed:
        assume(sum(before[at : at + 148]) + sum(before[at + 156 : at + 512])
               != sum(after[at : at + 148]) + sum(after[at + 156 : at + 512]))  # fmt: skip
        signed = sum(b - 256 * (b >= 128) for b in after[at : at + 148] + after[at + 156 : at + 512])
        assume(signed != sum(before[at : at + 148]) + sum(before[at + 156 : at + 512]))
    expected = members_of(before)
    assert found_or_error(members_of, after) in (expected, None)
    assert found_or_error(lambda d: [m for m, _ in read_stream(io.BytesIO(d), "x")], after) in (expected, None)


@settings(deadline=None)
@given(st.binary(max_size=3000))
def test_garbage_never_crashes_or_loops(data: bytes) -> None:
    for pieces in (data, data + bytes(512), written([("a", b"b")])[:-1024] + data):
        found_or_error(contents, pieces)
        found_or_error(streamed, pieces)


def test_gnu_tar_is_here() -> None:
    assert shutil.which("tar"), "the tests compare with GNU tar"
