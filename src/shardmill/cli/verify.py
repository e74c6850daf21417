"""``shardmill verify``: read everything, list every fault."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from shardmill.cli.show import as_json, byte_bar, console, literal, size, table, visible
from shardmill.shards.verify import verify

HELP = (
    "Check every digest of a dataset and list every fault, with shard, key and offset. Exit code 1 where there is one."
)
EXAMPLE = "Example: [bold]shardmill verify /data/imagenet-shards[/]"


def run(
    dataset: Annotated[Path, typer.Argument(help="A packed or indexed dataset.")],
    workers: Annotated[int | None, typer.Option(help="Processes; default: one per usable core.", min=1)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """See `HELP`."""
    with byte_bar("verifying", hidden=json) as bar:
        task = bar.add_task("verify", total=None)
        report = verify(
            dataset, workers=workers, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    if json:
        as_json({**asdict(report), "path": str(report.path), "ok": report.ok})
    elif report.ok:
        console.print(
            f"[green]sound[/] {report.samples:,} samples in {report.shards:,} shards, {size(report.bytes)}"
            + ("" if report.checksums else ", [yellow]but without checksums: only structure was checked[/]")
        )
    else:
        shown = table("file", ">offset", "key", "fault")
        for fault in report.faults:
            offset = "" if fault.offset is None else str(fault.offset)
            shown.add_row(literal(fault.path), offset, literal(fault.key or ""), literal(fault.problem))
        console.print(shown)
        place = escape(visible(str(report.path)))
        console.print(f"[bold red]{len(report.faults):,} faults[/] in {place}: copy or pack the named files again")
    if not report.ok:
        raise typer.Exit(1)
