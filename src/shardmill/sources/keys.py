"""From names of files and members to keys: pure. What is an image by its name, and what is litter."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from shardmill.errors import SourceError
from shardmill.imageinfo import IMAGE_EXTENSIONS
from shardmill.shards.grouping import name_problem

_RESERVED = re.compile(r"__[^/]*__(/|\Z)")
_LITTER_NAMES = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r"})
_LITTER_FOLDERS = frozenset({"__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found"})
_NOTE_EXTENSIONS = frozenset(
    {
        "txt",
        "json",
        "jsonl",
        "csv",
        "tsv",
        "md",
        "rst",
        "yaml",
        "yml",
        "xml",
        "html",
        "pdf",
        "mat",
        "bib",
        "sha256",
        "md5",
    }
)
_NOTE_NAMES = re.compile(r"(README|LICEN[CS]E|COPYING|CITATION|NOTICE|[A-Z0-9]+SUMS?)(\..*)?\Z", re.IGNORECASE)


def escape_stem(stem: str) -> str:
    """Make ``stem`` safe as the last component of a key: ``.`` becomes ``%2E`` and ``%`` becomes ``%25``.

    WebDataset readers cut a name at its first dot, so ``img.v2.jpg`` would come back as key ``img``.
    """
    return stem.replace("%", "%25").replace(".", "%2E")


def unescape_stem(stem: str) -> str:
    """Undo `escape_stem`."""
    return stem.replace("%2E", ".").replace("%25", "%")


def sample_key(name: str) -> tuple[str, str]:
    """Key and extension of one image file: ``"a.b/img.v2.JPEG"`` gives ``("a.b/img%2Ev2", "JPEG")``.

    The extension is the part after the last dot, as written; the key is the path without it, its last component
    escaped. `split_key` of ``f"{key}.{extension}"`` gives both back.
    """
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.rpartition(".")
    key = folder + slash + escape_stem(stem)
    if _RESERVED.match(key):  # webdataset passes over folders named like __this__
        key = "%5F" + key[1:]
    return key, extension


def is_image_name(name: str) -> bool:
    """Whether the part after the last dot says image, in any case of letters, with a name before the dot."""
    stem, _, extension = name.rpartition("/")[2].rpartition(".")
    return bool(stem) and extension.lower() in IMAGE_EXTENSIONS


def is_litter(name: str) -> bool:
    """Whether file systems and tools leave such files or folders anywhere: hidden ones, ``Thumbs.db``, ..."""
    *folders, base = name.split("/")
    return (
        base.startswith(".")
        or base.lower() in _LITTER_NAMES
        or any(
            folder in _LITTER_FOLDERS or (folder.startswith(".") and folder not in (".", ".."))
            for folder in (*folders, base)
        )
    )


def is_note(name: str) -> bool:
    """Whether a file beside the images or class folders is there for people: README, LICENSE, ``*.txt``, ..."""
    base = name.rpartition("/")[2]
    return base.rpartition(".")[2].lower() in _NOTE_EXTENSIONS or _NOTE_NAMES.match(base) is not None


class NameFilter:
    """Decides for every file name whether it is an image, and refuses what is neither image nor litter."""

    def __init__(self, ignore: tuple[str, ...], place: str) -> None:
        """``ignore``: shell patterns, matched against the whole path and its last component."""
        self._ignore = ignore
        self._place = place
        self.ignored = 0
        """How many files were passed over."""

    def skips(self, name: str) -> bool:
        """Whether the file or folder ``name`` is litter, or one that the user asked to pass over; counts it."""
        base = name.rpartition("/")[2]
        skip = is_litter(name) or any(fnmatchcase(name, p) or fnmatchcase(base, p) for p in self._ignore)
        self.ignored += skip
        return skip

    def is_image(self, name: str, *, top: bool) -> bool:
        """Whether ``name`` is an image to pack. Raises `SourceError` where it is neither that nor to be skipped.

        ``top``: at the top level of the source, where notes for people are expected and skipped.
        """
        if self.skips(name):
            return False
        if is_image_name(name):
            problem = name_problem(name)
            if problem is not None:
                raise SourceError(f"{self._place}: name {name[:200]!r} {problem}; rename it")
            return True
        if top and is_note(name):
            self.ignored += 1
            return False
        base = name.rpartition("/")[2]
        raise SourceError(
            f"{self._place}: {name!r} is not an image by its name; move it away, or pass over such files with "
            f"ignore=[{'*.' + base.rpartition('.')[2] if '.' in base else base!r}]"
        )


class KeyCheck:
    """Keys of one folder or tar: refuses two files that want the same one. Memory: one entry per key."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._names: dict[str, str] = {}

    def key_of(self, name: str) -> tuple[str, str]:
        """`sample_key` of ``name``. Raises `SourceError` where an earlier name gave the same key."""
        key, extension = sample_key(name)
        other = self._names.setdefault(key, name)
        if other is not name:
            raise SourceError(
                f"{self._place}: {other!r} and {name!r} want the same key {key!r}; rename or remove one of them"
            )
        return key, extension
