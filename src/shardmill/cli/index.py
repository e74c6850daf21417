"""``shardmill index``: make tars of others a full dataset, in place."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from shardmill.cli.show import as_json, byte_bar, console, size
from shardmill.errors import OptionsError
from shardmill.shards.bare import index_tars
from shardmill.shards.manifest import MANIFEST
from shardmill.shards.open import tars_in

HELP = "Index tars of others where they lie: rows, labels, sizes and checksums. The tars are only read."
EXAMPLE = "Example: [bold]shardmill index /data/laion-tars[/]   (then shardmill info, verify, bench work on it)"


def run(
    folder: Annotated[Path, typer.Argument(help="The directory that holds the tars.")],
    checksums: Annotated[
        bool,
        typer.Option(help="Read everything once for crc32c, sha256 and image sizes; --no-checksums: headers only."),
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Replace an index that is there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """See `HELP`."""
    if not folder.is_dir():
        raise OptionsError(f"{folder} is not a directory")
    if (folder / MANIFEST).exists() and not force:
        raise OptionsError(f"{folder / MANIFEST} is there already: --force replaces it")
    if not os.access(folder, os.W_OK):
        # Said before everything is read, not after.
        raise OptionsError(f"{folder} cannot be written to, and the index lies beside the tars: they open without one")
    tars = tars_in(folder)
    started = time.monotonic()
    with byte_bar("indexing", hidden=json) as bar:
        task = bar.add_task("index", total=sum(path.stat().st_size for path in tars))
        manifest = index_tars(
            tars, root=folder, dest=folder, checksums=checksums, done=lambda count: bar.advance(task, count)
        )
    seconds = time.monotonic() - started
    if json:
        as_json({"path": str(folder), "samples": manifest.samples, "shards": manifest.shards, "seconds": seconds})
        return
    console.print(
        f"[green]indexed[/] {manifest.samples:,} samples in {manifest.shards:,} tars, {size(manifest.total_bytes)}, "
        f"in {seconds:.1f} s"
    )
