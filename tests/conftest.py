"""Fixtures that every folder of tests shares."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def _shared(name: str) -> Path:
    folder = SHARED / name
    if not SHARED.parent.exists():
        pytest.skip(f"the shared test data ({folder}) is not on this machine")
    assert folder.is_dir(), f"the shared test data is here, but without {name}"
    return folder


@pytest.fixture(scope="session")
def imagenet_sample() -> Path:
    """500 real ImageNet JPEGs, one per class, named ``nXXXXXXXX_name.JPEG``."""
    return _shared("imagenet-sample")


@pytest.fixture(scope="session")
def imagenettools() -> Path:
    """ImageNetTools' own test data: tars, tars of tars, folders, labels."""
    return _shared("imagenettools")
