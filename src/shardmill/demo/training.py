"""A small convolutional network, trained on the CPU: the proof that what the loader gives can be learned from."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn


class Batches(Protocol):
    """What training asks of a loader: batches that unpack as images [n, 3, H, W] and labels [n], epoch by epoch."""

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...

    def set_epoch(self, epoch: int) -> None:
        """Choose the order and the random crops of the next pass."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """How one pass went.

    ``loss``: mean cross-entropy over the training batches. ``accuracy``: share of validation images named rightly,
    0..1. ``images_per_second``: training images, network and all. ``waiting``: share of that time in which the
    network stood still for want of a batch, 0..1. ``seconds``: training and validation together.
    """

    number: int
    loss: float
    accuracy: float
    images_per_second: float
    waiting: float
    seconds: float


def train(training: Batches, validation: Iterable[Any], *, classes: int, epochs: int, seed: int = 0) -> Iterator[Epoch]:
    """Train for ``epochs`` passes, giving each one's figures as it ends.

    SGD with a one-cycle learning rate; the same seed gives the same weights on the same machine and torch version.
    """
    import torch

    threads = torch.get_num_threads()
    # The loader decodes on the other half. OpenMP's threads spin while they wait for each other, so that one more than
    # there are idle cores costs not a share of the rate but nearly all of it: 40 images/s for 800 on a busy machine.
    torch.set_num_threads(max(1, threads // 2))
    try:
        yield from _train(training, validation, classes=classes, epochs=epochs, seed=seed)
    finally:
        torch.set_num_threads(threads)


def _train(training: Batches, validation: Iterable[Any], *, classes: int, epochs: int, seed: int) -> Iterator[Epoch]:
    import torch
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    torch.manual_seed(seed)
    network = small_network(classes)
    # Single steps of so short a training jump about; the mean of the last fifty or so is what one would keep.
    averaging = get_ema_multi_avg_fn(0.96)  # type: ignore[no-untyped-call]
    averaged = AveragedModel(network, multi_avg_fn=averaging, use_buffers=True)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    steps = max(epochs * len(training), 2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=0.05, total_steps=steps)
    for number in range(epochs):
        start = time.perf_counter()
        training.set_epoch(number)
        network.train()
        losses, seen, waited = 0.0, 0, 0.0
        asked = start
        for images, labels in training:
            waited += time.perf_counter() - asked
            loss = torch.nn.functional.cross_entropy(network(_channels_last(images)), labels)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            averaged.update_parameters(network)
            losses += float(loss.detach()) * len(labels)
            seen += len(labels)
            asked = time.perf_counter()
        trained = time.perf_counter() - start
        accuracy = _accuracy(averaged, validation)
        seconds = time.perf_counter() - start
        yield Epoch(number + 1, losses / seen, accuracy, seen / trained, waited / trained, seconds)


def small_network(classes: int) -> nn.Module:
    """Six 3 x 3 convolutions, 16 to 128 channels, halving the picture four times: 0.24 M weights for any size."""
    import torch
    from torch import nn

    def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))

    shape = [(3, 16, 2), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)]
    blocks = [block(*step) for step in shape]
    network = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))
    # Channels last: 1.4 times faster than planes for these convolutions on a CPU.
    return network.to(memory_format=torch.channels_last)


def _channels_last(images: Tensor) -> Tensor:
    import torch

    return images.contiguous(memory_format=torch.channels_last)


def _accuracy(network: nn.Module, validation: Iterable[Any]) -> float:
    import torch

    network.eval()
    right = seen = 0
    with torch.inference_mode():
        for images, labels in validation:
            right += int((network(_channels_last(images)).argmax(1) == labels).sum())
            seen += len(labels)
    return right / seen
