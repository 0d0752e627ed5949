"""Fills the command table: the modules under commands/ register their commands.

Those in commands/later register nothing. They are loaded when they are first used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from inspect import getmodulename

import millstream.commands
from millstream.commands.table.registry import COMMANDS


def load_table() -> None:
    """Import every module but those; a second call does nothing. Afterwards the rows are in the
    order of their names, whatever the order of imports."""
    for name in _modules():
        import_module(name)
    rows = sorted(COMMANDS.items())
    if rows != list(COMMANDS.items()):
        COMMANDS.clear()
        COMMANDS.update(rows)


@cache
def _modules() -> tuple[str, ...]:
    """Listing folders takes milliseconds, and a simulation starts thousands of servers."""
    names = set(_modules_in(millstream.commands.__path__[0], "millstream.commands"))
    return tuple(sorted(names))


def _modules_in(folder: str, package: str) -> Iterator[str]:
    """pkgutil.walk_packages does the same, but takes longer to import."""
    for entry in os.scandir(folder):
        if entry.name == "later":
            continue
        if entry.is_dir() and entry.name.isidentifier() and not entry.name.startswith("_"):
            yield from _modules_in(entry.path, f"{package}.{entry.name}")
        elif (name := getmodulename(entry.name)) and name != "__init__":
            yield f"{package}.{name}"
