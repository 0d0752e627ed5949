"""Filters of entries (WHERE): conditions on blocks against a naive model, and their words."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.storage_access import encode_between, search_entries
from tests.unit.models import MAX, encoded

from millstream.commands.engine.conditions import take_filter
from millstream.commands.runtime.arguments import OwnedArgs
from millstream.errors import CommandError
from millstream.storage.blocks.entry_filter import EntryFilter, is_bound
from millstream.storage.streams.stream import Stream

Words = list[bytes]
INTEGER = re.compile(rb"-?[0-9]+\Z")
DECIMAL = re.compile(rb"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\Z")


# ---------------------------------------------------------------- the model


def number(text: bytes) -> int | float | None:
    if INTEGER.match(text) and -(2**63) <= int(text) < 2**63:
        return int(text)
    return float(text) if DECIMAL.match(text) else None


def is_between(value: bytes, low: bytes, high: bytes) -> bool:
    found = number(value)
    if found is None:
        return False
    bounds: list[int | float | Fraction] = []
    for word in (low, high):
        text = word.removeprefix(b"(")
        bound: int | float | Fraction | None
        bound = {b"-inf": -math.inf, b"+inf": math.inf}.get(text.lower())
        if bound is None:  # an integer is compared with all digits of a bound
            bound = Fraction(text.decode()) if isinstance(found, int) else number(text)
        assert bound is not None
        bounds.append(bound)
    above = found > bounds[0] or (found == bounds[0] and not low.startswith(b"("))
    return above and (found < bounds[1] or (found == bounds[1] and not high.startswith(b"(")))


def holds(condition: Words, words: Words) -> bool:
    field, operator, *operands = condition
    values = [value for name, value in zip(words[::2], words[1::2], strict=True) if name == field]
    if operator == b"EQ":
        return operands[0] in values
    if operator == b"PREFIX":
        return any(value.startswith(operands[0]) for value in values)
    if operator == b"IN":
        return any(value in operands[1:] for value in values)
    return any(is_between(value, *operands) for value in values)


# ---------------------------------------------------------------- examples

NUMBERS = [
    b"0", b"-0", b"7", b"007", b"-7", b"9007199254740993", b"9007199254740992",
    b"9007199254740992.0", b"9223372036854775807", b"9223372036854775808",
    b"-9223372036854775808", b"-9223372036854775809", b"9223372036854775807.5", b"0.1", b"1e-1",
    b"1e400", b"-1e400", b"1e-400", b"5.0", b"5e0", b"5.5", b"5", b"0.5e1", b"1e22", b"1e23",
    b"123456789012345678901234567890", b"4.35", b"2.2250738585072011e-308", b"5e-324",
    b"1" * 900, b"0." + b"0" * 900 + b"1", b"0." + b"0" * 400 + b"1e400",
    b"9007199254740992." + b"9" * 900, b"6.9999999999999999999", b"7.0000000000000000001",
    b"-7.0000000000000000001", b"-6.9999999999999999999", b"-9223372036854775808.5", b"0.07e2",
]  # fmt: skip
NO_NUMBERS = [
    b"", b"-", b"+5", b".5", b"5.", b"inf", b"nan", b"0x10", b" 5", b"5 ", b"5e", b"5e+", b"--5",
    b"1_0", b"5.e1", b"5\x00", b"e5", b"1.2.3",
]  # fmt: skip
TEXTS = [
    b"", b"a", b"status", b"status-ready", b"status-done", b"status-done\r\n", b"x" * 70,
    b"0123456789abcdef", b"0123456789abcdef01", b"fedcba9876543210fedcba9876543210", b"\x00\xff",
]  # fmt: skip
VALUES = st.sampled_from(TEXTS + NUMBERS + NO_NUMBERS)
FIELDS = st.sampled_from([b"a", b"b", b"long-field-name", b""])
BOUNDS = st.tuples(
    st.sampled_from([b"", b"("]), st.sampled_from([*NUMBERS, b"-inf", b"+inf", b"+INF"])
).map(b"".join)
CONDITIONS = st.one_of(
    st.tuples(FIELDS, st.just(b"EQ"), VALUES),
    st.tuples(FIELDS, st.just(b"PREFIX"), VALUES.map(lambda value: value[:7])),
    st.tuples(FIELDS, st.just(b"BETWEEN"), BOUNDS, BOUNDS),
    st.lists(VALUES, min_size=1, max_size=6).flatmap(
        lambda values: st.tuples(FIELDS, st.just((b"IN", b"%d" % len(values), *values)))
    ),
).map(lambda parts: [*parts[:1], *(parts[1] if isinstance(parts[1], tuple) else parts[1:])])
ENTRIES = st.lists(st.tuples(FIELDS, VALUES), min_size=1, max_size=5).map(
    lambda pairs: [word for pair in pairs for word in pair]
)


def stream_of(kinds: list[Words], count: int, own_names: int) -> Stream:
    """A stream with entries of these kinds in turn, and some whose names no other entry has. Its
    blocks are packed, but for the last."""
    stream = Stream()
    for index in range(count):
        words = [*kinds[index % len(kinds)], b"filler", b"something that is repeated often"]
        if own_names and index % own_names == 0:
            words = [*words, b"own-%d" % index, b""]
        stream.append_entry(1 + index // 3, index % 3, words)
        if index % 53 == 52:
            stream.begin_node(65536)
    return stream


def matching(stream: Stream, conditions: list[Words]) -> list[tuple[int, int, Words]]:
    return [
        entry
        for entry in stream.range()
        if all(holds(condition, entry[2]) for condition in conditions)
    ]


@given(
    st.lists(ENTRIES, min_size=1, max_size=12),
    st.lists(CONDITIONS, min_size=1, max_size=4),
    st.integers(1, 200),
    st.sampled_from([0, 1, 7]),
    st.data(),
)
@settings(max_examples=examples(150), deadline=None)
def test_a_search_finds_what_a_naive_filter_finds(
    kinds: list[Words], conditions: list[Words], count: int, own_names: int, data: st.DataObject
) -> None:
    stream = stream_of(kinds, count, own_names)
    ids = [entry[:2] for entry in stream.range()]
    for gone in data.draw(st.lists(st.sampled_from(ids), max_size=8, unique=True)):
        stream.delete_id(*gone)
    first, last = data.draw(st.sampled_from([((0, 0), (MAX, MAX)), (ids[len(ids) // 3], ids[-1])]))
    limit = data.draw(st.sampled_from([1, 3, MAX]))
    found = EntryFilter([word for condition in conditions for word in condition])
    wanted = [entry for entry in matching(stream, conditions) if first <= entry[:2] <= last]
    for reverse in (False, True):
        expected = wanted[::-1] if reverse else wanted
        expected = expected[:limit]
        text = encoded(expected, False)
        for in_blocks in (False, True):
            for work in (1, 20, 1 << 40):
                made = search_entries(stream, found, first, last, limit, reverse, in_blocks, work)
                assert made == (len(expected), text)


@given(st.one_of(VALUES, st.from_regex(DECIMAL, fullmatch=True)), BOUNDS, BOUNDS)
@settings(max_examples=examples(400), deadline=None)
def test_numbers_are_compared_exactly(value: bytes, low: bytes, high: bytes) -> None:
    stream = Stream()
    stream.append_entry(1, 0, [b"n", value])
    found = EntryFilter([b"n", b"BETWEEN", low, high])
    made, _ = search_entries(stream, found, (0, 0), (MAX, MAX), MAX)
    assert made == is_between(value, low, high)


@pytest.mark.parametrize(
    ("value", "low", "is_found"),
    [
        (b"1000", b"1000.0000000000000001", False),
        (b"1001", b"1000.0000000000000001", True),
        (b"1000", b"999.9999999999999999", True),
        (b"-1000", b"-1000.0000000000000001", True),
        (b"-1000", b"-999.9999999999999999", False),
        (b"1000", b"10000000000000000000001e-19", False),
        (b"1000", b"0.001e6", True),
        (b"1000", b"(0.001e006", False),
        (b"0", b"1e-99999999999999999999999", False),
        (b"0", b"-1e-99999999999999999999999", True),
        (b"9223372036854775807", b"1e99999999999999999999999", False),
        (b"-9223372036854775808", b"-1e+99999999999999999999999", True),
    ],
)
def test_an_integer_is_compared_with_all_digits(value: bytes, low: bytes, is_found: bool) -> None:
    stream = Stream()
    stream.append_entry(1, 0, [b"n", value])
    found = EntryFilter([b"n", b"BETWEEN", low, b"+inf"])
    assert search_entries(stream, found, (0, 0), (MAX, MAX), MAX)[0] == is_found


@pytest.mark.parametrize("word", [*NO_NUMBERS, b"(", b"((1", b"(inf", b"-nan", b"( 1"])
def test_what_is_no_number_is_no_bound(word: bytes) -> None:
    assert not is_bound(word)


def test_a_filter_of_everything_encodes_what_a_range_does() -> None:
    stream = stream_of([[b"a", b"1"], [b"b", b"2"]], 500, 7)
    everything = EntryFilter([b"filler", b"PREFIX", b""])
    for reverse in (False, True):
        expected = encode_between(stream, (0, 0), (MAX, MAX), MAX, False, reverse)
        assert search_entries(stream, everything, (0, 0), (MAX, MAX), MAX, reverse) == expected


# ---------------------------------------------------------------- words of requests


def taken(*words: bytes, least: int = 1) -> EntryFilter | None:
    args = OwnedArgs([b"COMMAND", *words])
    found = take_filter(args, least)
    args.finish()
    return found


def test_conditions_keep_their_words_with_operators_in_capitals() -> None:
    found = taken(b"4", b"a", b"eq", b"in", b"b", b"In", b"2", b"eq", b"", b"c", b"between", b"(1",
                  b"+inf", b"d", b"prefix", b"")  # fmt: skip
    assert found is not None
    assert found.count == 4
    assert found.words == [b"a", b"EQ", b"in", b"b", b"IN", b"2", b"eq", b"", b"c", b"BETWEEN",
                           b"(1", b"+inf", b"d", b"PREFIX", b""]  # fmt: skip
    assert EntryFilter(found.words).count == 4


def test_only_a_group_may_have_no_condition() -> None:
    assert taken(b"0", least=0) is None
    with pytest.raises(CommandError, match="ERR WHERE must have from 1 to 8 conditions"):
        taken(b"0")
    with pytest.raises(CommandError, match="ERR WHERE must have from 0 to 8 conditions"):
        taken(b"9", least=0)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (b"", "syntax error"),
        (b"x", "WHERE must have from 1 to 8 conditions"),
        (b"-1", "WHERE must have from 1 to 8 conditions"),
        (b"9", "WHERE must have from 1 to 8 conditions"),
        (b"1", "syntax error"),
        (b"1 f", "syntax error"),
        (b"1 f EQ", "syntax error"),
        (b"1 f LIKE x", "syntax error"),
        (b"2 f EQ x", "syntax error"),
        (b"1 f EQ x y", "syntax error"),
        (b"1 f IN", "syntax error"),
        (b"1 f IN x", "IN must have from 1 to 1000 values"),
        (b"1 f IN 0", "IN must have from 1 to 1000 values"),
        (b"1 f IN 1001" + b" v" * 1001, "IN must have from 1 to 1000 values"),
        (b"1 f IN 3 a b", "syntax error"),
        (b"1 f BETWEEN 1", "syntax error"),
        (b"1 f BETWEEN 1 x", "min or max is not a float"),
        (b"1 f BETWEEN inf 1", "min or max is not a float"),
    ],
)
def test_invalid_conditions_are_refused(words: bytes, error: str) -> None:
    with pytest.raises(CommandError) as caught:
        taken(*words.split(b" ") if words else ())
    assert caught.value.message.startswith(f"ERR {error}")


def test_eight_conditions_and_a_thousand_values_are_allowed() -> None:
    found = taken(b"8", *[b"f", b"EQ", b"x"] * 8)
    assert found is not None
    assert found.count == 8
    values = [b"v%d" % index for index in range(1000)]
    found = taken(b"1", b"f", b"IN", b"1000", *values)
    assert found is not None
    stream = Stream()
    for index in range(0, 1200, 100):
        stream.append_entry(1, 1 + index, [b"f", b"v%d" % index])
    assert search_entries(stream, found, (0, 0), (MAX, MAX), MAX)[0] == 10


@given(st.lists(st.binary(max_size=6) | st.sampled_from([b"EQ", b"IN", b"2", b"f", b"BETWEEN"])))
@settings(max_examples=examples(200), deadline=None)
def test_any_words_make_a_filter_or_a_plain_error(words: Words) -> None:
    try:
        found = take_filter(OwnedArgs([b"COMMAND", *words]))
    except CommandError:
        return
    assert found is not None
    assert 1 <= found.count <= 8
