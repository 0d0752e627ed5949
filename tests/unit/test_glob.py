"""Globs: the same answers as the algorithm of Redis, and no pattern that runs away."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples

from millstream.errors import CommandError
from millstream.glob import PATTERN_MAX_BYTES, matcher


def naive(pattern: bytes, text: bytes) -> bool:
    """Redis' stringmatchlen, by backtracking."""
    if not pattern:
        return not text
    if pattern[:1] == b"*":
        return any(naive(pattern[1:], text[at:]) for at in range(len(text) + 1))
    if not text:
        return False
    if pattern[:1] == b"[":
        matched, rest = naive_class(pattern[1:], text[0])
        return matched and naive(rest, text[1:])
    if pattern[:1] == b"\\" and len(pattern) > 1:
        pattern = pattern[1:]
        return pattern[0] == text[0] and naive(pattern[1:], text[1:])
    return (pattern[:1] == b"?" or pattern[0] == text[0]) and naive(pattern[1:], text[1:])


def naive_class(pattern: bytes, byte: int) -> tuple[bool, bytes]:
    negated = pattern[:1] == b"^"
    pattern = pattern[1:] if negated else pattern
    matched = False
    while pattern and pattern[:1] != b"]":
        if pattern[:1] == b"\\" and len(pattern) >= 2:
            matched |= pattern[1] == byte
            pattern = pattern[2:]
        elif pattern[1:2] == b"-" and len(pattern) >= 3:
            low, high = sorted((pattern[0], pattern[2]))
            matched |= low <= byte <= high
            pattern = pattern[3:]
        else:
            matched |= pattern[0] == byte
            pattern = pattern[1:]
    return matched != negated, pattern[1:]


strings = st.lists(st.sampled_from(list(b"abAB*?[]^-\\\xff")), max_size=9).map(bytes)


@given(strings, strings)
@settings(max_examples=examples(500))
def test_matches_as_redis_does(pattern: bytes, text: bytes) -> None:
    assert bool(matcher(pattern)(text)) == naive(pattern, text)
    any_case = bool(matcher(pattern, any_case=True)(text))
    assert any_case == naive(pattern.lower(), text.lower())


@given(strings)
def test_a_text_with_stars_for_some_of_it_matches_it(text: bytes) -> None:
    for start in range(len(text)):
        quoted = [b"\\" + text[at : at + 1] for at in range(len(text))]
        assert matcher(b"".join([*quoted[:start], b"*", *quoted[start + 1 :]]))(text)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        (b"*", b"", True),
        (b"h?llo", b"hello", True),
        (b"h?llo", b"hllo", False),
        (b"h[ae]llo", b"hallo", True),
        (b"h[^e]llo", b"hello", False),
        (b"h[b-a]llo", b"hallo", True),
        (b"h\\*llo", b"h*llo", True),
        (b"h\\*llo", b"hxllo", False),
        (b"a*b*c", b"a\nxb\xffc", True),
        (b"*.log", b"x.log.1", False),
        (b"A", b"a", False),
    ],
)
def test_examples(pattern: bytes, text: bytes, matches: bool) -> None:
    assert bool(matcher(pattern)(text)) == matches


def test_any_case() -> None:
    assert matcher(b"CLient*", any_case=True)(b"client|list")


def test_a_hostile_pattern_does_not_run_away() -> None:
    # Backtracking would need more steps than there are atoms; the test's timeout is the judge.
    assert not matcher(b"*a" * 60 + b"*b")(b"a" * 20_000)


@pytest.mark.parametrize("piece", [b"[a-z]", b"[^x]", b"[", b"?", b"*a", b"\\a"])
def test_a_pattern_that_is_too_long_is_refused(piece: bytes) -> None:
    longest = (piece * PATTERN_MAX_BYTES)[:PATTERN_MAX_BYTES]
    matcher(longest)(b"a" * 2000)
    with pytest.raises(CommandError, match="at most 1024 bytes"):
        matcher(longest + b"*")


@pytest.mark.parametrize("piece", [b"\\*", b"[a", b"[a-", b"[^]", b"[\\]*", b"**"])
def test_counting_stars_of_a_hostile_pattern_is_bounded(piece: bytes) -> None:
    # As above: a count that backtracks over classes never ends.
    with pytest.raises(CommandError, match="at most 1024 bytes"):
        matcher(piece * 900)
    with pytest.raises(CommandError, match="at most 1024 bytes"):
        matcher(b"?" + piece * 200_000)


def test_more_stars_than_the_limit_of_redis_match_nothing() -> None:
    assert not matcher(b"*?" * 50_000)(b"a" * 50_000)
    assert not matcher(b"*a" * 1001)(b"a" * 1001)
    assert not matcher(b"**a" * 1001 + b"*")(b"a" * 1001)
    with pytest.raises(CommandError, match="at most 1024 bytes"):
        matcher(b"*" * 100_000 + b"a")


def test_a_long_name_without_wildcards_is_found() -> None:
    name = b"n" * 100 * PATTERN_MAX_BYTES
    assert matcher(name)(name)
    assert not matcher(name)(name + b"n")
    assert matcher(name, any_case=True)(name.upper())
