"""The command line as a user meets it: what is printed, where, and with which exit code."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from PIL import Image

import shardmill as sm
from shardmill.cli import main
from shardmill.cli.app import app
from shardmill.cli.pack import parse_size
from shardmill.errors import OptionsError


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        text = capsys.readouterr()
        code = stop.value.code
        return Done(code if isinstance(code, int) else 0 if code is None else 1, text.out, text.err)

    return call


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "photos"
    rng = np.random.default_rng(0)
    for name in ("cat", "dog", "eel"):
        (folder / name).mkdir(parents=True)
        for i in range(8):
            pixels = rng.integers(0, 256, (40 + i, 60, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{name}{i}.jpg")
    return folder


@pytest.fixture(scope="module")
def shards(photos: Path) -> Path:
    dest = photos.parent / "shards"
    with pytest.raises(SystemExit) as stop:
        main(["pack", str(photos), str(dest), "--shard-samples", "10", "--workers", "1", "--json"])
    assert stop.value.code in (0, None)
    return dest


def test_pack_reports_and_info_agrees(run: Run, photos: Path, tmp_path: Path) -> None:
    packed = run("pack", photos, tmp_path / "d", "--shard-samples", 10, "--seed", 3, "--workers", 1, "--json")
    assert packed.code == 0
    assert packed.json()["samples"] == 24
    info = run("info", tmp_path / "d", "--json").json()
    assert (info["samples"], info["shards"], info["classes"]) == (24, 3, 3)
    assert info["formats"] == {"JPEG": 24}
    assert info["shuffle"]["seed"] == 3
    assert info["per_label"] == [[0, "cat", 8], [1, "dog", 8], [2, "eel", 8]]
    text = run("info", tmp_path / "d")
    assert "24" in text.out
    assert "global, seed 3" in text.out


def test_ls_lists_every_source_file_once(run: Run, photos: Path, shards: Path) -> None:
    listed = [json.loads(line) for line in run("ls", shards, "--count", 0, "--json").out.splitlines()]
    assert sorted(row["key"] for row in listed) == sorted(
        str(path.relative_to(photos).with_suffix("")) for path in photos.rglob("*.jpg")
    )
    for row in listed:
        path = photos / f"{row['key']}.jpg"
        with Image.open(path) as picture:
            assert (row["width"], row["height"]) == picture.size
        assert row["bytes"] == path.stat().st_size
        assert row["class"] == path.parent.name
    only = [json.loads(line) for line in run("ls", shards, "--label", 1, "--count", 0, "--json").out.splitlines()]
    assert {row["class"] for row in only} == {"dog"}
    assert "of 24 rows" in run("ls", shards, "--count", 3).out


def test_cat_gives_the_source_file_back(run: Run, photos: Path, shards: Path, tmp_path: Path) -> None:
    assert run("cat", shards, "dog/dog3", "--field", "jpg", "--out", tmp_path / "x").code == 0
    assert (tmp_path / "x").read_bytes() == (photos / "dog" / "dog3.jpg").read_bytes()
    assert set(run("cat", shards, 0, "--json").json()["fields"]) == {"jpg", "cls"}
    for arguments, text in [
        ((shards, "dog/none"), "no sample has the key 'dog/none'"),
        ((shards, 99), "row 99: the dataset has rows 0 to 23"),
        ((shards, 0, "--field", "png"), "has no field 'png'; it has jpg, cls"),
    ]:
        failed = run("cat", *arguments)
        assert failed.code == 2
        assert text in failed.err


def test_verify_finds_a_flipped_byte_and_names_it(run: Run, photos: Path, tmp_path: Path) -> None:
    run("pack", photos, tmp_path / "d", "--workers", 1, "--json")
    assert run("verify", tmp_path / "d").code == 0
    row = json.loads(run("ls", tmp_path / "d", "--start", 5, "--count", 1, "--json").out)
    with (tmp_path / "d" / row["shard"]).open("r+b") as file:
        file.seek(row["offset"] + 100)
        byte = file.read(1)[0]
        file.seek(row["offset"] + 100)
        file.write(bytes([byte ^ 4]))
    failed = run("verify", tmp_path / "d", "--json")
    assert failed.code == 1
    (fault,) = [f for f in failed.json()["faults"] if f["key"]]
    assert (fault["path"], fault["key"]) == (row["shard"], row["key"])
    assert row["key"] in run("verify", tmp_path / "d").out


def test_index_makes_tars_of_others_a_dataset(run: Run, photos: Path, tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as sink:
        for i, path in enumerate(sorted(photos.rglob("*.jpg"))):
            sink.write({"__key__": path.stem, "jpg": path.read_bytes(), "cls": i % 3})
    before = hashlib.sha256((tmp_path / "a.tar").read_bytes()).hexdigest()
    assert run("index", tmp_path, "--json").json()["samples"] == 24
    assert hashlib.sha256((tmp_path / "a.tar").read_bytes()).hexdigest() == before
    assert run("verify", tmp_path).code == 0
    again = run("index", tmp_path)
    assert again.code == 2
    assert "--force replaces it" in again.err
    assert run("index", tmp_path, "--force", "--no-checksums").code == 0
    assert "without checksums" in run("verify", tmp_path).out


def test_bench_measures_what_it_says(run: Run, shards: Path, tmp_path: Path) -> None:
    result = run("bench", shards, "--batch-size", 8, "--size", 32, "--images", 40, "--json").json()
    assert result["images"] >= 40
    assert result["images_per_second"] == pytest.approx(result["images"] / result["seconds"])
    assert 0 < result["share"]["decode"] <= 1.05
    assert "images/s" in run("bench", shards, "--batch-size", 8, "--size", 32, "--images", 16).out
    (tmp_path / "strong.json").write_text(sm.recipes.train_strong(32).to_json())
    strong = run("bench", shards, "--batch-size", 8, "--images", 16, "--recipe", tmp_path / "strong.json", "--json")
    assert {"TrivialAugmentWide", "RandomErasing"} <= set(strong.json()["microseconds"])
    assert run("bench", shards, "--recipe", "trian").code == 2
    whole = run("bench", shards, "--batch-size", 64)
    assert whole.code == 2
    assert "use a smaller --batch-size" in whole.err


def test_doctor_finds_the_compiled_module(run: Run) -> None:
    done = run("doctor", "--json")
    assert done.code == 0, "something is wrong with the installation that CI tests"
    assert {f["subject"]: f["state"] for f in done.json()}["compiled decoder"] == "ok"


def test_an_error_is_one_line_and_names_the_file(run: Run, tmp_path: Path) -> None:
    failed = run("info", tmp_path / "nowhere")
    assert failed.code == 1
    assert failed.err.startswith("error: ")
    assert failed.err.count("\n") == 1
    assert str(tmp_path / "nowhere") in failed.err
    assert failed.out == ""


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        main(["--debug", "info", str(tmp_path / "nowhere")])
    with pytest.raises(FileNotFoundError):
        main(["info", str(tmp_path / "nowhere"), "--debug"])


def test_bad_use_is_exit_code_2(run: Run) -> None:
    assert run("pack").code == 2
    assert run("nonsense").code == 2
    assert run("ls", "x", "--count", "-1").code == 2


def test_every_verb_has_help_with_an_example(run: Run) -> None:
    for command in app.registered_commands:
        shown = run(command.name, "--help")
        assert shown.code == 0
        assert "Example" in shown.out
        assert f"shardmill {command.name}" in shown.out.replace("\n", " ")


def test_python_m_and_a_closed_pipe(shards: Path) -> None:
    command = f"{sys.executable} -m shardmill ls {shards} --count 0 --json | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["row"] == 0
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("text", "size"),
    [("256MiB", 256 * 2**20), ("1GB", 10**9), ("4g", 4 * 10**9), ("1.5 GiB", 3 * 2**29), ("1000", 1000), ("10B", 10)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1 XB", "-1", "1e9", "i"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(OptionsError, match="is not a size"):
        parse_size(text)
