"""examples/distributed.py under torchrun: stopped with two processes, gone on with one, the same network in the end."""

from __future__ import annotations

import io
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import shardmill as sm

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OPTIONS = ["--global-batch", "16", "--image-size", "32", "--epochs", "2", "--seed", "3"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("example")
    rng = np.random.default_rng(0)
    # 41 = 2 * 16 + 9: the ranks share the last step unequally.
    for number in range(41):
        folder = root / "source" / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        out = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (40, 40, 3), np.uint8)).save(out, "JPEG")
        (folder / f"{number:03d}.jpg").write_bytes(out.getvalue())
    sm.pack(str(root / "source"), str(root / "packed"), shard_samples=11, progress=False, workers=1)
    return root / "packed"


@pytest.fixture
def run(dataset: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the script to its end, in this process or under torchrun, and gives what it printed."""

    def run(checkpoint: Path, *options: str, processes: int = 0) -> str:
        script = EXAMPLES / "distributed.py"
        arguments = [str(dataset), "--checkpoint", str(checkpoint), *OPTIONS, *options]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        if not processes:
            monkeypatch.setattr(sys, "argv", [str(script), *arguments])
            runpy.run_path(str(script), run_name="__main__")
            return capfd.readouterr().out
        done = subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)),
                *(str(script), *arguments),
            ],
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_stopped_with_two_processes_and_gone_on_with_one(run: Callable[..., str], tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.pt", tmp_path / "parts.pt"
    assert "epoch 1: 3 steps on each of 1 ranks" in run(whole)
    run(parts, "--stop-after", "2", processes=2)
    stopped = torch.load(parts, weights_only=True)
    assert (stopped["loader"]["epoch"], stopped["loader"]["step"]) == (0, 2)
    assert "epoch 1: 3 steps on each of 1 ranks" in run(parts)
    one, other = torch.load(whole, weights_only=True), torch.load(parts, weights_only=True)
    assert one["loader"] == other["loader"]
    assert (one["loader"]["epoch"], one["loader"]["step"]) == (2, 0)
    for name, weights in one["model"].items():
        # Sums in another order differ in the last bits; other samples or crops would differ by far more.
        torch.testing.assert_close(other["model"][name], weights, rtol=1e-4, atol=1e-6)
        assert (stopped["model"][name] - weights).abs().max() > 1e-4


def test_the_slurm_script_is_a_script() -> None:
    done = subprocess.run(["bash", "-n", str(EXAMPLES / "slurm.sh")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
