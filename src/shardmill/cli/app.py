"""The program: its verbs, and what an error looks like.

Exit codes: 0 done, 1 the job failed, 2 bad use, 130 interrupted. An error is one line on stderr; ``--debug`` shows the
traceback instead.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from shardmill.cli import bench, cat, demo, doctor, index, info, ls, pack, verify
from shardmill.cli.show import errors, visible
from shardmill.errors import OptionsError, ShardmillError

app = typer.Typer(
    name="shardmill",
    help="Pack any pile of images into globally shuffled, indexed shards, and feed them to PyTorch at native speed.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for _verb in (pack, index, info, ls, cat, verify, bench, doctor, demo):
    app.command(_verb.__name__.rpartition(".")[2], help=_verb.HELP, epilog=_verb.EXAMPLE)(_verb.run)


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Taken out of the arguments by `main`, so that it works before and after the verb; here for ``--help``."""


def main(arguments: list[str] | None = None) -> None:
    """Runs one command and exits the process with its code."""
    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in given
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the locale cannot write is shown escaped, not answered with a traceback.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(args=[a for a in given if a != "--debug"], prog_name="shardmill")
    except SystemExit as stop:
        # Click turns a closed pipe into exit code 1 and says nothing.
        if isinstance(stop.__context__, BrokenPipeError):
            sys.exit(_report(stop.__context__))
        raise
    except (ShardmillError, OSError, KeyboardInterrupt) as error:
        if debug:
            raise
        sys.exit(_report(error))


def _report(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        errors.print("\n[yellow]interrupted[/]")
        return 130
    if isinstance(error, BrokenPipeError):
        # `shardmill ls | head`: the reader has what it wanted. Python would complain once more while closing stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    errors.print("[bold red]error:[/] ", end="")
    errors.print(visible(str(error)), markup=False, highlight=False, soft_wrap=True)
    for note in getattr(error, "__notes__", ()):
        errors.print(f"       {visible(note)}", markup=False, highlight=False, soft_wrap=True)
    return 2 if isinstance(error, OptionsError) else 1
