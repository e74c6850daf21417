"""ImageNet training, resumable at any step: PyTorch's ImageNet example as ImageNetTools has it, on shardmill.

    python examples/train_imagenet.py shards/train shards/val -a resnet50 -b 256 --lr 0.1
    torchrun --standalone --nproc-per-node 8 examples/train_imagenet.py shards/train shards/val -a resnet50 -b 2048
    python examples/train_imagenet.py shards/train shards/val --resume runs/checkpoint.pth.tar

The arguments are the original's, but: ``-b`` is the batch of all processes together, so that the number of processes
changes nothing but the speed; ``-j`` is the number of decoding threads of a process; torchrun replaces --world-size,
--rank, --dist-url and --multiprocessing-distributed. Labels count from 0, as packing gives them.

A checkpoint holds the loader's state: training that is killed and resumed sees exactly the batches that it would have
seen, with the same or another number of processes. ``--log-batches FILE`` writes what it saw, to compare.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import shardmill as sm


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("traindata", help="training data: what shardmill.open takes, a packed dataset or tars by pattern")
    add("valdata", help="validation data, likewise")
    add("-a", "--arch", default="resnet18", help="a model of torchvision, or MODULE:FUNCTION (default: resnet18)")
    add("-j", "--workers", type=int, metavar="N", help="decoding threads of a process (default: its cores)")
    add("--epochs", type=int, default=90, metavar="N", help="epochs in all (default: 90)")
    add("--start-epoch", type=int, metavar="N", help="begin with this epoch instead of where the checkpoint stands")
    add("-b", "--batch-size", type=int, default=256, metavar="N", help="of all processes together (default: 256)")
    add("--lr", "--learning-rate", type=float, default=0.1, help="initial learning rate (default: 0.1)")
    add("--momentum", type=float, default=0.9, metavar="M", help="(default: 0.9)")
    add("--wd", "--weight-decay", type=float, default=1e-4, dest="weight_decay", metavar="W", help="(default: 1e-4)")
    add("-p", "--print-freq", type=int, default=10, metavar="N", help="print every N steps (default: 10)")
    add("--resume", type=Path, metavar="PATH", help="checkpoint to go on from")
    add("-e", "--evaluate", action="store_true", help="evaluate on the validation data and end")
    add(
        "--pretrained", nargs="?", const="DEFAULT", metavar="WEIGHTS",
        help="begin with torchvision's weights (DEFAULT, or a name such as IMAGENET1K_V1), or those of a file",
    )  # fmt: skip
    add("-c", "--classes", type=int, metavar="N", help="number of classes (default: those of the training data)")
    add("--seed", type=int, default=0, help="of weights, order and crops (default: 0)")
    add("--deterministic", action="store_true", help="the same weights bit by bit on a GPU, too; slower")
    add("--amp", action=argparse.BooleanOptionalAction, help="bfloat16 autocast (default: on a GPU)")
    add("--size", type=int, default=224, help="pixels of a side (default: 224)")
    add("-o", "--output", type=Path, default=Path(), metavar="DIR", help="where checkpoints go (default: here)")
    add("--save-every", type=int, metavar="STEPS", help="save within an epoch, too")
    add("--log-batches", type=Path, metavar="FILE", help="append ids and pixel hashes of every step, a line of JSON")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    with process_group():
        run(args)


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    if not dist.is_torchelastic_launched():
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def run(args: argparse.Namespace) -> None:
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    args.amp = device.type == "cuda" if args.amp is None else args.amp
    torch.backends.cudnn.benchmark = not args.deterministic
    torch.use_deterministic_algorithms(args.deterministic)
    if args.batch_size % world_size:
        raise SystemExit(f"a batch of {args.batch_size} cannot be shared by {world_size} processes")

    # NHWC in memory is what channels_last convolutions read; bfloat16 is half the bytes to copy.
    form: Any = {"dtype": "bfloat16" if args.amp else "float32", "order": "NHWC"}
    # The processes of a machine share its cores.
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    options: Any = {"seed": args.seed, "threads": args.workers or max(1, cores), "device": device}
    train_data, val_data = sm.open(args.traindata), sm.open(args.valdata)
    batch_size = args.batch_size // world_size
    train_loader = sm.Loader(train_data, batch_size, recipe=sm.recipes.train(args.size, **form), last="drop", **options)
    val_loader = sm.Loader(
        val_data, batch_size, recipe=sm.recipes.eval(args.size, resize=args.size * 256 // 224, **form),
        shuffle=False, **options,
    )  # fmt: skip

    torch.manual_seed(args.seed)
    classes = args.classes or len(train_data.classes or ()) or int(train_data.labels.max()) + 1
    bare = create_model(args.arch, classes, args.pretrained).to(device, memory_format=torch.channels_last)
    model = DistributedDataParallel(bare) if dist.is_initialized() else bare
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    best_acc1 = 0.0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=device, weights_only=True)
        bare.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        train_loader.load_state_dict(checkpoint["loader"])
        best_acc1 = checkpoint["best_acc1"]
        say(f"=> resumed '{args.resume}' at epoch {train_loader.epoch}, step {checkpoint['loader']['step']}")
    if args.evaluate:
        validate(val_loader, bare, device, args)
        return

    def save(name: str, **more: Any) -> None:
        if rank == 0:
            state = {"arch": args.arch, "state_dict": bare.state_dict(), "optimizer": optimizer.state_dict()}
            write(args.output / name, {**state, "loader": train_loader.state_dict(), "best_acc1": best_acc1, **more})

    for epoch in range(train_loader.epoch if args.start_epoch is None else args.start_epoch, args.epochs):
        train_loader.set_epoch(epoch)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * 0.1 ** (epoch // 30)
        model.train()
        first = int(train_loader.state_dict()["step"])
        losses = seen = 0.0
        begun = time.perf_counter()
        for step, batch in enumerate(train_loader, first):
            # What dropout draws is a function of seed, step and rank, too: a resumed run draws the same.
            torch.manual_seed(args.seed + (epoch * len(train_loader) + step) * world_size + rank)
            if args.log_batches:
                log(args.log_batches, epoch, step, batch)
            with torch.autocast(device.type, torch.bfloat16, enabled=args.amp):
                loss = nn.functional.cross_entropy(model(batch.images.permute(0, 3, 1, 2)), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses, seen = losses + loss.detach(), seen + 1
            if (step + 1) % args.print_freq == 0 or step + 1 == len(train_loader):
                rate = seen * args.batch_size / (time.perf_counter() - begun)
                say(f"epoch {epoch} step {step + 1}/{len(train_loader)} loss {losses / seen:.4f} {rate:.0f} images/s")
            # The last step is saved below, when it is known how good the epoch was.
            if args.save_every and (step + 1) % args.save_every == 0 and step + 1 < len(train_loader):
                save("checkpoint.pth.tar")
        acc1 = validate(val_loader, bare, device, args)
        if acc1 > best_acc1:
            best_acc1 = acc1
            save("model_best.pth.tar")
        save("checkpoint.pth.tar")


@torch.no_grad()
def validate(loader: sm.Loader, model: nn.Module, device: torch.device, args: argparse.Namespace) -> float:
    """Top-1 accuracy in percent over all processes: every sample counts exactly once."""
    model.eval()
    # Samples right at first, right among five, and all.
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    loader.set_epoch(0)
    for images, labels in loader:
        # The last step may leave a process without a sample.
        if len(labels):
            with torch.autocast(device.type, torch.bfloat16, enabled=args.amp):
                output = model(images.permute(0, 3, 1, 2))
            right = output.topk(min(5, output.shape[1])).indices == labels[:, None]
            sums += torch.stack([right[:, 0].sum(), right.sum(), torch.tensor(len(labels), device=device)])
    if dist.is_initialized():
        dist.all_reduce(sums)
    acc1, acc5, count = (100 * sums[0] / sums[2]).item(), (100 * sums[1] / sums[2]).item(), int(sums[2])
    say(f" * Acc@1 {acc1:.3f} Acc@5 {acc5:.3f} of {count} images")
    return acc1


def create_model(arch: str, classes: int, pretrained: str | None) -> nn.Module:
    """A new model with ``classes`` outputs; where weights are given, all of them but those that do not fit the head."""
    module, _, function = arch.partition(":")
    if function:
        model = getattr(importlib.import_module(module), function)(num_classes=classes)
    else:
        import torchvision  # 1.5 s, which a model of one's own need not wait for

        if arch not in torchvision.models.list_models(torchvision.models):
            raise SystemExit(f"-a {arch}: not a model of torchvision, and not MODULE:FUNCTION")
        model = torchvision.models.get_model(arch, num_classes=classes)
    if pretrained is None:
        return model
    if Path(pretrained).is_file():
        weights = torch.load(pretrained, map_location="cpu", weights_only=True)
        weights = weights.get("state_dict", weights)
    elif function:
        raise SystemExit(f"--pretrained {pretrained}: no such file, and torchvision has no weights for {arch}")
    else:
        weights = torchvision.models.get_model_weights(arch)[pretrained].get_state_dict(progress=False)
    own = model.state_dict()
    fits = {name: value for name, value in weights.items() if name in own and own[name].shape == value.shape}
    if left := sorted(set(own) - set(fits)):
        say(f"=> not in the weights, or of another shape, and so begun anew: {', '.join(left)}")
    model.load_state_dict(fits, strict=False)
    return model


def write(path: Path, state: dict[str, Any]) -> None:
    """At every moment the path holds a whole checkpoint: the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def log(path: Path, epoch: int, step: int, batch: sm.Batch) -> None:
    """A line of JSON with the ids of the step and a hash of the pixels and the label of each."""
    pixels = batch.images.cpu().contiguous().view(torch.uint8).numpy()
    hashes = [
        hashlib.sha256(image.tobytes() + str(label).encode()).hexdigest()[:16]
        for image, label in zip(pixels, batch.labels.tolist(), strict=True)
    ]
    line = json.dumps({"epoch": epoch, "step": step, "samples": dict(zip(batch.ids.tolist(), hashes, strict=True))})
    # One write to a file opened for appending: lines of several processes do not mix.
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode() + b"\n")
    finally:
        os.close(handle)


def say(text: str) -> None:
    """Prints on the first process."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
