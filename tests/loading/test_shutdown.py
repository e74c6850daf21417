"""However an iteration ends, nothing of it is left: no thread, descriptor, mapping, process or shared memory."""

from __future__ import annotations

import gc
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shardmill as sm
from shardmill.loading.loader import Loader
from shardmill.loading.options import Tuning

SAMPLES = 60


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shutdown")
    (root / "source" / "a").mkdir(parents=True)
    for number in range(SAMPLES):
        out = io.BytesIO()
        Image.new("RGB", (20, 20), (number, 50, 50)).save(out, "JPEG")
        (root / "source" / "a" / f"{number}.jpg").write_bytes(out.getvalue())
    sm.pack(str(root / "source"), str(root / "packed"), shard_samples=9, progress=False, workers=1)
    # What is made once a process and stays: the decoder's tables, torch's own threads.
    list(make_loader(root / "packed"))
    return root / "packed"


def make_loader(dataset: Path, **options: Any) -> Loader:
    options = {"recipe": sm.recipes.train(16), "threads": 3, "tuning": Tuning(decode_samples=2), **options}
    return sm.Loader(sm.open(str(dataset)), 8, **options)


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def held(dataset: Path) -> dict[str, Any]:
    """What this process holds of the dataset, and of anything that could leak."""
    gc.collect()
    me = Path("/proc/self")
    descriptors = []
    for entry in (me / "fd").iterdir():
        try:
            descriptors.append(str(entry.readlink()))
        except FileNotFoundError:  # the descriptor that lists the folder
            continue
    children = [(task / "children").read_text() for task in (me / "task").iterdir()]
    return {
        "descriptors": len(descriptors),
        "files": [name for name in descriptors if name.startswith(str(dataset))],
        "mappings": (me / "maps").read_text().count(str(dataset)),
        "threads": {thread.name for thread in threading.enumerate()},
        # With those that are not Python's.
        "tasks": len(children),
        "children": "".join(children),
        "shared memory": shared_memory(),
    }


@pytest.fixture
def nothing_is_left(dataset: Path) -> Iterator[None]:
    before = held(dataset)
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("shardmill"):
            # Of an iteration that was dropped and not closed: they end by themselves, soon.
            thread.join(30)
    after = held(dataset)
    others = before.pop("shared memory"), after.pop("shared memory")
    assert after == before
    # Other programs may use it, too; ours would bear one of these names.
    assert not [name for name in others[1] - others[0] if "shardmill" in name or str(os.getpid()) in name]


def test_the_check_sees_what_a_running_iteration_holds(dataset: Path) -> None:
    before = held(dataset)
    loader = make_loader(dataset)
    running = iter(loader)
    next(running)
    during = held(dataset)
    assert during["tasks"] - before["tasks"] == 3 + 2
    assert len(during["threads"] - before["threads"]) == 3 + 2
    assert during["files"]
    assert during["mappings"]
    loader.close()


@pytest.mark.usefixtures("nothing_is_left")
def test_a_whole_epoch(dataset: Path) -> None:
    assert sum(len(batch) for batch in make_loader(dataset)) == SAMPLES


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_break(dataset: Path, steps: int) -> None:
    for number, _ in enumerate(make_loader(dataset)):
        if number == steps:
            break


@pytest.mark.usefixtures("nothing_is_left")
def test_an_exception_in_the_consumer(dataset: Path) -> None:
    loader = make_loader(dataset)

    def train() -> None:
        for batch in loader:
            print(len(batch) / 0)

    with pytest.raises(ZeroDivisionError):
        train()
    # The traceback that kept the iteration is gone: it may go on with the next.
    assert sum(len(batch) for batch in loader) == SAMPLES


@pytest.mark.usefixtures("nothing_is_left")
def test_ctrl_c_between_batches(dataset: Path) -> None:
    def train() -> None:
        for _ in make_loader(dataset):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train()


@pytest.mark.usefixtures("nothing_is_left")
def test_ctrl_c_while_waiting_for_a_batch(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make_loader(dataset, tuning=Tuning(decode_samples=2, wait_seconds=60))
    interrupts = iter([signal.SIGINT])
    hold = threading.Event()
    real: Callable[..., Any] = loader.dataset.read

    def read(*arguments: Any) -> Any:
        if (number := next(interrupts, None)) is not None:
            os.kill(os.getpid(), number)
            # No batch before the interrupt has arrived; nobody sets it.
            hold.wait(0.2)
        return real(*arguments)

    monkeypatch.setattr(type(loader.dataset), "read", lambda self, *arguments: read(*arguments))
    with pytest.raises(KeyboardInterrupt):
        list(loader)
    # Joined before the interrupt reaches the consumer.
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shardmill")]
    monkeypatch.undo()
    assert sum(len(batch) for batch in loader) == SAMPLES


@pytest.mark.usefixtures("nothing_is_left")
def test_an_error_while_handing_over_ends_the_threads_at_once(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make_loader(dataset)

    def no_memory(_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(loader, "_finish", no_memory)
    running = iter(loader)
    with pytest.raises(MemoryError):
        next(running)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shardmill")]
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (0, 0)


@pytest.mark.usefixtures("nothing_is_left")
def test_garbage_collection_of_a_cycle(dataset: Path) -> None:
    knot: dict[str, Any] = {"running": iter(make_loader(dataset))}
    next(knot["running"])
    knot["self"] = knot
    del knot
    gc.collect()


@pytest.mark.usefixtures("nothing_is_left")
def test_a_batch_that_is_kept_does_not_keep_the_rest(dataset: Path) -> None:
    batch = next(iter(make_loader(dataset)))
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("shardmill"):
            thread.join(30)
    assert not held(dataset)["files"]
    assert np.isfinite(batch.images.numpy()).all()


PROGRAM = """
import sys
import shardmill as sm
loader = sm.Loader(sm.open(sys.argv[1]), 8, recipe=sm.recipes.train(16), threads=3)
running = iter(loader)
batch = next(running)
print(len(batch), flush=True)
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("raise ValueError", 1), ("import signal; signal.raise_signal(signal.SIGINT)", 130)],
)
def test_the_end_of_the_interpreter(dataset: Path, ending: str, code: int) -> None:
    before = shared_memory()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(ending=ending), str(dataset)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        stdout, stderr = process.communicate(timeout=100)
    assert stdout == "8\n", stderr
    assert process.returncode in (code, -signal.SIGINT if code == 130 else code), stderr
    for wrong in ("Fatal", "Exception ignored", "leaked", "ResourceWarning"):
        assert wrong not in stderr
    with pytest.raises(ProcessLookupError):
        # No process of its group is left.
        os.killpg(process.pid, 0)
    assert not [name for name in shared_memory() - before if str(process.pid) in name or "shardmill" in name]
