"""Ids print and read as the draft and Redis write them, up to the last 64-bit number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.models import MAX, ids, numbers

from millstream.ids import Id, parse


@given(ids, st.booleans())
def test_an_id_prints_in_its_dialect_and_reads_back(id_: tuple[int, int], dotted: bool) -> None:
    ms, seq = id_
    text = bytes(Id(ms, seq, dotted))
    assert text == b"%d%s%d" % (ms, b"." if dotted else b"-", seq)
    assert parse(text) == id_
    assert str(Id(ms, seq, dotted)) == text.decode()


@given(numbers, numbers)
def test_plain_milliseconds_take_the_missing_sequence(ms: int, missing: int) -> None:
    assert parse(b"%d" % ms, missing_seq=missing) == (ms, missing)


@given(st.integers(0, 200).map(lambda power: 10**power - 1) | st.integers(MAX + 1, MAX * 20))
def test_a_number_above_64_bits_is_refused_and_not_wrapped(number: int) -> None:
    for text, found in [(b"%d" % number, (number, 0)), (b"1-%d" % number, (1, number))]:
        if number <= MAX:
            assert parse(text) == found
        else:
            with pytest.raises(ValueError, match="Invalid stream ID"):
                parse(text)


def test_leading_zeros_do_not_change_a_number() -> None:
    assert parse(b"00012-0003") == (12, 3)


NOT_IDS = [
    *(b"", b"-", b".", b"1-", b"-1", b"1.", b"1-1-1", b"1.1.1", b"1-1.1", b"+ 1", b" ", b"1 "),
    *(b"1- -1", b"1e3", b"0x10", b"1\x00", b"\xb2", b"1-2\n", b"1_0", b"$", b"("),
]


@pytest.mark.parametrize("text", NOT_IDS)
def test_an_invalid_id_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="Invalid stream ID"):
        parse(text)


def test_the_dot_is_refused_where_only_redis_ids_are_read() -> None:
    assert parse(b"5.7", dot_allowed=True) == (5, 7)
    with pytest.raises(ValueError, match="Invalid stream ID"):
        parse(b"5.7", dot_allowed=False)


@given(st.binary(max_size=45) | st.text("0123456789.-", max_size=45).map(str.encode))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    parts = text.replace(b".", b"-").split(b"-")
    good = len(parts) <= 2 and all(p and set(p) <= set(b"0123456789") for p in parts)
    good = good and all(int(p) <= MAX for p in parts)
    if good:
        assert parse(text) == (int(parts[0]), int(parts[1]) if len(parts) == 2 else 0)
    else:
        with pytest.raises(ValueError, match="Invalid stream ID"):
            parse(text)


def test_ids_compare_by_their_numbers_and_not_by_their_dialect() -> None:
    assert Id(1, 2) == Id(1, 2, True)
    assert hash(Id(1, 2)) == hash(Id(1, 2, True))
    assert Id(1, 2) != Id(2, 1)
    assert Id(1, 2) != object()
