"""The fields of a sample to Python values, by extension, with webdataset's meaning; no byte of the data runs as code.

webdataset unpickles ``.pyd``, ``.pkl``, ``.pickle`` and ``.pth`` members by default, so whoever can write a shard runs
what they like on every machine that trains on it. Here such a member is refused, and nothing switches that off.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from shardmill.errors import DataError, OptionsError
from shardmill.interop.images import ImageDecoder

SampleDict: TypeAlias = dict[str, Any]
"""A sample as webdataset has it: ``__key__``, ``__url__`` (path of the shard), and bytes by extension."""

Handler: TypeAlias = Callable[[str, bytes], Any]
"""(extension with a dot before it, bytes) -> value; ``None`` passes the field on to the next handler."""

CODE = frozenset(("pyd", "pkl", "pickle", "pth", "pt", "ckpt", "dill", "joblib", "ps", "eps"))
"""Extensions whose contents are programs for whoever decodes them."""

_UNSUPPORTED = {"ten": "tenbin", "tb": "tenbin", "mp": "msgpack", "msg": "msgpack", "cbor": "cbor"}


class RefusedFieldError(DataError):
    """Decoding a field would run code that lies in the data. No handler skips it, and there is no switch."""


@dataclass(frozen=True)
class Continue:
    """What a handler returns that undid one layer (compression): decoding goes on with ``key`` and ``data``."""

    key: str
    data: bytes


def gzip_handler(key: str, data: bytes) -> Continue | None:
    """``x.json.gz`` is decompressed, then decoded as ``x.json``."""
    return Continue(key[:-3], gzip.decompress(data)) if key.endswith(".gz") else None


def plain_handler(key: str, data: bytes) -> Any:
    """Text, numbers, JSON and arrays by the last extension; ``None`` for any other."""
    decode = _PLAIN.get(key.rpartition(".")[2])
    return None if decode is None else decode(data)


def handle_extension(extensions: str, f: Callable[[bytes], Any]) -> Handler:
    """A handler that calls ``f(data)`` for fields with one of ``extensions``, a list with spaces between.

    ``"seg.png"`` takes ``x.seg.png`` only, ``"png"`` takes that and ``x.png``. Case does not count.
    """
    return _ExtensionHandler(tuple(tuple(each.split(".")) for each in extensions.lower().split()), f)


@dataclass(frozen=True)
class _ExtensionHandler:
    targets: tuple[tuple[str, ...], ...]
    f: Callable[[bytes], Any]

    def __call__(self, key: str, data: bytes) -> Any:
        parts = tuple(key.lower().split("."))
        if any(parts[-len(target) :] == target for target in self.targets):
            return self.f(data)
        return None


class Decoder:
    """Decodes the fields of sample after sample: the first handler that gives something else than ``None`` decides.

    ``handlers``: image specs (see `shardmill.interop.images.ImageDecoder`) and callables. ``pre`` come before them
    (default: gzip), ``post`` after them (default: text, numbers, JSON, arrays). ``only``: the extensions to decode, a
    list or a string with spaces; others stay bytes. ``partial``: fields that are not bytes any more are left alone.
    A field that no handler takes stays bytes.

    Raises `RefusedFieldError` for a member that would run code, `DataError` for one that does not decode, both naming
    shard, key and extension.
    """

    def __init__(
        self,
        handlers: Iterable[str | Handler],
        *,
        pre: Iterable[Handler] | None = None,
        post: Iterable[Handler] | None = None,
        only: str | Iterable[str] | None = None,
        partial: bool = False,
    ) -> None:
        main = [ImageDecoder(each) if isinstance(each, str) else each for each in handlers]
        before: list[Handler] = [gzip_handler] if pre is None else list(pre)
        after: list[Handler] = [plain_handler] if post is None else list(post)
        self._handlers = [*before, *main, *after]
        if wrong := [each for each in self._handlers if not callable(each)]:
            raise OptionsError(f"decode takes image specs and functions (extension, bytes) -> value, got {wrong[0]!r}")
        if isinstance(only, str):
            only = only.split()
        self._only = None if only is None else frozenset(only)
        self._partial = partial

    def __call__(self, sample: SampleDict) -> SampleDict:
        """A new dict; keys that begin with two underscores are copied as they are."""
        result: SampleDict = {}
        for name, value in sample.items():
            skip = name.startswith("__") or (self._only is not None and name not in self._only)
            if skip or (self._partial and not isinstance(value, bytes)):
                result[name] = value
                continue
            if not isinstance(value, bytes):
                raise _problem(sample, name, f"is {type(value).__name__}, not bytes: decoded before?", "partial=True")
            result[name] = self._decode_field(sample, name, value)
        return result

    def _decode_field(self, sample: SampleDict, name: str, data: bytes) -> Any:
        key = "." + name
        for handler in self._handlers:
            if handler is plain_handler:
                _refuse_code(sample, name, key)
            try:
                value = handler(key, data)
            except DataError:
                raise
            except Exception as error:
                if handler is plain_handler and "allow_pickle" in str(error):
                    raise _refused(sample, name, "holds pickled Python objects") from None
                raise _problem(sample, name, f"cannot be decoded: {type(error).__name__}: {error}", None) from error
            if isinstance(value, Continue):
                key, data = value.key, value.data
            elif value is not None:
                return value
        return data


def _refuse_code(sample: SampleDict, name: str, key: str) -> None:
    extension = key.rpartition(".")[2]
    if extension in CODE:
        raise _refused(sample, name, f"is a .{extension} member")
    if extension in _UNSUPPORTED:
        hint = f"decode(handle_extension({extension!r}, f)) with an f for {_UNSUPPORTED[extension]}"
        raise _problem(sample, name, "has no decoder here", hint)


def _refused(sample: SampleDict, name: str, what: str) -> RefusedFieldError:
    hint = (
        "store arrays as .npy and metadata as .json, or decode only the fields you need: "
        "decode(..., only=['jpg', 'cls'])"
    )
    problem = f"field {name!r} {what}: decoding it would run code that lies in the data"
    return RefusedFieldError(problem, path=_shard(sample), key=sample.get("__key__"), hint=hint)


def _problem(sample: SampleDict, name: str, what: str, hint: str | None) -> DataError:
    return DataError(f"field {name!r} {what}", path=_shard(sample), key=sample.get("__key__"), hint=hint)


def _shard(sample: Mapping[str, Any]) -> str:
    return str(sample.get("__url__", "a sample"))


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _npy(data: bytes) -> Any:
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)


def _npz(data: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


_PLAIN: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": _npy,
    "npz": _npz,
}
