"""``shardmill demo``: the whole job on pictures made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HELP = "Make pictures, pack them, verify, train a small network, and compare with torchvision: about two minutes."
EXAMPLE = "Example: [bold]shardmill demo --images 2000 --folder /tmp/demo[/]"


def run(
    folder: Annotated[
        Path | None, typer.Option(help="Work here and keep everything; otherwise a temporary one.")
    ] = None,
    images: Annotated[int, typer.Option(help="How many pictures to make.", min=40)] = 4000,
) -> None:
    """See `HELP`."""
    from shardmill import demo

    demo.run(folder, images=images)
