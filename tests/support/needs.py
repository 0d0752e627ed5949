"""The commands that a test needs, and whether the server has them.

The black-box tests are written from the specification, before the server supports everything. The
commands of a test are compared with the server's command table: a test is collected automatically
as soon as its last command is registered, and supported commands are always tested. Options are
looked up in the command's syntax line, but only the few in OPTIONS, which test_needs checks against
the server.

Commands are written as they are typed: `XCLAIM`, `CLIENT UNBLOCK`, `SET EX` (an option), `CONFIG
SET notify-keyspace-events` (a directive).
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS, Command
from millstream.server.config.directives import find_directive

from .recordings import read_recording
from .transcript import Section, read_folder

TESTS = Path(__file__).parent.parent
TRANSCRIPTS = TESTS / "wire" / "transcripts"
RECORDING = TESTS / "compat" / "golden" / "redis-8.6-resp2.txt"

# Each with a request that has it, for a stream `s` with a group `g`.
OPTIONS = {
    "XREADGROUP CLAIM": "XREADGROUP GROUP g alice CLAIM 0 STREAMS s >",
    "XINFO STREAM FULL": "XINFO STREAM s FULL",
    "XREAD MAXSIZE": "XREAD MAXSIZE 100 STREAMS s 0",
    "XREADGROUP MAXSIZE": "XREADGROUP GROUP g alice MAXSIZE 100 STREAMS s >",
    "SET EX": "SET str x EX 100",
}

_MARKED = re.compile(r"\bmark\.needs\(([^)]*)\)")

load_table()


def row_of(words: Sequence[str]) -> Command | None:
    """The row of the command table that a request runs, or None."""
    row = COMMANDS.get(words[0].lower().encode())
    if row is None or not row.subcommands or len(words) == 1:
        return row
    return row.subcommands.get(words[1].lower().encode())


def missing(words: Sequence[str]) -> str | None:
    """What the server lacks to run these words: a command, an option, a directive; else None."""
    row = row_of(words)
    if row is None:
        is_known = words[0].lower().encode() in COMMANDS
        return " ".join(words[: 1 + is_known]).upper()
    name = row.name.replace("|", " ").upper()
    if name == "CONFIG SET":
        unknown = [word for word in words[2::2] if find_directive(word) is None]
        return f"{name} {unknown[0]}" if unknown else None
    options = {word.upper() for word in words} - set(re.findall(r"[A-Z]+", row.syntax))
    lacking = [f"{name} {option}" for option in options if f"{name} {option}" in OPTIONS]
    return lacking[0] if lacking else None


def is_there(name: str) -> bool:
    """Whether the server has this command, option or directive."""
    return missing(name.split()) is None


def missing_in(section: Section) -> list[str]:
    """What the server lacks to play a section, unless the section tests exactly that error."""
    asked = [
        step.words
        for step in section.steps
        if step.words and "ERR unknown" not in (step.expected or "")
    ]
    return sorted({lacking for words in asked if (lacking := missing(words))})


def missing_in_recording(conversation: Iterable[tuple[str, str]]) -> list[str | None]:
    """For each command of a recording, the missing command because of which it is skipped, if any.

    The commands depend on each other. With a missing command, all commands that show a key that it
    would have changed are skipped until that key is deleted; after a missing MULTI, all commands up
    to its EXEC.
    """
    reasons: list[str | None] = []
    changed: dict[bytes, str] = {}
    transaction: str | None = None
    for line, reply in conversation:
        words = shlex.split(line)
        keys, is_error = keys_of(words), reply.startswith("-")
        lacking = missing(words) if "-ERR unknown" not in reply else None
        if words[0] == "FLUSHALL":
            changed.clear()
        if words[0] == "DEL":
            changed = {key: name for key, name in changed.items() if key not in keys}
        if words[0] == "MULTI":
            transaction = lacking
        shown = [changed[key] for key in keys if key in changed]
        reason = transaction or lacking or (shown[0] if shown and not is_error else None)
        if words[0] == "EXEC":
            transaction = None
        if reason and not is_error and not is_readonly(words):
            changed |= dict.fromkeys(keys, reason)
        reasons.append(reason)
    return reasons


def keys_of(words: Sequence[str]) -> list[bytes]:
    """The keys of a request; of an unknown command, its first argument."""
    row, request = row_of(words), [word.encode() for word in words]
    if row is None:
        return request[1:2]
    try:
        return [request[position] for position in row.key_positions(request)]
    except (LookupError, ValueError):
        return []  # malformed: it changes nothing


def is_readonly(words: Sequence[str]) -> bool:
    row = row_of(words)
    return row is not None and "readonly" in row.flags


def mark(names: Iterable[str | None]) -> list[pytest.MarkDecorator]:
    """`marks=` of a test that needs these names."""
    named = [name for name in names if name]
    return [pytest.mark.needs(*named)] if named else []


def header() -> str:
    """What is skipped in the three suites, for the header of a test run."""
    sections = [missing_in(section) for section in read_folder(TRANSCRIPTS)]
    recorded = [[name] for name in missing_in_recording(read_recording(RECORDING)) if name]
    tests = [
        [name for name in re.findall(r'"([^"]+)"', names) if not is_there(name)]
        for path in sorted(TESTS.glob("*/test_*.py"))
        for names in _MARKED.findall(path.read_text())
    ]
    counts = [sum(map(bool, part)) for part in (sections, recorded, tests)]
    if not any(counts):
        return "left out: nothing"
    waiting_for = Counter(name for names in [*sections, *recorded, *tests] for name in set(names))
    return (
        "left out until the server has their commands: {} transcript sections, {} recorded "
        "replies, {} tests\n  ".format(*counts)
        + ", ".join(f"{name} ({number})" for name, number in sorted(waiting_for.items()))
    )
