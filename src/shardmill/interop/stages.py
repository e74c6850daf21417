"""What the verbs of a stream do: functions from an iterator to an iterator, with webdataset's meaning.

A ``handler`` gets the exception of one sample and says whether to go on (true) or to end the stream there (false);
see `shardmill.interop.handlers`. A refusal to run code from the data never reaches a handler.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import islice
from typing import Any

from shardmill.errors import OptionsError
from shardmill.interop.decoders import RefusedFieldError, SampleDict
from shardmill.interop.handlers import Handle


def attempt(f: Callable[[Any], Any], source: Iterable[Any], handler: Handle) -> Iterator[tuple[Any, Any]]:
    """(item, f(item)) for every item, with the exceptions of ``f`` given to ``handler``."""
    for item in source:
        try:
            result = f(item)
        except RefusedFieldError:
            raise
        except Exception as exn:
            if handler(exn):
                continue
            return
        yield item, result


def map_samples(source: Iterable[Any], *, f: Callable[[Any], Any], handler: Handle) -> Iterator[Any]:
    """``f(sample)``; a sample for which it returns ``None`` is left out. A dict keeps its ``__key__``."""
    for sample, result in attempt(f, source, handler):
        if result is None:
            continue
        if isinstance(sample, dict) and isinstance(result, dict):
            result["__key__"] = sample.get("__key__")
        yield result


def map_items(source: Iterable[Any], *, f: Callable[[Any], Any], handler: Handle) -> Iterator[Any]:
    """``f(item)`` for every item, whatever it is."""
    for _, result in attempt(f, source, handler):
        yield result


@dataclass(frozen=True)
class MapDict:
    """Applies ``functions[name]`` to field ``name``; the others stay."""

    functions: Mapping[str, Callable[[Any], Any]]

    def __call__(self, sample: SampleDict) -> SampleDict:
        """The sample after it."""
        result = dict(sample)
        for name, f in self.functions.items():
            result[name] = f(result[name])
        return result


@dataclass(frozen=True)
class MapTuple:
    """Applies one function to each entry; entries beyond the functions, and those with ``None``, stay."""

    functions: Sequence[Callable[[Any], Any] | None]

    def __call__(self, sample: Sequence[Any]) -> tuple[Any, ...]:
        """The sample after it."""
        if not isinstance(sample, list | tuple):
            raise OptionsError(f"map_tuple comes after to_tuple: got {type(sample).__name__}")
        result = list(sample)
        for i, f in enumerate(self.functions[: len(result)]):
            if f is not None:
                result[i] = f(result[i])
        return tuple(result)


@dataclass(frozen=True)
class ToTuple:
    """Fields to a tuple; each field is alternatives with ``;`` between, of which the first that is there counts."""

    fields: Sequence[Sequence[str]]
    missing_is_error: bool
    none_is_error: bool

    def __call__(self, sample: SampleDict) -> tuple[Any, ...]:
        """The sample after it."""
        result = tuple(first_of(sample, names, missing_is_error=self.missing_is_error) for names in self.fields)
        if self.none_is_error and any(value is None for value in result):
            raise ValueError(f"to_tuple: a field of {sample.get('__key__')!r} is None; it has {list(sample)}")
        return result


@dataclass(frozen=True)
class Rename:
    """``names[new]`` are the alternatives for the field that is to be called ``new``."""

    names: Mapping[str, Sequence[str]]
    keep: bool

    def __call__(self, sample: SampleDict) -> SampleDict:
        """The sample after it."""
        replaced = {old for alternatives in self.names.values() for old in alternatives}
        result = {name: value for name, value in sample.items() if self.keep and name not in replaced}
        result.update({new: first_of(sample, old, missing_is_error=True) for new, old in self.names.items()})
        return result


def alternatives(spec: str | Sequence[str]) -> tuple[str, ...]:
    """``"jpg;png"`` to ``("jpg", "png")``; a list stands for itself."""
    return tuple(spec.split(";")) if isinstance(spec, str) else tuple(spec)


def first_of(sample: SampleDict, names: Sequence[str], *, missing_is_error: bool) -> Any:
    """The first of ``names`` that the sample has, else ``None`` or ValueError."""
    for name in names:
        if name in sample:
            return sample[name]
    if missing_is_error:
        raise ValueError(f"none of {', '.join(names)} in sample {sample.get('__key__')!r}: it has {list(sample)}")
    return None


def select(source: Iterable[Any], *, predicate: Callable[[Any], bool]) -> Iterator[Any]:
    """Those for which ``predicate`` is true."""
    return (item for item in source if predicate(item))


def rename_keys(
    source: Iterable[SampleDict],
    *,
    patterns: Sequence[tuple[str, str]],
    keep_unselected: bool,
    must_match: bool,
    duplicate_is_error: bool,
) -> Iterator[SampleDict]:
    """``patterns`` are (pattern, new name) with shell wildcards; the last one that fits a field names it."""
    for sample in source:
        result: SampleDict = {}
        matched = dict.fromkeys((pattern for pattern, _ in patterns), False)
        for path, value in sample.items():
            name = re.sub(r".*/", "", path).lower()
            fits = [(pattern, new) for pattern, new in reversed(patterns) if fnmatch(name, pattern)]
            if not fits:
                if keep_unselected:
                    result[path] = value
                continue
            pattern, new = fits[0]
            matched[pattern] = True
            if new not in result:
                result[new] = value
            elif duplicate_is_error:
                raise ValueError(f"two fields of {sample.get('__key__')!r} want the name {new!r}: {list(sample)}")
        if must_match and not all(matched.values()):
            missing = [pattern for pattern, found in matched.items() if not found]
            raise ValueError(f"{missing} fit no field of {sample.get('__key__')!r}: {list(sample)}")
        yield result


def extract_keys(
    source: Iterable[SampleDict],
    *,
    patterns: Sequence[Sequence[str]],
    duplicate_is_error: bool,
    ignore_missing: bool,
) -> Iterator[tuple[Any, ...]]:
    """Per entry of ``patterns`` (alternatives with shell wildcards), the field that fits one of them, as a tuple."""
    for sample in source:
        result = []
        for pattern in patterns:
            fits = [name for name in sample if any(fnmatch("." + name, p) or fnmatch(name, p) for p in pattern)]
            if not fits:
                if ignore_missing:
                    continue
                raise ValueError(f"{pattern} fits no field of {sample.get('__key__')!r}: {list(sample)}")
            if len(fits) > 1 and duplicate_is_error:
                raise ValueError(f"{pattern} fits several fields of {sample.get('__key__')!r}: {fits}")
            result.append(sample[fits[0]])
        yield tuple(result)


def shuffle(source: Iterable[Any], *, size: int, initial: int, rng: random.Random) -> Iterator[Any]:
    """A buffer of ``size`` items, from which each item is drawn at random.

    Draws begin at ``initial`` items, and two items go in for one out until the buffer is full: the same order as
    webdataset's for the same generator.
    """
    initial = min(initial, size)
    items = iter(source)
    buffer: list[Any] = []
    for item in items:
        buffer.append(item)
        if len(buffer) < size:
            buffer.extend(islice(items, 1))
        if len(buffer) >= initial:
            yield _draw(buffer, rng)
    while buffer:
        yield _draw(buffer, rng)


def _draw(buffer: list[Any], rng: random.Random) -> Any:
    k = rng.randint(0, len(buffer) - 1)
    buffer[k], buffer[-1] = buffer[-1], buffer[k]
    return buffer.pop()


def batched(
    source: Iterable[Any], *, batchsize: int, collation_fn: Callable[[list[Any]], Any] | None, partial: bool
) -> Iterator[Any]:
    """Lists of ``batchsize`` items, collated; a short last one with ``partial``."""
    batch: list[Any] = []
    for item in source:
        batch.append(item)
        if len(batch) == batchsize:
            yield batch if collation_fn is None else collation_fn(batch)
            batch = []
    if batch and partial:
        yield batch if collation_fn is None else collation_fn(batch)


def unbatched(source: Iterable[Any]) -> Iterator[Any]:
    """Batches (tuples or dicts of columns) back to samples."""
    for batch in source:
        if isinstance(batch, dict):
            lengths = {len(column) for column in batch.values()}
            if len(lengths) != 1:
                raise ValueError(f"unbatched: columns of different lengths: {sorted(lengths)}")
            for i in range(lengths.pop()):
                yield {name: column[i] for name, column in batch.items()}
        elif isinstance(batch, list | tuple):
            for i in range(len(batch[0])):
                yield tuple(column[i] for column in batch)
        else:
            raise ValueError(f"unbatched takes tuples or dicts of columns, got {type(batch).__name__}")


def unlisted(source: Iterable[list[Any]]) -> Iterator[Any]:
    """Lists back to their items."""
    for items in source:
        yield from items
