"""``shardmill pack``: any pile of images into shards."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from shardmill.cli.show import as_json, console, facts, literal, size
from shardmill.errors import OptionsError
from shardmill.images.encode import Encode
from shardmill.shards.packing import pack
from shardmill.sources.open import open_source

HELP = "Pack a folder, a tar, a tar of tars or WebDataset tars into globally shuffled, indexed shards."
EXAMPLE = (
    "Examples: [bold]shardmill pack photos/ /data/shards[/]   "
    "[bold]shardmill pack ILSVRC2012_img_train.tar /data/imagenet --workers 8 --memory 4GiB[/]   "
    "[bold]shardmill pack 'laion-{00000..00999}.tar' /data/laion --encode resize=512,quality=90[/]"
)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def run(
    source: Annotated[str, typer.Argument(help="Folder, tar, tar of tars, or a pattern of tars.")],
    dest: Annotated[Path, typer.Argument(help="Directory for the dataset; new or empty.")],
    shard_bytes: Annotated[str, typer.Option(help="Largest size of a shard, like 256MiB or 1GB.")] = "256MiB",
    shard_samples: Annotated[int | None, typer.Option(help="Most samples of a shard.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of the shuffle: same source and seed, same bytes.")] = 0,
    workers: Annotated[int | None, typer.Option(help="Processes; default: one per usable core.", min=1)] = None,
    memory: Annotated[str, typer.Option(help="Memory of all processes together.")] = "1GiB",
    scratch: Annotated[Path | None, typer.Option(help="Directory for temporary files; default: in DEST.")] = None,
    labels: Annotated[Path | None, typer.Option(help="JSON file {file: label} for a flat folder.")] = None,
    encode: Annotated[
        str | None, typer.Option(help="Re-encode, like resize=512,quality=90; default: keep bytes.")
    ] = None,
    name: Annotated[str, typer.Option(help="Shards are called NAME-000000.tar.")] = "shard",
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted pack.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """See `HELP`."""
    report = pack(
        open_source(source, labels=labels),
        dest,
        shard_bytes=parse_size(shard_bytes),
        shard_samples=shard_samples,
        seed=seed,
        workers=workers,
        memory_bytes=parse_size(memory),
        scratch=scratch,
        encode=None if encode is None else Encode.parse(encode),
        resume=resume,
        progress=not json,
        name=name,
    )
    if json:
        as_json({**asdict(report), "dest": str(report.dest), "seconds": dict(report.seconds)})
        return
    rate = report.bytes / report.total_seconds if report.total_seconds else 0.0
    console.print(
        f"[green]packed[/] {report.samples:,} samples into {report.shards:,} shards, {size(report.bytes)}, "
        f"in {report.total_seconds:.1f} s ({size(rate)}/s)"
    )
    for note in report.notes:
        console.print("[yellow]note[/]  ", literal(note))
    console.print(facts([("look", f"shardmill info {dest}"), ("check", f"shardmill verify {dest}")]))


def parse_size(text: str) -> int:
    """Bytes from ``"256MiB"``, ``"1GB"``, ``"4g"`` or a plain number; powers of 1,024 only with the ``i``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text, re.IGNORECASE)
    if match is None or match[2].lower() not in _UNITS:
        raise OptionsError(f"{text!r} is not a size: write it like 256MiB, 1GB or 1000000")
    count = float(match[1]) * _UNITS[match[2].lower()]
    if count >= 2**63:
        raise OptionsError(f"{text[:40]!r} is more than any disk holds")
    return int(count)
