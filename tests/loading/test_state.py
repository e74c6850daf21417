from __future__ import annotations

import json
from typing import Any

import pytest

from shardmill.errors import StateError
from shardmill.loading.state import make_state, read_state

IDENTITY: dict[str, int | str] = {"dataset": "abc", "samples": 100, "seed": 3, "lanes": 8, "global_batch": 16}


def test_json_and_back() -> None:
    state = make_state(IDENTITY, epoch=3, step=5)
    assert read_state(json.loads(json.dumps(state)), IDENTITY, steps=7) == (3, 5)
    assert len(json.dumps(state)) < 1000


@pytest.mark.parametrize("name", [*IDENTITY, "format", "epoch", "step"])
def test_a_field_that_differs_or_lacks_is_named(name: str) -> None:
    state: dict[str, Any] = make_state(IDENTITY, epoch=3, step=5)
    for wrong in ("other", -1, None, 3.0, True):
        with pytest.raises(StateError, match=f"^{name}: "):
            read_state({**state, name: wrong}, IDENTITY, steps=7)
    del state[name]
    with pytest.raises(StateError, match=f"^{name}: "):
        read_state(state, IDENTITY, steps=7)


def test_what_it_does_not_know_is_refused() -> None:
    state = make_state(IDENTITY, epoch=0, step=0)
    with pytest.raises(StateError, match="window: the state has 9, this loader has no such property"):
        read_state({**state, "window": 9}, IDENTITY, steps=7)
    with pytest.raises(StateError, match="a dictionary, got list"):
        read_state([], IDENTITY, steps=7)
    with pytest.raises(StateError, match="step: the state has 7, but an epoch of this loader has 7 steps"):
        read_state({**state, "step": 7}, IDENTITY, steps=7)
