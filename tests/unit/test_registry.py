"""The command table: rows are complete, consistent with each other, and say where the keys are."""

from __future__ import annotations

import pytest

from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS, FLAGS, Command, command
from millstream.commands.table.syntax import Argument, SyntaxLineError, parse_syntax, shown_syntax

load_table()
ROWS = [
    row for container in COMMANDS.values() for row in (container, *container.subcommands.values())
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_complete(row: Command) -> None:
    assert row.arity != 0
    assert row.flags <= FLAGS
    assert not {"write", "readonly"} <= row.flags
    assert row.summary.endswith(".")
    assert row.complexity.startswith("O(")
    assert row.group
    parse_syntax(row.syntax)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_arity_fits_the_syntax_line(row: Command) -> None:
    if row.subcommands:
        return
    arguments = parse_syntax(row.syntax)
    least = len(row.name.split("|")) + sum(least_words(argument) for argument in arguments)
    open_ended = any(argument.optional or varies(argument) for argument in arguments)
    if row.arity > 0:
        assert least == row.arity
    else:
        assert least <= -row.arity or not open_ended


def least_words(argument: Argument) -> int:
    """How many words a request needs for this argument."""
    if argument.optional:
        return 0
    fixed = 1 if argument.token and argument.kind != "pure-token" else 0
    if argument.kind == "oneof":
        return fixed + min(least_words(part) for part in argument.parts)
    if argument.kind == "block":
        return fixed + sum(least_words(part) for part in argument.parts)
    return fixed + 1


def varies(argument: Argument) -> bool:
    return argument.optional or argument.multiple or any(map(varies, argument.parts))


def test_names_are_lower_case_and_found_under_their_name() -> None:
    for name, row in COMMANDS.items():
        assert row.name.encode() == name == name.lower()
        for sub_name, sub in row.subcommands.items():
            assert sub.name.encode() == name + b"|" + sub_name


def test_every_container_has_a_help() -> None:
    containers = [row for row in COMMANDS.values() if row.subcommands]
    assert containers
    assert [row.name for row in containers if b"help" not in row.subcommands] == []


def test_loading_the_table_twice_changes_nothing() -> None:
    before = dict(COMMANDS)
    load_table()
    assert before == COMMANDS


@pytest.mark.parametrize(
    ("keys", "words", "positions"),
    [
        ((0, 0, 0), [b"x"], []),
        ((1, 1, 1), [b"x", b"k", b"v"], [1]),
        ((1, -1, 1), [b"x", b"a", b"b"], [1, 2]),
        ((1, -1, 2), [b"x", b"a", b"1", b"b", b"2"], [1, 3]),
        ((2, 2, 1), [b"x", b"y", b"k"], [2]),
    ],
)
def test_key_positions(
    keys: tuple[int, int, int], words: list[bytes], positions: list[int]
) -> None:
    row = Command("x", print, -1, frozenset(), keys, "g", "1", "s.", "", "O(1)")
    assert row.key_positions(words) == positions


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown flags"):
        command("NOSUCH", arity=1, flags="quick", group="server", summary="x.")


# Syntax lines


def names(syntax: str) -> list[tuple[str, str, str, bool, bool]]:
    return [
        (argument.name, argument.kind, argument.token, argument.optional, argument.multiple)
        for argument in parse_syntax(syntax)
    ]


def test_syntax_values_tokens_and_options() -> None:
    assert names("key [COUNT count] NOW") == [
        ("key", "key", "", False, False),
        ("count", "integer", "COUNT", True, False),
        ("now", "pure-token", "NOW", False, False),
    ]


def test_syntax_repetition() -> None:
    assert names("key [key ...]") == [("key", "key", "", False, True)]
    assert names("key field value [field value ...]") == [
        ("key", "key", "", False, False),
        ("data", "block", "", False, True),
    ]


def test_syntax_repetition_of_a_group() -> None:
    assert names("<n <a b> [...]> [...]") == [("n_a_b", "block", "", False, True)]
    (group,) = parse_syntax("<n <a b> [...]> [...]")
    assert group.parts[1].multiple


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_argument_has_a_name_and_every_group_has_parts(row: Command) -> None:
    """redis-cli crashes on an empty group in COMMAND DOCS."""
    waiting = parse_syntax(row.syntax)
    while waiting:
        argument = waiting.pop()
        assert argument.name
        assert argument.kind not in ("oneof", "block") or argument.parts
        waiting += argument.parts


def test_syntax_alternatives() -> None:
    for syntax in ("<A | B>", "A|B"):
        assert names(syntax) == [("a_b", "oneof", "", False, False)]
    assert names("[A | B n]") == [("a_n", "oneof", "", True, False)]


def test_syntax_labels_types_and_braces() -> None:
    syntax = "n:integer [condition: NX | XX] {ids: IDS numids id [id ...]}"
    assert names(syntax) == [
        ("n", "integer", "", False, False),
        ("condition", "oneof", "", True, False),
        ("ids", "block", "IDS", False, False),
    ]
    assert shown_syntax(syntax) == "n [NX | XX] IDS numids id [id ...]"


@pytest.mark.parametrize("syntax", ["[a", "a]", "<a | b", "[a>", "<>", "[]"])
def test_a_syntax_line_whose_brackets_do_not_fit(syntax: str) -> None:
    with pytest.raises(SyntaxLineError):
        parse_syntax(syntax)
