"""Folders, label files and patterns made to do harm: every one an error that names it, none a traceback or a wait."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardmill.errors import OptionsError, ShardmillError, SourceError
from shardmill.sources.labels import read_labels
from shardmill.sources.open import open_source
from shardmill.storage.names import expand, expand_braces

JPEG = b"\xff\xd8\xff\xe0" + bytes(100)


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """An image in every 100th of 1,500 folders inside each other; deeper than Python calls itself."""
    top = tmp_path / "deep"
    top.mkdir()
    for i in range(0, 1500, 100):
        folder = top / "/".join("a" * (i + 1))
        os.makedirs(folder)  # noqa: PTH103 - Path.mkdir calls itself
        (folder / f"x{i:04}.jpg").write_bytes(JPEG)
    yield top
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    shutil.rmtree(top)
    sys.setrecursionlimit(limit)


def test_folders_deeper_than_python_recurses_are_read_in_order(deep: Path) -> None:
    source = open_source(deep)
    keys = [sample.key.rpartition("/")[2] for sample in source]
    assert keys == [f"x{i:04}" for i in range(0, 1500, 100)]
    assert source.describe().estimated_bytes == 15 * len(JPEG)


def test_order_is_files_before_folders_and_by_name(tmp_path: Path) -> None:
    for name in ("c/b/2.jpg", "c/b/1.jpg", "c/z.jpg", "c/a/x.jpg", "c/a/q/1.jpg", "c/a.jpg", "d/1.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(JPEG)
    keys = [sample.key for sample in open_source(tmp_path)]
    assert keys == ["c/a", "c/z", "c/a/x", "c/a/q/1", "c/b/1", "c/b/2", "d/1"]


def test_a_link_to_a_folder_further_out_is_found(tmp_path: Path) -> None:
    (tmp_path / "c" / "d" / "e").mkdir(parents=True)
    (tmp_path / "c" / "1.jpg").write_bytes(JPEG)
    (tmp_path / "c" / "d" / "e" / "back").symlink_to(tmp_path / "c")
    with pytest.raises(SourceError, match="leads back to a folder around it"):
        list(open_source(tmp_path, follow_links=True))


def test_two_links_to_one_folder_are_no_circle(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "1.jpg").write_bytes(JPEG)
    for name in ("a", "b"):
        (tmp_path / "data" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "data" / name).symlink_to(tmp_path / "pool")
    keys = [sample.key for sample in open_source(tmp_path / "data", follow_links=True)]
    assert keys == ["a/1", "b/1"]


def test_a_fifo_among_the_images_is_an_error_not_a_wait(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    os.mkfifo(tmp_path / "c" / "1.jpg")
    with pytest.raises(SourceError, match=r"1\.jpg: not a regular file"):
        list(open_source(tmp_path))


def test_a_fifo_called_tar_is_an_error_not_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tar")
    for spec in (tmp_path / "a.tar", tmp_path):
        with pytest.raises(SourceError):
            list(open_source(spec))


@pytest.mark.parametrize("name", ["a.jpg", "a.JPG"])
def test_extensions_that_differ_in_case_only_want_the_same_key(tmp_path: Path, name: str) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / name).write_bytes(JPEG)
    (key,) = [sample.key for sample in open_source(tmp_path)]
    assert key == "c/a"
    (tmp_path / "c" / "a.Jpg").write_bytes(JPEG)
    with pytest.raises(SourceError, match="want the same key 'c/a'"):
        list(open_source(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"a.jpg": ' * 100_000,
        '{"a.jpg": ' + "1" * 5000 + "}",
        '{"a.jpg": "\\ud800"}',
        '{"a.jpg": ""}',
        '{"a.jpg": "x\\u0000"}',
        '{"a.jpg": NaN}',
        '{"a.jpg": 1e999}',
        "",
        "\x00",
    ],
)
def test_label_files_that_trip_the_parser_are_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "labels.json"
    path.write_text(text)
    with pytest.raises(SourceError, match=r"labels\.json: "):
        read_labels(path)


@pytest.mark.parametrize(
    "pattern",
    ["x{1.." + "9" * 5000 + "}.tar", "{0..1000000}", "{0..999}{0..1001}", "{a,b}" * 40, "{0..99999999999999999999}"],
)
def test_patterns_of_too_many_paths_are_refused_at_once(pattern: str) -> None:
    with pytest.raises(OptionsError, match="more than 1000000 paths"):
        expand_braces(pattern)


def test_patterns_of_many_braces_are_expanded() -> None:
    assert expand_braces("x" + "{1..1}" * 3000) == ["x" + "1" * 3000]
    assert expand_braces("{b,a}-{08..10}.tar") == [f"{c}-{n}.tar" for c in "ba" for n in ("08", "09", "10")]
    assert expand_braces("{2..0}{x}{,y}") == ["2{x}", "2{x}y", "1{x}", "1{x}y", "0{x}", "0{x}y"]


@pytest.mark.parametrize("name", ["n" * 300, "n/" * 3000, "a\0b.tar", "[", "[!", "**/" * 50 + "x.tar"])
def test_odd_names_are_errors_of_ours_or_of_the_system(tmp_path: Path, name: str) -> None:
    with pytest.raises((ShardmillError, OSError)):
        open_source(f"{tmp_path}/{name}")
    with pytest.raises(OptionsError):
        expand(f"{tmp_path}/{name}*")


@pytest.mark.parametrize("label", [b"", b"\xff", b"1" * 5000, b"2147483648"])
def test_webdataset_labels_that_are_none_are_refused(tmp_path: Path, label: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, data in (("a.jpg", JPEG), ("a.cls", label)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    with pytest.raises(SourceError, match=r"a\.tar @ 1024: 'a\.cls': the label "):
        list(open_source(tmp_path / "a.tar"))
