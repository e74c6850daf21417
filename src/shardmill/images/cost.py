"""What each part of a recipe costs, measured on real images."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from shardmill.images.decode import Crops, DecodeLimits, decode_into, read_sizes
from shardmill.images.mix import mix_images, plan_mix, soft_labels
from shardmill.images.plan import FusedPlan, compile_views
from shardmill.images.recipe import Recipe, Views
from shardmill.images.render import change_pixels, change_slots, convert, pad
from shardmill.images.sampling import Draws
from shardmill.records import EncodedImages


@dataclass(frozen=True)
class OpCost:
    """``name``: the op, or the ops that are one step. ``microseconds``: of one thread, an image, on average over the
    images that draw it and those that do not."""

    name: str
    microseconds: float


def time_ops(
    recipe: Recipe | Views,
    images: EncodedImages,
    *,
    seed: int = 0,
    rounds: int = 3,
    limits: DecodeLimits | None = None,
) -> list[OpCost]:
    """The steps of ``recipe`` in the order in which they are done, each timed by itself in this thread.

    ``images``: some 100 or more, as ``dataset.read`` gives them; those that cannot be decoded are left out. Every round
    is another epoch, and the fastest counts: others share the machine. The names of a recipe of several outputs begin
    with the number of the view. Takes about ``rounds`` times as long as decoding the images once in one thread.
    """
    limits = DecodeLimits() if limits is None else limits
    plans = compile_views(recipe)
    widths, heights, statuses = read_sizes(images, apply_exif=plans[0].apply_exif, limits=limits)
    good = np.flatnonzero(statuses == 0)
    images = EncodedImages(
        images.data, images.starts[good], images.sizes[good], images.formats[good], np.arange(len(good))
    )
    costs: list[OpCost] = []
    for plan in plans:
        clock = _Clock(len(good))
        for epoch in range(rounds):
            crops = plan.crops(widths[good], heights[good], seed=seed, epoch=epoch, ids=images.ids)
            _run(plan, images, crops, Draws(seed, epoch, images.ids, plan.view), limits, clock)
        prefix = f"view {plan.view}: " if len(plans) > 1 else ""
        costs += [OpCost(prefix + name, us) for name, us in clock.best()]
    return costs


def _run(
    plan: FusedPlan, images: EncodedImages, crops: Crops, draws: Draws, limits: DecodeLimits, clock: _Clock
) -> None:
    n, layout = len(images), plan.layout
    out = np.zeros(layout.batch_shape(n), layout.buffer_dtype)
    pixels = np.zeros(plan.raw_layout.batch_shape(n), np.uint8) if plan.pixel_ops else None
    slots = np.arange(n)
    target, written = (out, layout) if pixels is None else (pixels, plan.raw_layout)
    names = ["decode", *(type(op).__name__ for op in plan.geometry)]
    names += ["HorizontalFlip"] if plan.flip_p > 0 else []
    normalize = "Normalize" if layout.mean is not None else "convert"
    if pixels is None:
        names.append(normalize)
    clock.time(
        " + ".join(names),
        lambda: decode_into(
            images, crops, written, target, slots, filter=plan.filter, apply_exif=plan.apply_exif, limits=limits
        ),
    )
    fill = plan.fill
    if fill is not None:
        clock.time("padding", lambda: pad(target, slots, written, crops, fill))
    if pixels is not None:
        for placed in plan.pixel_ops:
            clock.time(type(placed.op).__name__, partial(change_pixels, placed, pixels, draws))
        clock.time(normalize, lambda: convert(pixels, layout, out, slots))
    for late in plan.slot_ops:
        clock.time(type(late.op).__name__, partial(change_slots, late, out, slots, layout, draws))
    if plan.mix:
        labels = np.zeros(n, np.int64)

        def mix() -> None:
            usable = np.ones(n, bool)
            mixed = plan_mix(plan.mix, layout, draws, step=0, lanes=max(1, n // 4), usable=usable)
            mix_images(mixed, out, layout)
            soft_labels(mixed, labels, plan.mix[0].classes)

        clock.time(" + ".join(type(op).__name__ for op in plan.mix), mix)


class _Clock:
    """The least seconds of every step over the rounds; a name that comes again in one round is a step of its own."""

    def __init__(self, count: int) -> None:
        self._count = max(count, 1)
        self._best: dict[str, float] = {}
        self._round: set[str] = set()

    def time(self, name: str, step: Callable[[], object]) -> None:
        if not self._round or next(iter(self._best)) == name:
            self._round = set()
        while name in self._round:
            name += " again"
        self._round.add(name)
        started = time.thread_time()
        step()
        self._best[name] = min(self._best.get(name, np.inf), time.thread_time() - started)

    def best(self) -> list[tuple[str, float]]:
        return [(name, seconds / self._count * 1e6) for name, seconds in self._best.items()]
