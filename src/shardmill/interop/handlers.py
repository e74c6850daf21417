"""What to do with an exception in a stream: webdataset's handlers.

A handler raises the exception, or returns true to leave the sample out and go on, or false to end the stream there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeAlias

Handle: TypeAlias = Callable[[Exception], bool]


def reraise_exception(exn: Exception) -> bool:
    """The default: the exception reaches whoever iterates."""
    raise exn


def ignore_and_continue(exn: Exception) -> bool:
    """Leaves the sample out without a word: nobody learns how many are lost."""
    return True


def warn_and_continue(exn: Exception) -> bool:
    """Leaves the sample out with a warning that names it."""
    warnings.warn(repr(exn), stacklevel=2)
    return True


def ignore_and_stop(exn: Exception) -> bool:
    """Ends the stream (of this worker) without a word."""
    return False


def warn_and_stop(exn: Exception) -> bool:
    """Ends the stream (of this worker) with a warning."""
    warnings.warn(repr(exn), stacklevel=2)
    return False
