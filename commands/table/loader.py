"""Fills the command table: every module under commands/ registers its commands."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import walk_packages

import millstream.commands
from millstream.commands.table.registry import COMMANDS


def load_table() -> None:
    """Import every module under commands/; a second call does nothing. Afterwards the rows are in
    the order of their names, whatever the order of imports."""
    for name in _modules():
        import_module(name)
    rows = sorted(COMMANDS.items())
    if rows != list(COMMANDS.items()):
        COMMANDS.clear()
        COMMANDS.update(rows)


@cache
def _modules() -> tuple[str, ...]:
    """Listing folders takes milliseconds, and a simulation starts thousands of servers."""
    found = walk_packages(millstream.commands.__path__, "millstream.commands.")
    return tuple(module.name for module in found)
