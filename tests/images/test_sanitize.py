"""The kernel under AddressSanitizer and UndefinedBehaviorSanitizer, briefly; ``make sanitize`` runs it for longer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_mutated_jpegs_under_sanitizers(tmp_path: Path) -> None:
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        pytest.skip("no C++ compiler")
    empty = tmp_path / "empty.cpp"
    empty.write_text("int main() { return 0; }\n")
    probe = [compiler, "-fsanitize=address,undefined", str(empty), "-o", str(tmp_path / "empty")]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("the compiler has no sanitizer libraries")
    environment = {**os.environ, "PYTHON": sys.executable}
    ran = subprocess.run(
        [str(ROOT / "scripts" / "sanitize.sh"), "150"], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "no sanitizer report" in ran.stdout
