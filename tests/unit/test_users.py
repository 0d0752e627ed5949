"""Rules of users: text and back, verdicts, and the fast check against the plain one."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.commands.access.absent import is_absent_command
from millstream.commands.access.catalog import all_entries
from millstream.commands.access.permission import Permission, glob
from millstream.commands.access.users import RuleError, User, Users, changed_user, merged_rules
from millstream.commands.access.verdict import COMMAND, KEY, denial
from millstream.commands.table.categories import CATEGORIES
from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS, Command
from millstream.errors import CommandError
from millstream.glob import matcher

load_table()
NAMES = sorted(all_entries())
WORDS = st.text("ab*?[]\\\"'()^-~%|", max_size=5).map(str.encode)
PATTERNS = st.sampled_from([b"*", b"a*", b"ab", b"*b", b"a?", b"[ab]*", b"x"]) | WORDS
KEY_RULES = st.builds(bytes.__add__, st.sampled_from([b"~", b"%R~", b"%W~", b"%RW~"]), PATTERNS)
CHANNEL_RULES = PATTERNS.map(lambda pattern: b"&" + pattern)
COMMAND_RULES = st.builds(
    lambda sign, name: sign + name.encode(),
    st.sampled_from([b"+", b"-"]),
    st.sampled_from([*NAMES, *(f"@{name}" for name in CATEGORIES), "@all"]),
) | st.sampled_from([b"+get|a", b"+select|0", b"+tread|s", b"+TREAD|GROUP"])
RESETS = st.sampled_from(
    [b"allkeys", b"resetkeys", b"allchannels", b"resetchannels", b"allcommands", b"nocommands"]
)
SELECTOR_RULES = KEY_RULES | CHANNEL_RULES | COMMAND_RULES | RESETS
SELECTORS = st.lists(SELECTOR_RULES, max_size=4)
USER_RULES = st.sampled_from(
    b"on off nopass resetpass >pw >two reset clearselectors sanitize-payload".split()
)


@st.composite
def users(draw: st.DrawFn) -> User:
    """A user made from the rules that can be applied."""
    user = User(b"u", all_channels=draw(st.booleans()))
    for rule in draw(st.lists(SELECTOR_RULES | USER_RULES, max_size=12)):
        with suppress(RuleError):
            user.apply(rule)
    for rules in draw(st.lists(SELECTORS, max_size=2)):
        selector = User(b"other", all_channels=False)
        for rule in rules:
            with suppress(RuleError):
                selector.apply(rule)
        user.selectors.append(selector.root)
    return user


@given(users())
def test_a_description_makes_the_same_user(user: User) -> None:
    rules = merged_rules(user.describe().split(b" "))
    again = changed_user(User(b"u", all_channels=False), rules)
    assert again.describe() == user.describe()
    assert [s.allowed for s in again.selectors] == [s.allowed for s in user.selectors]
    assert [s.first_arguments for s in again.selectors] == [
        s.first_arguments for s in user.selectors
    ]


@given(st.lists(st.binary(max_size=6), max_size=5))
def test_any_rules_are_applied_or_refused(rules: list[bytes]) -> None:
    user = Users().new(b"u")
    before = user.describe()
    with suppress(CommandError):
        changed_user(user, rules)
    assert user.describe() == before


@given(PATTERNS, st.binary(max_size=6) | st.text("ab*?[]\\", max_size=6).map(str.encode))
def test_patterns_match_as_elsewhere(pattern: bytes, text: bytes) -> None:
    assert glob(pattern, text) == bool(matcher(pattern)(text))


REQUESTS = [
    ["GET", 0], ["SET", 0, "v"], ["MSET", 0, "v", 1, "v"], ["DEL", 0, 1], ["COPY", 0, 1], ["PING"],
    ["XADD", 0, "*", "f", "v"], ["XREAD", "STREAMS", 0, 1, "0", "0"],
    ["XREAD", "COUNT", "1", "BLOCK", "0", "streams", 0, "0"],
    ["XREADGROUP", "GROUP", "STREAMS", "c", "NOACK", "STREAMS", 0, 1, ">", ">"],
    ["XREADGROUP", "COUNT", "1", "GROUP", "g", "c", "STREAMS", 0, "0"],
    ["TMREAD", "1", "CLOCK", "STREAMS", 0, 1, "0", "0"], ["TREAD", 0, "0", "1"],
    ["TREAD", 0, "0", "1", "GROUP", "g", "0"], ["TREAD", "group", "0", "1", "BLOCK", "0"],
    ["TAPPEND", 0, "f", "v"], ["TACK", 0, "g", "0"], ["EVAL", "x", "1", 0], ["XREAD", "STREAMS", 0],
    ["PUBLISH", 0, "m"], ["SUBSCRIBE", 0, 1], ["PSUBSCRIBE", 0], ["CONFIG", "GET", "x"],
    ["XREAD", "WHERE", "1", "f", "EQ", "STREAMS", "STREAMS", 0, "0"],
    ["TMREAD", "1", "WHERE", "1", "f", "IN", "2", "STREAMS", 1, "STREAMS", 0, "0"],
    ["TREAD", 0, "0", "1", "WHERE", "1", "f", "EQ", "GROUP"],
    ["CLIENT", "TRACKING", "on"], ["AUTH", "x"], ["WATCH", 0, 1], ["MSETEX", "1", 0, "v"],
]  # fmt: skip


def found(words: list[bytes]) -> Command:
    row = COMMANDS[words[0].lower()]
    sub = words[1].lower() if len(words) > 1 else b""
    return row.subcommands.get(sub) or row.unlisted.get(sub) or row


@given(users(), st.sampled_from(REQUESTS), st.lists(PATTERNS, min_size=2, max_size=2))
def test_the_fast_check_refuses_everything_else(
    user: User, request: list[object], keys: list[bytes]
) -> None:
    words = [keys[w] if isinstance(w, int) else str(w).encode() for w in request]
    row = found(words)
    if Permission(user).allows(row, words):
        assert denial(user, row, words) is None


# Long enough that more than the first eight bytes count, with zeros, which also stand after the end
# of a short key there.
ITEMS = st.sampled_from([b"*", b"?", b"[ab]", b"[^a]", b"\\a", b"a", b"b", b"\0", b"aaaaaaa"])
LONG_PATTERNS = st.lists(ITEMS, max_size=6).map(b"".join)
LONG_KEYS = st.lists(st.sampled_from([b"a", b"b", b"\0", b"aaaaaaa", b"*"]), max_size=6).map(
    b"".join
)


@given(st.lists(LONG_PATTERNS, max_size=12), LONG_KEYS)
def test_the_fast_check_matches_like_each_pattern(patterns: list[bytes], key: bytes) -> None:
    user = changed_user(User(b"u", all_channels=False), [b"+get"])
    for pattern in patterns:
        with suppress(RuleError):  # a pattern after ~*
            user.apply(b"~" + pattern)
    root = user.root
    matches = root.all_keys or any(matcher(text)(key) for text, _ in root.patterns)
    assert Permission(user).allows(COMMANDS[b"get"], [b"GET", key]) == bool(matches)


@given(LONG_PATTERNS, LONG_KEYS)
def test_long_patterns_match_as_elsewhere(pattern: bytes, text: bytes) -> None:
    assert glob(pattern, text) == bool(matcher(pattern)(text))


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ("~a* +@stream", "XADD a1 * f v"),
        ("~b* ~a* +@stream", "XREAD COUNT 1 STREAMS a1 b1 0 0"),
        ("~a* +@stream", "XREADGROUP GROUP g c STREAMS a1 >"),
        ("~[ab]? +@all", "TAPPEND a1 f v"),
        ("%R~a* +tread", "TREAD a1 0 1 BLOCK 0"),
        ("%RW~a* +tread|group", "TREAD a1 0 1 GROUP g 0"),
        ("%W~a* +set", "SET a1 v"),
        ("+publish &*", "PUBLISH a m"),
    ],
)
def test_the_fast_check_accepts_usual_blocks(rules: str, words: str) -> None:
    user = changed_user(Users().new(b"u"), rules.encode().split())
    request = words.encode().split()
    row = found(request)
    assert denial(user, row, request) is None
    if "%W~" not in rules:  # SET may read, with GET: this is decided by its words
        assert Permission(user).allows(row, request)


@given(users(), st.sampled_from(NAMES))
def test_without_a_rule_for_it_a_command_is_denied(user: User, name: str) -> None:
    """A naive model: the last rule of a selector that names the command, its container or one of
    its categories decides."""
    entry = all_entries()[name]
    for selector in user.selectors:
        allowed = selector.begins_with_all
        for rule in selector.command_rules:
            named = rule[1:]
            option = "|" in name and not all_entries()[name.partition("|")[0]].is_container
            categories = set(entry.categories)
            if "|" in name and not option:
                categories |= all_entries()[name.partition("|")[0]].categories
            covers = named == name or name.startswith(f"{named}|")
            if covers or (named[:1] == "@" and named[1:] in categories):
                allowed = rule[0] == "+"
        assert (name in selector.allowed) == allowed


def test_a_user_without_rules_lacks_the_command_first() -> None:
    user = Users().new(b"u")
    get = COMMANDS[b"get"]
    assert denial(user, get, [b"GET", b"k"]) == (COMMAND, b"get", b"u")
    user.apply(b"+get")
    assert denial(user, get, [b"GET", b"k"]) == (KEY, b"k", b"u")
    user.apply(b"~k")
    assert denial(user, get, [b"GET", b"k"]) is None


def test_every_command_with_keys_is_denied_without_them() -> None:
    """All commands are allowed and no key: each command whose example has keys lacks one."""
    user = changed_user(Users().new(b"u"), [b"+@all", b"~nothing"])
    permission = Permission(user)
    for row in COMMANDS.values():
        if any(spec.is_key for spec in row.key_specs) and row.keys[0]:
            words = [row.name.encode(), *[b"k"] * max(abs(row.arity), row.keys[0] + 2)]
            lacking = denial(user, row, words)
            assert lacking is not None, row.name
            assert lacking.reason == KEY, row.name
            assert not permission.allows(row, words), row.name


def test_passwords_are_kept_as_hashes() -> None:
    user = changed_user(Users().new(b"u"), [b"on", b">pw"])
    assert b"pw" not in user.describe()
    assert user.accepts(b"pw")
    assert not user.accepts(b"PW")
    user.apply(b"off")
    assert not user.accepts(b"pw")


ABSENT = ["hset", "hset|x", "client|tracking", "script|debug", "ft.search", "@json", "lpush"]


@pytest.mark.parametrize("name", ABSENT)
@pytest.mark.parametrize("sign", ["+", "-"])
def test_a_rule_for_a_redis_only_command_is_kept_without_effect(sign: str, name: str) -> None:
    user = Users().new(b"ann")
    for rule in (b"+@all", b"-get", f"{sign}{name.upper()}".encode()):
        user.apply(rule)
    assert user.root.commands_text() == f"+@all -get {sign}{name}".encode()
    assert user.root.allowed == all_entries().keys() - {"get"}
    assert user.root.first_arguments == {}


@pytest.mark.parametrize(
    "rule", ["+hsett", "-hsett", "+hset|", "+ft.", "+@jsn", "-get|x", "+client|x"]
)
def test_a_misspelled_name_is_an_error(rule: str) -> None:
    user = Users().new(b"ann")
    with pytest.raises(RuleError, match="Unknown command or category name"):
        user.apply(rule.encode())
    assert user.root.command_rules == []


def test_no_command_is_both_here_and_absent() -> None:
    assert [name for name in all_entries() if is_absent_command(name)] == []
