"""``shardmill doctor``: what this installation can do, what is missing, and what that costs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from shardmill.cli.show import as_json, console, size, table
from shardmill.native import native

HELP = "Check this installation: compiled decoder, torch, limits; says what is missing and what it costs."
EXAMPLE = "Example: [bold]shardmill doctor[/]   (exit code 1 where something is wrong)"

_COLOURS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "wrong": "[red]wrong[/]"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ``advice`` is empty where there is nothing to do."""

    subject: str
    state: Literal["ok", "note", "wrong"]
    found: str
    advice: str = ""


def run(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """See `HELP`."""
    findings = examine()
    if json:
        as_json([asdict(finding) for finding in findings])
    else:
        shown = table("", "what", "found", "to do")
        for finding in findings:
            shown.add_row(_COLOURS[finding.state], finding.subject, finding.found, finding.advice)
        console.print(shown)
    if any(finding.state == "wrong" for finding in findings):
        raise typer.Exit(1)


def examine() -> list[Finding]:
    """Looks at everything; reads a few files of /proc and /sys, writes nothing."""
    return [
        Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Finding("shardmill", "ok", importlib.metadata.version("shardmill")),
        _native(),
        _package("torch", "needed to train: pip install 'shardmill[torch]'; without it loaders give numpy arrays"),
        _cores(),
        _descriptors(),
        _shared_memory(),
        _huge_pages(),
    ]


def _native() -> Finding:
    if native is None:
        return Finding(
            "compiled decoder",
            "wrong",
            "missing: Pillow decodes, at less than half the rate",
            "install a C++ compiler and libjpeg-turbo's header (apt install g++ libjpeg-dev), then pip install again",
        )
    features = native.native_features()
    return Finding("compiled decoder", "ok", ", ".join(f"{name} {value}" for name, value in features.items()))


def _package(name: str, advice: str) -> Finding:
    try:
        return Finding(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "note", "not installed", advice)


def _cores() -> Finding:
    usable, all_of_them = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    if usable < all_of_them:
        return Finding(
            "cores",
            "note",
            f"{usable} of {all_of_them}",
            "this process may use only some cores: on Slurm ask for more with --cpus-per-task",
        )
    return Finding("cores", "ok", str(usable))


def _descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < 1024:
        return Finding("open files", "note", f"{soft} (hard limit {hard})", "ulimit -n 4096 keeps more shards open")
    return Finding("open files", "ok", str(soft))


def _shared_memory() -> Finding:
    if not Path("/dev/shm").is_dir():
        return Finding("/dev/shm", "note", "not there", "only DataLoader worker processes need it; our Loader does not")
    free = shutil.disk_usage("/dev/shm").free
    if free < 2**30:
        return Finding(
            "/dev/shm", "note", f"{size(free)} free", "DataLoader worker processes may need more (docker --shm-size)"
        )
    return Finding("/dev/shm", "ok", f"{size(free)} free")


def _huge_pages() -> Finding:
    switch = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if sys.platform != "linux" or not switch.exists():
        return Finding("huge pages", "note", "not supported here", "batches cost more page faults")
    chosen = switch.read_text().partition("[")[2].partition("]")[0]
    if chosen == "never":
        return Finding(
            "huge pages",
            "note",
            "never",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled saves page faults",
        )
    return Finding("huge pages", "ok", chosen)
