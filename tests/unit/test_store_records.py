"""Records in the store of a cluster: what is written is read, and what is wrong names its place."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.server.cluster.store.records import (
    Format,
    Holder,
    NodeRecord,
    RecordError,
    ShardChange,
    ShardRecord,
    SlotRanges,
    decode,
    encode,
)

A, B, C = "a" * 40, "b" * 40, "c" * 40
NODE = NodeRecord("10.0.0.1", 6455, 0, "n1.example", "east", "0.1.0", "s1")
RECORDS = [
    Format(1),
    SlotRanges(7, ((0, 5460, "s1"), (5461, 10922, "s2"), (10923, 16383, "s1"))),
    SlotRanges(1, ()),
    ShardRecord(C, 0, "", (), 3, 1),
    ShardRecord(C, 2**63 - 1, A, (B, A), 2, 0),
    ShardChange("", A),
    Holder(A, 4),
    NODE,
]

WRONG = [
    (Format, {"version": 2}, "version 2, which this program does not know"),
    (SlotRanges, {"epoch": 1, "ranges": [[0, 5, "s1"], [5, 9, "s1"]]}, "wrong ranges"),
    (SlotRanges, {"epoch": 1, "ranges": [[0, 16384, "s1"]]}, "wrong ranges"),
    (SlotRanges, {"epoch": 1, "ranges": [[5, 4, "s1"]]}, "wrong ranges"),
    (SlotRanges, {"epoch": 1, "ranges": [[0, True, "s1"]]}, "wrong ranges"),
    (SlotRanges, {"epoch": 1, "ranges": [[0, 1, "s/1"]]}, "wrong ranges"),
    (SlotRanges, {"ranges": []}, "no epoch"),
    (ShardRecord, {"members": [A, A], "primary": ""}, "wrong members"),
    (ShardRecord, {"members": [A], "primary": B}, "wrong primary"),
    (ShardChange, {"add": "x", "remove": ""}, "wrong add"),
    (Holder, {"node": A, "term": -1}, "wrong term: -1"),
    (Holder, {"node": A, "term": "1"}, 'wrong term: "1"'),
    (Holder, {"node": A}, "no term"),
    (Holder, {"node": "A" * 40, "term": 1}, "wrong node"),
    (NodeRecord, {"host": "a\nb"}, "wrong host"),
    (NodeRecord, NODE._asdict() | {"is_ahead": 1}, "wrong is_ahead: 1"),
    (NodeRecord, {"host": "a", "port": 65536}, "wrong port"),
]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_is_read_as_it_was_written(record: Any) -> None:
    data = encode(record)
    assert decode(type(record), data, "x") == record
    assert decode(type(record), json.dumps({**json.loads(data), "new": 1}).encode(), "x") == record
    for field in json.loads(data):
        fields = json.loads(data)
        if isinstance(fields.pop(field), bool):  # earlier versions do not write it
            assert decode(type(record), json.dumps(fields).encode(), "x") == record
            continue
        with pytest.raises(RecordError, match=rf"^x in etcd has no {field}$"):
            decode(type(record), json.dumps(fields).encode(), "x")


@pytest.mark.parametrize(("kind", "fields", "reason"), WRONG)
def test_a_wrong_field_is_named(kind: type, fields: object, reason: str) -> None:
    with pytest.raises(RecordError, match=rf"^shard/s1 in etcd has (a )?{reason}"):
        decode(kind, json.dumps(fields).encode(), "shard/s1")


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.none())


@given(st.sampled_from(RECORDS), st.data())
def test_any_fields_are_a_record_or_an_error(record: Any, data: st.DataObject) -> None:
    fields = json.loads(encode(record))
    fields.update(data.draw(st.dictionaries(st.sampled_from(list(fields)), VALUES)))
    for content in (json.dumps(fields).encode(), data.draw(st.binary()), b"[" * 100_000, b"5"):
        with suppress(RecordError):
            assert encode(decode(type(record), content, "x"))
