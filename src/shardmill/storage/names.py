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


def expand_braces(pattern: str) -> list[str]:
    """As a shell does: ``x-{008..010}.tar`` gives x-008.tar, x-009.tar, x-010.tar; several braces multiply.

    A range keeps the zeros of its bounds. Raises `OptionsError` for more than a million paths.
    """
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    bounds = _RANGE.match(found[1])
    if bounds is None:
        middles = found[1].split(",")
    else:
        first, last = int(bounds[1]), int(bounds[2])
        if abs(last - first) >= _MAX_PATHS:
            raise OptionsError(f"{pattern}: more than {_MAX_PATHS} paths")
        padded = bounds[1].startswith("0") or bounds[2].startswith("0")
        width = max(len(bounds[1]), len(bounds[2])) if padded else 0
        step = 1 if last >= first else -1
        middles = [f"{number:0{width}d}" for number in range(first, last + step, step)]
    rests = expand_braces(pattern[found.end() :])
    if len(middles) * len(rests) > _MAX_PATHS:
        raise OptionsError(f"{pattern}: more than {_MAX_PATHS} paths")
    return [pattern[: found.start()] + middle + rest for middle in middles for rest in rests]


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
