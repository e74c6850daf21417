"""timm's ``create_loader`` on shardmill: the same pictures for a model's data config, from shards.

    python examples/timm_loader.py shards/ --model resnet18

timm's loader takes a data set, its worker processes and a prefetcher; here one call takes an opened data set. What it
gives is the same: batches of (images, labels), normalised as the model's config says.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import shardmill as sm
from shardmill.images.recipe import CenterCrop, HorizontalFlip, Normalize, RandomResizedCrop, Recipe, Resize


def recipe_for(config: Mapping[str, Any], *, training: bool) -> Recipe:
    """A recipe from ``timm.data.resolve_data_config(model=model)``: input_size, interpolation, mean, std, crop_pct."""
    size = tuple(config["input_size"][-2:])
    # timm's default for training draws bilinear or bicubic for each image; a recipe has one filter.
    filter_ = config["interpolation"] if config["interpolation"] in ("bilinear", "bicubic") else "bicubic"
    normalize = Normalize(tuple(config["mean"]), tuple(config["std"]))
    if training:
        return Recipe((RandomResizedCrop(size, filter=filter_), HorizontalFlip(), normalize))
    return Recipe((Resize(int(max(size) / config["crop_pct"]), filter=filter_), CenterCrop(size), normalize))


def create_loader(
    dataset: sm.Dataset,
    config: Mapping[str, Any],
    batch_size: int,
    *,
    training: bool,
    seed: int = 42,
    device: Any = None,
) -> sm.Loader:
    """In place of ``timm.data.create_loader``. In place of ``loader.sampler.set_epoch(e)``: ``loader.set_epoch(e)``."""
    return sm.Loader(
        dataset,
        batch_size,
        recipe=recipe_for(config, training=training),
        seed=42,
        shuffle=training,
        last="drop" if training else "keep",
        device=device,
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", help="what `shardmill pack` wrote, or tars")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(argv)
    try:
        import timm
        import torch
    except ImportError as error:
        raise SystemExit(f"this example needs {error.name}: pip install timm") from error

    dataset = sm.open(options.dataset)
    classes = len(dataset.classes) if dataset.classes else int(dataset.labels.max()) + 1
    model = timm.create_model(options.model, num_classes=classes).to(options.device)
    config = timm.data.resolve_data_config(model=model)
    optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3)
    for images, labels in create_loader(dataset, config, options.batch_size, training=True, device=options.device):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
