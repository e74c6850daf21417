"""Every error shardmill raises on purpose.

    ShardmillError
    ├── OptionsError          a call or a command makes no sense as given          (also a ValueError)
    ├── SourceError           the pile of images cannot be packed as it is
    │   └── DuplicateKeyError two samples want the same key
    ├── DataError             bytes are not what they should be; names path, key and offset
    │   ├── TarError          a tar header, member or end is damaged or ambiguous
    │   ├── IndexFileError    the manifest or an index column is damaged, stale or of another version
    │   ├── ChecksumError     bytes differ from the checksum recorded at packing
    │   └── ImageError        an image cannot be decoded as its format says
    ├── StateError            a saved loader state does not fit this loader
    ├── MissingExtraError     an optional dependency is not installed              (also an ImportError)
    └── StalledError          a wait passed its deadline; says who waited for whom (also a TimeoutError)

A message says what was found, what was expected, and what to do.
"""

from __future__ import annotations


class ShardmillError(Exception):
    """Base of every error raised on purpose."""


class OptionsError(ShardmillError, ValueError):
    """A call or a command makes no sense as given."""


class SourceError(ShardmillError):
    """The source cannot be packed as it is: names the file, line or offset, and what to do."""


class DuplicateKeyError(SourceError):
    """Two samples of the source want the same key."""


class DataError(ShardmillError):
    """Bytes are not what they should be.

    ``path`` is the shard or file, ``offset`` the absolute position in bytes of the first wrong byte (or of
    the unit that holds it), ``key`` the sample's key, ``hint`` what to do. Unknown parts are ``None``.
    """

    def __init__(
        self,
        problem: str,
        *,
        path: str,
        offset: int | None = None,
        key: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.problem = problem
        self.path = path
        self.offset = offset
        self.key = key
        self.hint = hint
        super().__init__(problem, path, offset, key, hint)

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive the default pickling, and packing workers send errors home.
        return _rebuild, (type(self), self.problem, self.path, self.offset, self.key, self.hint)

    def __str__(self) -> str:
        place = self.path
        if self.offset is not None:
            place += f" @ {self.offset}"
        if self.key is not None:
            place += f" (key {self.key!r})"
        text = f"{place}: {self.problem}"
        return text if self.hint is None else f"{text}; {self.hint}"


def _rebuild(
    cls: type[DataError], problem: str, path: str, offset: int | None, key: str | None, hint: str | None
) -> DataError:
    return cls(problem, path=path, offset=offset, key=key, hint=hint)


class TarError(DataError):
    """A tar header, member or end is damaged, truncated or ambiguous."""


class IndexFileError(DataError):
    """The manifest or an index column is damaged, stale or of another version."""


class ChecksumError(DataError):
    """Bytes differ from the checksum recorded when the dataset was packed."""


class ImageError(DataError):
    """An image cannot be decoded as its format says."""


class StateError(ShardmillError):
    """A saved loader state does not fit this loader; names the field that differs."""


class MissingExtraError(ShardmillError, ImportError):
    """An optional dependency is not installed; the message is the install command."""


class StalledError(ShardmillError, TimeoutError):
    """A wait passed its deadline; says who waited for whom, and for how long."""
