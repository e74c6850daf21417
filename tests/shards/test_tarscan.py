"""The compiled header scan is the Python reader, only faster; neither disagrees with tarfile in silence."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.errors import TarError
from shardmill.native import native
from shardmill.shards.tar import END, Member, file_members, member_header, padding, read_members
from shardmill.shards.tarscan import scan_tar

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
NAMES = [
    "a.jpg",
    "d/b.cls",
    "é.jpg",
    "n" * 100,
    "n" * 101,
    "p" * 80 + "/" + "q" * 60,
    "p" * 150 + "/" + "n" * 100,
    "d" * 300,
]
per_example = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def tars(draw: st.DrawFn) -> bytes:
    """Tars of mixed formats: members of tarfile's three, ours, folders."""
    data = b""
    for i, name in enumerate(draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=12))):
        info = tarfile.TarInfo(f"{i}{name}"[: len(name)])
        info.size = draw(st.sampled_from([0, 1, 511, 512, 513, 1500, 5000]))
        info.mtime = draw(st.sampled_from([0, 1.5]))
        form = draw(st.sampled_from(["ustar", "gnu", "pax", "ours", "folder"]))
        if form == "folder":
            info.type, info.size = tarfile.DIRTYPE, 0
        try:
            head = member_header(info.name, info.size) if form == "ours" else info.tobuf(FORMATS.get(form, 2))  # type: ignore[arg-type]
        except ValueError:  # ustar cannot hold the name
            continue
        data += head + os.urandom(info.size) + bytes(padding(info.size))
    return data + member_header("last.jpg", 0) + END


def outcome(path: Path, compiled: bool) -> list[Member] | str:
    try:
        return scan_tar(path, compiled=compiled).members()
    except TarError as error:
        return str(error)


def outcome_of_the_reader(path: Path) -> list[Member] | str:
    try:
        return list(file_members(path))
    except TarError as error:
        return str(error)


def test_the_compiled_scan_is_here() -> None:
    assert native is not None
    assert hasattr(native, "tar_scan")


@per_example
@given(tars())
def test_all_three_agree_on_sound_tars(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    expected = outcome_of_the_reader(path)
    assert outcome(path, True) == outcome(path, False) == expected
    with tarfile.open(path) as tar:
        assert [(m.name, m.offset, m.offset_data, m.size) for m in tar if m.isreg()] == [
            (m.name, m.header_offset, m.payload_offset, m.size) for m in expected if isinstance(m, Member)
        ]


@per_example
@given(tars(), st.data())
def test_all_three_agree_on_damaged_tars(tmp_path: Path, data: bytes, draws: st.DataObject) -> None:
    edited = bytearray(data)
    for at, value in draws.draw(
        st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), min_size=1, max_size=8)
    ):
        edited[at] = value
    path = tmp_path / "x.tar"
    path.write_bytes(edited[: draws.draw(st.integers(0, len(data)))] if draws.draw(st.booleans()) else edited)
    assert outcome(path, True) == outcome(path, False) == outcome_of_the_reader(path)


FIELDS = [(0, 100), (124, 136), (156, 157), (257, 265), (345, 500)]


@per_example
@given(tars(), st.data())
def test_what_we_accept_tarfile_reads_alike(tmp_path: Path, data: bytes, draws: st.DataObject) -> None:
    """Hostile headers with a checksum that fits: an error, or the same (name, offset, size) as tarfile."""
    edited = bytearray(data)
    heads = [m.payload_offset - 512 for m in read_members(lambda at, n: data[at : at + n], len(data), "x")]
    head = draws.draw(st.sampled_from(heads))
    for _ in range(draws.draw(st.integers(1, 3))):
        first, last = draws.draw(st.sampled_from(FIELDS))
        at = head + draws.draw(st.integers(first, last - 1))
        edited[at] = draws.draw(st.sampled_from([0, 32, 48, 49, 55, 56, 95, 45, 43, 120, 103, 76, 53, 128, 255, 47]))
    edited[head + 148 : head + 156] = b" " * 8
    edited[head + 148 : head + 156] = b"%06o\0 " % sum(edited[head : head + 512])
    path = tmp_path / "x.tar"
    path.write_bytes(edited)
    ours = outcome(path, True)
    assert ours == outcome(path, False)
    if isinstance(ours, str):
        return
    with tarfile.open(fileobj=io.BytesIO(edited), encoding="utf-8", errors="surrogateescape") as tar:
        theirs = [(m.name, m.offset, m.offset_data, m.size) for m in tar if m.isreg()]
    assert theirs == [(m.name, m.header_offset, m.payload_offset, m.size) for m in ours]


def test_a_tar_inside_a_file(tmp_path: Path) -> None:
    inner = b"".join(member_header(f"{i}.jpg", 5) + b"hello" + bytes(507) for i in range(3)) + END
    path = tmp_path / "outer.tar"
    path.write_bytes(member_header("in.tar", len(inner)) + inner + bytes(padding(len(inner))) + END)
    (outer,) = scan_tar(path).members()
    for compiled in (True, False):
        table = scan_tar(path, start=outer.payload_offset, size=outer.size, name="outer!in", compiled=compiled)
        assert [table[i] for i in range(3)] == table.members()
        assert table.header_offset.tolist() == [512, 1536, 2560]
        assert table.payload_offset.tolist() == [1024, 2048, 3072]
        assert repr(table) == "MemberTable(3 members, 15 B)"
        with pytest.raises(TarError, match=r"outer!in @ 3072: .*end marker is missing"):
            scan_tar(path, start=outer.payload_offset, size=3072, name="outer!in", compiled=compiled)


def test_many_members(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    heads = [member_header(f"{i:06d}.cls", 1) + b"7" + bytes(511) for i in range(5000)]
    path.write_bytes(b"".join(heads) + END)
    table = scan_tar(path)
    assert len(table) == 5000
    assert table[4999].name == "004999.cls"
    assert (table.payload_offset == range(512, 5000 * 1024, 1024)).all()
