"""``shardmill ls``: the samples of a dataset, one a line."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import typer

from shardmill.cli.show import console, format_name, literal, size, table
from shardmill.errors import OptionsError
from shardmill.shards.dataset import Dataset
from shardmill.shards.open import open_dataset

HELP = "List samples: row, key, label, true format, size, shard. Reads only the index."
EXAMPLE = "Example: [bold]shardmill ls /data/imagenet-shards --start 1000 --count 20[/]"


def run(
    dataset: Annotated[str, typer.Argument(help="A packed dataset, or tars of others.")],
    start: Annotated[int, typer.Option(help="First row.", min=0)] = 0,
    count: Annotated[int, typer.Option(help="How many rows; 0: all.", min=0)] = 20,
    label: Annotated[int | None, typer.Option(help="Only this label.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """See `HELP`."""
    opened = open_dataset(dataset)
    if start >= len(opened):
        raise OptionsError(f"--start {start}: the dataset has rows 0 to {len(opened) - 1}")
    rows: Sequence[int] = range(start, len(opened))
    if label is not None:
        rows = (np.flatnonzero(opened.labels[start:] == label) + start).tolist()
    chosen = rows[:count] if count else rows
    if json:
        for row in chosen:
            print(json_module.dumps(describe(opened, row)))
        return
    shown = table(">row", "key", ">label", "class", "format", ">pixels", ">size", "shard")
    for row in chosen:
        d = describe(opened, row)
        pixels = f"{d['width']} x {d['height']}" if d["width"] else "?"
        shown.add_row(
            str(row),
            literal(d["key"]),
            str(d["label"]),
            literal(d["class"] or ""),
            d["format"],
            pixels,
            size(d["bytes"]),
            literal(d["shard"]),
        )
    console.print(shown)
    if len(chosen) < len(rows):
        console.print(f"[dim]{len(chosen):,} of {len(rows):,} rows; --count 0 shows all[/]")


def describe(dataset: Dataset, row: int) -> dict[str, Any]:
    """One row of the index as JSON types."""
    columns = dataset.index.columns
    label = int(dataset.labels[row])
    names = dataset.classes or ()
    return {
        "row": row,
        "key": dataset.keys[row],
        "label": label,
        "class": names[label] if 0 <= label < len(names) else None,
        "format": format_name(int(columns["image_format"][row])),
        "width": int(columns["width"][row]),
        "height": int(columns["height"][row]),
        "bytes": int(columns["image_bytes"][row]),
        "shard": dataset.shard_names[int(dataset.index.shard_of(np.array([row]))[0])],
        "offset": int(columns["image_offset"][row]),
    }
