"""Fills the command table: every module of this folder registers the commands that it has."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import millstream.commands


def load_table() -> None:
    """Import every module of the folder; a second call does nothing."""
    for module in iter_modules(millstream.commands.__path__):
        import_module(f"millstream.commands.{module.name}")
