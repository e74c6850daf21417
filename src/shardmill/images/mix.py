"""MixUp and CutMix: images of a batch mixed with partners in it, and the labels that follow.

Who is whose partner. A step of a rank is rounds of its lanes (see `shardmill.loading.order`): with 64 lanes and a
global batch of 256, four rounds, so each lane gives four samples. Partners come from the same lane, a number of rounds
ahead that is a function of (seed, epoch, step); with a single round, from the neighbouring lane. A rank owns whole
lanes, so in every full step the pairs are the same for every world size (with a single round: for which a rank owns an
even number of lanes). In the short last step they may depend on it. Packing shuffles globally, so neighbours are
strangers.

How an image is mixed is a function of (seed, epoch, its id).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import OptionsError
from shardmill.images.augmentations import CutMix, Mix
from shardmill.images.pixels import PixelLayout
from shardmill.images.sampling import Draws, Stream, key64
from shardmill.images.stored import as_float, as_stored, planes

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

_KNOTS = 4097


@dataclass(frozen=True)
class MixPlan:
    """How ``n`` rows are mixed. ``partner`` int64 [n], a permutation; ``weight`` float64 [n] of the row itself.

    ``box`` int64 [4, n]: top, left, bottom, right of what comes from the partner in CutMix; ``cut`` bool [n]: whether
    it is CutMix. Rows with a weight of 1 stay as they are.
    """

    partner: I64
    weight: F64
    cut: NDArray[np.bool_]
    box: I64


def plan_mix(
    ops: Sequence[Mix], layout: PixelLayout, draws: Draws, *, step: int, lanes: int, usable: NDArray[np.bool_]
) -> MixPlan:
    """``draws.ids``: the rows of the step in the loader's order. ``lanes``: of this rank. ``usable``: bool [n]."""
    partner = partners(len(draws.ids), lanes, key64((draws.seed, draws.epoch, int(Stream.PARTNER), step)))
    u = draws.uniforms(Stream.MIX, 0, 4)
    weight, cut = np.ones(len(partner)), np.zeros(len(partner), bool)
    box = np.zeros((4, len(partner)), np.int64)
    passed = 0.0
    for op in ops:
        mine = (
            (u[0] >= passed) & (u[0] < passed + op.p) & usable & usable[partner] & (partner != np.arange(len(partner)))
        )
        passed += op.p
        drawn = symmetric_beta(op.alpha, u[1])
        if isinstance(op, CutMix):
            boxes, kept = cut_boxes(drawn, u[2], u[3], layout.height, layout.width)
            cut |= mine
            box = np.where(mine, boxes, box)
            drawn = kept
        weight = np.where(mine, drawn, weight)
    return MixPlan(partner, weight, cut, box)


def partners(count: int, lanes: int, key: int) -> I64:
    """int64 [count], a permutation: the partner of each row; itself where there is nobody else."""
    rows = np.arange(count)
    rounds, rest = divmod(count, lanes)
    whole = count - rest
    if rounds > 1:
        ahead = 1 + key % (rounds - 1)
        rows[:whole] = (rows[:whole] + ahead * lanes) % whole
    elif rounds == 1:
        rows[:whole] = np.arange(whole) ^ 1
        if whole % 2:
            # The last three in a ring, as nobody is left for the last.
            rows[max(whole - 3, 0) : whole] = np.roll(np.arange(max(whole - 3, 0), whole), -1)
    rows[whole:] = whole + np.roll(np.arange(rest), -1)
    return rows


def symmetric_beta(alpha: float, u: F64) -> F64:
    """Beta(alpha, alpha) by inverting its distribution function at ``u`` in [0, 1); within 1e-6 of the exact value."""
    half, knots = _half_beta(alpha)
    lower = np.interp(np.minimum(u, 1 - u), half, knots)
    if alpha < 1:
        lower **= 1 / alpha
    return np.where(u < 0.5, lower, 1 - lower)


@functools.lru_cache(maxsize=16)
def _half_beta(alpha: float) -> tuple[F64, F64]:
    """The distribution function at knots of the lower half: x itself, or for alpha < 1 x^alpha, where it is smooth."""
    if alpha < 1:
        knots = np.linspace(0, 0.5**alpha, _KNOTS)
        density = (1 - knots ** (1 / alpha)) ** (alpha - 1)
    else:
        knots = np.linspace(0, 0.5, _KNOTS)
        density = (4 * knots * (1 - knots)) ** (alpha - 1)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return below / (2 * below[-1]), knots


def cut_boxes(weight: F64, down: F64, across: F64, height: int, width: int) -> tuple[I64, F64]:
    """(top, left, bottom, right) int64 [4, n], and the share of the area outside; torchvision's CutMix.make_params."""
    radius = 0.5 * np.sqrt(1 - weight)
    y, x = np.floor(down * height), np.floor(across * width)
    half_h, half_w = np.floor(radius * height), np.floor(radius * width)
    box = np.stack([np.maximum(y - half_h, 0), np.maximum(x - half_w, 0)])
    end = np.stack([np.minimum(y + half_h, height), np.minimum(x + half_w, width)])
    area = (end - box).prod(axis=0)
    return np.concatenate([box, end]).astype(np.int64), 1 - area / (height * width)


def mix_images(plan: MixPlan, images: NDArray[Any], layout: PixelLayout) -> None:
    """Mixes the rows of ``images`` in place. Memory: one image more. 0.1 to 0.2 ms an image of 224 x 224."""
    waiting = np.ones(len(plan.partner), bool)
    for first in range(len(waiting)):
        if not waiting[first]:
            continue
        # Round a ring of partners each row is read before it is changed, all but the first.
        original = images[first].copy()
        row = first
        while waiting[row]:
            waiting[row] = False
            partner = int(plan.partner[row])
            other = original if partner == first else images[partner]
            if plan.weight[row] < 1:
                _mix(plan, row, images[row], other, layout)
            row = partner


def _mix(plan: MixPlan, row: int, image: NDArray[Any], other: NDArray[Any], layout: PixelLayout) -> None:
    if plan.cut[row]:
        top, left, bottom, right = plan.box[:, row].tolist()
        planes(image, layout)[:, top:bottom, left:right] = planes(other, layout)[:, top:bottom, left:right]
        return
    weight = np.float32(plan.weight[row])
    mixed = as_float(image, layout) * weight
    mixed += as_float(other, layout) * (np.float32(1) - weight)
    image[...] = as_stored(mixed, layout)


def soft_labels(plan: MixPlan, labels: I64, classes: int) -> NDArray[np.float32]:
    """float32 [n, classes]; a label of -1 adds nothing to its row. `OptionsError` for a label too large."""
    if len(labels) and labels.max() >= classes:
        raise OptionsError(f"a label is {labels.max()}, but MixUp or CutMix was told of {classes} classes")
    soft = np.zeros((len(labels), classes), np.float32)
    for weight, of in ((plan.weight, labels), (1 - plan.weight, labels[plan.partner])):
        known = np.flatnonzero(of >= 0)
        soft[known, of[known]] += weight[known].astype(np.float32)
    return soft
