"""The benchmarks run, at a size that says nothing about speed, and catch a loader that cheats."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks/ is not installed

from benchmarks import harness, loader  # noqa: E402
from benchmarks.peers import NAMES, Job, Peer, find  # noqa: E402
from benchmarks.worker import Timing, measure  # noqa: E402


def _run(module: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", "--quick", "--json", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert isinstance(report, dict)
    return report


# Not every row with every dtype: each costs an import of torch and two worker processes.
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_loader_runs(imagenet_sample: Path, tmp_path: Path, dtype: str) -> None:
    names = ["ceiling", "shardmill", "webdataset"] if dtype == "float32" else ["shardmill", "torchvision-pil", "opencv"]
    report = _run("loader", "--only", ",".join(names), "--dtype", dtype, "--work-dir", str(tmp_path))
    assert [row["name"] for row in report["rows"]] == names
    assert report["samples"] == 24
    for row in report["rows"]:
        if row["name"] == "opencv" and row["problem"] is not None:
            assert row["problem"].startswith("not installed"), row
            continue
        assert row["problem"] is None, row
        (run,) = row["runs"]
        assert run["timing"]["images_per_s"] > 0
        assert run["timing"]["first_batch_from_start_s"] >= run["timing"]["first_batch_s"] > 0


def test_random_access_runs_and_cleans_up(imagenet_sample: Path, tmp_path: Path) -> None:
    report = _run("random_access", "--work-dir", str(tmp_path))
    assert {(row["shards"], row["ids_per_call"]) for row in report["rows"]} == {(2, 4), (2, 16), (12, 4), (12, 16)}
    assert all(len(row["us"]) == 1 and row["us"][0] > 0 for row in report["rows"])
    assert not list(tmp_path.iterdir())


def test_python_time_is_told_from_compiled_time(imagenet_sample: Path, tmp_path: Path) -> None:
    report = _run("python_time", "--work-dir", str(tmp_path))["us_per_sample"]
    # Decoding 24 images takes over 10 ms, whatever the machine: the clocks reached the compiled module.
    assert report["compiled"][0] > 400
    assert report["consumer"][0] > 0
    assert sum(values[0] for name, values in report.items() if name not in ("all Python", "compiled")) == pytest.approx(
        report["all Python"][0]
    )


def test_every_peer_can_be_described() -> None:
    for name in NAMES:  # and none of them imports its library to be listed
        assert find(name).imports
    assert len({find(name).title for name in NAMES}) == len(NAMES)


# -- a loader that gives wrong data gets no numbers ---------------------------------------------------------------


def _job(folder: Path) -> Job:
    for name in ("a", "b", "c"):
        (folder / "classes" / name).mkdir(parents=True)
        for copy in range(4):
            (folder / "classes" / name / f"{copy}.JPEG").touch()
    return Job("", (), str(folder / "classes"), "", samples=12, workers=1, dtype="uint8", batch_size=4, size=32)


def _epoch(job: Job, *, spoil: str = "") -> Iterator[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(3), 4))
    if spoil == "doubled":
        labels[labels == 2] = 1
    for start in range(0, 12, 4):
        if spoil == "dropped" and start == 4:
            continue
        images = rng.integers(0, 256, (4, 3, job.size, job.size), dtype=np.uint8)
        if spoil == "dtype":
            images = images.astype(np.float32)
        if spoil == "channels last":
            images = images.transpose(0, 2, 3, 1)
        if spoil == "strides":
            images = np.asfortranarray(images)
        if spoil == "blank":
            images[:] = 0
        yield images, labels[start : start + 4].astype(np.float32 if spoil == "float labels" else np.int64)


def _peer(spoil: str = "") -> Peer:
    return Peer("test", (), "folder", lambda job: _epoch(job, spoil=spoil))


def test_a_right_epoch_is_timed(tmp_path: Path) -> None:
    timing = measure(_peer(), _job(tmp_path))
    assert timing.images_per_s > 0
    assert timing.first_batch_from_start_s >= timing.first_batch_s


@pytest.mark.parametrize("spoil", ["doubled", "dropped", "dtype", "channels last", "strides", "blank", "float labels"])
def test_a_wrong_epoch_is_refused(tmp_path: Path, spoil: str) -> None:
    with pytest.raises(AssertionError, match=r"images|labels|pixels"):
        measure(_peer(spoil), _job(tmp_path))


# -- the harness --------------------------------------------------------------------------------------------------


def test_memory_of_the_whole_tree_is_seen() -> None:
    hold = "import sys; data = bytearray(b'x') * (100 << 20); print('ready', flush=True); sys.stdin.read()"
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {hold!r}]); {hold}"
    with subprocess.Popen([sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
        total, private = harness.tree_memory_kib(psutil.Process(child.pid))
        child.stdin.close()
    assert 200 < private / 1024 < 260
    assert private <= total < 300 * 1024


def test_memory_is_watched_until_the_end() -> None:
    # Allocates, then reads its own size until it has been sampled many times over.
    code = "data = bytearray(b'x') * (50 << 20)\nfor _ in range(300): open('/proc/self/smaps').read()\nprint('done')\n"
    ended = harness.run_watched([sys.executable, "-c", code], interval_s=0.005)
    assert (ended.returncode, ended.output) == (0, "done\n")
    assert ended.peak_pss_mib >= ended.peak_private_mib > 50


def test_a_failed_child_keeps_its_output() -> None:
    ended = harness.run_watched([sys.executable, "-c", "raise SystemExit('no luck')"])
    assert (ended.returncode, ended.output) == (1, "no luck\n")


def test_ratios_are_taken_within_a_round() -> None:
    # The host is twice as fast in the second round: medians of each side alone would say otherwise.
    assert harness.paired([10, 20, 12], [5, 10, 6]) == harness.Spread(2, 2, 2)
    assert harness.Spread.of([3, 1, 2]).text(1, "x") == "2.0x (1.0-3.0)"
    assert harness.Spread.of([3]).text() == "3"


def _row(name: str, rate: float, *, pss: float = 100) -> loader.Row:
    run = loader.Run(Timing(rate, 1.0, 0.2, 1.0), peak_pss_mib=pss, peak_private_mib=pss)
    return loader.Row(name, "float32", 2, [run, run])


def test_goals_name_what_was_missed() -> None:
    rows = {
        row.name: row
        for row in (_row("ceiling", 2000), _row("shardmill", 1600), _row("webdataset", 700, pss=90), _row("dali", 900))
    }
    assert loader.goals(rows, "float32") == [
        "float32 met: share of the ceiling 0.80, goal >= 0.75",
        "float32 met: times the best peer (DALI CPU) 1.78, goal >= 1.60",
        "float32 met: seconds to the first batch 0.20, goal < 0.50",
        "float32 MISSED: times webdataset 2.29, goal >= 2.50",
        "float32 MISSED: peak PSS beside webdataset's 1.11, goal < 1.00",
    ]
    assert loader.goals({"dali": rows["dali"]}, "float32") == []


def test_a_peer_that_is_not_installed_keeps_its_row() -> None:
    row = dataclasses.replace(_row("ffcv", 1), runs=[], problem="not installed: No module named 'ffcv'")
    assert loader.table_row(row, {})[:3] == ["FFCV JPEG", "", "not installed"]
    assert len(loader.table_row(row, {})) == len(loader.COLUMNS)


def test_a_missing_interpreter_package_is_told(tmp_path: Path) -> None:
    """Through the real worker: the module is looked for in a fresh process."""
    job, result = tmp_path / "job.json", tmp_path / "result.json"
    job.write_text(json.dumps(dataclasses.asdict(_job(tmp_path))))
    code = (
        "import sys; sys.modules['cv2'] = None\n"
        f"sys.argv = ['worker', 'opencv', {str(job)!r}, {str(result)!r}]\n"
        "from benchmarks.worker import main; main()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert "cv2" in json.loads(result.read_text())["missing"]
