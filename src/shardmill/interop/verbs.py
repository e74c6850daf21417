"""The fluent verbs of a stream, with webdataset's names, arguments and meaning.

Every verb gives a new stream; the old one stays as it was. What a verb does is in `shardmill.interop.stages`; what a
pass through the stages must know (seed, epoch, which worker) reaches the few that ask for it as a `Pass`.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial as bind
from itertools import count
from typing import Any, Protocol, TypeVar

from shardmill.errors import OptionsError
from shardmill.images.sampling import key64
from shardmill.interop import stages
from shardmill.interop.collation import collate
from shardmill.interop.decoders import Decoder, Handler
from shardmill.interop.handlers import Handle, reraise_exception
from shardmill.interop.placement import Deal

_ENDLESS = 1 << 62


@dataclass(frozen=True)
class Pass:
    """One pass through a stream: what its order and draws are a function of."""

    seed: int
    epoch: int
    deal: Deal

    def rng(self, number: int) -> random.Random:
        """A generator of its own for stage ``number`` of this worker of this rank."""
        ranks, workers = self.deal.ranks, self.deal.workers
        parts = (self.seed, self.epoch, number, ranks.rank, ranks.world_size, workers.index, workers.count)
        return random.Random(key64(parts))


class Stage(Protocol):
    """One step of a stream. Must pickle where the stream goes to spawned workers."""

    def run(self, source: Iterator[Any], at: Pass) -> Iterator[Any]:
        """The items that come out when ``source`` goes in, during the pass ``at``."""
        ...


@dataclass(frozen=True)
class Plain:
    """A function from an iterator to an iterator."""

    f: Callable[[Iterator[Any]], Iterable[Any]]

    def run(self, source: Iterator[Any], at: Pass) -> Iterator[Any]:
        """See `Stage`."""
        return iter(self.f(source))


@dataclass(frozen=True)
class Shuffled:
    """A shuffle buffer; ``seed`` or ``rng`` as webdataset takes them, else the pass decides."""

    number: int
    size: int
    initial: int
    seed: int | None
    rng: random.Random | None

    def run(self, source: Iterator[Any], at: Pass) -> Iterator[Any]:
        """See `Stage`."""
        own = at.rng(self.number) if self.seed is None else random.Random(self.seed)
        return stages.shuffle(source, size=self.size, initial=self.initial, rng=self.rng or own)


@dataclass(frozen=True)
class Thinned:
    """Keeps each item with probability ``p``."""

    number: int
    p: float

    def run(self, source: Iterator[Any], at: Pass) -> Iterator[Any]:
        """See `Stage`."""
        rng = at.rng(self.number)
        return (item for item in source if rng.random() < self.p)


@dataclass(frozen=True)
class Sliced:
    """Items ``start, start + step ..`` before ``stop`` of all workers of the rank together."""

    start: int
    stop: int
    step: int
    after_batched: bool

    def run(self, source: Iterator[Any], at: Pass) -> Iterator[Any]:
        """See `Stage`."""
        unit = 1 if self.after_batched else at.deal.run
        for k in count():
            place = at.deal.place(k, unit)
            if place >= self.stop:
                return
            try:
                item = next(source)
            except StopIteration:
                return
            if place >= self.start and (place - self.start) % self.step == 0:
                yield item


S = TypeVar("S", bound="Verbs")


class Verbs:
    """What a stream is besides its source: stages, and how often to go through them."""

    def __init__(self) -> None:
        self._stages: tuple[Stage, ...] = ()
        self._run: int | None = None
        self._passes = 1
        self._limit = _ENDLESS

    # -- what the verbs stand on -------------------------------------------------------------------------------

    def compose(self: S, *functions: Callable[[Iterator[Any]], Iterable[Any]]) -> S:
        """Appends functions from an iterator to an iterator."""
        return self._staged(*(Plain(f) for f in functions))

    def _staged(self: S, *more: Stage) -> S:
        return self._changed(_stages=(*self._stages, *more))

    def _changed(self: S, **attributes: Any) -> S:
        result = copy.copy(self)
        for name, value in attributes.items():
            setattr(result, name, value)
        return result

    def _through(self, source: Callable[[Pass], Iterator[Any]], at: Callable[[int], Pass]) -> Iterator[Any]:
        """All passes. ``at(p)`` is pass p; raises `OptionsError` where a pass that must be repeated gives nothing."""
        given = 0
        for p in range(self._passes):
            this = at(p)
            unit = 1 if self._run is not None else this.deal.run
            items = source(this)
            for stage in self._stages:
                items = stage.run(items, this)
            before = given
            while this.deal.place(given, unit) < self._limit:
                try:
                    item = next(items)
                except StopIteration:
                    break
                given += 1
                yield item
            else:
                return
            if given == before and self._passes > 1:
                workers = this.deal.workers
                raise OptionsError(
                    f"a pass gives nothing to worker {workers.index} of {workers.count}, so it cannot be repeated: "
                    "use fewer workers, or smaller batches"
                )

    # -- samples -------------------------------------------------------------------------------------------------

    def decode(
        self: S,
        *args: str | Handler,
        pre: Iterable[Handler] | None = None,
        post: Iterable[Handler] | None = None,
        only: str | Iterable[str] | None = None,
        partial: bool = False,
        handler: Handle = reraise_exception,
    ) -> S:
        """Decodes fields by extension, images as the specs in ``args`` say; see `Decoder` and `ImageDecoder`."""
        return self.map(Decoder(args, pre=pre, post=post, only=only, partial=partial), handler=handler)

    def map(self: S, f: Callable[[Any], Any], handler: Handle = reraise_exception) -> S:
        """``f`` of every sample; those for which it returns ``None`` are left out."""
        return self.compose(bind(stages.map_samples, f=f, handler=handler))

    def map_dict(self: S, handler: Handle = reraise_exception, **functions: Callable[[Any], Any]) -> S:
        """``map_dict(jpg=f, cls=g)``: one function for each of some fields of a sample."""
        return self._each(stages.MapDict(functions), handler)

    def map_tuple(self: S, *functions: Callable[[Any], Any] | None, handler: Handle = reraise_exception) -> S:
        """One function for each entry of a tuple, in order; ``None`` and missing ones leave the entry as it is."""
        return self._each(stages.MapTuple(functions), handler)

    def to_tuple(
        self: S,
        *fields: str,
        handler: Handle = reraise_exception,
        missing_is_error: bool = True,
        none_is_error: bool | None = None,
    ) -> S:
        """``to_tuple("jpg;png", "cls")`` or ``to_tuple("jpg;png cls")``: fields to a tuple, alternatives with ``;``."""
        specs = fields[0].split() if len(fields) == 1 and " " in fields[0] else fields
        if any(" " in spec for spec in specs):
            raise OptionsError(f"to_tuple takes one string with spaces or several without, got {fields}")
        chosen = [stages.alternatives(spec) for spec in specs]
        none_is_error = missing_is_error if none_is_error is None else none_is_error
        return self._each(stages.ToTuple(chosen, missing_is_error, none_is_error), handler)

    def rename(self: S, handler: Handle = reraise_exception, keep: bool = True, **names: str | Sequence[str]) -> S:
        """``rename(image="jpg;png")``: the field is called ``image`` from here on. ``keep=False`` drops the others."""
        chosen = {new: stages.alternatives(old) for new, old in names.items()}
        return self._each(stages.Rename(chosen, keep), handler)

    def rename_keys(
        self: S,
        *args: tuple[str, str],
        keep_unselected: bool = False,
        must_match: bool = True,
        duplicate_is_error: bool = True,
        **names: str,
    ) -> S:
        """``rename_keys(("image", "*.jpg"), label="cls")``: fields named by shell patterns; the last match counts."""
        patterns = [(pattern, new) for new, pattern in (*args, *names.items())]
        return self.compose(
            bind(
                stages.rename_keys,
                patterns=patterns,
                keep_unselected=keep_unselected,
                must_match=must_match,
                duplicate_is_error=duplicate_is_error,
            )
        )

    def extract_keys(
        self: S, *patterns: str | Sequence[str], duplicate_is_error: bool = True, ignore_missing: bool = False
    ) -> S:
        """``extract_keys("*.jpg;*.png", "*.cls")``: a tuple of the fields that fit shell patterns."""
        chosen = [stages.alternatives(pattern) for pattern in patterns]
        return self.compose(
            bind(
                stages.extract_keys,
                patterns=chosen,
                duplicate_is_error=duplicate_is_error,
                ignore_missing=ignore_missing,
            )
        )

    def select(self: S, predicate: Callable[[Any], bool]) -> S:
        """Keeps the items for which ``predicate`` is true."""
        return self.compose(bind(stages.select, predicate=predicate))

    def _each(self: S, f: Callable[[Any], Any], handler: Handle) -> S:
        return self.compose(bind(stages.map_items, f=f, handler=handler))

    # -- order and number ----------------------------------------------------------------------------------------

    def shuffle(
        self: S, size: int, *, initial: int = 100, seed: int | None = None, rng: random.Random | None = None
    ) -> S:
        """Draws each item from a buffer of ``size``; 0 leaves the order.

        Deterministic: by default the draws are a function of the stream's seed, its epoch, the rank and the worker.
        ``seed`` (the same draws in every epoch and worker) or ``rng`` give exactly webdataset's order.
        """
        if seed is not None and rng is not None:
            raise OptionsError("shuffle takes a seed or an rng, not both")
        return self if size < 1 else self._staged(Shuffled(len(self._stages), size, initial, seed, rng))

    def rsample(self: S, p: float = 0.5) -> S:
        """Keeps each item with probability ``p``, drawn as for `shuffle`."""
        if not 0 <= p <= 1:
            raise OptionsError(f"rsample takes a probability within 0 .. 1, got {p}")
        return self._staged(Thinned(len(self._stages), p))

    def slice(self: S, *bounds: int | None) -> S:
        """``slice(stop)`` or ``slice(start, stop[, step])``: items of this rank, all its workers together."""
        if not 1 <= len(bounds) <= 3:
            raise OptionsError(f"slice takes (stop) or (start, stop[, step]), got {bounds}")
        start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, *(None,) * (3 - len(bounds)))
        start, stop, step = start or 0, _ENDLESS if stop is None else stop, 1 if step is None else step
        if start < 0 or stop < 0 or step < 1:
            raise OptionsError(f"slice counts from the front, in steps of 1 or more, got {bounds}")
        return self._staged(Sliced(start, stop, step, self._run is not None))

    def batched(
        self: S,
        batchsize: int,
        collation_fn: Callable[[list[Any]], Any] | None = collate,
        partial: bool = True,
    ) -> S:
        """Batches of ``batchsize`` samples; a short last one unless ``partial=False``."""
        if batchsize < 1:
            raise OptionsError(f"batched takes a number of samples, got {batchsize}")
        staged = self.compose(bind(stages.batched, batchsize=batchsize, collation_fn=collation_fn, partial=partial))
        return staged if self._run is not None else staged._changed(_run=batchsize)

    def listed(self: S, batchsize: int, partial: bool = True) -> S:
        """Lists of ``batchsize`` samples."""
        return self.batched(batchsize, collation_fn=None, partial=partial)

    def unbatched(self: S) -> S:
        """Batches back to samples."""
        return self.compose(stages.unbatched)

    def unlisted(self: S) -> S:
        """Lists back to samples."""
        return self.compose(stages.unlisted)

    def with_epoch(self: S, nsamples: int = -1, nbatches: int = -1) -> S:
        """An epoch of so many items of this rank (all its workers together), starting over where they run out."""
        limit = max(nsamples, nbatches)
        return self._changed(_passes=_ENDLESS, _limit=limit if limit > 0 else _ENDLESS)

    def repeat(self: S, nepochs: int = -1, nbatches: int = -1) -> S:
        """So many passes, or without end; at most ``nbatches`` items of this rank in all."""
        return self._changed(
            _passes=nepochs if nepochs > 0 else _ENDLESS, _limit=nbatches if nbatches > 0 else _ENDLESS
        )
