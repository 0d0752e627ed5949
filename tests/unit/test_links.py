"""Targets of handwritten documentation exist: files, sections, functions, names.

Pages written from tables are test_docs' part; the README's sessions are run by wire/test_readme.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from millstream.commands.runtime.effects import APPLY, CODES
from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "bench").glob("*.md")])
PACKAGES = (
    "src/millstream", "storage", "commands", "server", "pipeline", "cdc", "client", "tools",
    "dashboard",
)  # fmt: skip

LINK = re.compile(r"\]\(([^)\s]+)\)")
FUNCTION = re.compile(rf"`((?:{'|'.join(PACKAGES)})/[\w/]+)\.(?!(?:pyx?|md|html)`)(\w+)`")
TOP = f"tests|scripts|deploy|docs|bench|src|.ci|{'|'.join(PACKAGES)}"
NAMED_PATH = re.compile(rf"`((?:{TOP})/[\w./-]+)`")
# Not a call, as in `cdef object found = name(...)`.
DEFINITION = r"^\s*(?:async\s+)?(?:class|def|cdef|cpdef)\b[^\n(=]*\b_?{}\s*[(:]"

load_table()


@cache
def prose(page: Path) -> str:
    """The page without its listings."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """The names GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_has_a_target() -> None:
    lost = []
    for page in PAGES:
        for link in LINK.findall(prose(page)):
            if re.match(r"[a-z]+:", link):
                continue
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                lost.append(f"{page.relative_to(ROOT)}: {link}")
    assert lost == []


def test_every_page_is_linked() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in LINK.findall(prose(page))
        if not link.startswith("#")
    }
    alone = [str(page.relative_to(ROOT)) for page in PAGES if page.resolve() not in linked]
    assert alone == ["README.md"]


def test_every_path_named_in_the_text_exists() -> None:
    lost = [
        f"{page.name}: {path}"
        for page in PAGES
        for path in NAMED_PATH.findall(prose(page))
        if not (ROOT / path).exists() and not FUNCTION.fullmatch(f"`{path}`") and not sources(path)
    ]
    assert lost == []


def sources(module: str) -> list[Path]:
    """Its files; inline functions are defined in the pxd."""
    paths = [ROOT / f"{module}.{ending}" for ending in ("py", "pyx", "pxd")]
    return [path for path in paths if path.exists()]


def test_functions_named_in_the_text_exist() -> None:
    named = {found for page in PAGES for found in FUNCTION.findall(prose(page))}
    assert len(named) > 30  # the architecture alone has more
    lost = [
        f"{module}.{function}"
        for module, function in named
        if not any(
            re.search(DEFINITION.format(function), path.read_text(), re.MULTILINE)
            for path in sources(module)
        )
    ]
    assert lost == []


PATHS = (
    "The path of TAPPEND",
    "The path of a blocked group read",
    "From TRESERVE to the release",
    "From a snapshot to a Spark row",
    "From a PostgreSQL commit to a destination row",
    "The path of a full sync",
    "An action of the dashboard",
)
FILES_MAX = 8
APPEND_FILES_MAX = 12


@pytest.mark.parametrize("title", PATHS)
def test_a_path_needs_few_files_and_names_functions_of_each(title: str) -> None:
    page = (DOCS / "architecture.md").read_text()
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    listed, _, text = section.split("Files to open: ")[1].partition(".\n")
    files = re.findall(r"`([\w/]+)`", listed)
    assert 0 < len(files) <= FILES_MAX
    assert [name for name in files if not sources(name)] == []
    assert [name for name in files if f"`{name}" not in text] == []


def test_each_step_of_an_append_is_one_file() -> None:
    page = (DOCS / "architecture.md").read_text()
    section = page.split("## The path of TAPPEND\n")[1].split("\n## ")[0]
    steps = re.findall(r"^\d+\. (.*(?:\n +.*)*)", section, re.MULTILINE)
    files = [re.findall(r"`([\w/]+/\w+)\.\w+`", step) for step in steps]
    assert 0 < len(steps) <= APPEND_FILES_MAX
    assert sorted({file for (file,) in files}) == sorted(file for (file,) in files)
    unknown = [
        f"{file}.{name}"
        for step, (file,) in zip(steps, files, strict=True)
        for name in re.findall(r"`([a-z_]+)`", step)
        if not any(
            re.search(DEFINITION.format(name), path.read_text(), re.MULTILINE)
            for path in sources(file)
        )
    ]
    assert unknown == []


def modules(package: Path) -> Iterator[Path]:
    """The files of a package and its folders; the common package has links to the others."""
    return package.glob("*") if package.name == "millstream" else package.rglob("*")


@pytest.mark.parametrize("package", PACKAGES)
def test_the_architecture_names_every_module(package: str) -> None:
    page = (DOCS / "architecture.md").read_text()
    section = re.split(r"^##", page.split(f"### {package}/")[1], flags=re.MULTILINE)[0]
    named = {
        name
        for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        for name in re.findall(r"`([\w/]+)`", row)
    }
    there = {
        str(path.relative_to(ROOT / package).with_suffix(""))
        for path in modules(ROOT / package)
        if path.suffix in (".py", ".pyx") and not path.stem.startswith("__")
    }
    assert named == there


def test_every_effect_has_its_line() -> None:
    page = (DOCS / "formats.md").read_text().split("#### Effects\n")[1].split("\n#### ")[0]
    lines = re.findall(r"^\| (?:\d+|-) \| `([A-Z]+)` \|", page, re.MULTILINE)
    codes = re.findall(r"^\| (\d+) \| `([A-Z]+)` \|", page, re.MULTILINE)
    assert {name.encode(): int(code) for code, name in codes} == CODES
    assert len(lines) == len(set(lines))
    # These are read without the table.
    assert set(lines) == {name.decode() for name in APPLY} | {
        *(
            "ACK",
            "APPEND",
            "APPENDONCE",
            "DELIVER",
            "FIRE",
            "SCHEDULE",
            "SELECT",
            "TIME",
            "UNSCHEDULE",
        )
    }


STREAM_COMMANDS = """
    XADD XTRIM XDEL XDELEX XACKDEL XLEN XSETID XRANGE XREVRANGE XREAD XREADGROUP XACK XNACK XPENDING
    XCLAIM XAUTOCLAIM XGROUP XINFO XCFGSET XIDMPRECORD
"""


def test_the_readme_states_that_every_stream_command_exists() -> None:
    assert "**Every stream command**" in (ROOT / "README.md").read_text()
    there = {name.decode().upper() for name in COMMANDS}
    assert set(STREAM_COMMANDS.split()) <= there


PROGRAM = re.compile(r"(?<![\w/])(?:redis-cli -p|millstream|psql|curl) ")


def test_commands_of_listings_can_be_copied() -> None:
    """Each line has one command, and what explains it is a comment."""
    wrong = []
    for page in PAGES:
        for listing in re.findall(r"^```\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            if not PROGRAM.match(listing):
                continue
            for line in listing.splitlines():
                command = line.partition(" #")[0].rstrip()
                later = [found for found in PROGRAM.finditer(command) if found.start()]
                if later or "   " in command:
                    wrong.append(f"{page.name}: {line}")
    assert wrong == []


def test_make_targets_named_in_the_documentation_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
    named = {
        target for page in PAGES for target in re.findall(r"`make (\w+)", page.read_text())
    } | set(re.findall(r"^make (\w+)$", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert named - targets == set()


def test_decisions_have_unique_numbers_and_are_listed_in_order() -> None:
    """A number may be missing: a decision that is still being made has it."""
    numbers = sorted(path.name[:3] for path in (DOCS / "decisions").glob("[0-9]*.md"))
    assert len(set(numbers)) == len(numbers)
    page = (DOCS / "decisions" / "README.md").read_text()
    assert re.findall(r"^\| \[(\d+)\]", page, re.MULTILINE) == numbers


def test_compiled_modules_named_in_the_text_exist() -> None:
    text = prose(DOCS / "compiled-modules.md")
    (names,) = re.findall(r"the modules of the block \(([^)]*)\)", text)
    stems = {path.stem for path in (ROOT / "storage/blocks").glob("*.pyx")}
    assert set(re.findall(r"`(\w+)`", names)) <= stems
    assert "`layout`" in names
