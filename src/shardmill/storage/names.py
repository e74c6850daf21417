"""Path patterns to paths: ``{000..127}``, ``{a,b}`` and shell globs. Braces are pure; globs look at the disk.

Not the package braceexpand: it builds every range in memory before the first name, so a typo is a hang.
"""

from __future__ import annotations

import glob
import os
import re

from shardmill.errors import OptionsError

_BRACES = re.compile(r"\{([^{}]*(?:,|\.\.)[^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)\Z")
_MAX_PATHS = 1_000_000
_MAX_DIGITS = 255  # a longer number is in no file name


def expand_braces(pattern: str) -> list[str]:
    """As a shell does: ``x-{008..010}.tar`` gives x-008.tar, x-009.tar, x-010.tar; several braces multiply.

    A range keeps the zeros of its bounds. Raises `OptionsError` for more than a million paths.
    """
    expanded, at = [""], 0
    for found in _BRACES.finditer(pattern):
        middles = _alternatives(found[1], pattern)
        if len(expanded) * len(middles) > _MAX_PATHS:
            raise _too_many(pattern)
        plain = pattern[at : found.start()]
        expanded = [before + plain + middle for before in expanded for middle in middles]
        at = found.end()
    return [before + pattern[at:] for before in expanded]


def _alternatives(inside: str, pattern: str) -> list[str]:
    bounds = _RANGE.match(inside)
    if bounds is None:
        return inside.split(",")
    if max(len(bounds[1]), len(bounds[2])) > _MAX_DIGITS:
        raise _too_many(pattern)
    first, last = int(bounds[1]), int(bounds[2])
    if abs(last - first) >= _MAX_PATHS:
        raise _too_many(pattern)
    padded = bounds[1].startswith("0") or bounds[2].startswith("0")
    width = max(len(bounds[1]), len(bounds[2])) if padded else 0
    step = 1 if last >= first else -1
    return [f"{number:0{width}d}" for number in range(first, last + step, step)]


def _too_many(pattern: str) -> OptionsError:
    return OptionsError(f"{pattern[:200]}: more than {_MAX_PATHS} paths, or numbers of over {_MAX_DIGITS} digits")


def expand(pattern: str) -> list[str]:
    """The paths a pattern names: braces in their order, each glob sorted.

    A path that exists as it is stands for itself. Raises `OptionsError` for a glob that matches nothing.
    """
    if os.path.exists(pattern):  # noqa: PTH110 - a pattern is no path yet
        return [pattern]
    paths = []
    for one in expand_braces(pattern):
        if glob.has_magic(one):
            # Path.glob takes no absolute pattern.
            matches = sorted(glob.glob(one, recursive=True))  # noqa: PTH207
            if not matches:
                raise OptionsError(f"{one} matches no file")
            paths += matches
        else:
            paths.append(one)
    return paths
