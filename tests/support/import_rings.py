"""The rings among the modules' imports: imports for types, imports inside functions and cimports
are included.

A module is its .py file, or its .pyx, .pxd and .pyi files together.
"""

import re
from collections.abc import Iterable
from itertools import count

IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(millstream[\w.]*)[ \t]+c?import[ \t]+(\([^)]*\)|[^\n]*)"
    r"|c?import[ \t]+(millstream[\w.]+))",
    re.MULTILINE,
)
COMMENT = re.compile(r"#.*")
IMPORTED_NAME = re.compile(r"(\w+)(?:[ \t]+as[ \t]+\w+)?")


def arrows(files: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """The modules that each module imports, from pairs of a module and the text of a file."""
    texts: dict[str, list[str]] = {}
    for module, text in files:
        texts.setdefault(module, []).append(text)
    return {
        module: {found for text in own for found in imported(text, set(texts))} - {module}
        for module, own in texts.items()
    }


def imported(text: str, modules: set[str]) -> set[str]:
    """The modules that a text imports; of a package, the submodule if it names one."""
    found = set()
    for source, names, whole in IMPORT.findall(text):
        if whole:
            found.add(whole)
        for name in IMPORTED_NAME.findall(COMMENT.sub("", names)):
            submodule = f"{source}.{name}"
            found.add(submodule if submodule in modules else source)
    return found & modules


def rings(arrows: dict[str, set[str]]) -> list[set[str]]:
    """The strongly connected components of more than one module (Tarjan)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []
    counter = count()

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = next(counter)
        stack.append(module)
        for other in arrows[module]:
            if other not in numbers:
                visit(other)
            if other in stack:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == numbers[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(set(stack[at:]))
            del stack[at:]

    for module in arrows:
        if module not in numbers:
            visit(module)
    return found
