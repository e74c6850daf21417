"""Where packing and verifying run their tasks: anything with ``submit(function, argument) -> Future``.

A task is a picklable value and its function a module-level function, so the same code runs in this process, in local
processes, or on an executor brought along (Ray).
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any, Protocol, TypeVar

from shardmill.errors import ShardmillError
from shardmill.machine import deaf_children

T = TypeVar("T")
R = TypeVar("R")

_PENDING_PER_WORKER = 2


class Executor(Protocol):
    """The part of `concurrent.futures.Executor` that is needed."""

    def submit(self, function: Callable[[T], R], argument: T, /) -> concurrent.futures.Future[R]:
        """Starts ``function(argument)`` somewhere, now or later."""
        ...


class SerialExecutor:
    """Runs each task at once in the calling thread: no process, no pickling, the easiest to debug."""

    def submit(self, function: Callable[[T], R], argument: T, /) -> concurrent.futures.Future[R]:
        """Runs ``function(argument)`` now; the future is finished when this returns."""
        future: concurrent.futures.Future[R] = concurrent.futures.Future()
        try:
            future.set_result(function(argument))
        except Exception as error:
            future.set_exception(error)
        return future


class LocalProcesses:
    """Spawned processes of this machine; leave the ``with`` block to end them.

    Spawned, not forked: the caller may hold threads, CUDA or gRPC. A worker ignores Ctrl-C (the parent decides) and
    ends by itself when the parent is gone, however it went. The caller's script needs no ``__main__`` guard.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool = concurrent.futures.ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker
        )

    def submit(self, function: Callable[[T], R], argument: T, /) -> concurrent.futures.Future[R]:
        """Queues the task. A worker that dies (out of memory, a crash) fails its task with `BrokenProcessPool`."""
        # Spawning runs the caller's script again in the child. Nothing here needs it, unless the task itself
        # comes from the script (a source class defined there).
        with deaf_children(), _main_hidden() if not _from_main(argument) else nullcontext():
            return self._pool.submit(function, argument)

    def __enter__(self) -> LocalProcesses:
        return self

    def __exit__(self, *failure: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def run_tasks(
    executor: Executor, function: Callable[[T], R], tasks: Iterable[T], *, workers: int
) -> Iterator[tuple[T, R]]:
    """Yields ``(task, result)`` as tasks finish; at most twice as many as ``workers`` are queued at a time.

    The first error ends it, after the tasks that were running have ended.
    """
    waiting = iter(tasks)
    running: dict[concurrent.futures.Future[R], T] = {}
    limit = 1 if isinstance(executor, SerialExecutor) else workers * _PENDING_PER_WORKER
    try:
        while True:
            for task in waiting:
                running[executor.submit(function, task)] = task
                if len(running) >= limit:
                    break
            if not running:
                return
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                task = running.pop(future)
                try:
                    result = future.result()
                except concurrent.futures.BrokenExecutor as error:
                    raise ShardmillError(
                        "a worker process died (killed, out of memory, or crashed): finished work is kept; run "
                        "again with resume=True, and a smaller memory_bytes or fewer workers if memory ran out"
                    ) from error
                yield task, result
    finally:
        for future in running:
            future.cancel()


def _start_worker() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), name="shardmill-parent-watch", daemon=True).start()


def _end_with(parent: Any) -> None:
    # A worker waits on a queue whose write end it holds itself: it would wait for ever for a killed parent.
    parent.join()
    os._exit(1)


def _from_main(argument: object) -> bool:
    seen: set[int] = set()

    def walk(value: object) -> bool:
        if id(value) in seen:
            return False
        seen.add(id(value))
        if type(value).__module__ == "__main__" or getattr(value, "__module__", None) == "__main__":
            return True
        if isinstance(value, (list, tuple)):
            return any(walk(item) for item in value[:100])
        fields = getattr(type(value), "__dataclass_fields__", None)
        names = list(fields) if fields is not None else list(getattr(value, "__dict__", ()))
        return any(walk(getattr(value, name, None)) for name in names)

    return walk(argument)


_hiding = threading.Lock()


@contextmanager
def _main_hidden() -> Iterator[None]:
    # multiprocessing passes the path of sys.modules["__main__"] to a spawned child; an empty module has none.
    with _hiding:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
