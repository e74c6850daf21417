"""What the documents show is true: their Python runs, their commands and files exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for path in DOCUMENTS:
        found += [(path.name, body) for kind, body in BLOCK.findall(path.read_text()) if kind == language]
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory as the documents assume it: ``photos/`` with class folders, nothing else."""
    from shardmill.demo.generator import plan, write

    folder = tmp_path_factory.mktemp("docs")
    for _ in write(plan(300), folder / "photos"):
        pass
    return folder


def test_readme_and_docs_snippets_run_in_order(place: Path) -> None:
    snippets = blocks("python")
    assert snippets, "the documents show no Python"
    for name, body in snippets:
        done = subprocess.run([sys.executable, "-c", body], cwd=place, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}:\n{body}\n{done.stderr}"
        # A line `#> text` after a print is what it prints.
        expected = [line.partition("#> ")[2] for line in body.splitlines() if "#> " in line]
        assert [line for line in done.stdout.splitlines() if line] == expected or not expected, (
            f"{name}:\n{done.stdout}"
        )


def test_console_blocks_show_commands_that_exist() -> None:
    import typer

    from shardmill.cli.app import app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, body in blocks("console"):
        for line in body.splitlines():
            words = line.removeprefix("$ ").split()
            if not line.startswith("$ shardmill ") or len(words) < 2 or words[1].startswith("-"):
                continue
            command = commands.get(words[1])
            assert command is not None, f"{name}: {line}"
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            used = {word.partition("=")[0] for word in words[2:] if word.startswith("-")}
            assert used <= known | {"--help", "--debug"}, f"{name}: {line}"


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in DOCUMENTS:
        for target in re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)", path.read_text(), re.MULTILINE):
            assert (target[0] or target[1]) in targets, f"{path.name} names make {target}"


def test_files_and_links_that_are_named_exist() -> None:
    for path in DOCUMENTS:
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text()):
            assert (path.parent / link).exists(), f"{path.name} links to {link}"
        for named in re.findall(r"`((?:src|tests|benchmarks|docs|examples|scripts)/[\w./*-]+)`", path.read_text()):
            assert list(ROOT.glob(named)), f"{path.name} names {named}"


def test_every_verb_is_in_the_documents() -> None:
    from shardmill.cli.app import app

    text = "".join(path.read_text() for path in DOCUMENTS)
    for command in app.registered_commands:
        assert f"shardmill {command.name}" in text, f"no document mentions `shardmill {command.name}`"
