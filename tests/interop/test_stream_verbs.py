"""Every verb gives what webdataset 1.0.2 gives on the same tars."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import webdataset
from PIL import Image

from shardmill.errors import DataError, OptionsError
from shardmill.interop import webdataset as wds
from shardmill.interop.images import SPECS

# webdataset leaves its tars to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

IMAGE = "jpg;png;jpeg"


def theirs(urls: Any, **options: Any) -> Any:
    return webdataset.WebDataset(urls, shardshuffle=False, **options)


def odd(each: dict[str, Any]) -> bool:
    return bool(each["cls"] % 2)


def drop_even(each: dict[str, Any]) -> dict[str, Any] | None:
    return {"only": each["cls"]} if odd(each) else None


def fail_on_two(label: int) -> int:
    if label == 2:
        raise RuntimeError("two")
    return label * 10


def upper(key: str, data: bytes) -> Any:
    return data.decode().upper() if key.endswith(".txt") else None


def numbers(stream: Any) -> Any:
    return stream.decode().to_tuple("cls", "txt", "npy")


VERBS: dict[str, Callable[[Any], Any]] = {
    "raw": lambda s: s,
    "decode": lambda s: s.decode(),
    "decode only": lambda s: s.decode("pil", only=["cls", "json"]),
    "decode only, one string": lambda s: s.decode("pil", only="cls txt"),
    "decode twice": lambda s: s.decode(only="cls").decode("rgb8", partial=True),
    "decode with a function": lambda s: s.decode(upper, "l8"),
    "decode without the rest": lambda s: s.decode("l8", pre=[], post=[]),
    "to_tuple": lambda s: s.decode("rgb8").to_tuple(IMAGE, "cls"),
    "to_tuple, one string": lambda s: s.decode("rgb8").to_tuple(f"{IMAGE} cls __key__"),
    "to_tuple, missing": lambda s: s.to_tuple("cls", "nothing", missing_is_error=False),
    "to_tuple, skipped": lambda s: s.to_tuple("png", "cls", handler=webdataset.ignore_and_continue),
    "to_tuple, stopped": lambda s: s.to_tuple("jpg", "cls", handler=webdataset.ignore_and_stop),
    "map_tuple": lambda s: numbers(s).map_tuple(lambda label: label + 1, str.upper, lambda a: a * 2),
    "map_tuple, fewer": lambda s: numbers(s).map_tuple(None, str.lower),
    "map_tuple, more": lambda s: s.decode().to_tuple("cls").map_tuple(str, str),
    "map_tuple, skipped": lambda s: numbers(s).map_tuple(fail_on_two, handler=webdataset.ignore_and_continue),
    "map": lambda s: s.decode().map(lambda each: {"n": each["cls"]}),
    "map, none": lambda s: s.decode().map(drop_even),
    "map, tuples": lambda s: numbers(s).map(lambda each: each[::-1]),
    "map_dict": lambda s: s.decode().map_dict(cls=lambda label: -label, txt=len),
    "select": lambda s: s.decode().select(odd),
    "rename": lambda s: s.decode("rgb8").rename(image=IMAGE, label="cls"),
    "rename, not kept": lambda s: s.decode("rgb8").rename(image=IMAGE, label="cls", keep=False),
    "rename_keys": lambda s: s.rename_keys(("image", "*.png"), ("label", "c?s")),
    "rename_keys, kept": lambda s: s.rename_keys(label="cls", text="t*", keep_unselected=True),
    "rename_keys, unmatched": lambda s: s.rename_keys(image="jpg", label="cls", must_match=False),
    "extract_keys": lambda s: s.extract_keys("*.cls", "*.blob;*.bin"),
    "extract_keys, missing": lambda s: s.extract_keys("*.cls", "*.jpg", ignore_missing=True),
    "shuffle": lambda s: s.decode().to_tuple("cls", "__key__").shuffle(4, seed=7),
    "shuffle, initial": lambda s: s.to_tuple("__key__").shuffle(100, initial=3, rng=random.Random(5)),
    "shuffle, none": lambda s: s.to_tuple("__key__").shuffle(0),
    "batched": lambda s: numbers(s).batched(4),
    "batched, whole": lambda s: numbers(s).batched(4, partial=False),
    "batched, even": lambda s: numbers(s).batched(13, partial=False),
    "batched, own": lambda s: numbers(s).batched(3, collation_fn=lambda rows: [row[1] for row in rows]),
    "batched, dicts": lambda s: s.decode("l8").rename(image=IMAGE, label="cls", keep=False).batched(5),
    "batched, torch": lambda s: s.decode("torchrgb").to_tuple(IMAGE, "json").batched(6),
    "listed": lambda s: numbers(s).listed(4),
    "unbatched": lambda s: numbers(s).batched(4).unbatched(),
    "unbatched, dicts": lambda s: s.decode("l8").rename(image=IMAGE, label="cls", keep=False).batched(5).unbatched(),
    "unlisted": lambda s: numbers(s).listed(4).unlisted(),
    "slice": lambda s: s.to_tuple("__key__").slice(4),
    "slice, middle": lambda s: s.to_tuple("__key__").slice(3, 10),
    "slice, steps": lambda s: s.to_tuple("__key__").slice(1, None, 3),
    "slice, batches": lambda s: numbers(s).batched(3).slice(1, 3),
    "with_epoch": lambda s: s.to_tuple("__key__").with_epoch(30),
    "with_epoch, short": lambda s: s.to_tuple("__key__").with_epoch(5),
    "with_epoch, batches": lambda s: numbers(s).batched(4).with_epoch(nbatches=9),
    "repeat": lambda s: s.to_tuple("__key__").repeat(2),
    "compose": lambda s: s.to_tuple("__key__").compose(lambda items: (each[0] for each in items)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_give_what_webdataset_gives(urls: str, verb: str, plain: Any) -> None:
    ours = plain(list(VERBS[verb](wds.WebDataset(urls))))
    assert ours == plain(list(VERBS[verb](theirs(urls))))
    assert ours[1], "the case shows nothing"


@pytest.mark.parametrize("spec", SPECS)
def test_image_specs_give_what_webdataset_gives(urls: str, spec: str, plain: Any) -> None:
    names = (IMAGE, "seg.png", "cls")
    ours = plain(list(wds.WebDataset(urls).decode(spec).to_tuple(*names)))
    assert ours == plain(list(theirs(urls).decode(spec).to_tuple(*names)))


def test_the_specs_are_all_of_webdataset() -> None:
    assert set(SPECS) == set(webdataset.autodecode.imagespecs)


def test_unknown_specs_are_refused(urls: str) -> None:
    with pytest.raises(OptionsError, match="unknown image spec 'rbg'"):
        wds.WebDataset(urls).decode("rbg")


def test_a_damaged_image_is_named_or_left_out(tmp_path: Any, make_sample: Any, write_tar: Any) -> None:
    bad = make_sample(1) | {"png": b"\x89PNG no more"}
    tar = str(write_tar(tmp_path / "bad.tar", [make_sample(0), bad, make_sample(2)]))
    with pytest.raises(DataError, match=r"bad\.tar \(key 'folder/s001'\): field 'png' cannot be decoded"):
        list(wds.WebDataset(tar).decode("pil"))
    ours = wds.WebDataset(tar).decode("pil", handler=wds.warn_and_continue).to_tuple("__key__")
    with pytest.warns(UserWarning, match="folder/s001"):
        assert list(ours) == [("folder/s000",), ("folder/s002",)]


def test_verbs_leave_the_stream_they_are_called_on_alone(urls: str) -> None:
    stream = wds.WebDataset(urls)
    first = stream.to_tuple("__key__")
    first.slice(2)
    first.with_epoch(100)
    assert len(list(first)) == len(list(stream)) == 13


def test_several_urls(folder: Any) -> None:
    tars = [f"{folder}/x-00000{i}.tar" for i in (2, 0)]
    keys = [each for (each,) in wds.WebDataset(tars).to_tuple("__key__")]
    assert keys == [f"folder/s{i:03d}" for i in (*range(6, 13), *range(5))]
    assert keys == [each for (each,) in wds.WebDataset("::".join(tars)).to_tuple("__key__")]


def test_a_stream_has_a_length_when_told(urls: str) -> None:
    stream = wds.WebDataset(urls)
    assert stream
    with pytest.raises(TypeError, match="with_length"):
        len(stream)
    assert len(stream.with_length(13)) == 13


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.batched(0), "batched takes"),
        (lambda s: s.slice(), "slice takes"),
        (lambda s: s.slice(-1), "slice counts from the front"),
        (lambda s: s.to_tuple("jpg cls", "txt"), "to_tuple takes"),
        (lambda s: s.shuffle(3, seed=1, rng=random.Random()), "not both"),
        (lambda s: s.rsample(2.0), "probability"),
        (lambda s: s.decode(3), "decode takes image specs"),
        (lambda s: s.dealt(0), "dealt takes"),
        (lambda s: list(s.map_tuple(int)), "map_tuple comes after to_tuple"),
        (lambda s: list(s.decode("rgb8").to_tuple("png;jpg;jpeg").map(lambda x: (x[0][: x[0].sum() % 5],)).batched(9)),
         "different shapes"),
        (lambda s: list(s.batched(9)), "different fields"),
    ],
)  # fmt: skip
def test_calls_that_make_no_sense(urls: str, call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        call(wds.WebDataset(urls))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resampled": True}, r"\.with_epoch\(n\)"),
        ({"nodesplitter": list}, r"ranks=Ranks\(rank, world_size\)"),
        ({"workersplitter": list}, r"ranks=Ranks\(rank, world_size\)"),
    ],
)
def test_options_of_webdataset_that_lose_samples_are_refused(urls: str, options: Any, message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        wds.WebDataset(urls, **options)


def test_deep_gray_is_scaled_not_clipped(tmp_path: Any, write_tar: Any) -> None:
    deep = np.array([[0, 257, 32896], [65535, 65278, 128]], np.uint16)
    stream = io.BytesIO()
    Image.fromarray(deep).save(stream, "PNG")
    tar = str(write_tar(tmp_path / "deep.tar", [{"__key__": "k", "png": stream.getvalue()}]))
    ((gray,),) = wds.WebDataset(tar).decode("l8").to_tuple("png")
    assert gray.tolist() == np.rint(deep / 257).astype(int).tolist()
    ((colour,),) = wds.WebDataset(tar).decode("torchrgb8").to_tuple("png")
    assert colour.tolist() == [gray.tolist()] * 3


def test_transparent_palettes_do_not_warn(tmp_path: Any, write_tar: Any) -> None:
    palette = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4)).convert("P")
    stream = io.BytesIO()
    palette.save(stream, "PNG", transparency=bytes(range(12)))
    tar = str(write_tar(tmp_path / "p.tar", [{"__key__": "k", "png": stream.getvalue()}]))
    ((pixels,),) = wds.WebDataset(tar).decode("rgb8").to_tuple("png")
    assert pixels.tolist() == np.asarray(palette.convert("RGBA"))[:, :, :3].tolist()
