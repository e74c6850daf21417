"""PyTorch Lightning on shardmill: the loader stands where a DataLoader would.

    python examples/lightning_module.py shards/ --epochs 2

Lightning takes any iterable from ``train_dataloader``. The hook is called when torch.distributed is up, so the loader
finds its rank by itself, and there is no sampler to replace. Every ``for`` over the loader is the next epoch. Lightning
may fetch a batch ahead of the step it trains, so a state saved in the middle of an epoch can stand one step ahead; at
the end of an epoch it is exact.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import shardmill as sm


class ShardLoaders:
    """The data side of a LightningModule or LightningDataModule, to be mixed in."""

    def __init__(self, train: str, val: str, *, batch_size: int = 64, size: int = 224, seed: int = 0) -> None:
        super().__init__()
        self.train_shards, self.val_shards = train, val
        self.batch_size, self.image_size, self.seed = batch_size, size, seed

    def train_dataloader(self) -> sm.Loader:
        recipe = sm.recipes.train(self.image_size)
        # "drop": equal shapes on all ranks, as DDP and compiled models like them.
        return sm.Loader(sm.open(self.train_shards), self.batch_size, recipe=recipe, seed=self.seed, last="drop")

    def val_dataloader(self) -> sm.Loader:
        recipe = sm.recipes.eval(self.image_size, resize=round(self.image_size / 0.875))
        return sm.Loader(sm.open(self.val_shards), self.batch_size, recipe=recipe, shuffle=False)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", help="what `shardmill pack` wrote, or tars")
    parser.add_argument("--val", help="the same for validation (default: the training shards)")
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args(argv)
    try:
        import lightning
        import torch
        import torchvision
    except ImportError as error:
        raise SystemExit(f"this example needs {error.name}: pip install lightning torchvision") from error

    class Classifier(ShardLoaders, lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__(options.train, options.val or options.train)
            labels = sm.open(options.train).labels
            self.model = torchvision.models.resnet18(num_classes=int(labels.max()) + 1)

        def training_step(self, batch: tuple[torch.Tensor, ...], index: int) -> torch.Tensor:
            images, labels = batch
            return torch.nn.functional.cross_entropy(self.model(images), labels)

        def validation_step(self, batch: tuple[torch.Tensor, ...], index: int) -> None:
            images, labels = batch
            self.log("accuracy", (self.model(images).argmax(1) == labels).float().mean(), batch_size=len(labels))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

        def transfer_batch_to_device(
            self, batch: sm.Batch, device: torch.device, index: int
        ) -> tuple[torch.Tensor, ...]:
            # Lightning moves what it knows, and a Batch it does not.
            images, labels = batch
            return images.to(device, non_blocking=True), labels.to(device, non_blocking=True)

    lightning.Trainer(max_epochs=options.epochs).fit(Classifier())


if __name__ == "__main__":
    main()
