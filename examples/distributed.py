"""Training on several GPUs, or several machines, that can stop at any step and go on with another number of processes.

    torchrun --standalone --nproc-per-node 4 examples/distributed.py /data/imagenet --checkpoint run.pt
    torchrun --standalone --nproc-per-node 2 examples/distributed.py /data/imagenet --checkpoint run.pt    # goes on

The same on machines without GPUs (gloo instead of nccl), or as plain ``python`` with one process. For Slurm see
``slurm.sh`` beside this file. What makes it elastic:

- The *global* batch is fixed, and each process takes its share of it; the order of the samples depends on the global
  batch alone (`shardmill.loading.steps.default_lanes`).
- The loader's state is in the checkpoint. It is the same on every rank, so rank 0 saves it, and it fits any world size.
- The loss is divided by the number of samples of the step over all ranks, so that a short last step, which ranks share
  unequally, weighs each sample the same, whatever the world size.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import shardmill as sm
from shardmill.machine import usable_cores


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="what `shardmill pack` made")
    parser.add_argument("--checkpoint", type=Path, default=Path("run.pt"))
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--global-batch", type=int, default=256, help="over all processes; fixed for the whole run")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop-after", type=int, metavar="STEPS", help="save and end, as if the time were up")
    return parser.parse_args()


def network(classes: int) -> nn.Module:
    """A small one without batch norm, whose statistics would depend on how a batch is shared out."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, classes)
    )


def save(path: Path, checkpoint: dict[str, Any]) -> None:
    """All or nothing: a job killed here leaves the checkpoint before."""
    new = path.with_name(path.name + ".new")
    torch.save(checkpoint, new)
    new.replace(path)


def main() -> None:
    options = parse()
    gpu = torch.cuda.is_available()
    device = torch.device("cpu")
    # torchrun sets LOCAL_RANK; without it this is one process that needs no group.
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if gpu:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    grouped = "LOCAL_RANK" in os.environ
    if grouped:
        dist.init_process_group("nccl" if gpu else "gloo")
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if grouped else (0, 1)

    dataset = sm.open(options.dataset)
    loader = sm.Loader(
        dataset,
        batch_size=options.global_batch // world_size,
        recipe=sm.recipes.train(options.image_size),
        seed=options.seed,
        # Taken from torch.distributed where they are left out; here to show what they are.
        rank=rank,
        world_size=world_size,
        threads=max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))),
        device=device,
    )
    torch.manual_seed(options.seed)
    model: nn.Module = network(max(1, len(dataset.classes))).to(device)
    if grouped:
        model = DistributedDataParallel(model)
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    if options.checkpoint.exists():
        checkpoint = torch.load(options.checkpoint, map_location=device, weights_only=True)
        inner.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        # Refused, naming the field, if dataset, seed, global batch or recipe are not those of the checkpoint.
        loader.load_state_dict(checkpoint["loader"])

    def checkpoint_now() -> None:
        if rank == 0:
            parts = {"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            save(options.checkpoint, parts)

    done = 0
    for epoch in range(loader.epoch, options.epochs):
        # After load_state_dict the epoch of the state keeps its step.
        loader.set_epoch(epoch)
        for images, labels in loader:
            samples = torch.tensor(len(labels), device=device)
            if grouped:
                dist.all_reduce(samples)
            # DDP averages over ranks; a rank may have no sample in the last step, and still takes part.
            loss = cross_entropy(model(images), labels, reduction="sum") * world_size / samples
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done == options.stop_after:
                checkpoint_now()
                return
            if done % options.save_every == 0:
                checkpoint_now()
        # The ranks' parts of the loss, averaged, are the loss of the step.
        mean = loss.detach()
        if grouped:
            dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch}: {len(loader)} steps on each of {world_size} ranks, loss {mean / world_size:.4f}")
    checkpoint_now()


if __name__ == "__main__":
    try:
        main()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
