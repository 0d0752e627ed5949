"""Records: their size in memory, and the state of a stream between two records of a reply."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.client import ID, MillstreamError
from millstream.client.ids import read_id
from millstream.client.records import LAYOUTS_MAX, Record, RecordReader, mark_late

COUNT = 1000


def fill(ms: Any) -> list[ID]:
    with ms.pipeline() as pipe:
        for number in range(COUNT):
            pipe.tappend("s", {"sensor": f"s{number}", "temperature": "21.5"})
        return list(pipe.execute())


def test_a_kept_record_takes_at_most_400_bytes(ms: Any) -> None:
    fill(ms)
    with ms.stream("s", "trim_horizon") as stream:
        stream.read()
        tracemalloc.start()
        try:
            kept = [stream.read() for _ in range(COUNT - 1)]
            for record in kept:
                assert record["sensor"], record.id
            size_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert size_bytes / len(kept) <= 400


def test_the_token_names_each_record_of_a_loop(ms: Any) -> None:
    ids = fill(ms)[:150]
    with ms.stream("s", "trim_horizon", batch=50) as stream:
        for entry_id, record in zip(ids, stream, strict=False):
            assert record.id == entry_id
            assert stream.metrics()["records"] == ids.index(entry_id) + 1
            if ids.index(entry_id) % 10 == 5:
                with ms.stream("s", stream.token, batch=2) as again:
                    following = again.read()
                    assert following.id > entry_id
                    assert following["sensor"] == f"s{ids.index(entry_id) + 1}"


def test_a_loop_continues_where_its_stream_was_moved(ms: Any) -> None:
    fill(ms)
    found = []
    with ms.stream("s", "trim_horizon") as stream:
        for record in stream:
            found.append(record["sensor"])
            if found == ["s0", "s1"]:
                stream.move_to("trim_horizon")
            if len(found) == 4:
                stream.stop()
    assert found == ["s0", "s1", "s0", "s1"]


def test_a_loop_ends_with_an_error_when_its_stream_is_closed(ms: Any) -> None:
    fill(ms)
    stream = ms.stream("s", "trim_horizon")
    records = iter(stream)
    found = [next(records)["sensor"], next(records)["sensor"]]
    stream.close()
    with pytest.raises(MillstreamError, match="closed"):
        next(records)
    assert found == ["s0", "s1"]


def test_a_repeated_field_has_all_its_values() -> None:
    [record] = RecordReader().read("s", [["5.1", "tag", "a", "n", "1", "tag", "b"]])
    assert record.pairs == [("tag", "a"), ("n", "1"), ("tag", "b")]
    assert dict(record) == {"tag": "b", "n": "1"}
    assert (list(record), list(record.values()), len(record)) == (["tag", "n"], ["b", "1"], 2)
    assert ("tag" in record, "x" in record, record.get("x")) == (True, False, None)
    with pytest.raises(KeyError, match="x"):
        record["x"]
    for same in (pickle.loads(pickle.dumps(record)), copy.deepcopy(record)):
        assert same == record
        assert (same.pairs, same.id, same.shard) == (record.pairs, ID(5, 1), "s")


def test_a_reader_forgets_field_names_that_are_data() -> None:
    reader = RecordReader()
    entries = [["5.1", f"field {number}", "1"] for number in range(3 * LAYOUTS_MAX)]
    found = reader.read("s", entries)
    assert [list(record) for record in found] == [entry[1:2] for entry in entries]
    assert reader.layouts <= LAYOUTS_MAX


def test_an_id_is_read_in_either_form_of_text() -> None:
    for text in ("5.1", b"5.1", "5-1", b"5-1"):
        assert Record(None, "s", [text, "n", "1"]).id == ID(5, 1)


def words(kind: Any) -> Any:
    """Entries as a connection returns them: text with surrogates for other bytes, or bytes."""
    text = st.text(max_size=4) | st.sampled_from(["n", "\udcff", "\0", "\u20ac"])
    word = text if kind is str else st.binary(max_size=4)
    part = st.integers(0, 2**64 - 1) | st.sampled_from([0, 10**18, 10**19 - 1, 10**19, 2**64 - 1])
    entry_id = st.builds("{}{}{}".format, part, st.sampled_from(".-"), part)
    pairs = st.lists(st.tuples(word, word), max_size=5)
    return st.lists(st.tuples(entry_id if kind is str else entry_id.map(str.encode), pairs))


@given(st.sampled_from([str, bytes]).flatmap(words))
def test_a_record_is_like_a_dict_of_its_pairs(
    rows: list[tuple[Any, list[tuple[Any, Any]]]],
) -> None:
    entries = [[entry_id, *(word for pair in pairs for word in pair)] for entry_id, pairs in rows]
    for (entry_id, pairs), entry, record in zip(
        rows, entries, RecordReader().read("s", entries), strict=True
    ):
        model = dict(pairs)
        assert record.id == read_id(entry_id)
        assert type(record.id) is ID
        assert hash(record.id) == hash(read_id(entry_id))
        assert record.pairs == pairs
        assert dict(record) == model
        assert list(record.items()) == list(model.items())
        assert list(record.values()) == list(model.values())
        assert list(record) == list(record.keys()) == list(model)
        assert len(record) == len(model)
        for field in [*model, "absent", b"absent"]:
            assert (field in record, record.get(field)) == (field in model, model.get(field))
        assert repr(record) == f"Record(s {read_id(entry_id)} {model!r})"
        assert record == Record(read_id(entry_id), "s", entry)
        assert hash(record) == hash(pickle.loads(pickle.dumps(record)))
        assert pickle.loads(pickle.dumps(record)).pairs == pairs


def outcome(read: Any) -> Any:
    try:
        return read()
    except Exception as error:
        return type(error), str(error)


@given(st.text("0123456789.-+_ \u0660\u20ac\0", max_size=24) | st.binary(max_size=24))
@example("18446744073709551615.18446744073709551615")
@example("99999999999999999999.0")
@example("5")
@example("")
def test_an_id_of_any_text_is_that_of_read_id(text: str | bytes) -> None:
    found = outcome(lambda: Record(None, "s", [text]).id)
    assert found == outcome(lambda: read_id(text))


def test_a_record_cannot_be_changed() -> None:
    record = Record(None, "s", ["5.1", "n", "1"])
    for name in ("id", "shard", "late", "pairs", "other"):
        with pytest.raises(AttributeError):
            setattr(record, name, "x")
    with pytest.raises(TypeError):
        record["n"] = "2"  # type: ignore[index]
    assert (record["n"], record.late) == ("1", False)
    mark_late(record)
    assert record.late


def test_a_record_is_a_mapping_for_every_use() -> None:
    record = Record(None, "s", ["5.1", "n", "1"])
    assert isinstance(record, Mapping)
    match record:
        case {"n": value}:
            assert value == "1"
        case _:
            pytest.fail("a record is no mapping for `match`")
    assert {**record} == {"n": "1"}
    assert str(Record[bytes]).endswith("Record[bytes]")
    with pytest.raises(TypeError, match="not reversible"):
        reversed(record)  # type: ignore[call-overload]


def test_a_record_without_a_call_of_init_is_empty() -> None:
    record: Record[str] = Record.__new__(Record)
    assert (dict(record), record.pairs) == ({}, [])
    with pytest.raises(KeyError):
        record["n"]


@pytest.mark.parametrize("entry", [[], ["5.1", "n"], ["5.1", "n", "1", "m"]])
def test_an_entry_of_another_form_is_an_error(entry: list[str]) -> None:
    with pytest.raises(ValueError, match="words"):
        RecordReader().read("s", [entry])
    other: Any = tuple(entry)
    with pytest.raises(TypeError):
        RecordReader().read("s", [other])
