"""Samples to a batch, as webdataset's ``batched`` does by default."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardmill.errors import OptionsError


def collate(samples: Sequence[Any], combine_tensors: bool = True, combine_scalars: bool = True) -> Any:
    """Tuples (or dicts) of values to one tuple (or dict) of columns.

    Numbers become a numpy array, numpy arrays and tensors of one shape are stacked, anything else is a list. The first
    sample decides the type of a column. Raises `OptionsError` where samples have different fields or shapes.
    """
    first = samples[0]
    if isinstance(first, dict):
        if any(set(sample) != set(first) for sample in samples):
            raise OptionsError("samples of one batch have different fields: pick some with to_tuple or select first")
        return {name: _column([sample[name] for sample in samples], combine_tensors, combine_scalars) for name in first}
    if not isinstance(first, list | tuple):
        raise OptionsError(f"a batch is made of tuples or dicts, got {type(first).__name__}")
    if any(len(sample) != len(first) for sample in samples):
        raise OptionsError("samples of one batch have different numbers of entries")
    return tuple(_column(list(column), combine_tensors, combine_scalars) for column in zip(*samples, strict=True))


def _column(values: list[Any], combine_tensors: bool, combine_scalars: bool) -> Any:
    first = values[0]
    torch: Any = sys.modules.get("torch")  # a tensor cannot be here unless somebody imported torch
    if isinstance(first, int | float):
        return np.array(values) if combine_scalars else values
    if torch is not None and isinstance(first, torch.Tensor):
        return torch.stack(_same_shape(values)) if combine_tensors else values
    if isinstance(first, np.ndarray):
        return np.array(_same_shape(values)) if combine_tensors else values
    return values


def _same_shape(values: list[Any]) -> list[Any]:
    if len(shapes := {tuple(value.shape) for value in values}) > 1:
        raise OptionsError(
            f"images of one batch have different shapes, {', '.join(map(str, sorted(shapes)))}: crop or resize them "
            "to one size before batched"
        )
    return values
