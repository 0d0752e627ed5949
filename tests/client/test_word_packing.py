"""Requests as bytes: the compiled module writes what the code of Python does."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client import InvalidFields
from millstream.client.core.batches import HEAD_WORDS, BatchSender
from millstream.client.core.words import field_words
from millstream.client.redis_py import Packer
from millstream.client.word_packing import Entry, packed_batch, packed_command, packed_words

TEXT = st.text(max_size=20) | st.just("\udcff") | st.just("x" * 5000)
NUMBERS = st.integers() | st.integers(-(2**63), 2**63 - 1) | st.floats()
WORDS: Any = st.one_of(TEXT, st.binary(max_size=20), NUMBERS)


def is_packed_here(word: Any) -> bool:
    if isinstance(word, str):
        return word.isascii()
    return not isinstance(word, int) or -(2**63) <= word < 2**63


@given(st.lists(WORDS, min_size=1))
def test_a_command_is_what_python_writes(words: list[Any]) -> None:
    wanted = b"*%d\r\n" % len(words) + packed_words(words)
    packed = packed_command(tuple(words))
    assert packed == (wanted if all(map(is_packed_here, words)) else None)


def test_a_first_word_with_blanks_is_several_words() -> None:
    [packed] = Packer().pack("CONFIG GET", "maxmemory", 5, -7, 1.5)
    wanted = ["CONFIG", "GET", "maxmemory", "5", "-7", "1.5"]
    assert packed == b"*6\r\n" + packed_words(wanted)


@given(st.dictionaries(WORDS, WORDS, min_size=1))
def test_an_entry_is_what_python_writes(fields: dict[Any, Any]) -> None:
    words = field_words(fields)
    for given_fields in (fields, OrderedDict(fields), list(fields.items())):
        entry = Entry(given_fields)
        assert entry.packed == packed_words([len(fields), *words])
        assert entry.count == 2 * len(fields)


@pytest.mark.parametrize("fields", [{}, {"a": None}, {"a": True}, {"a": "\ud800"}, {True: 1}, "ab"])
def test_fields_that_cannot_be_sent_are_refused(fields: Any) -> None:
    with pytest.raises(InvalidFields):
        Entry(fields)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.dictionaries(WORDS, WORDS, min_size=1))))
def test_a_batch_is_what_python_writes(rows: list[tuple[int, dict[Any, Any]]]) -> None:
    entries = []
    words: list[Any] = ["TAPPENDMANY", 1, "key", "PRODUCER", "p", len(rows)]
    for seq, fields in rows:
        entry = Entry(fields)
        entry.seq = seq
        entries.append(entry)
        words += [seq, len(fields), *field_words(fields)]
    wanted = b"*%d\r\n" % len(words) + packed_words(words)
    head = packed_words(words[:HEAD_WORDS])
    assert packed_batch(head, HEAD_WORDS, entries) == wanted
    command = BatchSender("key", "p", 1.0, lambda: 0.0).command(entries)
    assert command.packed == wanted
