"""Two real gloo processes, each with DataLoader workers: every sample once over all workers of all ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# Spawned workers have no process group: what they know of ranks they were told when they were pickled.
SCRIPT = """
import json, sys, warnings
import torch.distributed as dist
from torch.utils.data import DataLoader
from shardmill.images import recipes
from shardmill.interop import webdataset as wds
from shardmill.interop.torch import IterableShards
from shardmill.shards.open import open_dataset

def main():
    warnings.filterwarnings("error")
    warnings.filterwarnings("ignore", "This DataLoader will create")
    urls, meeting, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
    stream = wds.WebDataset(urls, shardshuffle=True).to_tuple("__key__")
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    shards = IterableShards(open_dataset(urls), 2, recipe=recipes.eval(8, resize=8), threads=1)
    spawned, forked = {"multiprocessing_context": "spawn", "num_workers": 1}, {"num_workers": 2}
    how = [spawned, forked] if rank == 0 else [forked, spawned]
    keys = [key for (key,) in DataLoader(stream, batch_size=None, **how[0])]
    batches = [batch.ids.tolist() for batch in DataLoader(shards, batch_size=None, **how[1])]
    steps = len(shards)
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps([keys, batches, steps]))

if __name__ == "__main__":
    main()
"""


def test_two_ranks_with_workers_see_every_sample_once(urls: str, tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(SCRIPT)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), urls, str(tmp_path / "meeting"), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    results = []
    for process in ranks:
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
        results.append(json.loads(out))
    assert sorted(key for keys, _, _ in results for key in keys) == [f"folder/s{i:03d}" for i in range(13)]
    assert sorted(i for _, batches, _ in results for batch in batches for i in batch) == list(range(13))
    assert [len(batches) for _, batches, _ in results] == [steps for _, _, steps in results] == [4, 4]
