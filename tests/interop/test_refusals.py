"""No byte of the data runs as code, whatever the extension and whatever the handler."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shardmill.errors import DataError
from shardmill.interop import webdataset as wds
from shardmill.interop.decoders import RefusedFieldError


class _MakesFolder:
    """Unpickling it makes a folder: whether code ran can be seen."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def _npz_of_pickle(evil: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.npy", evil)
    return stream.getvalue()


def _members(proof: Path, npy: Any) -> dict[str, bytes]:
    evil = _MakesFolder(proof)
    pickled = pickle.dumps(evil)
    stream = io.BytesIO()
    torch.save(evil, stream)
    objects = npy(np.array([evil], dtype=object))
    return {
        **dict.fromkeys(("pyd", "pkl", "pickle", "a.pyd", "PYD", "dill", "joblib"), pickled),
        **dict.fromkeys(("pth", "pt", "ckpt"), stream.getvalue()),
        "pyd.gz": gzip.compress(pickled),
        "npy": objects,
        "npz": _npz_of_pickle(objects),
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    }


NAMES = ["pyd", "pkl", "pickle", "a.pyd", "PYD", "dill", "joblib", "pth", "pt", "ckpt", "pyd.gz", "npy", "npz", "eps"]


@pytest.mark.parametrize("name", NAMES)
def test_members_that_would_run_code_are_refused(name: str, tmp_path: Path, npy: Any, write_tar: Any) -> None:
    proof = tmp_path / "proof"
    data = _members(proof, npy)[name]
    tar = str(write_tar(tmp_path / "evil.tar", [{"__key__": "k7", "cls": b"1", name: data}]))
    for handler in (wds.reraise_exception, wds.ignore_and_continue, wds.ignore_and_stop):
        stream = wds.WebDataset(tar, handler).decode("pil", handler=handler).map(dict, handler=handler)
        with pytest.raises(RefusedFieldError, match=r"evil\.tar \(key 'k7'\): field .* would run code") as caught:
            list(stream)
        assert pickle.loads(pickle.dumps(caught.value)).key == "k7"
    assert not proof.exists()
    # What is not decoded is bytes, and can be left where it is.
    (found,) = wds.WebDataset(tar).decode("pil", only=["cls"])
    assert found["cls"] == 1
    assert found[name.lower()] == data
    assert not proof.exists()


def test_the_members_are_dangerous(tmp_path: Path, npy: Any) -> None:
    """What is refused above does run code elsewhere: the test would notice."""
    proof = tmp_path / "proof"
    members = _members(proof, npy)
    np.load(io.BytesIO(members["npy"]), allow_pickle=True)
    assert proof.exists()
    proof.rmdir()
    pickle.loads(members["pyd"])
    assert proof.exists()


def test_postscript_under_another_name_does_not_reach_ghostscript(tmp_path: Path, write_tar: Any) -> None:
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"
    tar = str(write_tar(tmp_path / "a.tar", [{"__key__": "k", "jpg": script}]))
    with pytest.raises(DataError, match="cannot identify image"):
        list(wds.WebDataset(tar).decode("pil"))


@pytest.mark.parametrize("name", ["ten", "tb", "mp", "msg", "cbor"])
def test_formats_without_a_decoder_are_named_not_passed_on_as_bytes(name: str, tmp_path: Path, write_tar: Any) -> None:
    tar = str(write_tar(tmp_path / "a.tar", [{"__key__": "k", name: b"12"}]))
    with pytest.raises(DataError, match=f"handle_extension\\('{name}', f\\)"):
        list(wds.WebDataset(tar).decode())
    stream = wds.WebDataset(tar).decode(wds.handle_extension(name, len))
    assert [each[name] for each in stream] == [2]


def test_a_field_that_does_not_decode_is_named(tmp_path: Path, write_tar: Any) -> None:
    tar = str(write_tar(tmp_path / "a.tar", [{"__key__": "k", "cls": b"three"}]))
    with pytest.raises(DataError, match=r"a\.tar \(key 'k'\): field 'cls' cannot be decoded: ValueError"):
        list(wds.WebDataset(tar).decode())
