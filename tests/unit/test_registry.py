"""The command table: rows are complete, consistent with each other, and have the places of keys."""

from __future__ import annotations

import pytest

from millstream.commands.table.keyspecs import KeySpec, find_key_specs, key_positions
from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS, FLAGS, command
from millstream.commands.table.syntax import SyntaxLineError, arity_of, parse_syntax, shown_syntax

load_table()
ROWS = [
    row for container in COMMANDS.values() for row in (container, *container.subcommands.values())
]


def test_each_row_is_complete() -> None:
    for row in ROWS:
        assert row.arity != 0, row.name
        assert row.flags <= FLAGS, row.name
        assert not {"write", "readonly"} <= row.flags, row.name
        assert row.summary.endswith("."), row.name
        assert row.complexity.startswith("O("), row.name
        assert row.group, row.name


@pytest.mark.parametrize(
    ("usage", "arity"),
    [
        ("X", 1),
        ("X|Y key", 3),
        ("X key [key ...]", -2),
        ("X key [COUNT count]", -2),
        ("X <ID id | NOW>", -2),
        ("X <ID id | AT time>", 3),
        ("X key {ids: IDS numids id [id ...]}", -5),
    ],
)
def test_the_arity_follows_from_the_syntax_line(usage: str, arity: int) -> None:
    name, _, syntax = usage.partition(" ")
    assert arity_of(parse_syntax(syntax), len(name.split("|"))) == arity


def test_names_are_lower_case_and_found_under_their_name() -> None:
    for name, row in COMMANDS.items():
        assert row.name.encode() == name == name.lower()
        for sub_name, sub in row.subcommands.items():
            assert sub.name.encode() == name + b"|" + sub_name


# A pair that is one code, in the file of the first.
SHARED_FILES = {"xrevrange": "xrange"}


def test_a_stream_command_is_in_the_module_of_its_name() -> None:
    rows = [row for row in COMMANDS.values() if row.group == "stream"]
    assert len(rows) >= 40
    elsewhere = {}
    for row in rows:
        handlers = [sub.handler for sub in row.subcommands.values() if sub.key_specs]
        for handler in handlers or [row.handler]:
            module = handler.__module__.rpartition(".")[2]
            if module != row.name:
                elsewhere[row.name] = module
    assert elsewhere == SHARED_FILES


def test_every_container_has_a_help() -> None:
    containers = [row for row in COMMANDS.values() if row.subcommands]
    assert containers
    assert [row.name for row in containers if b"help" not in row.subcommands] == []


def test_rows_are_sorted_by_name_in_any_order_of_imports() -> None:
    assert list(COMMANDS) == sorted(COMMANDS)


def test_loading_the_table_twice_changes_nothing() -> None:
    before = dict(COMMANDS)
    load_table()
    assert before == COMMANDS


STREAMS = "[COUNT count] {streams: STREAMS key [key ...] id [id ...]}"
FILTERED = f"[where: WHERE n:integer condition [condition ...]] {STREAMS}"
OPTIONS = (
    "key group [TTL ms] [WAITS numdelays [ms ...]] [DEAD dead:key] [NOW] "
    "[order: ORDER <ALL | FIELD name>] [where: WHERE n:integer [condition ...]]"
)
CHILDREN = "key [NOW] [children: CHILDREN name:key [name:key ...]]"


@pytest.mark.parametrize(
    ("usage", "words", "positions"),
    [
        ("X", "x", []),
        ("X n", "x 1", []),
        ("X key n", "x k 1", [1]),
        ("X key newkey", "x a b", [1, 2]),
        ("X key [key ...]", "x a b", [1, 2]),
        ("X key value [key value ...]", "x a 1 b 2", [1, 3]),
        ("X|Y key", "x y k", [2]),
        ("X numkeys key [key ...]", "x 2 a b c", [2, 3]),
        ("X n numkeys key value [key value ...]", "x 0 2 a 1 b 2 NX", [3, 5]),
        ("X numkeys [key [key ...]]", "x 0", []),
        (f"X {STREAMS}", "x count 1 streams a b 0 0", [4, 5]),
        (f"X {STREAMS}", "x STREAMS a 0", [2]),
        (f"X {FILTERED}", "x count 1 streams a b 0 0", [4, 5]),
        (f"X {FILTERED}", "x where 1 f eq STREAMS COUNT 1 streams a 0", [9]),
        (
            f"X {FILTERED}",
            "x WHERE 3 WHERE in 2 STREAMS x f Between 1 2 STREAMS eq x STREAMS a 0",
            [16],
        ),
        (f"X {CHILDREN}", "x a", [1]),
        (f"X {CHILDREN}", "x a NOW Children b c", [1, 4, 5]),
        (f"X {CHILDREN}", "x children CHILDREN CHILDREN b", [1, 3, 4]),
        (f"X {CHILDREN}", "x a CHILDREN", [1]),
        (f"X {OPTIONS}", "x a g", [1]),
        (f"X {OPTIONS}", "x a g dead b ttl 5", [1, 4]),
        (f"X {OPTIONS}", "x a g WAITS 2 DEAD 5 ORDER field DEAD DEAD DEAD NOW DEAD b", [1, 11, 14]),
        (f"X {OPTIONS}", "x a g WHERE 1 DEAD EQ DEAD WHERE 0 DEAD b", [1, 11]),
    ],
)
def test_the_places_of_keys_follow_from_the_syntax_line(
    usage: str, words: str, positions: list[int]
) -> None:
    assert key_positions(specs_of(usage), words.encode().split()) == positions


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        ("X numkeys key [key ...]", "x 0 a"),
        ("X numkeys key [key ...]", "x 3 a b"),
        ("X numkeys key [key ...]", "x many a b"),
        ("X numkeys key value [key value ...]", "x 2 a 1 b"),
        ("X numkeys [key [key ...]]", "x -1 a"),
        (f"X {STREAMS}", "x COUNT 1"),
        (f"X {STREAMS}", "x STREAMS a"),
        (f"X {FILTERED}", "x WHERE 1 f EQ STREAMS a 0"),
        (f"X {FILTERED}", "x WHERE many STREAMS a 0"),
        (f"X {FILTERED}", "x WHERE 1 f IN -5 STREAMS a 0"),
        (f"X {FILTERED}", "x WHERE 9223372036854775807 f IN -3 STREAMS a 0"),
        (f"X {OPTIONS}", "x a g NONE DEAD b"),
        (f"X {OPTIONS}", "x a g WAITS -2 DEAD b"),
    ],
)
def test_a_request_without_the_keys_that_it_announces(usage: str, words: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"keys|values|invalid literal|not in list|no STREAMS|not from 1 to|no option",
    ):
        key_positions(specs_of(usage), words.encode().split())


def specs_of(usage: str) -> tuple[KeySpec, ...]:
    name, _, syntax = usage.partition(" ")
    return find_key_specs(parse_syntax(syntax), len(name.split("|")), "", writes=False)


@pytest.mark.parametrize("syntax", ["n [AT key]", "key [AT key] [TO newkey]", "key <AT key | NOW>"])
def test_a_key_that_no_key_spec_can_describe_is_refused(syntax: str) -> None:
    with pytest.raises(SyntaxLineError, match="no key spec"):
        specs_of(f"X {syntax}")


def test_an_unknown_tag_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown tags"):
        command("NOSUCH", "quick")(print)


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


def test_every_argument_has_a_name_and_every_group_has_parts() -> None:
    """redis-cli crashes on an empty group in COMMAND DOCS."""
    for row in ROWS:
        waiting = parse_syntax(row.syntax)
        while waiting:
            argument = waiting.pop()
            assert argument.name, row.name
            assert argument.kind not in ("oneof", "block") or argument.parts, row.name
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
