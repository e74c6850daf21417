"""Where a loader stands: a few integers and names, as JSON values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from shardmill.errors import StateError

STATE_VERSION = 1


def digest_of(text: str) -> str:
    """16 hexadecimal digits: for what is too long to be in a state as it is."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_state(identity: Mapping[str, int | str], *, epoch: int, step: int) -> dict[str, int | str]:
    """``identity``: everything the sequence of global steps is a function of; world size and threads are not in it."""
    return {"format": STATE_VERSION, **identity, "epoch": epoch, "step": step}


def read_state(state: object, identity: Mapping[str, int | str], *, steps: int) -> tuple[int, int]:
    """(epoch, step) of a state that fits ``identity``. Raises `StateError` naming the field that does not."""
    if not isinstance(state, Mapping):
        raise StateError(f"a loader state is a dictionary, got {type(state).__name__}")
    if state.get("format") != STATE_VERSION:
        raise StateError(f"format: the state has {state.get('format')!r}, this shardmill reads {STATE_VERSION}")
    expected: dict[str, Any] = {"format": STATE_VERSION, **identity}
    fields = {*expected, "epoch", "step"}
    for name in sorted({*fields, *map(str, state)}):
        if name not in state:
            raise StateError(f"{name}: missing in the state")
        if name not in fields:
            raise StateError(f"{name}: the state has {state[name]!r}, this loader has no such property")
        if name in expected and (state[name] != expected[name] or type(state[name]) is not type(expected[name])):
            why = _WHY.get(name, "")
            raise StateError(f"{name}: the state has {state[name]!r}, this loader {expected[name]!r}{why}")
    epoch, step = state["epoch"], state["step"]
    for name, value in (("epoch", epoch), ("step", step)):
        if type(value) is not int or value < 0:
            raise StateError(f"{name}: must be an integer of at least 0, got {value!r}")
    if step and step >= steps:
        raise StateError(f"step: the state has {step}, but an epoch of this loader has {steps} steps")
    return int(epoch), int(step)


_WHY = {
    "dataset": "; the dataset was packed again or is another one",
    "global_batch": "; batch_size * world_size must be what it was, whatever the world size",
    "lanes": "; pass the same lanes=",
    "recipe": "; pixels would change within the run: pass the same recipe, or new_recipe=True if that is meant",
}
