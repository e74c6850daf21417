"""The manifest, ``shardmill.json``: what a dataset holds, and the digests that its index must match.

Written last, under a temporary name, then renamed: no manifest, no dataset. It holds nothing that depends on the
machine, the time or the number of workers, so the same source and seed give the same bytes. The last field,
``sha256``, is the digest of the file without that field, so that a flipped byte in the manifest itself is found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from shardmill.errors import IndexFileError

MANIFEST: Final = "shardmill.json"
FORMAT_VERSION: Final = 1

_REFRESH = "the dataset is damaged: copy or pack it again"


@dataclass(frozen=True, slots=True)
class FileDigest:
    """One file of ``index/``: its ``size`` in bytes and sha256, and for an array its dtype and rows."""

    size: int
    sha256: str
    dtype: str | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that is written in ``shardmill.json``; ``to_bytes`` and ``from_bytes`` are exact inverses.

    ``total_bytes`` is the size of all shards.
    ``files`` maps the name of a file in ``index/`` to its digest. ``classes`` are the class names by label, or
    ``None``. ``checksums`` says whether the crc32c columns and shard digests are filled in (they are not for an index
    made by a header scan alone). ``shuffle`` is ``{"seed": int, "method": str}``, or ``None`` where the order of the
    source was kept. ``encode`` says how images were re-encoded, or ``None`` where the original bytes were kept.
    """

    samples: int
    shards: int
    total_bytes: int
    files: Mapping[str, FileDigest] = field(repr=False)
    classes: tuple[str, ...] | None = field(repr=False)
    label_source: str
    shuffle: Mapping[str, Any] | None
    encode: Mapping[str, Any] | None
    created_by: str
    checksums: bool = True
    container: str = "tar"

    def to_bytes(self) -> bytes:
        """The file's contents: UTF-8 JSON, keys in a fixed order, one field a line at the top level."""
        body: dict[str, Any] = {"format": "shardmill", "version": FORMAT_VERSION, **asdict(self)}
        body["files"] = {
            name: {k: v for k, v in asdict(digest).items() if v is not None}
            for name, digest in sorted(self.files.items())
        }
        body["sha256"] = _digest(body)
        return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, *, path: str) -> Manifest:
        """Parses and checks; ``path`` is for messages. Raises `IndexFileError` on any damage or another version."""
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise IndexFileError(f"the manifest is not JSON ({error})", path=path, hint=_REFRESH) from None
        if not isinstance(body, dict) or body.get("format") != "shardmill":
            raise IndexFileError("not a shardmill manifest", path=path, hint="point at the directory that pack wrote")
        if body.get("version") != FORMAT_VERSION:
            raise IndexFileError(
                f"format version {body.get('version')!r}, this shardmill reads version {FORMAT_VERSION}",
                path=path,
                hint="install the shardmill that wrote it, or pack again",
            )
        try:
            fits = body.pop("sha256", None) == _digest(body)
        except UnicodeEncodeError:
            fits = False  # half a surrogate pair, which no text of ours holds
        if not fits:
            raise IndexFileError("the manifest's own sha256 does not match its contents", path=path, hint=_REFRESH)
        del body["format"], body["version"]
        try:
            _check_types(body)
            body["files"] = {name: FileDigest(**digest) for name, digest in body["files"].items()}
            body["classes"] = None if body["classes"] is None else tuple(body["classes"])
            manifest = cls(**body)
        except (TypeError, KeyError, AttributeError) as error:
            raise IndexFileError(
                f"a manifest field is missing or unknown ({error})", path=path, hint=_REFRESH
            ) from None
        if data != manifest.to_bytes():
            raise IndexFileError("the manifest is not in its canonical form", path=path, hint=_REFRESH)
        return manifest


def _check_types(body: Mapping[str, Any]) -> None:
    """Raises `TypeError`: a digest only says that a field is as it was written, not that it is what it must be."""
    counts = [body["samples"], body["shards"], body["total_bytes"]]
    if any("/" in name or name in ("", ".", "..") for name in body["files"]):
        raise TypeError("the files of the index are named without folders")
    for file in body["files"].values():
        counts += [file["size"], file.get("rows", 0)]
        if not isinstance(file["sha256"], str) or not isinstance(file.get("dtype"), str | None):
            raise TypeError("a file's sha256 and dtype are text")
    if not all(type(count) is int and count >= 0 for count in counts):
        raise TypeError("counts and sizes are whole numbers from 0 on")
    if not all(isinstance(body[name], str) for name in ("label_source", "created_by", "container")):
        raise TypeError("label_source, created_by and container are text")
    if not all(isinstance(body[name], dict | None) for name in ("shuffle", "encode")):
        raise TypeError("shuffle and encode are objects or null")
    classes = body["classes"]
    if classes is not None and not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
        raise TypeError("classes are a list of text or null")
    if type(body["checksums"]) is not bool:
        raise TypeError("checksums is true or false")


def _digest(body: Mapping[str, Any]) -> str:
    canonical = json.dumps({k: v for k, v in body.items() if k != "sha256"}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
