"""The loading benchmarks run, at a size that says nothing about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def run(module: str, *arguments: str) -> dict[str, dict[str, dict[str, float]]]:
    command = [sys.executable, "-m", f"benchmarks.{module}", "--quick", "--json", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, dict[str, dict[str, float]]] = json.loads(done.stdout)
    return report


def test_order_runs() -> None:
    orders = run("order", "--samples", "3000000", "--shards", "50")["orders"]
    assert len(orders) == 3
    assert all(row["bulk"] > 0 and row["peak_mib"] < 100 for row in orders.values())


def test_overhead_runs(imagenet_sample: Path, tmp_path: Path) -> None:
    rows: dict[str, Any] = run("overhead", "--work-dir", str(tmp_path))["us_per_sample"]
    (row,) = rows.values()
    assert all(us > 0 for us in row["cpu"])
