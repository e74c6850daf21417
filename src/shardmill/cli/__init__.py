"""The command line: one module per verb, each of which parses, calls and prints."""

from __future__ import annotations

from shardmill.cli.app import main

__all__ = ["main"]
