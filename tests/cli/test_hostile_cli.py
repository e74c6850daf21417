"""The command line on names and numbers made to do harm: one line of error, nothing that steers a terminal."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from shardmill.cli import main
from shardmill.cli.pack import parse_size
from shardmill.cli.show import literal, visible
from shardmill.errors import OptionsError
from shardmill.shards.index_writer import write_manifest
from shardmill.shards.manifest import MANIFEST, Manifest
from shardmill.shards.open import open_dataset


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        text = capsys.readouterr()
        return Done(stop.value.code if isinstance(stop.value.code, int) else 0, text.out, text.err)

    return call


def jpeg() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (16, 12), (1, 7, 9)).save(out, "JPEG")
    return out.getvalue()


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


HOSTILE_KEYS = ["a[/b]", "b[red]x", "c\x1b[31mred", "d\ny", "e:cat:", "f\u202eg", "g\x9b31m", "[bold]", "h\\"]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """One tar whose keys and class names hold markup, emoji codes, newlines and escape sequences."""
    members = [(f"{key}.{e}", d) for key in HOSTILE_KEYS for e, d in (("jpg", jpeg()), ("cls", f"<{key}>".encode()))]
    write_tar(tmp_path / "x[1]" / "a[z].tar", members)
    return tmp_path / "x[1]"


def assert_harmless(text: str) -> None:
    assert all(c.isprintable() or c == "\n" for c in text), text


def test_names_are_shown_as_they_are_and_steer_nothing(run: Run, hostile: Path) -> None:
    listed = run("ls", hostile)
    assert listed.code == 0
    assert_harmless(listed.out)
    for shown in ("a[/b]", "b[red]x", r"c\x1b[31mred", r"d\ny", "e:cat:", r"f\u202eg", r"g\x9b31m", "a[z].tar"):
        assert shown in listed.out
    info = run("info", hostile)
    assert (info.code, str(hostile) in info.out) == (0, True)
    assert_harmless(info.out)
    for row in range(len(HOSTILE_KEYS)):
        one = run("cat", hostile, row)
        assert (one.code, visible(HOSTILE_KEYS[row]) in one.out) == (0, True)
        assert_harmless(one.out)


def test_json_holds_the_exact_names(run: Run, hostile: Path) -> None:
    listed = run("ls", hostile, "--json", "--count", 0)
    assert [json.loads(line)["key"] for line in listed.out.splitlines()] == HOSTILE_KEYS
    assert listed.out.isascii()
    assert json.loads(run("cat", hostile, 3, "--json").out)["key"] == "d\ny"


def test_verify_shows_faults_of_hostile_names(run: Run, hostile: Path) -> None:
    assert run("index", hostile).code == 0
    path = hostile / "a[z].tar"
    data = bytearray(path.read_bytes())
    at = data.index(b"\xff\xd8", data.index(b"\xff\xd8") + 1)
    data[at] ^= 1
    path.write_bytes(data)
    told = run("verify", hostile)
    assert (told.code, "a[z].tar" in told.out, str(hostile) in told.out) == (1, True, True)
    assert_harmless(told.out)


@pytest.mark.parametrize("name", ["/nonexistent\x1b[31m", "/none\nerror: all is well", "/none/:cat:[red]"])
def test_errors_are_one_harmless_line(run: Run, name: str) -> None:
    told = run("info", name)
    assert told.code in (1, 2)
    assert told.err.count("\n") == 1
    assert_harmless(told.err)
    assert visible(name) in told.err


def test_literal_text_is_printed_unchanged() -> None:
    out = io.StringIO()
    Console(file=out, emoji=False, width=200).print(literal("[red]:cat:[/] ünï"))
    assert out.getvalue() == "[red]:cat:[/] ünï\n"


@pytest.mark.parametrize("sample", ["²", "--5", "9" * 5000, "٣", "\udcff", ""])
def test_cat_of_what_is_neither_row_nor_key_is_refused(run: Run, hostile: Path, sample: str) -> None:
    told = run("cat", hostile, "--", sample)
    assert (told.code, "no sample has the key" in told.err) == (2, True)


def test_a_key_of_digits_with_zeros_before_them_is_a_key(run: Run, tmp_path: Path) -> None:
    write_tar(tmp_path / "d" / "a.tar", [(f"{10 - i:08}.jpg", jpeg()) for i in range(10)])
    assert json.loads(run("cat", tmp_path / "d", "00000003", "--json").out)["key"] == "00000003"
    assert json.loads(run("cat", tmp_path / "d", "3", "--json").out)["key"] == "00000007"
    assert json.loads(run("cat", tmp_path / "d", "003", "--json").out)["key"] == "00000007"


def test_a_label_near_the_limit_costs_no_memory(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = (b"2147483647", b"2147483647", b"0")
    members = [(f"k{i}.{e}", d) for i, label in enumerate(labels) for e, d in (("jpg", jpeg()), ("cls", label))]
    write_tar(tmp_path / "d" / "a.tar", members)
    whole = np.bincount

    def small(values: np.ndarray, **more: int) -> np.ndarray:
        assert int(values.max()) < 1000
        return whole(values, **more)

    monkeypatch.setattr(np, "bincount", small)
    found = json.loads(run("info", tmp_path / "d", "--json").out)
    assert found["per_label"] == [[2147483647, None, 2], [0, None, 1]]


def test_a_format_that_is_none_is_shown_as_such(run: Run, tmp_path: Path) -> None:
    write_tar(tmp_path / "d" / "a.tar", [("k.jpg", jpeg())])
    open_dataset(tmp_path / "d", cache_dir=tmp_path / "cache" / "shardmill")
    (column,) = (tmp_path / "cache").rglob("image_format.npy")
    values = np.load(column)
    values[0] = 77
    np.save(column, values)
    folder = column.parent.parent
    manifest = Manifest.from_bytes((folder / MANIFEST).read_bytes(), path="")
    fitting = replace(manifest.files[column.name], sha256=hashlib.sha256(column.read_bytes()).hexdigest())
    write_manifest(folder, replace(manifest, files={**manifest.files, column.name: fitting}))
    assert json.loads(run("ls", tmp_path / "d", "--json").out)["format"] == "NONE (77)"
    assert json.loads(run("info", tmp_path / "d", "--json").out)["formats"] == {"NONE (77)": 1}


@pytest.mark.parametrize("text", ["9" * 400, "9e9", "nan", "inf", "-1", "1e400GiB", "99999999999TiB"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(OptionsError):
        parse_size(text)


def test_ls_of_a_start_and_label_agree_with_a_filter(run: Run, tmp_path: Path) -> None:
    members = [(f"k{i:02}.{e}", d) for i in range(30) for e, d in (("jpg", jpeg()), ("cls", str(i % 3).encode()))]
    write_tar(tmp_path / "d" / "a.tar", members)
    listed = run("ls", tmp_path / "d", "--json", "--start", 7, "--count", 4, "--label", 1).out
    assert [json.loads(line)["row"] for line in listed.splitlines()] == [7, 10, 13, 16]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", "from shardmill.cli import main; main()", *map(str, arguments)]


@pytest.mark.parametrize("arguments", [("ls", "--count", "0", "--json"), ("ls", "--count", "0"), ("info",)])
def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    write_tar(tmp_path / "d" / "a.tar", [(f"k{i:04}.jpg", jpeg()) for i in range(1000)])
    read_end, write_end = os.pipe()
    os.close(read_end)
    verb, *options = arguments
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with os.fdopen(write_end, "wb") as closed:
        done = subprocess.run(
            command(verb, tmp_path / "d", *options),
            stdout=closed,
            stderr=subprocess.PIPE,
            env=environment,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii"])
def test_names_that_the_locale_cannot_write_are_no_traceback(tmp_path: Path, encoding: str) -> None:
    folder = tmp_path / "d\udcffü"
    write_tar(folder / "a.tar", [("kü.jpg", jpeg()), ("kü.cls", "ß".encode())])
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONIOENCODING": encoding}
    for arguments in (("info",), ("info", "--json"), ("ls",), ("ls", "--json")):
        verb, *options = arguments
        done = subprocess.run(command(verb, folder, *options), capture_output=True, env=environment, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        if arguments == ("info", "--json"):
            assert json.loads(done.stdout)["path"] == str(folder)


def test_a_folder_that_cannot_be_written_is_told_before_the_tars_are_read(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tar(tmp_path / "d" / "a.tar", [("k.jpg", jpeg())])
    # root, who often runs tests, may write everywhere
    monkeypatch.setattr("shardmill.cli.index.os.access", lambda path, mode: mode != os.W_OK)
    monkeypatch.setattr("shardmill.cli.index.index_tars", lambda *a, **k: pytest.fail("read the tars first"))
    told = run("index", tmp_path / "d")
    assert (told.code, told.err.endswith("open without one\n")) == (2, True), told
