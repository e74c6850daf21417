from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import OptionsError, StalledError
from shardmill.loading.pipeline import Job, Pipeline, Stage


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("test")]


@pytest.fixture(autouse=True)
def _leaves_no_thread() -> Iterator[None]:
    yield
    assert not ours()


def pipeline(
    jobs: Iterator[Job[Any]], *runs: Any, threads: int = 2, in_flight: int = 2, queue: int = 2, wait: float = 60.0
) -> Pipeline[Any]:
    stages = [Stage(f"s{i}", run, threads) for i, run in enumerate(runs)]
    return Pipeline(jobs, stages, in_flight=in_flight, queue_tasks=queue, wait_seconds=wait, name="test")


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 5), max_size=30), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)
)
def test_every_task_passes_every_stage_and_jobs_come_in_order(
    tasks: list[int], threads: int, in_flight: int, queue: int, stages: int
) -> None:
    seen: list[list[Any]] = [[] for _ in range(stages)]

    def stage(i: int) -> Any:
        def run(task: Any) -> Any:
            seen[i].append(task)
            return task

        return run

    jobs = (Job(number, [(number, k) for k in range(count)]) for number, count in enumerate(tasks))
    runs = [stage(i) for i in range(stages)]
    assert list(pipeline(jobs, *runs, threads=threads, in_flight=in_flight, queue=queue)) == list(range(len(tasks)))
    expected = sorted((number, k) for number, count in enumerate(tasks) for k in range(count))
    assert all(sorted(tasks_seen) == expected for tasks_seen in seen)


def test_results_go_from_stage_to_stage() -> None:
    out: list[int] = []
    jobs = (Job(n, [n]) for n in range(10))
    list(pipeline(jobs, lambda n: n * 2, lambda n: n + 1, out.append, threads=1))
    assert out == [n * 2 + 1 for n in range(10)]


def test_a_stage_may_split_its_tasks() -> None:
    out: list[tuple[int, int]] = []
    stages = [
        Stage("split", lambda n: [(n, piece) for piece in range(n)], 2, splits=True),
        Stage("take", out.append, 2),
    ]
    # Task 0 splits into nothing, and job 3 is nothing but such tasks.
    jobs = iter([Job("a", [3, 0, 1]), Job("b", [2]), Job("c", []), Job("d", [0, 0]), Job("e", [5])])
    done = Pipeline(jobs, stages, in_flight=2, queue_tasks=2, wait_seconds=60, name="test")
    assert list(done) == ["a", "b", "c", "d", "e"]
    assert sorted(out) == sorted((n, piece) for n in (3, 1, 2, 5) for piece in range(n))


def test_only_so_many_jobs_are_begun_before_they_are_delivered() -> None:
    begun: list[int] = []

    def jobs() -> Iterator[Job[int]]:
        for n in range(50):
            begun.append(n)
            yield Job(n, [n, n])

    with pipeline(jobs(), lambda n: n, lambda n: n, in_flight=3) as running:
        for delivered, value in enumerate(running):
            assert value == delivered
            assert len(begun) <= delivered + 1 + 3
    assert len(begun) == 50


def test_only_so_many_tasks_wait_between_stages() -> None:
    release = threading.Event()
    read = threading.Semaphore(0)
    passed = 0

    def first(task: int) -> int:
        nonlocal passed
        passed += 1
        read.release()
        return task

    def second(task: int) -> None:
        assert release.wait(30)

    with pipeline(iter([Job(0, range(20))]), first, second, threads=1, queue=3) as running:
        # One task in the second stage, three in the queue, one held by the first stage: the sixth is not read.
        for _ in range(5):
            assert read.acquire(timeout=30)
        assert not read.acquire(timeout=0.05)
        assert passed == 5
        release.set()
        assert list(running) == [0]


def test_an_error_comes_in_its_place_with_its_stage() -> None:
    def bad(task: int) -> int:
        if task == 3:
            raise ValueError("three")
        return task

    running = pipeline((Job(n, [n]) for n in range(10)), bad, lambda task: task, in_flight=4)
    got: list[int] = []
    with pytest.raises(ValueError, match="three") as caught:
        got.extend(running)
    assert got == [0, 1, 2]
    assert caught.value.__notes__ == ["while in stage 's0' of test, item 3"]
    assert list(running) == []


def test_of_many_errors_the_first_in_order_is_raised() -> None:
    late = threading.Event()

    def bad(task: tuple[int, int]) -> None:
        if task == (1, 2):
            late.set()
        elif task == (1, 1):
            # The earlier task fails last.
            assert late.wait(30)
        else:
            return
        raise ValueError(f"task {task}")

    running = pipeline((Job(n, [(n, k) for k in range(4)]) for n in range(3)), bad, threads=4, in_flight=3)
    assert next(running) == 0
    with pytest.raises(ValueError, match=r"task \(1, 1\)"):
        next(running)


def test_an_error_while_planning_comes_in_its_place() -> None:
    def jobs() -> Iterator[Job[int]]:
        yield Job(0, [1])
        yield Job(1, [1])
        raise KeyError("no such step")

    running = pipeline(jobs(), lambda task: task)
    assert next(running) == 0
    assert next(running) == 1
    with pytest.raises(KeyError) as caught:
        next(running)
    assert caught.value.__notes__ == ["while in stage 'plan' of test, item 2"]


def endless() -> Iterator[Job[int]]:
    n = 0
    while True:
        yield Job(n, [n, n])
        n += 1


def test_break_and_drop_end_the_threads() -> None:
    for value in pipeline(endless(), lambda task: task, lambda task: task):
        if value == 5:
            break
    wait_for_none()


def wait_for_none() -> None:
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("test"):
            thread.join(30)
    assert not ours()


def test_a_reference_cycle_is_collected_and_ends_the_threads() -> None:
    running = pipeline(endless(), lambda task: task)
    next(running)
    cycle: list[Any] = [running]
    cycle.append(cycle)
    del running, cycle
    wait_for_none()


def test_an_exception_in_the_consumer_ends_the_threads() -> None:
    def consume() -> None:
        for _ in pipeline(endless(), lambda task: task):
            raise RuntimeError("loss is nan")

    with pytest.raises(RuntimeError):
        consume()
    wait_for_none()


def test_close_may_be_called_twice_and_ends_the_iteration() -> None:
    running = pipeline(endless(), lambda task: task)
    next(running)
    running.close()
    assert not ours()
    running.close()
    assert list(running) == []


def test_a_wait_has_a_deadline_and_says_who_waits_for_whom() -> None:
    release = threading.Event()

    def stuck_in_storage(task: int) -> None:
        release.wait(30)

    running = pipeline(iter([Job(0, [1, 2, 3])]), stuck_in_storage, lambda task: task, threads=1, wait=0.05)
    # Closing waits for the stuck thread, too, with the same deadline.
    with pytest.raises(StalledError, match=r"nothing has moved for 0\.05 s") as caught:
        next(running)
    text = str(caught.value)
    assert "test s0 0:" in text
    assert "stuck_in_storage" in text
    release.set()
    wait_for_none()


def test_ctrl_c_in_the_consumer_leaves_nothing() -> None:
    program = """
import os, signal, sys, threading
from shardmill.loading.pipeline import Job, Pipeline, Stage
hold = threading.Event()
def work(task):
    if task == 3:
        os.kill(os.getpid(), signal.SIGINT)
        hold.wait(2)
running = Pipeline((Job(n, [n]) for n in range(9)), [Stage("s", work, 2)],
                   in_flight=1, queue_tasks=1, wait_seconds=60, name="test")
try:
    for _ in running: pass
except KeyboardInterrupt:
    hold.set()
    left = [t.name for t in threading.enumerate() if t.name.startswith("test") and t.is_alive()]
    print("interrupted", left)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "interrupted []"), done.stderr


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise ValueError"])
def test_the_interpreter_ends_with_a_pipeline_left_running(ending: str) -> None:
    program = f"""
import itertools, sys
from shardmill.loading.pipeline import Job, Pipeline, Stage
jobs = (Job(n, [n] * 4) for n in itertools.count())
running = Pipeline(jobs, [Stage("a", lambda t: t, 2), Stage("b", lambda t: t, 2)], in_flight=2, queue_tasks=2,
                   wait_seconds=60, name="test")
next(running)
{ending}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == {"": 0, "sys.exit(3)": 3, "raise ValueError": 1}[ending], done.stderr
    assert "Fatal" not in done.stderr


def test_a_forked_child_is_refused_and_can_drop_it() -> None:
    program = """
import os, warnings
warnings.simplefilter("ignore")
from shardmill.errors import OptionsError
from shardmill.loading.pipeline import Job, Pipeline, Stage
running = Pipeline((Job(n, [n]) for n in range(9)), [Stage("s", lambda t: t, 2)], in_flight=1, queue_tasks=1,
                   wait_seconds=60, name="test")
next(running)
pid = os.fork()
if pid == 0:
    code = 1
    try:
        next(running)
    except OptionsError as error:
        code = 0 if "forked process" in str(error) else 2
    running.close()
    del running
    os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), list(running))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "0 [1, 2, 3, 4, 5, 6, 7, 8]", done.stderr


def test_times_are_counted() -> None:
    running = pipeline((Job(n, [n]) for n in range(5)), lambda task: sum(range(10_000)), lambda task: task)
    list(running)
    assert running.times[0].work > 0


def test_nonsense_is_refused() -> None:
    with pytest.raises(OptionsError, match="at least one thread"):
        pipeline(iter([]), lambda task: task, threads=0)
    assert os.getpid()
