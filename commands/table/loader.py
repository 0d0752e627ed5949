"""Fills the command table: every module under commands/ registers the commands that it has."""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages

import millstream.commands


def load_table() -> None:
    """Import every module under commands/; a second call does nothing."""
    for module in walk_packages(millstream.commands.__path__, "millstream.commands."):
        import_module(module.name)
