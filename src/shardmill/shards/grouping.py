"""Members to samples by the WebDataset rule, strictly: pure, in file order, one key at a time.

webdataset itself drops names without a dot, cuts a key whose parts are apart into several half samples, and lets
``a.JPG`` overwrite ``a.jpg``, all in silence. Here each of these is an error that names the member.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from shardmill.errors import TarError

# webdataset takes such directories for metadata and such extensions for its own keys (``__url__``).
_METADATA = re.compile(r"__[^/]*__(/|\Z)")
_MAX_LABEL = 2**31 - 1
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


class Named(Protocol):
    """What grouping needs to know of a member: its name, and where it stands for an error."""

    @property
    def name(self) -> str:
        """Path in the tar."""

    @property
    def header_offset(self) -> int:
        """Absolute offset of the member's first header, in bytes."""


M = TypeVar("M", bound=Named)


@dataclass(frozen=True, slots=True)
class SampleGroup(Generic[M]):
    """The members of one sample: ``parts`` are (extension, member), in file order."""

    key: str
    parts: tuple[tuple[str, M], ...] = field(repr=False)


def split_key(name: str) -> tuple[str, str]:
    """Cut a member name into key and extension at the first dot of its last path component.

    ``"a.b/img.seg.png"`` gives ``("a.b/img", "seg.png")``. The extension is ``""`` where there is no dot, the key
    ends in ``/`` or is empty where the component starts with one.
    """
    slash = name.rfind("/") + 1
    dot = name.find(".", slash)
    return (name, "") if dot < 0 else (name[:dot], name[dot + 1 :])


def name_problem(name: str) -> str | None:
    """Why ``name`` must not become a key, or ``None``: it leaves its folder, is absolute, or holds a NUL."""
    if not name or "\0" in name:
        return "is empty or holds a NUL"
    if name.startswith("/") or _DRIVE.match(name):
        return "is an absolute path"
    parts = name.split("/")
    if ".." in parts or "." in parts or "" in parts:
        return "holds an empty path component, '.' or '..'"
    return None


def plain_name(name: str) -> str:
    """``name`` without the ``./`` that ``tar cf x.tar .`` puts before every member."""
    while name.startswith("./"):
        name = name[2:].lstrip("/")
    return name


MAX_LABEL_BYTES = 4096
"""A longer ``.cls`` member is no label: what reads labels need not load it."""


def parse_label(data: bytes) -> int | str:
    """What a ``.cls`` member says: a number from -1 (none) to 2**31 - 1, or a class name.

    Raises `ValueError` with the problem, in words that follow "the label ".
    """
    if len(data) > MAX_LABEL_BYTES:
        raise ValueError(f"has over {MAX_LABEL_BYTES} bytes")
    try:
        text = data.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise ValueError(f"is not text: {data[:40]!r}") from None
    if not text or "\0" in text:
        raise ValueError("is empty or holds a NUL")
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        return text
    # Counted first: Python refuses to convert thousands of digits.
    if len(digits) > 10 or not -1 <= int(text) <= _MAX_LABEL:
        raise ValueError(f"{text[:40]} is out of range (0 to 2**31 - 1)")
    return int(text)


def group_samples(members: Iterable[M], path: str) -> Iterator[SampleGroup[M]]:
    """Samples of a WebDataset tar: adjacent members with one key (see `split_key`), keys distinct in the tar.

    A leading ``./`` does not count. Raises `TarError` with the member's offset for a name without extension or
    with an unsafe path, for an extension that comes twice (in any case of letters), for names that webdataset
    reserves, and for a key that comes back after another one. Memory: the keys seen so far.
    """
    seen: dict[str, int] = {}
    key: str | None = None
    parts: dict[str, tuple[str, M]] = {}
    for member in members:
        name = plain_name(member.name)
        its_key, extension = split_key(name)
        if its_key != key:
            if key is not None:
                yield SampleGroup(key, tuple(parts.values()))
            _check(name, its_key, extension, member, path)
            if its_key in seen:
                raise TarError(
                    f"member {name!r} belongs to a sample at byte {seen[its_key]}, with other samples in between",
                    path=path,
                    offset=member.header_offset,
                    key=its_key,
                    hint="the members of a sample must lie side by side: sort the names, or remove the duplicate",
                )
            seen[its_key] = member.header_offset
            key, parts = its_key, {}
        elif not extension or extension.startswith("__"):
            _check(name, its_key, extension, member, path)
        # webdataset lowers extensions, so a.jpg and a.JPG are one field to it.
        lowered = extension.lower()
        if lowered in parts:
            raise TarError(
                f"member {name!r} comes twice in one sample, first at byte {parts[lowered][1].header_offset}",
                path=path,
                offset=member.header_offset,
                key=key,
            )
        parts[lowered] = (extension, member)
    if key is not None:
        yield SampleGroup(key, tuple(parts.values()))


def _check(name: str, key: str, extension: str, member: Named, path: str) -> None:
    problem = name_problem(name)
    if problem is None and (not extension or not key or key.endswith("/")):
        problem = "has no extension, so it belongs to no sample"
    if problem is None and (extension.startswith("__") or _METADATA.match(name)):
        problem = "is a name that webdataset keeps for its own metadata"
    if problem is not None:
        raise TarError(f"member name {name[:200]!r} {problem}", path=path, offset=member.header_offset)
