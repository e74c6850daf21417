"""Imports point one way, and heavy or optional packages are imported where they may be."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "shardmill"

# Low to high: a module may import from its own tier and from the ones before it.
TIERS = [
    {"errors", "records", "imageinfo", "machine", "native", "_native"},
    {"storage"},
    {"sources", "shards"},
    {"images", "recipes"},
    {"loading"},
    {"serving"},
    {"viewer", "interop"},
    {"demo"},
    {"cli", "__main__"},
]
# Pixels know nothing of where bytes come from: of the tiers below, images may use only these.
IMAGES_MAY_USE = TIERS[0] | TIERS[3]
TORCH_MAY_BE_IN = {"loading/torch.py", "interop", "demo"}
BASE_PACKAGES = {"numpy", "PIL", "google_crc32c", "typer", "click", "rich", "shardmill"}
MODULES = sorted(SOURCE.rglob("*.py"))


def tier(name: str) -> int:
    matches = [i for i, names in enumerate(TIERS) if name in names]
    assert matches, f"{name} is not in the list of layers: add it in the right place"
    return matches[0]


def imports(tree: ast.AST) -> list[tuple[str, ast.stmt]]:
    found: list[tuple[str, ast.stmt]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            # `from shardmill import x` imports the module shardmill.x.
            found += [(f"{module}.{alias.name}" if module == "shardmill" else module, node) for alias in node.names]
    return found


def own_part(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "shardmill" and len(parts) > 1 else None


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    place = path.relative_to(SOURCE)
    if place == Path("__init__.py"):
        return
    mine = place.parts[0].removesuffix(".py")
    for name, _ in imports(ast.parse(path.read_text())):
        other = own_part(name)
        if other is None or other == mine:
            continue
        assert tier(other) <= tier(mine), f"{place} imports {name}, which is above it"
        if mine == "images":
            assert other in IMAGES_MAY_USE, f"{place} imports {name}: images know nothing of storage or shards"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_optional_packages_are_imported_late_and_torch_only_where_it_belongs(path: Path) -> None:
    place = path.relative_to(SOURCE)
    tree = ast.parse(path.read_text())
    top = {id(node) for node in tree.body}
    for name, node in imports(tree):
        package = name.split(".")[0]
        if package in {"torch", "torchvision"}:
            assert str(place) in TORCH_MAY_BE_IN or place.parts[0] in TORCH_MAY_BE_IN, f"{place} imports {name}"
        known = package in BASE_PACKAGES or package in __import__("sys").stdlib_module_names
        allowed_at_top = known or (str(place) == "loading/torch.py" and package == "torch")
        if id(node) in top:
            assert allowed_at_top, f"{place} imports the optional package {package} at its top"


def test_no_drawer_folders() -> None:
    drawers = {"utils", "util", "core", "common", "base", "helpers", "misc"}
    assert not [p for p in SOURCE.rglob("*") if p.stem in drawers]


def test_files_stay_readable() -> None:
    long = {str(p.relative_to(SOURCE)): n for p in MODULES if (n := len(p.read_text().splitlines())) > 400}
    assert not long, f"over 400 lines, split by job: {long}"
