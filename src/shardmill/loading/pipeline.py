"""Ordered jobs through stages of threads, bounded; knows nothing of images.

    jobs (an iterator) ──▶ tasks ──▶ stage 1 threads ──▶ queue ──▶ stage 2 threads ──▶ jobs, in order ──▶ consumer

A job is a value and its tasks. Every task passes every stage; a job is delivered when all its tasks have, and after all
jobs before it. At most ``in_flight`` jobs are begun and not yet delivered, and at most ``queue_tasks`` tasks wait
between two stages, so memory is bounded whoever is slow.

One owner stops it: the `Pipeline` object. Its threads hold only the shared state, so closing it, dropping it (by
``break``, an exception, garbage collection) or ending the main thread ends them: a thread that waits looks up every
``_LOOK_UP`` seconds whether the main thread still lives, because the interpreter joins threads before any exit handler
could run. Threads are no daemons: a daemon killed at exit in the middle of native code writes into freed memory.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shardmill.errors import OptionsError, StalledError

J = TypeVar("J")

_LOOK_UP = 0.5


@dataclass(frozen=True)
class Stage:
    """``run(task)`` gives the task for the next stage, or with ``splits`` a sequence of tasks, maybe none; the last
    stage's result is dropped. Called from ``threads`` threads at once."""

    name: str
    run: Callable[[Any], Any]
    threads: int
    splits: bool = False


@dataclass(frozen=True)
class Job(Generic[J]):
    """``value`` is delivered when every one of ``tasks`` has passed all stages; with no tasks, in its turn."""

    value: J
    tasks: Sequence[Any]


@dataclass
class StageTimes:
    """Seconds summed over the threads of a stage: at work, waiting for input, and waiting for room after it."""

    work: float = 0.0
    starved: float = 0.0
    blocked: float = 0.0


@dataclass
class _Running:
    """A job under way. ``failure`` is the first in task order: (task number, stage, error).

    A task's number is its place in the job, and in each split: (3,) splits into (3, 0), (3, 1) ...
    """

    value: Any
    number: int
    left: int
    failure: tuple[tuple[int, ...], str, BaseException] | None = None


class _State:
    """What threads and owner share. Everything is under ``lock``, but ``stopping``, which only ever becomes True.

    One condition per reason to wait, so that a finished task wakes the one thread that can go on and not all of them.
    """

    def __init__(self, jobs: Iterator[Job[Any]], stages: tuple[Stage, ...], in_flight: int, queue_tasks: int) -> None:
        self.jobs = jobs
        self.stages = stages
        self.in_flight = in_flight
        self.queue_tasks = queue_tasks
        # Re-entrant: a finaliser may call stop() in a thread that holds it.
        self.lock = threading.RLock()
        self.ready = [threading.Condition(self.lock) for _ in stages]
        self.room = [threading.Condition(self.lock) for _ in stages]
        self.delivery = threading.Condition(self.lock)
        # queues[i] holds (job, task number, task) for stage i. The first is filled by `_plan`.
        self.queues: list[deque[tuple[_Running, tuple[int, ...], Any]]] = [deque() for _ in stages]
        self.begun: deque[_Running] = deque()
        self.planned = 0
        self.planning = False
        self.exhausted = False
        self.stopping = False
        self.progress = time.monotonic()
        self.times = [StageTimes() for _ in stages]

    def stop(self) -> None:
        """Tells every thread to end."""
        self.stopping = True
        with self.lock:
            for queue in self.queues:
                queue.clear()
            for condition in (*self.ready, *self.room, self.delivery):
                condition.notify_all()


class Pipeline(Generic[J]):
    """Iterate for the values of the jobs, in order; close when done. Iterating to the end or to an error closes it.

    An error of a stage, or of ``jobs`` itself, is raised in the place of its job, after all jobs before it, with a note
    that names the stage. ``wait_seconds``: if that long nothing at all moves while the consumer waits, `StalledError`
    says what each thread is doing. Not thread-safe: one consumer. Not for a forked child: it has none of the threads.
    """

    def __init__(
        self,
        jobs: Iterator[Job[J]],
        stages: Sequence[Stage],
        *,
        in_flight: int,
        queue_tasks: int,
        wait_seconds: float,
        name: str,
        item: str = "item",
        first_number: int = 0,
    ) -> None:
        if in_flight < 1 or queue_tasks < 1 or not stages or min(stage.threads for stage in stages) < 1:
            raise OptionsError("a pipeline needs a stage, and at least one thread, job and task at a time")
        self._state = _State(jobs, tuple(stages), in_flight, queue_tasks)
        self._wait_seconds = wait_seconds
        self._name = name
        # What messages call a job, and the number of the first.
        self._item = item
        self._first_number = first_number
        self._pid = os.getpid()
        self._closed = False
        self._threads = [
            threading.Thread(target=_work, args=(self._state, i), name=f"{name} {stage.name} {n}")
            for i, stage in enumerate(stages)
            for n in range(stage.threads)
        ]
        self._finalizer = weakref.finalize(self, _abandon, self._state, self._pid)
        # At exit the threads see the main thread end, which is before exit handlers run.
        self._finalizer.atexit = False
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            # No more threads to be had, or Ctrl-C; one that has only just begun sees the end by itself.
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self.close()
            raise

    @property
    def times(self) -> list[StageTimes]:
        """Of each stage so far."""
        return self._state.times

    def __iter__(self) -> Iterator[J]:
        return self

    def __next__(self) -> J:
        if self._closed:
            raise StopIteration
        if os.getpid() != self._pid:
            raise OptionsError(
                f"this iteration belongs to process {self._pid}: its threads do not exist in the forked process "
                f"{os.getpid()}. Begin a new iteration there"
            )
        try:
            running = self._next_job()
        except BaseException:
            # Ctrl-C among them: whoever catches it finds no threads left.
            self.close()
            raise
        if running is None:
            self.close()
            raise StopIteration
        if running.failure is not None:
            _, stage, error = running.failure
            self.close()
            error.add_note(
                f"while in stage {stage!r} of {self._name}, {self._item} {self._first_number + running.number}"
            )
            raise error
        value: J = running.value
        return value

    def _next_job(self) -> _Running | None:
        state = self._state
        since = time.monotonic()
        with state.lock:
            while True:
                if state.begun and state.begun[0].left == 0:
                    running = state.begun.popleft()
                    state.ready[0].notify()
                    return running
                if state.exhausted and not state.begun:
                    return None
                quiet = time.monotonic() - max(state.progress, since)
                if quiet >= self._wait_seconds:
                    break
                state.delivery.wait(self._wait_seconds - quiet)
        raise StalledError(self._report())

    def _report(self) -> str:
        state = self._state
        number = self._first_number + (state.begun[0].number if state.begun else state.planned)
        waiting_for = f"{self._item} {number}{'' if state.begun else ', which is being planned'}"
        queues = ", ".join(f"{len(q)} before {s.name!r}" for s, q in zip(state.stages, state.queues, strict=True))
        head = f"{self._name}: nothing has moved for {self._wait_seconds:g} s. The consumer waits for {waiting_for}"
        lines = [f"{head}; tasks waiting: {queues}. Raise wait_seconds if the storage is that slow. The threads:"]
        frames = sys._current_frames()
        for thread in self._threads:
            frame = frames.get(thread.ident or -1)
            stack = "".join(traceback.format_stack(frame)[-3:]) if frame is not None else "  ended\n"
            lines.append(f"{thread.name}:\n{stack}".rstrip())
        return "\n".join(lines)

    def close(self) -> None:
        """Stops and joins every thread; may be called again. Tasks under way are finished first.

        Raises `StalledError` if a thread does not end within ``wait_seconds``.
        """
        self._closed = True
        if os.getpid() != self._pid:
            return
        self._finalizer.detach()
        self._state.stop()
        deadline = time.monotonic() + self._wait_seconds
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        if any(t.is_alive() and t is not threading.current_thread() for t in self._threads):
            raise StalledError(f"stopping: {self._report()}")

    def __enter__(self) -> Pipeline[J]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _abandon(state: _State, pid: int) -> None:
    # In a forked child the lock may be held for ever by a thread that does not exist there.
    if os.getpid() == pid:
        state.stop()


def _work(state: _State, index: int) -> None:
    stage, times = state.stages[index], state.times[index]
    last = index + 1 == len(state.stages)
    while True:
        asked = time.perf_counter()
        taken = _take(state, index)
        if taken is None:
            return
        running, number, task = taken
        begun = time.perf_counter()
        error: BaseException | None = None
        try:
            result = stage.run(task)
        # Whatever it is, it is the consumer's: it travels in the job. A thread that died here would be waited for.
        except BaseException as caught:
            error, result = caught, None
        del task, taken
        ended = time.perf_counter()
        with state.lock:
            times.starved += begun - asked
            times.work += ended - begun
            state.progress = time.monotonic()
            following: list[tuple[tuple[int, ...], Any]] = []
            if error is not None:
                _fail(state, running, number, stage.name, error)
            elif stage.splits:
                following = [((*number, piece), task) for piece, task in enumerate(result)]
            elif not last:
                following = [(number, result)]
            running.left += len(following) - 1
            if running.left == 0:
                state.delivery.notify()
            if following and not _put(state, index + 1, running, following):
                return
            times.blocked += time.perf_counter() - ended
        del running, result, error, following


def _put(state: _State, index: int, running: _Running, tasks: list[tuple[tuple[int, ...], Any]]) -> bool:
    """Hands tasks to stage ``index``, one by one as there is room. ``False`` where that has come to an end."""
    queue = state.queues[index]
    while tasks:
        while len(queue) >= state.queue_tasks:
            if _over(state):
                return False
            state.room[index].wait(_LOOK_UP)
        if state.stopping:
            return False
        number, task = tasks.pop(0)
        queue.append((running, number, task))
        state.ready[index].notify()
        del task
    return True


def _take(state: _State, index: int) -> tuple[_Running, tuple[int, ...], Any] | None:
    """The next task of a stage, planning jobs where the first stage has none; ``None`` when there will be no more."""
    queue = state.queues[index]
    while True:
        with state.lock:
            while True:
                if _over(state):
                    return None
                if queue:
                    taken = queue.popleft()
                    state.room[index].notify()
                    return taken
                if index == 0 and not state.planning and not state.exhausted and len(state.begun) < state.in_flight:
                    state.planning = True
                    break
                if state.exhausted and not state.begun:
                    return None
                state.ready[index].wait(_LOOK_UP)
        _plan(state)


def _plan(state: _State) -> None:
    """Takes one job off the iterator, outside the lock; ``state.planning`` keeps it to one thread at a time."""
    job: Job[Any] | None = None
    error: BaseException | None = None
    try:
        job = next(state.jobs, None)
    except BaseException as caught:
        error = caught
    with state.lock:
        state.planning = False
        if job is not None:
            running = _Running(job.value, state.planned, len(job.tasks))
            state.begun.append(running)
            state.queues[0].extend((running, (number,), task) for number, task in enumerate(job.tasks))
        elif error is not None:
            running = _Running(None, state.planned, 0)
            state.begun.append(running)
            _fail(state, running, (), "plan", error)
        else:
            state.exhausted = True
        state.planned += 1
        state.progress = time.monotonic()
        # Tasks for the others, and the next job to plan for one more.
        state.ready[0].notify(len(job.tasks) + 1 if job is not None else 1)
        state.delivery.notify()


def _fail(state: _State, running: _Running, number: tuple[int, ...], stage: str, error: BaseException) -> None:
    # The first in task order, so that the same bad data gives the same error whichever thread was faster. All tasks of
    # this job and of those before it still run; later jobs are not begun.
    if running.failure is None or number < running.failure[0]:
        running.failure = (number, stage, error)
    state.exhausted = True


def _over(state: _State) -> bool:
    if not state.stopping and not threading.main_thread().is_alive():
        state.stop()
    return state.stopping
