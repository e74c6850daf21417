"""``shardmill cat``: the bytes of one field of one sample."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from shardmill.cli.show import as_json, console, literal, size
from shardmill.errors import OptionsError
from shardmill.shards.dataset import Dataset
from shardmill.shards.open import open_dataset

HELP = "Write one field of one sample to stdout or a file, checked against its crc32c."
EXAMPLE = "Example: [bold]shardmill cat /data/shards 17 --field jpg > 17.jpg[/]   (a row number or a key)"


# As many digits as any row has: Python refuses to convert thousands of them.
_NUMBER = re.compile(r"-?([0-9]{1,18})")


def run(
    dataset: Annotated[str, typer.Argument(help="A packed dataset, or tars of others.")],
    sample: Annotated[str, typer.Argument(help="Row number, or key.")],
    field: Annotated[
        str | None, typer.Option(help="Extension of the field; without it, the fields are listed.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="List the fields as JSON.")] = False,
) -> None:
    """See `HELP`."""
    opened = open_dataset(dataset)
    found = opened[row_of(opened, sample)]
    if field is None:
        fields = {name: len(data) for name, data in found.fields.items()}
        if json:
            as_json({"key": found.key, "label": found.label, "class": found.class_name, "fields": fields})
            return
        console.print(literal(found.key, "bold"), f" label {found.label} ", literal(found.class_name or ""))
        for name, count in fields.items():
            console.print(" ", literal(name), f" [dim]{size(count)}[/]")
        return
    if field not in found.fields:
        raise OptionsError(f"{found.key!r} has no field {field!r}; it has {', '.join(found.fields)}")
    data = found.fields[field]
    if out is not None:
        out.write_bytes(data)
    elif sys.stdout.isatty() and b"\0" in data[:1024]:
        raise OptionsError("this field is binary: redirect it, or use --out FILE")
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def row_of(dataset: Dataset, sample: str) -> int:
    """A row number as it is, else the row of a key: a search through all keys, O(bytes of keys).

    Digits with zeros before them, as many keys are, are a row only where no key is called so.
    """
    number = _NUMBER.fullmatch(sample)
    padded = number is not None and number[1] != str(int(number[1]))
    if number is not None and not (padded and dataset.index.keys.find(sample) >= 0):
        row = int(sample)
        if not -len(dataset) <= row < len(dataset):
            raise OptionsError(f"row {row}: the dataset has rows 0 to {len(dataset) - 1}")
        return row
    row = dataset.index.keys.find(sample)
    if row < 0:
        raise OptionsError(f"no sample has the key {sample!r}; `shardmill ls` shows keys")
    return row
