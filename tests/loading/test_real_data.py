"""The loader on real images, packed, beside Pillow; and across processes."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import shardmill as sm
from shardmill.images.plan import compile_recipe

IMAGES = 48


@pytest.fixture(scope="module")
def packed(imagenet_sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("real")
    source = root / "source"
    for path in sorted(imagenet_sample.glob("*.JPEG"))[:IMAGES]:
        folder = source / path.name.split("_")[0]
        folder.mkdir(parents=True)
        shutil.copy(path, folder)
    sm.pack(str(source), str(root / "packed"), shard_samples=13, progress=False)
    return root / "packed"


@pytest.mark.parametrize("name", ["train", "eval"])
def test_pixels_are_pillows(packed: Path, name: str) -> None:
    recipe = sm.recipes.train(64, dtype="uint8") if name == "train" else sm.recipes.eval(64, resize=72, dtype="uint8")
    ds = sm.open(str(packed))
    loader = sm.Loader(ds, 16, recipe=recipe, seed=5, framework="numpy")
    plan = compile_recipe(recipe)
    seen, wrong_row = [], 0.0
    for batch in loader:
        assert np.array_equal(batch.labels, ds.labels[batch.ids])
        crops = plan.crops(ds.widths[batch.ids], ds.heights[batch.ids], seed=5, epoch=0, ids=batch.ids)
        expected = []
        for i, image in enumerate(ds.read(batch.ids)):
            box = crops.left[i], crops.top[i], crops.left[i] + crops.width[i], crops.top[i] + crops.height[i]
            with Image.open(io.BytesIO(image.data)) as opened:
                pixels = opened.convert("RGB").resize((64, 64), Image.Resampling.BILINEAR, box=box)
            rows = np.asarray(pixels, np.int16)[:, ::-1] if crops.flip[i] else np.asarray(pixels, np.int16)
            expected.append(rows.transpose(2, 0, 1))
        difference = np.abs(batch.images - np.stack(expected))
        assert difference.mean(axis=(1, 2, 3)).max() < 1
        wrong_row = float(np.abs(batch.images - np.roll(np.stack(expected), 1, axis=0)).mean())
        seen += batch.ids.tolist()
    assert sorted(seen) == list(range(IMAGES))
    # An image in its neighbour's slot would be seen.
    assert wrong_row > 10


def test_a_flipped_byte_is_an_error_with_shard_key_and_offset(packed: Path) -> None:
    ds = sm.open(str(packed))
    row = 20
    path, key, offset = ds.describe(row)
    original = Path(path).read_bytes()
    damaged = bytearray(original)
    damaged[offset + 1000] ^= 4
    Path(path).write_bytes(damaged)
    try:
        with pytest.raises(sm.errors.ChecksumError) as caught:
            list(sm.Loader(ds, 16, recipe=sm.recipes.eval(32, resize=32), framework="numpy"))
        assert (caught.value.key, caught.value.offset) == (key, offset)
        skipping = sm.Loader(ds, 16, recipe=sm.recipes.eval(32, resize=32), framework="numpy", on_error="skip")
        assert sorted(sum((batch.ids.tolist() for batch in skipping), [])) == [i for i in range(IMAGES) if i != row]  # noqa: RUF017
        assert [skipped.id for skipped in skipping.skipped] == [row]
    finally:
        Path(path).write_bytes(original)


RANK = """
import json, sys
import torch.distributed as dist
import shardmill as sm
path, store, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
loader = sm.Loader(sm.open(path), 5, recipe=sm.recipes.eval(32, resize=32, dtype="uint8"), threads=1)
steps = []
for batch in loader:
    dist.barrier()  # hangs if step counts differ
    steps.append(batch.ids.tolist())
print(json.dumps([loader.rank, loader.world_size, steps]))
dist.destroy_process_group()
"""


def test_rank_and_world_size_come_from_torch_distributed(packed: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", RANK, str(packed), str(tmp_path / "store")]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outs = [rank.communicate(timeout=100) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outs
    found = [json.loads(out.splitlines()[-1]) for out, _ in outs]
    assert [one[:2] for one in found] == [[0, 2], [1, 2]]
    together = [a + b for a, b in zip(found[0][2], found[1][2], strict=True)]
    alone = sm.Loader(sm.open(str(packed)), 10, recipe=sm.recipes.eval(32, resize=32, dtype="uint8"), framework="numpy")
    assert list(map(sorted, together)) == [sorted(batch.ids.tolist()) for batch in alone]
    assert len(found[0][2]) == 5


def test_a_forked_child_iterates_anew_while_the_parent_goes_on(packed: Path) -> None:
    program = """
import os, sys, warnings
warnings.simplefilter("ignore")
import shardmill as sm
loader = sm.Loader(sm.open(sys.argv[1]), 8, recipe=sm.recipes.eval(32, resize=32), framework="numpy", threads=2)
running = iter(loader)
next(running)
pid = os.fork()
if pid == 0:
    loader.set_epoch(0)
    os._exit(0 if sum(len(batch) for batch in loader) == 48 else 1)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(code, sum(len(batch) for batch in running))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(packed)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.strip() == "0 40", done.stderr
