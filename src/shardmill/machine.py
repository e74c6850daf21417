"""What this process may use of the machine, and how its children behave."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def usable_cores() -> int:
    """Cores this process may use: its CPU affinity, and less where a cgroup grants less (containers). At least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        granted = cores if quota == "max" else -(-int(quota) // int(period))
    except (OSError, ValueError):
        # No cgroup v2 here, or not one for this process.
        granted = cores
    return max(1, min(cores, granted))


@contextmanager
def deaf_children() -> Iterator[None]:
    """Processes started meanwhile never hear Ctrl-C; in this one it waits until the end of the block.

    Ctrl-C reaches the whole process group. The parent stops its workers in order; a child that heard it too would print
    a traceback, also while it is still importing, which is before an initializer could ask it not to listen.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
