"""How numbers, tables and JSON look on every screen."""

from __future__ import annotations

import json
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from shardmill.records import ImageFormat

# No emoji: a key that holds ":cat:" is shown as it is.
console = Console(highlight=False, emoji=False)
errors = Console(stderr=True, highlight=False, emoji=False)


def visible(text: str) -> str:
    """``text`` with its control characters written out: names in data must not steer the terminal they are shown on."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def literal(text: str, style: str = "") -> Text:
    """Text from the data, for a table or a line: neither its brackets nor its control characters mean anything."""
    return Text(visible(text), style)


def format_name(value: int) -> str:
    """The name of an `ImageFormat` as stored; an index may hold numbers that are none."""
    try:
        return ImageFormat(value).name
    except ValueError:
        return f"NONE ({value})"


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
        made.add_row(name, literal(value))
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
    """One JSON document on stdout, for machines: never wrapped, never coloured, ASCII whatever the locale."""
    print(json.dumps(value, indent=1))
