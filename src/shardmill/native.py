"""The compiled module, or ``None`` where it could not be built: the only place that knows which."""

from __future__ import annotations

from types import ModuleType

native: ModuleType | None
"""`shardmill._native`, or ``None`` where no compiler or no libjpeg-turbo header was there at install time."""

try:
    from shardmill import _native as _module
except ImportError:
    native = None
else:
    native = _module
