"""The public names are few, listed, documented, and import quickly."""

from __future__ import annotations

import subprocess
import sys

import shardmill as sm

NAMES = [
    "Balanced",
    "Batch",
    "Dataset",
    "Encode",
    "Loader",
    "Mix",
    "PackReport",
    "Sample",
    "ShardmillError",
    "VerifyReport",
    "Weighted",
    "errors",
    "open",
    "pack",
    "recipes",
    "verify",
]


def test_the_list_is_what_the_package_gives() -> None:
    assert sorted(sm.__all__) == sm.__all__ == NAMES
    public = {name for name in dir(sm) if not name.startswith("_")}
    assert public == set(NAMES)


def test_every_public_name_is_documented() -> None:
    for name in NAMES:
        assert (getattr(sm, name).__doc__ or "").strip(), name


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, shardmill; print([m for m in ('torch', 'rich', 'typer') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
