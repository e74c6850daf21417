from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import v2

from shardmill.errors import OptionsError
from shardmill.images.augmentations import CutMix, MixUp
from shardmill.images.mix import cut_boxes, mix_images, partners, plan_mix, soft_labels, symmetric_beta
from shardmill.images.ops import Resize
from shardmill.images.pixels import PixelLayout
from shardmill.images.plan import compile_recipe
from shardmill.images.recipe import Recipe
from shardmill.images.sampling import Draws
from shardmill.images.stored import as_float, as_stored


@given(st.integers(0, 70), st.integers(1, 40), st.integers(0, 2**64 - 1))
def test_partners_are_a_permutation_without_lonely_rows(count: int, lanes: int, key: int) -> None:
    rows = partners(count, lanes, key)
    assert sorted(rows) == list(range(count))
    alone = int((rows == np.arange(count)).sum())
    rounds, rest = divmod(count, lanes)
    assert alone == (rounds == 1 and lanes == 1) + (rest == 1)


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3, 4]), st.integers(0, 2**64 - 1))
def test_the_pairs_of_a_full_step_are_the_same_for_every_world_size(world: int, rounds: int, key: int) -> None:
    lanes = 16
    # The rank's rows of a step, as Steps.positions gives them: rounds of its own lanes.
    positions = np.arange(rounds * lanes).reshape(rounds, lanes)
    whole = {int(p): int(positions.reshape(-1)[q]) for p, q in enumerate(partners(rounds * lanes, lanes, key))}
    own = lanes // world
    for rank in range(world):
        mine = positions[:, rank * own : (rank + 1) * own].reshape(-1)
        for row, partner in enumerate(partners(len(mine), own, key)):
            assert whole[int(mine[row])] == mine[partner]


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.8, 1.0, 2.0, 32.0])
def test_weights_are_beta(alpha: float) -> None:
    n = 20_000
    u = Draws(0, 0, np.arange(n)).uniforms(24, 0, 2)[1]  # type: ignore[arg-type]
    ours = np.sort(symmetric_beta(alpha, u))
    theirs = np.sort(np.random.default_rng(0).beta(alpha, alpha, n))
    grid = np.union1d(ours, theirs)
    distance = np.abs(np.searchsorted(ours, grid, "right") - np.searchsorted(theirs, grid, "right")).max() / n
    assert distance < 1.63 * np.sqrt(2 / n)
    assert 0 <= ours[0] < ours[-1] <= 1
    # Another alpha would be seen.
    wrong = np.sort(np.random.default_rng(0).beta(alpha * 1.3, alpha * 1.3, n))
    grid = np.union1d(ours, wrong)
    assert np.abs(np.searchsorted(ours, grid, "right") - np.searchsorted(wrong, grid, "right")).max() / n > 0.015


def test_boxes_are_torchvisions(monkeypatch: pytest.MonkeyPatch) -> None:
    height, width, image = 30, 47, torch.empty(2, 3, 30, 47)
    rng = np.random.default_rng(0)
    theirs = v2.CutMix(num_classes=3)
    for _ in range(200):
        weight, down, across = rng.random(3)
        box, kept = cut_boxes(np.array([weight]), np.array([down]), np.array([across]), height, width)
        draws = iter([int(across * width), int(down * height)])
        monkeypatch.setattr(theirs, "_dist", type("Fixed", (), {"sample": lambda _, __, w=weight: w})())
        monkeypatch.setattr(torch, "randint", lambda *_, d=draws, **__: torch.tensor([next(d)]))
        params = theirs.make_params([image])
        monkeypatch.undo()
        left, top, right, bottom = params["box"]
        assert box[:, 0].tolist() == [top, left, bottom, right]
        assert kept[0] == pytest.approx(params["lam_adjusted"], abs=1e-6)


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("op", [MixUp(5), CutMix(5), (MixUp(5, 0.4, 0.5), CutMix(5, 1.0, 0.4))])
def test_rows_and_labels_are_mixed_as_torchvision_mixes_a_pair(op: Any, dtype: Any, order: Any) -> None:
    n, ops = 23, op if isinstance(op, tuple) else (op,)
    layout = PixelLayout(12, 10, dtype, order)
    rng = np.random.default_rng(0)
    before = as_stored(rng.integers(0, 256, layout.batch_shape(n)).astype(np.float32), layout)
    usable = np.ones(n, bool)
    usable[3] = False
    labels = rng.integers(-1, 5, n)
    plan = plan_mix(ops, layout, Draws(1, 2, np.arange(n) + 50), step=4, lanes=4, usable=usable)
    out = before.copy()
    mix_images(plan, out, layout)
    soft = soft_labels(plan, labels, 5)
    start = torch.from_numpy(as_float(before, layout).copy())
    channels_first = start if order == "NCHW" else start.permute(0, 3, 1, 2)
    changed = 0
    for i in range(n):
        partner = int(plan.partner[i])
        pair = channels_first[[i, partner]]
        weight = float(plan.weight[i])
        if plan.cut[i]:
            top, left, bottom, right = plan.box[:, i].tolist()
            params = {"labels": None, "batch_size": 2, "box": (left, top, right, bottom), "lam_adjusted": weight}
            expected = v2.CutMix(num_classes=5).transform(pair, params)[0]
        else:
            expected = v2.MixUp(num_classes=5).transform(pair, {"labels": None, "batch_size": 2, "lam": weight})[0]
        got = as_float(out[i], layout)
        got = got if order == "NCHW" else got.transpose(2, 0, 1)
        # float32 rounding on levels up to 255; halves and bytes round to their own steps.
        step = {"float32": 1e-4, "float16": 0.07, "bfloat16": 0.51, "uint8": 0.51}[dtype]
        assert np.abs(got - expected.numpy()).max() <= step
        one_hot = np.zeros(5)
        for share, label in ((weight, labels[i]), (1 - weight, labels[partner])):
            if label >= 0:
                one_hot[label] += share
        assert np.allclose(soft[i], one_hot, atol=1e-6)
        changed += weight < 1
        if i == 3 or partner == 3:
            assert weight == 1
            assert (out[i] == before[i]).all()
    assert changed >= (20 if len(ops) == 1 else 14)
    assert len(ops) == 1 or 0 < plan.cut.sum() < changed


def test_mixing_that_makes_no_sense_is_refused() -> None:
    size = Resize((8, 8))
    for ops in ((MixUp(3), CutMix(3)), (MixUp(3, p=0.5), CutMix(4, p=0.5)), (MixUp(3, p=0.1), MixUp(3, p=0.1))):
        with pytest.raises(OptionsError, match="MixUp and CutMix come once each"):
            compile_recipe(Recipe((size, *ops)))
    layout, draws = PixelLayout(8, 8), Draws(0, 0, np.arange(2))
    plan = plan_mix([MixUp(5)], layout, draws, step=0, lanes=1, usable=np.ones(2, bool))
    with pytest.raises(OptionsError, match="a label is 7, but MixUp or CutMix was told of 5 classes"):
        soft_labels(plan, np.array([1, 7]), 5)
