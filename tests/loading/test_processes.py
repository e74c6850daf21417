"""Real processes, joined by torch.distributed over loopback, training a tiny network with DDP.

Every backward pass is an all-reduce, so a rank with a step more than the others would wait for ever: the group's
deadline turns that into a failure here.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from PIL import Image

import shardmill as sm

# One more than a multiple of the global batch: in the last step three of four ranks have nothing.
SAMPLES, GLOBAL_BATCH, SEED = 97, 16, 5
LASTS = ("keep", "drop", "pad")
STEPS = {"keep": 7, "drop": 6, "pad": 7}
DEADLINE_S = 100

JOB = """
import datetime, hashlib, json, os, signal, sys
import torch
import torch._dynamo  # DDP imports it, for a second or more: once here instead of in every rank
import torch.distributed as dist
import shardmill as sm

dataset, port, world, folder, state_path, lasts, epochs, die_at = sys.argv[1:]
world, epochs, die_at = int(world), int(epochs), int(die_at)
deadline = datetime.timedelta(seconds=60)

def train(rank):
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", int(port), is_master=False, timeout=deadline)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=deadline)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3 * 8 * 8, 2))
    recipe = sm.recipes.train(8)
    steps = open(f"{folder}/{rank}.jsonl", "w", buffering=1)
    for last in lasts.split(","):
        loader = sm.Loader(sm.open(dataset), 16 // world, recipe=recipe, seed=5, lanes=8, window=30, last=last,
                           threads=1)
        assert (loader.rank, loader.world_size) == (rank, world)
        if os.path.exists(state_path):
            loader.load_state_dict(json.load(open(state_path)))
        for epoch in range(loader.epoch, epochs):
            loader.set_epoch(epoch)
            for batch in loader:
                if rank == 1 and loader.state_dict()["step"] == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                model(batch.images.flatten(1)).square().sum().backward()
                keep = batch.ids >= 0
                pixels = [hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in batch.images[keep]]
                print(json.dumps([last, epoch, batch.ids[keep].tolist(), pixels, len(batch.images)]), file=steps)
                if rank == 0 and die_at >= 0:
                    with open(state_path + ".new", "w") as file:
                        json.dump(loader.state_dict(), file)
                    os.replace(state_path + ".new", state_path)
    dist.barrier()
    dist.destroy_process_group()

# Forked, so that torch is imported once; nothing has been started yet.
ranks = []
for rank in range(world):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            train(rank)
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        os._exit(code)
    ranks.append(pid)
codes = {}
while len(codes) < world:
    pid, status = os.wait()
    codes[pid] = os.waitstatus_to_exitcode(status)
    if codes[pid]:
        # As torchrun does: one rank failed, all are killed.
        for other in set(ranks) - set(codes):
            os.kill(other, signal.SIGKILL)
print(json.dumps([codes[pid] for pid in ranks]))
"""


@dataclass(frozen=True)
class Step:
    """What one rank saw in one step. ``pixels``: a digest per row. ``rows``: of the batch, padding included."""

    last: str
    epoch: int
    ids: list[int]
    pixels: list[str]
    rows: int


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("processes")
    rng = np.random.default_rng(0)
    for number in range(SAMPLES):
        folder = root / "source" / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        out = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (20, 24, 3), np.uint8)).save(out, "JPEG")
        (folder / f"{number:03d}.jpg").write_bytes(out.getvalue())
    sm.pack(str(root / "source"), str(root / "packed"), shard_samples=13, progress=False, workers=1)
    return root / "packed"


def run_job(dataset: Path, out: Path, world: int, *, lasts: str, epochs: int = 1, die_at: int = -1) -> list[int]:
    """The exit codes of all ranks. None outlives the call."""
    # Port 0: the system chooses one, and nobody else can take it in between.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    out.mkdir()
    arguments = [dataset, store.port, world, out, out.parent / "state.json", lasts, epochs, die_at]
    with subprocess.Popen(
        [sys.executable, "-c", JOB, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=DEADLINE_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, stderr
    codes: list[int] = json.loads(stdout)
    assert die_at >= 0 or codes == [0] * world, stderr
    return codes


def seen(out: Path, world: int) -> list[list[Step]]:
    """By rank, every step it completed."""
    return [
        [Step(*json.loads(line)) for line in (out / f"{rank}.jsonl").read_text().splitlines()] for rank in range(world)
    ]


def together(parts: tuple[Step, ...]) -> dict[int, str]:
    """The pixels by row of one step of all ranks; a row on two ranks is an error."""
    pairs = [pair for part in parts for pair in zip(part.ids, part.pixels, strict=True)]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def alone(dataset: Path, last: Any, epochs: int) -> list[dict[int, str]]:
    """The same steps in this one process."""
    loader = sm.Loader(
        sm.open(str(dataset)),
        GLOBAL_BATCH,
        recipe=sm.recipes.train(8),
        seed=SEED,
        lanes=8,
        window=30,
        last=last,
        threads=1,
        framework="numpy",
    )
    return [
        {
            int(row): hashlib.sha256(image.tobytes()).hexdigest()
            for row, image in zip(batch.ids, batch.images, strict=True)
            if row >= 0
        }
        for _ in range(epochs)
        for batch in loader
    ]


@pytest.mark.parametrize("world", [2, 4])
def test_every_sample_once_over_all_ranks_and_equal_steps(dataset: Path, tmp_path: Path, world: int) -> None:
    run_job(dataset, tmp_path / "job", world, lasts=",".join(LASTS))
    by_rank = seen(tmp_path / "job", world)
    for last in LASTS:
        own = [[step for step in steps if step.last == last] for steps in by_rank]
        assert [len(steps) for steps in own] == [STEPS[last]] * world
        steps = [together(parts) for parts in zip(*own, strict=True)]
        assert steps == alone(dataset, last, 1)
        rows = sorted(row for step in steps for row in step)
        assert len(set(rows)) == len(rows) == (96 if last == "drop" else SAMPLES)
        assert [part[-1].rows for part in own] == {
            "keep": [0] * (world - 1) + [1],
            "drop": [GLOBAL_BATCH // world] * world,
            "pad": [GLOBAL_BATCH // world] * world,
        }[last]


def test_a_killed_job_goes_on_in_another_world_size_with_exactly_the_rest(dataset: Path, tmp_path: Path) -> None:
    expected = alone(dataset, "keep", 2)
    codes = run_job(dataset, tmp_path / "four", 4, lasts="keep", epochs=2, die_at=4)
    assert codes[1] == -signal.SIGKILL
    assert 0 not in codes
    state = json.loads((tmp_path / "state.json").read_text())
    done = state["step"]
    # The loader's step counts the batch in hand; the kill came before its all-reduce.
    assert (state["epoch"], done) == (0, 3)
    completed = (steps[:done] for steps in seen(tmp_path / "four", 4))
    before = [together(parts) for parts in zip(*completed, strict=True)]
    assert before == expected[:done]

    run_job(dataset, tmp_path / "two", 2, lasts="keep", epochs=2)
    rest = [together(parts) for parts in zip(*seen(tmp_path / "two", 2), strict=True)]
    assert rest == expected[done:]
    first_epoch = sorted(row for step in before + rest[: STEPS["keep"] - done] for row in step)
    assert first_epoch == list(range(SAMPLES))
