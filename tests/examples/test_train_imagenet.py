"""The ImageNet script in one process and in two under torchrun, killed and resumed: the same batches, the same weights.

One uninterrupted run of one process is the truth that every other run is compared with, step by step.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import shardmill as sm

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_imagenet.py"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
EPOCHS, STEPS, BATCH, SAMPLES = 2, 6, 8, 50

# Normalisation has buffers and dropout draws random numbers: both must come back on resume.
MODEL = """
from torch import nn

def small(num_classes):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(32, num_classes),
    )
"""
Steps = dict[tuple[int, int], dict[str, str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Shards ``train`` and ``val`` of four classes, and the module of the model."""
    folder = tmp_path_factory.mktemp("imagenet")
    rng = np.random.default_rng(0)
    for name, count in (("train", SAMPLES), ("val", 11)):
        for i in range(count):
            path = folder / f"{name}-images" / f"class{i % 4}" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (*rng.integers(32, 64, 2), 3), np.uint8)
            Image.fromarray(pixels).save(path)
        sm.pack(folder / f"{name}-images", folder / name, shard_samples=9, progress=False, workers=1)
    (folder / "models.py").write_text(MODEL)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


def options(place: Path, output: Path) -> list[str]:
    output.mkdir(exist_ok=True)
    given = [
        str(place / "train"),
        str(place / "val"),
        "-a",
        "models:small",
        "-b",
        str(BATCH),
        "-j",
        "1",
        "--size",
        "24",
    ]
    how = ["--epochs", str(EPOCHS), "-p", "1", "--save-every", "2", "-o", str(output)]
    return [*given, *how, "--log-batches", str(output / "log")]


def start(place: Path, output: Path, *more: str, two: bool) -> subprocess.Popen[str]:
    launcher = TORCHRUN if two else []
    command = [sys.executable, *launcher, str(SCRIPT), *options(place, output), *more]
    environment = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def run_two(place: Path, output: Path, *more: str) -> str:
    process = start(place, output, *more, two=True)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    return out


def run(place: Path, output: Path, *more: str) -> str:
    """One process: this one, with the number of threads that the others have. What it prints."""
    spec = importlib.util.spec_from_file_location("train_imagenet", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), torch.random.fork_rng():
            module.main([*options(place, output), *more])
    finally:
        torch.set_num_threads(threads)
    return said.getvalue()


def run_until(place: Path, output: Path, line: str, *more: str, two: bool = False) -> None:
    """Starts it, and ends it in the middle of whatever it does after it has printed ``line``."""
    process = start(place, output, *more, two=two)
    assert process.stdout is not None
    seen = ""
    for text in process.stdout:
        seen += text
        if text.startswith(line):
            break
    else:
        pytest.fail(f"it ended before {line!r}: {seen} {process.communicate()[1]}")
    # torchrun ends its workers when it is told to end; nobody tells a single process.
    process.send_signal(signal.SIGTERM if two else signal.SIGKILL)
    process.communicate(timeout=100)
    assert process.returncode != 0


def logged(output: Path) -> Steps:
    """Every step's samples over all ranks; a step that was taken twice must have been the same twice."""
    steps: Steps = {}
    for line in (output / "log").read_text().splitlines():
        entry = json.loads(line)
        samples = steps.setdefault((entry["epoch"], entry["step"]), {})
        for row, pixels in entry["samples"].items():
            assert samples.setdefault(row, pixels) == pixels
    return steps


def checkpoint(output: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(output / "checkpoint.pth.tar", weights_only=True)
    return loaded


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    """The uninterrupted run of one process."""
    output = place / "whole"
    said = run(place, output)
    assert said.count(" of 11 images") == EPOCHS
    return output


def test_an_epoch_is_every_sample_once(whole: Path) -> None:
    steps = logged(whole)
    assert sorted(steps) == [(epoch, step) for epoch in range(EPOCHS) for step in range(STEPS)]
    for epoch in range(EPOCHS):
        rows = [row for step in range(STEPS) for row in steps[epoch, step]]
        assert len(rows) == len(set(rows)) == STEPS * BATCH
    first, second = ({row: p for step in range(STEPS) for row, p in steps[e, step].items()} for e in range(2))
    assert list(first) != list(second)
    assert all(first[row] != second[row] for row in {*first} & {*second})


def test_killed_and_resumed_sees_the_same_batches_and_ends_with_the_same_weights(place: Path, whole: Path) -> None:
    output = place / "killed"
    run_until(place, output, "epoch 0 step 5/")
    assert checkpoint(output)["loader"]["step"] == 4
    # Killed again in the next epoch, and resumed again.
    run_until(place, output, "epoch 1 step 3/", "--resume", str(output / "checkpoint.pth.tar"))
    said = run(place, output, "--resume", str(output / "checkpoint.pth.tar"))
    assert "at epoch 1, step 2" in said
    assert logged(output) == logged(whole)
    ended, expected = checkpoint(output), checkpoint(whole)
    assert ended["loader"] == expected["loader"]
    assert ended["best_acc1"] == expected["best_acc1"]
    for name, weights in expected["state_dict"].items():
        assert torch.equal(ended["state_dict"][name], weights), name
    assert sorted(path.name for path in output.iterdir()) == sorted(path.name for path in whole.iterdir())


def test_two_processes_killed_and_resumed_see_the_batches_of_one(place: Path, whole: Path) -> None:
    output = place / "two"
    run_until(place, output, "epoch 0 step 5/", two=True)
    assert checkpoint(output)["loader"]["step"] == 4
    half = output / "checkpoint.pth.tar"
    alone = place / "two-then-one"
    alone.mkdir()
    (alone / "log").write_text((output / "log").read_text())
    said = run_two(place, output, "--resume", str(half.rename(place / "half.pth.tar")))
    assert said.count(" of 11 images") == EPOCHS
    assert logged(output) == logged(whole)
    # The same checkpoint goes on in a single process.
    run(place, alone, "--resume", str(place / "half.pth.tar"))
    assert logged(alone) == logged(whole)


def test_evaluate_with_a_checkpoint_and_with_weights_of_another_head(place: Path, whole: Path) -> None:
    output = place / "evaluated"
    weights = str(whole / "checkpoint.pth.tar")
    by_weights = run(place, output, "-e", "--pretrained", weights)
    assert by_weights.startswith(" * Acc@1 ")
    assert run(place, output, "-e", "--resume", weights).endswith(by_weights)
    other_head = run(place, output, "-e", "--pretrained", weights, "-c", "7")
    assert other_head.startswith("=> not in the weights, or of another shape, and so begun anew: 6.bias, 6.weight\n")
    assert not (output / "checkpoint.pth.tar").exists()


def test_a_model_of_torchvision_with_bfloat16(place: Path) -> None:
    said = run(place, place / "bf16", "-a", "squeezenet1_1", "--amp", "--epochs", "1", "--lr", "0.001")
    assert f"epoch 0 step {STEPS}/{STEPS} loss " in said
    assert "nan" not in said


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["-a", "resnet17"], "resnet17: not a model of torchvision"),
        (["--pretrained", "nowhere.pth"], "nowhere.pth: no such file"),
    ],
)
def test_what_makes_no_sense_is_said(place: Path, more: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        run(place, place / "nothing", *more)
