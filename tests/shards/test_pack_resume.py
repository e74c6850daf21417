"""Interrupted packs: kill -9 of the process group anywhere, Ctrl-C, SIGTERM, full disks; then resume."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardmill.errors import OptionsError, SourceError
from shardmill.records import Sample
from shardmill.shards.packing import gather, pack
from shardmill.sources.protocols import Source, SourceInfo

SOURCE = """
import os, random, signal, sys
from dataclasses import dataclass
from pathlib import Path
from shardmill.records import Sample
from shardmill.shards.packing import pack
from shardmill.sources.protocols import SourceInfo

@dataclass(frozen=True)
class Made:
    first: int = 0
    end: int = 90

    def __iter__(self):
        for i in range(self.first, self.end):
            yield Sample(f"s{i:04d}", {"jpg": random.Random(i).randbytes(3000)}, class_name=f"c{i % 7}")

    def describe(self):
        return SourceInfo("made", "test", "test", fingerprint="made-90")

    def split(self):
        return [Made(i, i + 30) for i in range(0, 90, 30)]

OPTIONS = dict(shard_bytes=40_000, seed=3, progress=False)
"""

# Counts the calls that change the disk and dies inside the chosen one; the group goes with it.
KILLER = """
at = int(sys.argv[3])
calls = 0

def watched(function):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == at:
            os.killpg(os.getpgid(0), signal.SIGKILL)
        return function(*args, **kwargs)
    return call

for name in ("fsync", "fdatasync", "replace", "rename", "writev", "write", "unlink", "rmdir", "mkdir"):
    setattr(os, name, watched(getattr(os, name)))
pack(Made(), sys.argv[1], resume=sys.argv[2] == "resume", workers=1, **OPTIONS)
print(calls)
"""

TIMED = """
if __name__ == "__main__":
    pack(Made(), sys.argv[1], resume=sys.argv[2] == "resume", workers=2, **OPTIONS)
"""

MOMENTS = int(os.environ.get("SHARDMILL_TEST_KILLS", "8"))


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@dataclass(frozen=True)
class Made:
    """The same source as in the subprocess."""

    first: int = 0
    end: int = 90
    fingerprint: str = "made-90"

    def __iter__(self) -> Iterator[Sample]:
        for i in range(self.first, self.end):
            yield Sample(f"s{i:04d}", {"jpg": random.Random(i).randbytes(3000)}, class_name=f"c{i % 7}")

    def describe(self) -> SourceInfo:
        return SourceInfo("made", "test", "test", fingerprint=self.fingerprint)

    def split(self) -> list[Source]:
        return [Made(i, i + 30) for i in range(0, 90, 30)]


OPTIONS: dict[str, Any] = {"shard_bytes": 40_000, "seed": 3, "progress": False}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of a pack that nobody interrupted."""
    dest = tmp_path_factory.mktemp("whole") / "out"
    pack(Made(), dest, workers=1, **OPTIONS)
    return digests(dest)


def run(script: str, *args: str, timeout: float | None = 60) -> int | None:
    """Exit code of the script in a process group of its own; ``None`` where it was killed at the timeout."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *args], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        _, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None
    assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    return process.returncode


def left_of_group(group: int) -> list[psutil.Process]:
    """Processes of the group that do not end by themselves; Python's resource tracker takes a moment to."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    _, alive = psutil.wait_procs(members, timeout=10)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def finish(dest: Path) -> None:
    """Continues in this process, unless the kill came after the last thing there was to do."""
    if (dest / "shardmill.json").exists() and not (dest / ".shardmill-pack").exists():
        return
    pack(Made(), dest, resume=True, workers=1, **OPTIONS)


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_killed_inside_a_call_that_changes_the_disk(moment: int, tmp_path: Path, whole: dict[str, str]) -> None:
    dest = tmp_path / "out"
    script = SOURCE + KILLER
    # The pack takes some 250 such calls, the last 40 of them around the commit; the moments are spread over all.
    at = 1 + random.Random(moment).randrange(245 * moment // MOMENTS, 245 * (moment + 1) // MOMENTS)
    code = run(script, str(dest), "fresh", str(at))
    assert code == -signal.SIGKILL
    finish(dest)
    assert digests(dest) == whole


@pytest.mark.parametrize("moment", range(max(1, MOMENTS // 8)))
def test_killed_again_and_again(moment: int, tmp_path: Path, whole: dict[str, str]) -> None:
    dest = tmp_path / "out"
    draw = random.Random(100 + moment)
    for _ in range(3):
        run(SOURCE + KILLER, str(dest), "resume", str(draw.randrange(5, 90)))
        if (dest / "shardmill.json").exists():
            break
    finish(dest)
    assert digests(dest) == whole


@pytest.mark.parametrize("moment", range(max(2, MOMENTS // 4)))
def test_killed_at_any_time_with_workers(moment: int, tmp_path: Path, whole: dict[str, str]) -> None:
    dest = tmp_path / "out"
    script = tmp_path / "script.py"
    script.write_text(SOURCE + TIMED)
    process = subprocess.Popen(
        [sys.executable, str(script), str(dest), "fresh"], start_new_session=True, stderr=subprocess.DEVNULL
    )
    try:
        process.wait(timeout=random.Random().uniform(0.2, 2.0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    finish(dest) if dest.exists() else pack(Made(), dest, workers=1, **OPTIONS)
    assert digests(dest) == whole


def test_finished_work_is_not_done_again(
    tmp_path: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    original = gather._write_shard

    def counted(task: Any, shard: Any, *rest: Any) -> Any:
        if len(written) == 4:
            raise OSError(errno.ENOSPC, "No space left on device", "somewhere")
        written.append(shard.index)
        return original(task, shard, *rest)

    monkeypatch.setattr(gather, "_write_shard", counted)
    monkeypatch.setattr("shardmill.shards.packing.job._MOST_SHARDS_PER_TASK", 1)
    dest = tmp_path / "out"
    with pytest.raises(OSError, match="No space left"):
        pack(Made(), dest, workers=1, **OPTIONS)
    first = written.copy()
    monkeypatch.setattr("shardmill.shards.packing.scatter._samples", lambda task: pytest.fail("read again"))
    written.clear()
    written.extend([-1] * 5)
    report = pack(Made(), dest, resume=True, workers=1, **OPTIONS)
    assert not set(first) & set(written)
    assert report.resumed
    assert digests(dest) == whole


def test_a_finished_shard_that_was_cut_since_is_written_again(tmp_path: Path, whole: dict[str, str]) -> None:
    dest = tmp_path / "out"
    run(SOURCE + KILLER, str(dest), "fresh", "130")
    shards = sorted(dest.glob("shard-*.tar"))
    assert shards
    os.truncate(shards[0], 1000)
    finish(dest)
    assert digests(dest) == whole


def test_after_a_crash_of_the_machine_the_source_is_read_again(
    tmp_path: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    original = gather._write_shard

    def four_only(task: Any, shard: Any, *rest: Any) -> Any:
        if len(written) == 4:
            raise KeyboardInterrupt
        written.append(shard.index)
        return original(task, shard, *rest)

    dest = tmp_path / "out"
    monkeypatch.setattr("shardmill.shards.packing.job._MOST_SHARDS_PER_TASK", 1)
    with monkeypatch.context() as patch:
        patch.setattr(gather, "_write_shard", four_only)
        with pytest.raises(KeyboardInterrupt):
            pack(Made(), dest, workers=1, **OPTIONS)
    # What a power cut leaves of files that were never synced: their names, without their bytes.
    for path in (dest / ".shardmill-pack" / "runs").glob("*"):
        os.truncate(path, 0)
    shards = {path.name: path.stat().st_ino for path in dest.glob("shard-*.tar")}
    assert len(shards) == 4
    monkeypatch.setattr("shardmill.shards.packing.packer.boot_id", lambda: "another boot")
    finish(dest)
    assert digests(dest) == whole
    assert shards.items() <= {path.name: path.stat().st_ino for path in dest.glob("shard-*.tar")}.items()


def test_an_unfinished_pack_wants_a_word(tmp_path: Path, whole: dict[str, str]) -> None:
    dest = tmp_path / "out"
    run(SOURCE + KILLER, str(dest), "fresh", "60")
    with pytest.raises(OptionsError, match=r"unfinished pack: continue it with resume=True"):
        pack(Made(), dest, workers=1, **OPTIONS)
    with pytest.raises(OptionsError, match=r"seed was 3, now 4"):
        pack(Made(), dest, resume=True, workers=1, **{**OPTIONS, "seed": 4})
    with pytest.raises(OptionsError, match=r"fingerprint was 'made-90', now 'other'"):
        pack(Made(fingerprint="other"), dest, resume=True, workers=1, **OPTIONS)
    finish(dest)
    assert digests(dest) == whole


def test_a_journal_line_cut_short_is_as_if_not_written(tmp_path: Path, whole: dict[str, str]) -> None:
    dest = tmp_path / "out"
    run(SOURCE + KILLER, str(dest), "fresh", "100")
    journal = dest / ".shardmill-pack" / "journal.jsonl"
    data = journal.read_bytes()
    assert len(data.splitlines()) > 2
    journal.write_bytes(data[:-7])
    finish(dest)
    assert digests(dest) == whole


def test_scratch_data_that_went_bad_is_found(tmp_path: Path) -> None:
    dest = tmp_path / "out"
    run(SOURCE + KILLER, str(dest), "fresh", "60")
    data = next((dest / ".shardmill-pack" / "runs").glob("*.data"))
    damaged = bytearray(data.read_bytes())
    damaged[2000] ^= 1
    data.write_bytes(damaged)
    with pytest.raises(Exception, match=r"\.data @ \d+ \(key 's\d+'\): the scratch data does not match its checksum"):
        pack(Made(), dest, resume=True, workers=1, **OPTIONS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_stops_cleanly(number: int, workers: int, tmp_path: Path, whole: dict[str, str]) -> None:
    dest = tmp_path / "out"
    script = tmp_path / "script.py"
    script.write_text(
        SOURCE
        + f"""
class Slow(Made):
    def __iter__(self):
        for i, sample in enumerate(super().__iter__()):
            if i == 20:
                print("reading", flush=True)
                while not Path(sys.argv[1], ".shardmill-pack", "stop").exists():
                    signal.sigtimedwait([], 0.02)
            yield sample
    def split(self):
        return [Slow(i, i + 30) for i in range(0, 90, 30)]

if __name__ == "__main__":
    pack(Slow(), sys.argv[1], workers={workers}, **OPTIONS)
"""
    )
    process = subprocess.Popen(
        [sys.executable, str(script), str(dest)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"reading\n"
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (-number, 128 + number, 1), errors.decode()
    assert not list(dest.rglob(".*.tmp"))
    assert not left_of_group(process.pid)
    finish(dest)
    assert digests(dest) == whole


def test_a_full_disk_names_the_file_and_leaves_no_temporary(
    tmp_path: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original: Callable[..., int] = os.writev
    count = 0

    def full(fd: int, pieces: Any) -> int:
        nonlocal count
        count += 1
        if count == 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(fd, pieces)

    dest = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        with pytest.raises(OSError, match=r"No space left on device: .*\.tar\.tmp'"):
            pack(Made(), dest, workers=1, **OPTIONS)
    assert not list(dest.rglob(".*.tmp"))
    finish(dest)
    assert digests(dest) == whole


def test_a_worker_that_dies_is_an_error_that_says_how_to_go_on(tmp_path: Path, whole: dict[str, str]) -> None:
    dest = tmp_path / "out"
    script = tmp_path / "script.py"
    script.write_text(
        SOURCE
        + """
class Deadly(Made):
    def __iter__(self):
        if self.first == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__iter__()
    def split(self):
        return [Deadly(i, i + 30) for i in range(0, 90, 30)]

if __name__ == "__main__":
    pack(Deadly(), sys.argv[1], workers=2, **OPTIONS)
"""
    )
    done = subprocess.run([sys.executable, str(script), str(dest)], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert b"a worker process died" in done.stderr
    finish(dest)
    assert digests(dest) == whole


def test_a_script_without_a_main_guard(tmp_path: Path, imagenettools: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom shardmill.shards.packing import pack\n"
        "print(pack(sys.argv[1], sys.argv[2], workers=2, progress=False).samples)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), str(imagenettools / "Bundle.tar"), str(tmp_path / "out")],
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == b"11\n"


def test_an_error_of_the_source_can_be_mended_and_resumed(tmp_path: Path, whole: dict[str, str]) -> None:
    class Bad(Made):
        def __iter__(self) -> Iterator[Sample]:
            if self.first == 60:
                raise SourceError("line 61: not an image")
            return super().__iter__()

        def split(self) -> list[Source]:
            return [Bad(i, i + 30) for i in range(0, 90, 30)]

    dest = tmp_path / "out"
    with pytest.raises(SourceError, match="line 61"):
        pack(Bad(), dest, workers=1, **OPTIONS)
    entries = [json.loads(line) for line in (dest / ".shardmill-pack" / "journal.jsonl").read_text().splitlines()]
    assert [entry["kind"] for entry in entries] == ["plan", "range", "range"]
    finish(dest)
    assert digests(dest) == whole
