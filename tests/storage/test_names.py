"""Patterns expand as a shell expands them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shardmill.errors import OptionsError
from shardmill.storage.names import expand, expand_braces


@pytest.mark.parametrize(
    "pattern",
    ["x", "x-{0..3}.tar", "x-{008..011}", "{3..1}", "{a,b}{1..2}", "a{b,}c", "x{}y", "x{a}y", "{a,b", "{01..3}"],
)
def test_as_bash_does(pattern: str) -> None:
    shell = subprocess.run(["bash", "-c", f"echo {pattern}"], capture_output=True, text=True, check=True)
    assert expand_braces(pattern) == shell.stdout.split()


@pytest.mark.parametrize("pattern", ["{0..1000000}", "{0..2000}{0..2000}", "{0..99999999999999999999}"])
def test_a_pattern_that_explodes(pattern: str) -> None:
    with pytest.raises(OptionsError, match="more than"):
        expand_braces(pattern)


def test_globs_are_sorted(tmp_path: Path) -> None:
    for name in ("b.tar", "a.tar", "c.txt"):
        (tmp_path / name).touch()
    assert expand(f"{tmp_path}/*.tar") == [f"{tmp_path}/a.tar", f"{tmp_path}/b.tar"]
    with pytest.raises(OptionsError, match="matches no file"):
        expand(f"{tmp_path}/*.zip")
