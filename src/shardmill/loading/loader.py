"""The loader: composes order, steps, threads and buffers into batches, and knows where it stands."""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import OptionsError
from shardmill.images import recipes
from shardmill.images.plan import compile_views
from shardmill.images.recipe import Recipe, Views
from shardmill.loading.batch import SlabPool
from shardmill.loading.consumer import Framework, check_place, hand_over, place_of
from shardmill.loading.ledger import Ledger, Skipped
from shardmill.loading.options import Tuning
from shardmill.loading.order import DEFAULT_WINDOW, Window, order_of
from shardmill.loading.pipeline import Pipeline, Stage
from shardmill.loading.protocols import Reader
from shardmill.loading.state import digest_of, make_state, read_state
from shardmill.loading.steps import Last, Steps, default_lanes
from shardmill.loading.work import NO_ID, Columns, EpochWork, OnError, StepBatch, batch_bytes
from shardmill.machine import usable_cores
from shardmill.native import native
from shardmill.records import NO_LABEL, Batch


@dataclass(frozen=True)
class LoaderStats:
    """What a loader has done since it was made. Seconds of threads are summed over the threads of the stage.

    ``wait_seconds``: the consumer waited for a batch: the loader is the bottleneck. ``away_seconds``: the consumer was
    busy between batches. ``read_seconds``, ``decode_seconds``: at work. ``hand_over_seconds``: making the consumer's
    tensors, and issuing the copy to a device. ``batch_buffers``: allocated so far, each the size of a batch.
    """

    steps: int = 0
    images: int = 0
    skipped: int = 0
    wait_seconds: float = 0.0
    away_seconds: float = 0.0
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    hand_over_seconds: float = 0.0
    batch_buffers: int = 0


class Loader:
    """Batches of decoded images in a globally shuffled, reproducible order. ``for images, labels in loader: ...``

    Args:
        dataset: what `shardmill.open` gives, or any other `Reader`.
        batch_size: samples of a step on this rank; the global batch is ``batch_size * world_size``.
        recipe: what is done to the images; `recipes.train(224)` by default. With `Views` (`recipes.multicrop`) a
            batch's ``images`` are a tuple; with MixUp or CutMix its ``labels`` are float32 [n, classes].
        seed: 0 .. 2^64 - 1; order, crops and flips are functions of it, the epoch and the dataset alone.
        shuffle: ``False`` for the order of the dataset.
        rank, world_size: this process among those that share the steps. Where neither is given: those of
            torch.distributed, if it is initialised, else 0 and 1. Environment variables are not looked at.
        lanes: part of the order; see `shardmill.loading.order`. A multiple of every world size to be used, and a
            divisor of the global batch; by default a function of the global batch (`default_lanes`).
        window: samples shuffled among each other within a lane, or ``"all"``: no lanes, every order is possible.
        last: the short last step: ``"keep"`` (default), ``"drop"``, or ``"pad"`` (full shape; `Batch.valid` says which
            rows are real, the others are zeros with id and label -1). Step counts are equal on all ranks with each.
        on_error: ``"raise"`` (default) an error with shard, key and offset, or ``"skip"``: leave out the one sample,
            count it in `stats` and name it in `skipped`. The batch is then shorter (with ``"pad"``: not valid there).
            The order is the same with both, so a run that stopped at a bad sample may go on with ``"skip"``.
        ledger: a folder to which every rank appends the samples it skips, a line of JSON each, so that they are known
            after a restart, too; see `shardmill.loading.ledger`. Ranks and restarts may share it.
        threads: that decode; by default one per usable core. With several ranks on a machine give each its share.
        device: where tensors go; a CUDA copy is asynchronous, from pinned memory.
        framework: ``"torch"`` or ``"numpy"``; torch where it is installed. bfloat16 is uint16 bits in numpy.
        tuning: prefetch depth and other knobs that change no result.

    An iteration is one epoch. The first is epoch 0; after that each ``for`` begins the next epoch, also when the one
    before was left with ``break``; `set_epoch` chooses another. Beginning an iteration ends one that still runs.

    Batches reuse memory: a batch's buffer is used again once no array or tensor looks into it any more. Memory: the
    batches in flight (``tuning.prefetch``), those the consumer holds, and the encoded bytes of a few chunks.
    Threads exist only while an iteration runs. Not thread-safe. In a forked child begin a new iteration.
    """

    def __init__(
        self,
        dataset: Reader,
        batch_size: int = 256,
        *,
        recipe: Recipe | Views | None = None,
        seed: int = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int | None = None,
        window: Window = DEFAULT_WINDOW,
        last: Last = "keep",
        on_error: OnError = "raise",
        ledger: str | os.PathLike[str] | None = None,
        threads: int | None = None,
        device: object = None,
        framework: Framework | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise OptionsError(f'on_error must be "raise" or "skip", got {on_error!r}')
        if ledger is not None and on_error != "skip":
            raise OptionsError('ledger= names the samples that on_error="skip" leaves out; nothing would be written')
        if type(seed) is not int or not 0 <= seed < 2**64:
            raise OptionsError(f"seed must be an integer within 0 .. 2^64 - 1, got {seed!r}")
        if type(batch_size) is not int or batch_size < 1:
            raise OptionsError(f"batch_size must be an integer of at least 1, got {batch_size!r}")
        if threads is not None and (type(threads) is not int or threads < 1):
            raise OptionsError(f"threads must be an integer of at least 1, got {threads!r}")
        if len(dataset) == 0:
            raise OptionsError("the dataset holds no samples")
        if native is None:
            warnings.warn(
                "the compiled decoder is missing: Pillow decodes, at less than half the rate (`shardmill doctor`)",
                stacklevel=2,
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.recipe = recipes.train(224) if recipe is None else recipe
        self.seed = seed
        self.rank, self.world_size = place_of(rank, world_size)
        self._place_given = rank is not None
        self.global_batch = batch_size * self.world_size
        self.lanes = default_lanes(self.global_batch) if lanes is None else lanes
        self.on_error: OnError = on_error
        self.threads = usable_cores() if threads is None else threads
        self.tuning = Tuning() if tuning is None else tuning
        self._columns = Columns.of(dataset)
        self._plans = compile_views(self.recipe)
        self._order = order_of(dataset, seed=seed, lanes=self.lanes, shuffle=shuffle, window=window)
        self._steps = Steps(self._order.samples, self.global_batch, self.lanes, self.world_size, self.rank, last)
        self._finish, allocate = hand_over(framework, device, self._plans[0].layout.dtype)
        # Enough pieces for every thread to have one at work and one waiting.
        self._in_flight = max(self.tuning.prefetch, -(-2 * self.threads * self.tuning.decode_samples // batch_size))
        # Besides those in flight: the batch in the consumer's hands and the one it drops on taking the next.
        self._slabs = SlabPool(batch_bytes(self._plans, batch_size), keep=self._in_flight + 2, allocate=allocate)
        self._arenas: deque[NDArray[np.uint8]] = deque(maxlen=2 * self.threads + self._read_threads)
        self._epoch, self._step = 0, 0
        self._begun = False
        self._running: weakref.ref[_Epoch] | None = None
        self._stats = LoaderStats()
        self._ledger = Ledger(ledger, self._sequence(), rank=self.rank, world_size=self.world_size)

    def __len__(self) -> int:
        """Steps of an epoch, the same on every rank."""
        return len(self._steps)

    @property
    def epoch(self) -> int:
        """The epoch under way, or after its last batch the next one."""
        return self._epoch

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Samples left out with ``on_error="skip"`` by this rank, each once an epoch, the first 10,000.

        After `load_state_dict` with ``ledger=``: also what all ranks left out before that state.
        """
        return self._ledger.entries

    @property
    def skipped_by_epoch(self) -> dict[int, int]:
        """How many samples were left out in each epoch, of those that `skipped` names and beyond the first 10,000."""
        return self._ledger.counts

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch, from its start; ends one that runs.

        Right after `load_state_dict` the epoch that the state is in keeps its step, so that the usual loop
        ``for epoch in range(loader.epoch, epochs): loader.set_epoch(epoch); for ...`` resumes where it stopped.
        """
        if type(epoch) is not int or epoch < 0:
            raise OptionsError(f"epoch must be an integer of at least 0, got {epoch!r}")
        self.close()
        if self._begun or epoch != self._epoch:
            self._epoch, self._step = epoch, 0
        self._begun = False

    def state_dict(self) -> dict[str, int | str]:
        """Where the loader stands after the last batch handed out: JSON values, under 1 kB; no pickle."""
        return make_state(self._identity(), epoch=self._epoch, step=self._step)

    def load_state_dict(self, state: Mapping[str, Any], *, new_recipe: bool = False) -> None:
        """The next iteration continues after the state's last batch, in O(1); ends one that runs.

        The world size may differ if the global batch is the same. Raises `StateError` naming the field that does not
        fit (dataset, samples, shuffle, seed, lanes, window, global batch, last, recipe). ``new_recipe``: another recipe
        is meant, as in training that goes on at another resolution: the same samples, with other pixels from here on.
        """
        if new_recipe and isinstance(state, Mapping):
            state = {**state, "recipe": digest_of(self.recipe.to_json())}
        epoch, step = read_state(state, self._identity(), steps=len(self))
        self.close()
        self._epoch, self._step, self._begun = epoch, step, False
        self._ledger.resume(epoch, step)

    def stats(self) -> LoaderStats:
        """Counts and times so far, of this rank."""
        running = self._running() if self._running is not None else None
        stats = self._stats if running is None else _sum(self._stats, running.stats())
        return _sum(stats, LoaderStats(batch_buffers=self._slabs.allocated))

    def close(self) -> None:
        """Ends the iteration that runs, if one does: its threads are gone when this returns."""
        running = self._running() if self._running is not None else None
        if running is not None:
            running.close()

    def __iter__(self) -> Iterator[Batch]:
        if not self._place_given:
            check_place(self.rank, self.world_size)
        self.close()
        if self._begun:
            self._epoch, self._step = self._epoch + 1, 0
        self._begun = True
        epoch = _Epoch(self, self._epoch, self._step)
        self._running = weakref.ref(epoch)
        return epoch

    @property
    def _read_threads(self) -> int:
        return self.tuning.read_threads or max(2, self.threads // 4)

    def _identity(self) -> dict[str, int | str]:
        return {**self._sequence(), "recipe": digest_of(self.recipe.to_json())}

    def _sequence(self) -> dict[str, int | str]:
        """Everything the ids of the global steps are a function of."""
        return {
            "dataset": self.dataset.digest,
            "samples": len(self.dataset),
            **self._order.identity,
            "seed": self.seed,
            "lanes": self.lanes,
            "global_batch": self.global_batch,
            "last": self._steps.last,
        }

    def __repr__(self) -> str:
        place = f"rank {self.rank} of {self.world_size}, epoch {self._epoch}, step {self._step}"
        return f"Loader({self.dataset!r}, {len(self)} steps of {self.global_batch}, {place})"


class _Epoch:
    """One iteration. Owns the pipeline; the loader holds it weakly, so dropping it ends the threads."""

    def __init__(self, loader: Loader, epoch: int, step: int) -> None:
        self._loader = loader
        self._number = epoch
        work = EpochWork(
            reader=loader.dataset,
            columns=loader._columns,
            order=loader._order,
            steps=loader._steps,
            plans=loader._plans,
            seed=loader.seed,
            epoch=epoch,
            slabs=loader._slabs,
            arenas=loader._arenas,
            read_samples=loader.tuning.read_samples,
            decode_samples=loader.tuning.decode_samples,
            on_error=loader.on_error,
            limits=loader.tuning.limits,
        )
        self._steps = self._images = self._bad = 0
        self._wait = self._away = self._hand_over = 0.0
        self._left: float | None = None
        # Nothing to count until there is a pipeline: Ctrl-C may come while its threads start.
        self._counted = True
        self._pipeline: Pipeline[StepBatch] = Pipeline(
            work.jobs(step),
            [Stage("read", work.read, loader._read_threads, splits=True), Stage("decode", work.decode, loader.threads)],
            in_flight=loader._in_flight,
            # Room for all pieces of a read, too: a reader that stops after each for want of room costs a tenth more.
            queue_tasks=loader.threads + -(-loader.tuning.read_samples // loader.tuning.decode_samples),
            wait_seconds=loader.tuning.wait_seconds,
            name=f"shardmill epoch {epoch}",
            item="step",
            first_number=step,
        )
        self._counted = False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        asked = time.perf_counter()
        if self._left is not None:
            self._away += asked - self._left
        try:
            step = next(self._pipeline)
            got = time.perf_counter()
            self._wait += got - asked
            batch = self._loader._finish(self._clean(step))
        except BaseException:
            # The end, an error, Ctrl-C: whoever catches it finds no threads, and the state before this step.
            self.close()
            raise
        self._steps += 1
        self._images += int(step.valid.sum())
        self._advance(step.step)
        self._left = time.perf_counter()
        self._hand_over += self._left - got
        return batch

    def close(self) -> None:
        if self._counted:
            return
        self._counted = True
        try:
            self._pipeline.close()
        finally:
            self._loader._stats = _sum(self._loader._stats, self.stats())
            self._loader._running = None

    def stats(self) -> LoaderStats:
        read, decode = self._pipeline.times
        return LoaderStats(
            self._steps, self._images, self._bad, self._wait, self._away, read.work, decode.work, self._hand_over
        )

    def __del__(self) -> None:
        # Dropped without close(): the pipeline's own finaliser ends the threads, the numbers are kept here.
        if not getattr(self, "_counted", True):
            self._counted = True
            self._loader._stats = _sum(self._loader._stats, self.stats())

    def _advance(self, step: int) -> None:
        loader = self._loader
        if step + 1 == len(loader):
            loader._epoch, loader._step, loader._begun = self._number + 1, 0, False
        else:
            loader._epoch, loader._step = self._number, step + 1

    def _clean(self, step: StepBatch) -> Batch:
        """The step without the samples that failed."""
        padded = self._loader._steps.last == "pad"
        views, labels, ids = step.views, step.labels, step.ids
        if step.failed:
            self._bad += len(step.failed)
            for slot, error in sorted(step.failed, key=lambda pair: pair[0]):
                step.valid[slot] = False
                self._loader._ledger.add(Skipped(int(ids[slot]), self._number, step.step, error))
            if padded:
                for view in views:
                    view[~step.valid] = 0
                ids[~step.valid] = NO_ID
                labels[~step.valid] = 0 if self._loader._plans[0].mix else NO_LABEL
            else:
                views = tuple(view[step.valid] for view in views)
                labels, ids = labels[step.valid], ids[step.valid]
        return Batch(views if len(views) > 1 else views[0], labels, ids, step.valid if padded else None)


def _sum(a: LoaderStats, b: LoaderStats) -> LoaderStats:
    return LoaderStats(**{name: getattr(a, name) + getattr(b, name) for name in LoaderStats.__dataclass_fields__})
