"""Documentation generated from tables is current, and has nothing that does not exist."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS, OUR_FIRST_VERSION
from millstream.server.config.directives import DIRECTIVES
from millstream.server.main import server_help

ROOT = Path(__file__).resolve().parents[2]
HOW = "run scripts/command_docs.py"

load_table()


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("command_docs", ROOT / "scripts/command_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_written_pages_are_current(script: ModuleType) -> None:
    old = [
        path.name
        for path, text in script.wanted().items()
        if not path.exists() or path.read_text() != text
    ]
    assert old == [], HOW
    assert script.stray() == [], HOW


def test_every_command_has_its_page() -> None:
    for row in COMMANDS.values():
        page = (ROOT / "docs" / "commands" / f"{row.name}.md").read_text()
        assert f"# {row.name.upper()}" in page
        for sub in row.subcommands.values():
            if not sub.name.endswith("|help"):
                assert f"## {sub.name.replace('|', ' ').upper()}" in page


OUR_OWN = [row.name for row in COMMANDS.values() if row.since == OUR_FIRST_VERSION]


@pytest.mark.parametrize("name", OUR_OWN)
def test_commands_unknown_to_redis_are_documented_in_full(script: ModuleType, name: str) -> None:
    text = script.details(ROOT / "docs" / "commands" / f"{name}.md")
    assert "```redis-cli\n" in text  # run by tests/wire/test_command_pages
    assert "### Errors" in text


def test_handwritten_lines_are_kept(script: ModuleType, tmp_path: Path) -> None:
    row, (begin, end) = COMMANDS[b"tack"], script.DETAILS
    page = tmp_path / "tack.md"
    assert script.details(page) == ""
    page.write_text(script.page(row, f"{begin}\n\nMore words.\n\n{end}"))
    assert "\n\nMore words.\n\n" in page.read_text()
    assert script.page(row, script.details(page)) == page.read_text()
    page.write_text(page.read_text().replace(end, ""))
    with pytest.raises(ValueError, match=r"tack\.md"):
        script.details(page)


def test_links_between_the_pages_have_targets() -> None:
    folder = ROOT / "docs" / "commands"
    for page in folder.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (folder / target).exists(), f"{page.name}: {target}"


def test_every_directive_is_documented_and_in_the_help() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(DIRECTIVES)
    options = re.findall(r"^  --([a-z-]+) ", server_help(), re.MULTILINE)
    assert options == list(DIRECTIVES)
