"""Folding, compared with applying changes one by one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cdc.destination.fold import (
    Effect,
    Fold,
    Rekeyed,
    RowKeys,
    Segment,
    Truncated,
    fold,
)
from millstream.cdc.protocol.pgoutput import UNCHANGED
from millstream.cdc.streams.changes import (
    DELETE,
    INSERT,
    TRUNCATE,
    UPDATE,
    Change,
    EntryError,
    EntryReader,
    Row,
)

COLUMNS = ("id", "part", "a", "b")
KEYS = ("id", "part")
DEFAULT = b"default"

Table = dict[Row, dict[str, object]]

keys = st.tuples(st.sampled_from([b"1", b"2", b"3"]), st.sampled_from([b"x", b"y"]))
values = st.one_of(st.none(), st.sampled_from([b"v", b"w"]))
kept = st.one_of(values, st.just(UNCHANGED))


@st.composite
def changes(draw: st.DrawFn) -> Change:
    op = draw(st.sampled_from([INSERT, UPDATE, UPDATE, DELETE, TRUNCATE, b"rekey", b"narrow"]))
    key, old = draw(keys), draw(keys)
    at, id_ = b"2026-11-22T15:04:05.250000Z", (1, 1)
    if op == INSERT:
        return Change(id_, op, at, COLUMNS, (*key, draw(values), draw(values)), (), ())
    if op == UPDATE:
        return Change(id_, op, at, COLUMNS, (*key, draw(kept), draw(kept)), (), ())
    if op == b"rekey":
        return Change(id_, UPDATE, at, COLUMNS, (*key, draw(kept), draw(kept)), KEYS, old)
    if op == b"narrow":  # the table has lost a column
        return Change(id_, UPDATE, at, COLUMNS[:3], (*key, draw(kept)), (), ())
    if op == DELETE:
        return Change(id_, op, at, (), (), KEYS, old)
    return Change(id_, op, at, (), (), (), ())


def put(table: Table, key: Row, columns: Iterable[str], row: Row) -> None:
    """A row in place of any other; `extra` is a column that only the target has."""
    table.setdefault(key, {"a": None, "b": None, "extra": DEFAULT})
    change(table, key, columns, row)


def change(table: Table, key: Row, columns: Iterable[str], row: Row) -> None:
    if key in table:
        known = {n: v for n, v in zip(columns, row, strict=True) if v is not UNCHANGED}
        table[key].update({n: v for n, v in known.items() if n not in KEYS})


def rekey(table: Table, old: Row, key: Row, columns: Iterable[str], row: Row) -> None:
    if old in table:
        moved = table.pop(old)
        table[key] = moved
        change(table, key, columns, row)
    elif UNCHANGED not in row:
        put(table, key, columns, row)


def one_by_one(table: Table, done: Iterable[Change]) -> None:
    for one in done:
        if one.op == TRUNCATE:
            table.clear()
        elif one.op == DELETE:
            table.pop(one.old, None)
        elif one.old and one.old != one.row[:2]:
            rekey(table, one.old, one.row[:2], one.columns, one.row)
        elif UNCHANGED in one.row:
            change(table, one.row[:2], one.columns, one.row)
        else:
            put(table, one.row[:2], one.columns, one.row)


def apply(table: Table, segments: Iterable[Segment]) -> None:
    """In the order of the statements: deletes, then whole rows, then unchanged values."""
    for segment in segments:
        if isinstance(segment, Truncated):
            table.clear()
        elif isinstance(segment, Rekeyed):
            done = segment.change
            rekey(table, segment.old_key, segment.key, done.columns, done.row)
        else:
            apply_fold(table, segment)


def apply_fold(table: Table, made: Fold) -> None:
    for key, (effect, _) in made.steps.items():
        if effect in (Effect.DELETED, Effect.REPLACED):
            table.pop(key, None)
    for key, (effect, row) in made.steps.items():
        if effect in (Effect.PUT, Effect.REPLACED):
            assert UNCHANGED not in row
            put(table, key, made.columns, row)
    for key, (effect, row) in made.steps.items():
        if effect is Effect.CHANGED:
            change(table, key, made.columns, row)


@given(st.sets(keys), st.lists(changes(), max_size=30))
def test_a_fold_equals_its_changes_one_by_one(present: set[Row], done: list[Change]) -> None:
    before: Table = {key: {"a": b"0", "b": b"0", "extra": b"kept"} for key in present}
    wanted = {key: dict(row) for key, row in before.items()}
    one_by_one(wanted, done)
    apply(before, fold(done, RowKeys(KEYS)))
    assert before == wanted


@given(st.lists(changes(), max_size=30))
def test_deletes_have_no_effect_if_only_rows_count(done: list[Change]) -> None:
    segments = list(fold(done, RowKeys(KEYS), only_rows=True))
    kept = list(fold([one for one in done if one.op not in (DELETE, TRUNCATE)], RowKeys(KEYS)))
    assert segments == kept


def test_a_thousand_changes_of_a_key_are_one() -> None:
    done = [
        Change((1, n), UPDATE, b"", COLUMNS, (b"1", b"x", b"%d" % n, None), (), ())
        for n in range(1000)
    ]
    (made,) = fold(done, RowKeys(KEYS))
    assert isinstance(made, Fold)
    assert made.steps == {(b"1", b"x"): (Effect.PUT, (b"1", b"x", b"999", None))}


def test_a_large_value_in_the_key_is_taken_from_the_old_key() -> None:
    done = Change((1, 1), UPDATE, b"", COLUMNS, (UNCHANGED, b"x", b"a", None), KEYS, (b"1", b"x"))
    (made,) = fold([done], RowKeys(KEYS))
    assert isinstance(made, Fold)
    assert made.steps == {(b"1", b"x"): (Effect.PUT, (b"1", b"x", b"a", None))}


# ---------------------------------------------------------------- entries


AT = [b"@at", b"2026-11-22T15:04:05.250000Z"]


def read(*words: bytes) -> Change:
    return EntryReader(["id", "a"]).read((7, 3), [*words])


def test_an_entry_is_read_by_its_fields() -> None:
    made = read(
        *(b"@op", b"update", *AT, b"new", b"1", b"id", b"5", b"@@x", b"at"),
        *(b"@null", b'["a"]', b"@unchanged", '["größe"]'.encode()),
        *(b"@old:id", b"4", b"@old:@x", b"was", b"@old-null", b'["a"]'),
    )
    assert made.id == (7, 3)
    assert (made.op, made.at) == (b"update", AT[1])
    names = ("id", "a", "new", "@x", "größe")
    assert (made.columns, made.row) == (names, (b"5", None, b"1", b"at", UNCHANGED))
    assert (made.old_columns, made.old) == (("id", "a", "@x"), (b"4", None, b"was"))


def test_entries_with_the_same_names_and_other_nulls_differ() -> None:
    reader = EntryReader(["id", "a", "b"])
    words = [b"@op", b"insert", *AT, b"id", b"1", b"@null"]
    assert reader.read((1, 1), [*words, b'["a"]']).columns == ("id", "a")
    assert reader.read((1, 2), [*words, b'["b"]']).columns == ("id", "b")
    assert reader.read((1, 3), [*words, b'["a", "b"]']).row == (b"1", None, None)


@pytest.mark.parametrize(
    "words",
    [
        [b"id", b"1"],
        [b"@op", b"insert", *AT, b"\xff", b"1"],
        [b"@op", b"insert", *AT, b"@null", b"["],
    ],
)
def test_an_entry_of_another_writer_is_refused(words: list[bytes]) -> None:
    with pytest.raises(EntryError, match=r"7\.3"):
        read(*words)
