"""Labels from a JSON file: ``{"img1.jpg": 3, ...}`` or ``{"folder/img1": "tench", ...}``."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shardmill.errors import SourceError

_MAX_LABEL = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels by name. ``class_names`` are the sorted names, where the file gave names and not numbers."""

    path: str
    values: Mapping[str, int] = field(repr=False)
    class_names: tuple[str, ...] | None = field(repr=False)
    digest: str = field(repr=False)

    def entry(self, name: str) -> str:
        """The entry that labels the image ``name``: its path, file name, path or file name without extension.

        In this order. Raises `SourceError` where there is none.
        """
        base = name.rpartition("/")[2]
        for candidate in (name, base, name.rpartition(".")[0], base.rpartition(".")[0]):
            if candidate in self.values:
                return candidate
        raise SourceError(f"{self.path}: no label for {name!r}; add one, or move the image away")


class LabelCheck:
    """That every entry labels exactly one image, over a whole source."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._used: dict[str, str] = {}

    def see(self, name: str) -> None:
        """Note the image ``name``. Raises `SourceError` where its entry already labelled another."""
        entry = self._labels.entry(name)
        other = self._used.setdefault(entry, name)
        if other != name:
            raise SourceError(
                f"{self._labels.path}: the entry {entry!r} fits both {other!r} and {name!r}; use their paths as entries"
            )

    def finish(self) -> None:
        """Raises `SourceError` where an entry labelled nothing."""
        unused = [entry for entry in self._labels.values if entry not in self._used]
        if unused:
            raise SourceError(
                f"{self._labels.path}: {len(unused)} entries have no image, the first is {unused[0]!r}; "
                "give the folder that holds them, or remove the entries"
            )


def read_labels(path: str | os.PathLike[str]) -> Labels:
    """Read a JSON object of name -> class, all integers (0 to 2**31 - 1) or all class names.

    Names are numbered in sorted order. Raises `SourceError` for anything else, with the entry.
    """
    name = os.fspath(path)
    try:
        raw = Path(name).read_bytes()
        pairs = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_Pairs)
    except OSError as error:
        raise SourceError(f"{name}: cannot read the labels: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{name}: not JSON: {error}") from error
    if not isinstance(pairs, _Pairs) or not pairs:
        raise SourceError(f'{name}: labels are a JSON object like {{"img1.jpg": 3}} or {{"img1.jpg": "tench"}}')
    by_name: dict[str, int | str] = {}
    kind = type(pairs[0][1])
    for entry, value in pairs:
        if type(value) is not kind or not isinstance(value, int | str) or isinstance(value, bool):
            raise SourceError(f"{name}: entry {entry!r}: labels must be all integers or all class names, not {value!r}")
        if isinstance(value, str) and not _is_name(value):
            raise SourceError(f"{name}: entry {entry!r}: {value[:200]!r} is no class name: empty, a NUL or no UTF-8")
        if isinstance(value, int) and not 0 <= value <= _MAX_LABEL:
            raise SourceError(f"{name}: entry {entry!r}: a label is 0 to 2**31 - 1, not {value}")
        if by_name.setdefault(entry, value) != value:
            raise SourceError(f"{name}: entry {entry!r} comes twice, with different labels")
    class_names = None
    if kind is str:
        class_names = tuple(sorted({str(value) for value in by_name.values()}))
    numbers = {class_name: i for i, class_name in enumerate(class_names or ())}
    values = {entry: numbers[value] if isinstance(value, str) else value for entry, value in by_name.items()}
    return Labels(name, values, class_names, hashlib.sha256(raw).hexdigest())


def _is_name(text: str) -> bool:
    try:
        return bool(text.encode()) and "\0" not in text
    except UnicodeEncodeError:
        return False


class _Pairs(list[tuple[str, object]]):
    """A JSON object with its order and its duplicates, which a dict would drop in silence."""
