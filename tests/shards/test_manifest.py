from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import IndexFileError
from shardmill.shards.manifest import FileDigest, Manifest

MANIFEST = Manifest(
    samples=3,
    shards=1,
    total_bytes=4096,
    files={"label.npy": FileDigest(size=140, sha256="ab" * 32, dtype="<i4", rows=3), "keys.utf8": FileDigest(9, "0")},
    classes=("hen", "Käfer"),
    label_source="sorted directory names",
    shuffle={"seed": 7, "method": "blake2b"},
    encode=None,
    created_by="shardmill test",
)


def test_bytes_and_back() -> None:
    data = MANIFEST.to_bytes()
    assert Manifest.from_bytes(data, path="m") == MANIFEST
    assert json.loads(data)["samples"] == 3


@given(st.integers(0, len(MANIFEST.to_bytes()) - 1), st.integers(1, 255))
def test_any_flipped_byte_is_an_error_that_names_the_file(position: int, change: int) -> None:
    data = bytearray(MANIFEST.to_bytes())
    data[position] ^= change
    with pytest.raises(IndexFileError, match=r"^some/shardmill\.json: "):
        Manifest.from_bytes(bytes(data), path="some/shardmill.json")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not JSON"),
        (b"[]", "not a shardmill manifest"),
        (b'{"format": "other"}', "not a shardmill manifest"),
        (b'{"format": "shardmill", "version": 2}', "format version 2, this shardmill reads version 1"),
        (b'{"format": "shardmill", "version": 1}', "sha256 does not match"),
    ],
)
def test_what_is_not_a_manifest_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(IndexFileError, match=text):
        Manifest.from_bytes(data, path="m")
