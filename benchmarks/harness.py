"""What every benchmark needs: fresh processes with their memory watched, a warm page cache, medians, tables."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT.parent / "shared" / "data" / "imagenet-sample"
WORK_DIR = Path(tempfile.gettempdir()) / "shardmill-bench"


@dataclass(frozen=True, slots=True)
class Ended:
    """A child process that has ended. ``peak_pss_mib``: highest sum over its tree of proportional set sizes.

    ``peak_private_mib``: the same for anonymous and shared memory only, without mapped files.
    """

    returncode: int
    output: str
    seconds: float
    peak_pss_mib: float
    peak_private_mib: float


def run_watched(command: Sequence[str], *, interval_s: float = 0.25, timeout_s: float = 900) -> Ended:
    """Runs ``command`` in the project's root and samples the memory of its process tree until it ends.

    A sample costs about 1 ms a process (``smaps_rollup``), so 4 a second take under 2 % of a core.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=environment)
        tree = psutil.Process(child.pid)
        peak = [0, 0]
        done = threading.Event()

        def watch() -> None:
            while not done.wait(interval_s):
                for i, kib in enumerate(tree_memory_kib(tree)):
                    peak[i] = max(peak[i], kib)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            child.wait(timeout_s)
        except BaseException:
            for process in [*tree.children(recursive=True), tree]:
                process.kill()
            child.wait()
            raise
        finally:
            done.set()
            watcher.join()
        seconds = time.perf_counter() - started
        log.seek(0)
        output = log.read().decode(errors="replace")
    return Ended(child.returncode, output, seconds, peak[0] / 1024, peak[1] / 1024)


def tree_memory_kib(process: psutil.Process) -> tuple[int, int]:
    """(PSS, anonymous + shared PSS) of ``process`` and its descendants; those that end meanwhile count as 0."""
    total = private = 0
    try:
        tree = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0, 0
    for one in tree:
        try:
            text = Path(f"/proc/{one.pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
        total += sizes["Pss"]
        private += sizes["Pss_Anon"] + sizes["Pss_Shmem"]
    return total, private


def warm(paths: Iterable[Path]) -> None:
    """Reads whole files (and folders of them), so that a run finds them in the page cache.

    Needed before every run: a kernel that reclaims cold pages empties the cache within minutes (DAMON does).
    """
    buffer = bytearray(1 << 20)
    for path in paths:
        if path.is_dir():
            warm(sorted(path.iterdir()))
        else:
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, lowest and highest of the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 0, unit: str = "") -> str:
        """``median (low-high)``, or the one value where there was one round."""
        if self.low == self.high:
            return f"{self.median:.{digits}f}{unit}"
        return f"{self.median:.{digits}f}{unit} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def paired(values: Sequence[float], reference: Sequence[float]) -> Spread:
    """The ratio within each round: a host that drifts between rounds cancels out."""
    return Spread.of([value / other for value, other in zip(values, reference, strict=True)])


def machine() -> str:
    """One line: processor, cores, memory, system, Python."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = " ".join(line.split(":", 1)[1].split())
            break
    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{model}, {cores} cores, {memory:.0f} GiB, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}"
    )


def busy_warning() -> str | None:
    """What else keeps the processors busy now, or ``None``: numbers taken beside it are not worth keeping."""
    load = psutil.cpu_percent(interval=0.5)
    return f"other processes use {load:.0f} % of the processors: the numbers will be low" if load > 15 else None


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()) -> None:
    """One table on stdout, the first column to the left, then ``notes`` below it."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    # Into a file or a pipe, the width of the text and not of a terminal that is not there.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(table)
    for note in notes:
        console.print(note, style="dim", highlight=False)


def log(message: str) -> None:
    """Progress, on stderr: stdout has the table or the JSON alone."""
    print(message, file=sys.stderr, flush=True)
