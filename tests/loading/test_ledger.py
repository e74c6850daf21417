"""What was skipped is known after restarts, whatever the world size, each sample once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardmill.errors import ChecksumError, DataError, ImageError, OptionsError, StateError
from shardmill.images.recipe import Recipe, Resize
from shardmill.loading import ledger as ledger_module
from shardmill.loading.ledger import Ledger, Skipped, read_ledger
from shardmill.loading.loader import Loader

Make = Callable[[list[int]], Any]
BAD = frozenset({3, 17, 40, 41, 77})
RECIPE = Recipe((Resize((4, 4)),), dtype="uint8")


def loader(reader: Any, batch_size: int = 8, **options: Any) -> Loader:
    options = {"recipe": RECIPE, "framework": "numpy", "threads": 1, "window": 20, "on_error": "skip", **options}
    return Loader(reader, batch_size, **options)


def brief(entries: Any) -> list[tuple[int, int, int, str | None]]:
    return [(entry.epoch, entry.step, entry.id, entry.error.key) for entry in entries]


@pytest.mark.parametrize("stop", range(14))
def test_it_survives_a_restart_before_every_step(make_reader: Make, tmp_path: Path, stop: int) -> None:
    reader = replace(make_reader([50, 47]), bad_bytes=BAD)
    whole = loader(reader)
    ids = [batch.ids.tolist() for batch in whole]
    assert len(ids) == 13
    first = loader(reader, ledger=tmp_path)
    running = iter(first)
    got = [next(running).ids.tolist() for _ in range(min(stop, 13))]
    state = json.loads(json.dumps(first.state_dict()))
    if stop < 13:
        # Work that is lost: its lines are in the file, and must not count twice.
        next(running)
    first.close()

    second = loader(reader, ledger=tmp_path)
    assert second.skipped == ()
    second.load_state_dict(state)
    assert brief(second.skipped) == [entry for entry in brief(whole.skipped) if entry[1] < stop]
    got += [] if stop >= 13 else [batch.ids.tolist() for batch in second]
    assert got == ids
    assert brief(second.skipped) == brief(whole.skipped)
    assert second.skipped_by_epoch == {0: len(BAD)}
    assert sorted(brief(read_ledger(tmp_path))) == sorted(brief(whole.skipped))


def test_ranks_share_a_folder_and_another_world_size_reads_it(make_reader: Make, tmp_path: Path) -> None:
    reader = replace(make_reader([50, 47]), bad_bytes=BAD)
    expected = loader(reader, 16)
    list(expected)
    ranks = [loader(reader, 8, rank=rank, world_size=2, ledger=tmp_path) for rank in range(2)]
    for _ in zip(*ranks, strict=True):
        if ranks[0].state_dict()["step"] == 3:
            break
    state = ranks[1].state_dict()
    assert state == ranks[0].state_dict()
    for one in ranks:
        one.close()
    resumed = [loader(reader, 4, rank=rank, world_size=4, ledger=tmp_path) for rank in range(4)]
    for one in resumed:
        one.load_state_dict(state)
        assert brief(one.skipped) == [entry for entry in brief(expected.skipped) if entry[1] < 3]
        list(one)
    assert {path.name for path in tmp_path.iterdir()} <= {
        *(f"skipped-rank{rank:05d}-of-00002.jsonl" for rank in range(2)),
        *(f"skipped-rank{rank:05d}-of-00004.jsonl" for rank in range(4)),
    }
    assert sorted(brief(read_ledger(tmp_path))) == sorted(brief(expected.skipped))
    last = loader(reader, 16, ledger=tmp_path)
    last.load_state_dict(resumed[0].state_dict())
    assert brief(last.skipped) == brief(expected.skipped)


def test_counts_by_epoch_and_going_back(make_reader: Make, tmp_path: Path) -> None:
    reader = replace(make_reader([50, 47]), bad_bytes=BAD)
    for folder in (None, tmp_path):
        one = loader(reader, ledger=folder)
        list(one)
        state = one.state_dict()
        list(one)
        assert one.skipped_by_epoch == {0: 5, 1: 5}
        assert one.stats().skipped == 10
        one.load_state_dict(state)
        assert one.skipped_by_epoch == {0: 5}
        list(one)
        one.set_epoch(1)
        list(one)
        assert one.skipped_by_epoch == {0: 5, 1: 5}


def test_a_run_that_stopped_at_a_bad_sample_goes_on_with_skip(make_reader: Make) -> None:
    good = [batch.ids.tolist() for batch in loader(make_reader([50, 47]))]
    reader = replace(make_reader([50, 47]), bad_bytes=frozenset({good[6][3], good[9][0]}))
    expected = [batch.ids.tolist() for batch in loader(reader)]
    strict = loader(reader, on_error="raise")
    got: list[list[int]] = []
    with pytest.raises(ChecksumError):
        # extend keeps what came before the error.
        got.extend(batch.ids.tolist() for batch in strict)
    assert len(got) == 6
    going_on = loader(reader)
    going_on.load_state_dict(strict.state_dict())
    assert got + [batch.ids.tolist() for batch in going_on] == expected


def test_other_runs_in_the_folder_are_left_alone(make_reader: Make, tmp_path: Path) -> None:
    reader = replace(make_reader([50, 47]), bad_bytes=BAD)
    list(loader(reader, seed=1, ledger=tmp_path))
    one = loader(reader, seed=2, ledger=tmp_path)
    list(one)
    again = loader(reader, seed=2, ledger=tmp_path)
    again.load_state_dict(one.state_dict())
    assert brief(again.skipped) == brief(one.skipped)
    assert len(list(read_ledger(tmp_path))) == 10


def test_errors_come_back_as_they_were(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "new" / "folder", {"seed": 1}, rank=3, world_size=4)
    errors: list[DataError] = [
        ImageError("cut", path="a.tar", offset=512, key="ü\n", hint="copy it"),
        ChecksumError("no", path="s3://b/c"),
    ]
    for number, error in enumerate(errors):
        book.add(Skipped(number, 0, 1, error))
    found = list(read_ledger(tmp_path / "new" / "folder"))
    assert [type(entry.error) for entry in found] == [ImageError, ChecksumError]
    assert [str(entry.error) for entry in found] == [str(error) for error in errors]


def test_a_torn_line_is_named(tmp_path: Path) -> None:
    book = Ledger(tmp_path, {"seed": 1}, rank=0, world_size=1)
    book.add(Skipped(1, 0, 0, ImageError("cut", path="a.tar")))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + b'{"run": "abc", "ep')
    with pytest.raises(StateError, match=r"skipped-rank00000-of-00001\.jsonl:2: no entry of a ledger"):
        list(read_ledger(tmp_path))


def test_memory_is_bounded_and_the_count_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAX_REMEMBERED", 3)
    book = Ledger(None, {}, rank=0, world_size=1)
    for number in range(5):
        book.add(Skipped(number, 7, number, ImageError("cut", path="a.tar")))
    assert ([entry.id for entry in book.entries], book.counts) == ([0, 1, 2], {7: 5})


def test_processes_append_whole_lines_to_one_file(tmp_path: Path) -> None:
    program = """
import sys
from shardmill.errors import ImageError
from shardmill.loading.ledger import Ledger, Skipped
book = Ledger(sys.argv[1], {}, rank=0, world_size=1)
for number in range(200):
    book.add(Skipped(number * 2 + int(sys.argv[2]), 0, 0, ImageError("x" * 500, path="a.tar")))
"""
    both = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(half)]) for half in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert sorted(entry.id for entry in read_ledger(tmp_path)) == list(range(400))


def test_nonsense_is_refused(make_reader: Make, tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match='on_error="skip" leaves out'):
        loader(make_reader([16]), on_error="raise", ledger=tmp_path)
    with pytest.raises(OptionsError, match="must be a local folder"):
        loader(make_reader([16]), ledger="s3://bucket/ledger")
