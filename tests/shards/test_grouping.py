"""Members to samples: as webdataset does it where it does it right, an error where it loses data."""

from __future__ import annotations

import io

import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import TarError
from shardmill.shards.grouping import group_samples, name_problem, plain_name, split_key
from shardmill.shards.tar import END, Member, member_header


def members(*names: str) -> list[Member]:
    return [Member(name, 512 * i, 512 * i + 512, 0) for i, name in enumerate(names)]


def grouped(*names: str) -> list[tuple[str, list[str]]]:
    return [(group.key, [ext for ext, _ in group.parts]) for group in group_samples(members(*names), "x.tar")]


@given(st.lists(st.text("ab./_", min_size=1, max_size=12), min_size=1, max_size=8))
def test_what_we_accept_webdataset_groups_alike(names: list[str]) -> None:
    data = b"".join(member_header(name, 0) for name in names if not name.endswith("/")) + END
    try:
        ours = grouped(*(name for name in names if not name.endswith("/")))
    except TarError:
        return
    source = [{"url": "x", "stream": io.BytesIO(data)}] if ours else []
    theirs = list(webdataset.tariterators.group_by_keys(webdataset.tariterators.tar_file_expander(source)))
    assert [(plain_name(s["__key__"]), [k for k in s if not k.startswith("__")]) for s in theirs] == ours


def test_samples_in_file_order() -> None:
    assert grouped("a/1.cls", "a/1.seg.png", "b.v/2.JPG", "./b.v/3.jpg") == [
        ("a/1", ["cls", "seg.png"]),
        ("b.v/2", ["JPG"]),
        ("b.v/3", ["jpg"]),
    ]


@pytest.mark.parametrize(
    ("names", "words", "offset"),
    [
        (["a.jpg", "b.jpg", "a.cls"], "other samples in between", 1024),
        (["a.jpg", "a.jpg"], "comes twice", 512),
        (["a.jpg", "a.JPG"], "comes twice", 512),
        (["./a.jpg", "a.jpg"], "comes twice", 512),
        (["a.jpg", "README"], "no extension", 512),
        (["d/.jpg"], "no extension", 0),
        (["a.jpg", "a."], "no extension", 512),
        (["a.jpg", "a.__url__"], "metadata", 512),
        (["__meta__/a.jpg"], "metadata", 0),
        (["../x.jpg"], "'..'", 0),
        (["a/../../x.jpg"], "'..'", 0),
        (["/etc/x.jpg"], "absolute", 0),
        (["C:\\x.jpg"], "absolute", 0),
        (["a//x.jpg"], "empty path component", 0),
    ],
)
def test_what_others_drop_in_silence_is_an_error(names: list[str], words: str, offset: int) -> None:
    with pytest.raises(TarError, match=words) as caught:
        grouped(*names)
    assert caught.value.offset == offset


@pytest.mark.parametrize("name", ["", "a\0b", ".", "..", "/a", "a/./b"])
def test_unsafe_names(name: str) -> None:
    assert name_problem(name)


@given(st.text("ab./", max_size=12))
def test_split_key_loses_nothing(name: str) -> None:
    key, extension = split_key(name)
    assert name in (key, f"{key}.{extension}")
    assert "." not in key.rpartition("/")[2]
