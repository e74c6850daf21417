"""How the tour looks: headings, tiny pictures, the table of epochs, bars, the last panel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image
from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from shardmill.demo.comparison import Rates
from shardmill.demo.training import Epoch

GOAL = 0.90
"""Validation accuracy that the tour sets out to pass."""

_BAR = 24


def welcome(images: int) -> Panel:
    """The first thing on the screen: what will happen, and how long it takes."""
    plan = f"Here: {images:,} drawn pictures, packed, verified, trained on, raced.\n"
    text = Text.assemble(
        ("shardmill", "bold cyan"),
        " packs images into shuffled shards and feeds PyTorch from them.\n",
        plan,
        ("About two minutes on two cores. No download. Ctrl-C stops it cleanly.", "dim"),
    )
    return Panel(text, box=box.ROUNDED, border_style="cyan", padding=(0, 2))


def heading(number: int, title: str, what: str) -> Rule:
    """A line that opens step ``number``."""
    return Rule(
        Text.assemble((f" {number} ", "bold black on cyan"), (f" {title}", "bold"), (f" · {what}", "dim")),
        align="left",
        style="dim",
    )


def done(text: str, seconds: float) -> Text:
    """A step's result, with a tick and its time."""
    return Text.assemble(("✓ ", "bold green"), Text.from_markup(text), (f"  {seconds:.1f} s", "dim"))


def progress(console: Console) -> Progress:
    """A bar for a step whose length is known."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=_BAR * 2),
        MofNCompleteColumn(),
        TaskProgressColumn(show_speed=True),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def has_colours(console: Console) -> bool:
    """Whether pictures can be shown: a terminal with 256 colours or more."""
    return console.is_terminal and console.color_system in {"256", "truecolor"}


def gallery(pictures: Sequence[tuple[str, Image.Image]], console: Console) -> RenderableType:
    """Tiny pictures with their names, two pixels a character, side by side as the terminal's width allows."""
    columns = 5 if console.width >= 75 else 3
    wide = min(22, console.width // columns - 1)
    grid = Table.grid(padding=(0, 1, 0, 0))
    for _ in range(columns):
        grid.add_column(width=wide)
    tiles = [_tile(name, picture, wide) for name, picture in pictures]
    for i in range(0, len(tiles), columns):
        grid.add_row(*tiles[i : i + columns])
    return grid


def _tile(name: str, picture: Image.Image, wide: int) -> Text:
    high = wide * 3 // 4 // 2 * 2
    # The middle, at 4:3, so that every tile has one shape.
    width, height = picture.size
    box_width, box_height = min(width, height * 4 // 3), min(height, width * 3 // 4)
    left, top = (width - box_width) // 2, (height - box_height) // 2
    crop = (left, top, left + box_width, top + box_height)
    small = np.asarray(picture.convert("RGB").resize((wide, high), Image.Resampling.BOX, box=crop))
    text = Text(no_wrap=True)
    for upper, lower in zip(small[::2].tolist(), small[1::2].tolist(), strict=True):
        for above, below in zip(upper, lower, strict=True):
            text.append("▀", f"rgb({above[0]},{above[1]},{above[2]}) on rgb({below[0]},{below[1]},{below[2]})")
        text.append("\n")
    text.append(name, "dim")
    return text


def epochs_table(epochs: Sequence[Epoch], total: int) -> Table:
    """The figures of the passes so far; the accuracy as a bar, green past the goal."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("epoch", justify="right")
    table.add_column("loss", justify="right")
    table.add_column("validation accuracy", no_wrap=True)
    table.add_column("images/s", justify="right")
    table.add_column("waiting", justify="right")
    table.add_column("time", justify="right", style="dim")
    for epoch in epochs:
        bar = accuracy_bar(epoch.accuracy)
        bar.append(f" {epoch.accuracy:6.1%}", "bold green" if epoch.accuracy >= GOAL else "")
        cells = (f"{epoch.number}/{total}", f"{epoch.loss:.3f}", bar, f"{epoch.images_per_second:,.0f}")
        table.add_row(*cells, f"{epoch.waiting:.0%}", f"{epoch.seconds:.1f} s")
    if len(epochs) < total:
        table.add_row(f"[dim]{len(epochs) + 1}/{total}", "[dim]…", Text("─" * _BAR, "dim"), "", "", "")
    return table


def accuracy_bar(accuracy: float) -> Text:
    """A bar of fixed width for 0..1 with a tick at the goal."""
    full = round(accuracy * _BAR)
    mark = round(GOAL * _BAR)
    colour = "green" if accuracy >= GOAL else "cyan"
    text = Text("█" * full, colour)
    for i in range(full, _BAR):
        text.append("│" if i == mark else "─", "dim")
    return text


def rates_chart(rates: Sequence[Rates]) -> RenderableType:
    """Medians as bars on one scale, the spread of the rounds beside them, the ratio of the first two below."""
    top = max(rate.median for rate in rates)
    table = Table.grid(padding=(0, 2))
    for i, rate in enumerate(rates):
        style = "bold cyan" if i == 0 else "white"
        bar = Text("█" * max(1, round(rate.median / top * 18)), style)
        spread = f"{min(rate.rounds):,.0f} to {max(rate.rounds):,.0f}"
        table.add_row(Text(rate.name, style), bar, Text(f"{rate.median:,.0f} images/s", style), Text(spread, "dim"))
    if len(rates) < 2:
        return table
    ratio = f"{rates[0].median / rates[1].median:.1f} times"
    count = len(rates[0].rounds)
    rounds = " as fast" + (f" (medians of {count} rounds each, in turn)" if count > 1 else "")
    return Group(table, Text.assemble((ratio, "bold green"), rounds))


def farewell(facts: Sequence[tuple[str, str]], folder: str, *, kept: bool) -> Panel:
    """What was made, and what to type next."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, value)
    place = folder if kept else "DIR"
    code = (
        "import shardmill as sm\n"
        f'ds = sm.open("{place}")\n'
        "loader = sm.Loader(ds, batch_size=256, recipe=sm.recipes.train(224))\n"
        "for images, labels in loader:\n"
        "    ...  # float32 [256, 3, 224, 224] and int64 [256]"
    )
    commands = (
        ("pack your own", "shardmill pack path/to/images DIR"),
        ("look inside", f"shardmill info {place}    shardmill ls {place}"),
        ("measure", f"shardmill bench {place}"),
    )
    steps = Table.grid(padding=(0, 2))
    steps.add_column(style="dim")
    steps.add_column(style="bold", overflow="fold")
    for name, command in commands:
        steps.add_row(name, command)
    sample = Syntax(code, "python", theme="ansi_dark", background_color="default", word_wrap=True)
    return Panel(
        Group(table, "", steps, "", sample), title="[bold]done", box=box.ROUNDED, border_style="green", padding=(1, 2)
    )
