"""How numbers, tables and JSON look on every screen."""

from __future__ import annotations

import json
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def size(count: float) -> str:
    """Bytes for people: ``1.5 GB`` (powers of 1,000, as disks and networks are sold)."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table in the house style; a column that starts with ``>`` is aligned right."""
    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", header_style="bold", pad_edge=False)
    for name in columns:
        made.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    return made


def facts(rows: list[tuple[str, str]]) -> Table:
    """Names and values, two columns without a frame."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim")
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value)
    return made


def byte_bar(what: str, *, hidden: bool) -> Progress:
    """A progress bar over bytes, with rate and time left, on stderr; nothing where that is no terminal."""
    return Progress(
        TextColumn(what),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=errors,
        disable=hidden or not errors.is_terminal,
    )


def as_json(value: Any) -> None:
    """One JSON document on stdout, for machines: never wrapped, never coloured."""
    print(json.dumps(value, indent=1, ensure_ascii=False))
