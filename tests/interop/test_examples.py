"""The examples for timm and Lightning: what needs neither runs, the rest compiles and says what is missing."""

from __future__ import annotations

import importlib.util
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from shardmill.shards.dataset import Dataset

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONFIG = {"input_size": (3, 16, 24), "interpolation": "bicubic", "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 0.9}


def example(name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_timm_loader_trains_a_model(dataset: Dataset) -> None:
    module = example("timm_loader")
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    for images, labels in module.create_loader(dataset, CONFIG, 6, training=True):
        assert tuple(images.shape) == (6, 3, 16, 24)
        torch.nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
    assert sum(len(labels) for _, labels in module.create_loader(dataset, CONFIG, 6, training=False)) == 13


def test_lightning_loaders_give_batches(urls: str) -> None:
    module = example("lightning_module")
    data = module.ShardLoaders(urls, urls, batch_size=4, size=16)
    assert [tuple(images.shape) for images, _ in data.train_dataloader()] == [(4, 3, 16, 16)] * 3
    assert sum(len(labels) for _, labels in data.val_dataloader()) == 13


@pytest.mark.parametrize(("name", "package"), [("timm_loader", "timm"), ("lightning_module", "lightning")])
def test_a_missing_package_is_named(name: str, package: str, urls: Any) -> None:
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    with pytest.raises(SystemExit, match=f"needs {package}: pip install"):
        example(name).main([urls])
