"""Names that stand for several: braces and wildcards."""

from __future__ import annotations

import glob
import os

from braceexpand import braceexpand

from shardmill.errors import OptionsError


def expand(pattern: str) -> list[str]:
    """The paths that ``pattern`` stands for: ``x-{000..099}.tar`` and ``{a,b}.tar`` as in bash, wildcards by name.

    Braces keep their order, the matches of one wildcard are sorted. A path that exists as it is stands for itself.
    Raises `OptionsError` for a wildcard that matches nothing.
    """
    if os.path.exists(pattern):  # noqa: PTH110 - a pattern is no path yet
        return [pattern]
    found = []
    for name in braceexpand(pattern):
        if glob.has_magic(name):
            matches = sorted(glob.glob(name))  # noqa: PTH207 - Path.glob needs the folder apart
            if not matches:
                raise OptionsError(f"{name} matches no file")
            found += matches
        else:
            found.append(name)
    return found
