"""The size of classes, functions and lists of parameters.

A class that knows too much and a function with many parameters are hard to follow. A class has the
lines of its bases too, in whichever file these are: a reader needs all of them. Ruff counts
neither in the files of Cython. A command of the client has one keyword for each option of the
command, so parameters that can only be given by name do not count.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "server",
    "commands",
    "storage",
    "pipeline",
    "cdc",
    "client",
    "tools",
    "dashboard",
    "src",
)

CLASS_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 7

# One definition of Cython: its indentation, its words up to the name, its parameters. Parameters
# may span lines, and a default value may be a call.
DEFINITION = re.compile(
    r"^(?P<indent>[ \t]*)(?P<words>(?:async |cdef |cpdef )?(?:class|def)? ?[^\n=#(]*?)"
    r"(?P<name>\w+)(?P<rest>\((?P<parameters>(?:[^()]|\([^()]*\))*)\)[^\n]*:|:)[ \t]*(?:#.*)?$",
    re.MULTILINE,
)
IMPORTED = re.compile(r"^[ \t]*from millstream\.([\w.]+) c?import (\([^)]*\)|[^\n]*)", re.MULTILINE)
STATEMENT = re.compile(r"\s*(?:cdef|cpdef|def|async def|class)\b")


class Definition(NamedTuple):
    """A class or a function. `parameters` counts those that can be given by position. `bases` are
    the names of a class's bases."""

    name: str
    is_class: bool
    lines: int
    parameters: int
    bases: tuple[str, ...] = ()


def of_python(text: str) -> Iterator[Definition]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if isinstance(node, ast.ClassDef):
                generic = [
                    base.value if isinstance(base, ast.Subscript) else base for base in node.bases
                ]
                bases = tuple(base.id for base in generic if isinstance(base, ast.Name))
                yield Definition(node.name, True, lines, 0, bases)
            else:
                yield Definition(node.name, False, lines, positional(node.args))


def positional(arguments: ast.arguments) -> int:
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def of_cython(text: str) -> Iterator[Definition]:
    for found in DEFINITION.finditer(text):
        if not STATEMENT.match(found.group()):
            continue
        is_class = " class " in f" {found['words']}"
        body = text[found.end() :].splitlines()[1:]
        names = [one.strip() for one in (found["parameters"] or "").split(",") if one.strip()]
        names = names[: names.index("*")] if "*" in names else names
        given = len(names) - (names[:1] in (["self"], ["cls"], ["self not None"]))
        lines = 1 + length(body, found["indent"])
        if is_class:
            yield Definition(found["name"], True, lines, 0, tuple(names))
        else:
            yield Definition(found["name"], False, lines, given)


def length(body: list[str], indent: str) -> int:
    """The number of lines of a body: up to the first line that is not indented more."""
    last = 0
    for number, line in enumerate(body, 1):
        if line.strip():
            if len(line) - len(line.lstrip()) <= len(indent):
                break
            last = number
    return last


@cache
def definitions() -> list[tuple[str, Definition]]:
    files = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, check=True, capture_output=True, text=True
    )
    readers = {".py": of_python, ".pyx": of_cython}
    return [
        (file, one)
        for file in files.stdout.split()
        if (ROOT / file).suffix in readers and not (ROOT / file).is_symlink()
        for one in readers[(ROOT / file).suffix]((ROOT / file).read_text())
    ]


Classes = dict[tuple[str, str], Definition]  # by file and name


def classes() -> Classes:
    return {(file, one.name): one for file, one in definitions() if one.is_class}


@cache
def imported_from(file: str) -> dict[str, str]:
    """The files of the names that a file imports, without their suffix."""
    found = {}
    for module, names in IMPORTED.findall((ROOT / file).read_text()):
        top, *rest = module.split(".")
        path = "/".join([top, *rest] if top in PACKAGES else ["src", "millstream", top, *rest])
        found.update(dict.fromkeys(re.findall(r"\w+", names), path))
    return found


def bases_of(known: Classes, file: str, one: Definition) -> set[tuple[str, str]]:
    """The file and the name of each base of a class, bases of bases included."""
    found: set[tuple[str, str]] = set()
    for name in one.bases:
        stem = imported_from(file).get(name)
        places = [file] if stem is None else [f"{stem}.py", f"{stem}.pyx"]
        for base in [(place, name) for place in places if (place, name) in known]:
            found |= {base} | bases_of(known, base[0], known[base])
    return found


def lines_with_bases() -> dict[str, int]:
    """The lines of each class, those of its bases included."""
    known = classes()
    return {
        f"{file}: {name}": sum(known[base].lines for base in bases_of(known, file, one)) + one.lines
        for (file, name), one in known.items()
    }


def too_much(kind: str, limit: int) -> list[str]:
    found = []
    for file, one in definitions():
        amount = one.parameters if kind == "parameters" else one.lines
        if amount > limit and not one.is_class:
            found.append(f"{file}: {one.name} has {amount}")
    return found


def test_no_class_is_long() -> None:
    long = {name: lines for name, lines in lines_with_bases().items() if lines > CLASS_LINES_MAX}
    assert long == {}


def test_lines_of_bases_are_counted() -> None:
    counted = lines_with_bases()
    own = classes()
    place = "storage/streams/stream.pyx", "Stream"
    base = "storage/log/entry_log.pyx", "EntryLog"
    assert counted[f"{place[0]}: Stream"] == own[place].lines + own[base].lines


def test_no_function_is_long() -> None:
    assert too_much("function", FUNCTION_LINES_MAX) == []


def test_no_function_has_many_parameters() -> None:
    assert too_much("parameters", PARAMETERS_MAX) == []


def test_definitions_of_cython_are_measured() -> None:
    text = """
cdef class Held(Base):
    cdef int add(self, EntryId at, list words=list(), uint64_t more,
                 *, int only) except -1:
        cdef int found = count(1, 2)

        return found

    @property
    def size(self) -> int:
        return 1

x = 1
"""
    assert list(of_cython(text)) == [
        Definition("Held", True, 10, 0, ("Base",)),
        Definition("add", False, 4, 3),
        Definition("size", False, 2, 0),
    ]


def test_definitions_are_found() -> None:
    names = {(file.rpartition("/")[2], one.name) for file, one in definitions()}
    assert {("stream.pyx", "Stream"), ("resp.pyx", "feed"), ("life.py", "Server")} <= names
    assert len(definitions()) > 4000
