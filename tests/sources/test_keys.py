"""Keys that come back from a WebDataset reader as they went in."""

from __future__ import annotations

import io

import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import SourceError
from shardmill.shards.grouping import split_key
from shardmill.shards.tar import END, member_header
from shardmill.sources.keys import (
    KeyCheck,
    NameFilter,
    escape_stem,
    is_image_name,
    is_litter,
    is_note,
    sample_key,
    unescape_stem,
)

PARTS = st.text("ab.%_-é25E", min_size=1, max_size=8).filter(lambda part: part.strip("."))
NAMES = st.tuples(st.lists(PARTS, max_size=3), PARTS, st.sampled_from(["jpg", "JPEG", "png"])).map(
    lambda t: "/".join([*t[0], f"{t[1]}.{t[2]}"])
)


@given(NAMES)
def test_key_and_extension_round_trip(name: str) -> None:
    key, extension = sample_key(name)
    assert split_key(f"{key}.{extension}") == (key, extension)
    if "%5F" not in key:
        folder, slash, stem = key.rpartition("/")
        assert f"{folder}{slash}{unescape_stem(stem)}.{extension}" == name
    tar = member_header(f"{key}.{extension}", 0) + END
    source = [{"url": "x", "stream": io.BytesIO(tar)}]
    (sample,) = webdataset.tariterators.group_by_keys(webdataset.tariterators.tar_file_expander(source))
    assert sample["__key__"] == key
    assert extension.lower() in sample


@given(st.text("a.%25E", max_size=10))
def test_escaping_undone(stem: str) -> None:
    assert "." not in escape_stem(stem)
    assert unescape_stem(escape_stem(stem)) == stem


def test_examples() -> None:
    assert sample_key("a.b/img.v2.JPEG") == ("a.b/img%2Ev2", "JPEG")
    assert sample_key("n01440764/n01440764_10026.JPEG") == ("n01440764/n01440764_10026", "JPEG")
    assert sample_key("__MACOS__/a.jpg") == ("%5F_MACOS__/a", "jpg")


@pytest.mark.parametrize("name", [".DS_Store", "a/._x.jpg", "Thumbs.db", "d/THUMBS.DB", "__MACOSX/a.jpg", ".git/a.jpg"])
def test_litter(name: str) -> None:
    assert is_litter(name)


@pytest.mark.parametrize("name", ["a.jpg", "d/a", "./a.jpg", "thumbs/db.jpg"])
def test_no_litter(name: str) -> None:
    assert not is_litter(name)


def test_what_is_an_image_and_what_a_note() -> None:
    assert is_image_name("a/b.JpEg")
    assert not is_image_name("a.jpg/b")
    assert not is_image_name(".jpg")
    assert is_note("README")
    assert is_note("LICENSE.md")
    assert is_note("labels.CSV")
    assert not is_note("a.bin")


def test_the_filter_counts_and_refuses() -> None:
    names = NameFilter(("*.xml", "skip/*"), "root")
    assert names.is_image("a.jpg", top=True)
    assert not names.is_image("d/a.xml", top=False)
    assert not names.is_image("skip/a.jpg", top=False)
    assert not names.is_image("README.md", top=True)
    assert names.ignored == 3
    with pytest.raises(SourceError, match=r"d/notes\.txt.*ignore=\['\*\.txt'\]"):
        names.is_image("d/notes.txt", top=False)
    with pytest.raises(SourceError, match="absolute"):
        names.is_image("/a.jpg", top=True)


def test_two_names_for_one_key() -> None:
    keys = KeyCheck("root")
    keys.key_of("d/a.jpg")
    keys.key_of("d/A.jpg")
    with pytest.raises(SourceError, match=r"'d/a\.jpg' and 'd/a\.png' want the same key"):
        keys.key_of("d/a.png")
    with pytest.raises(SourceError, match="same key"):
        keys.key_of("d/A.JPG")
