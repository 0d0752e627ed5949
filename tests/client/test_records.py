"""Records: their size in memory, and the state of a stream between two records of a reply."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from typing import Any

import pytest

from millstream.client import ID, MillstreamError
from millstream.client.records import LAYOUTS_MAX, Record, RecordReader

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
    assert len(reader._layouts) <= LAYOUTS_MAX


@pytest.mark.parametrize("form", ["{}.{}", "{}-{}"])
@pytest.mark.parametrize("kind", [str, str.encode])
def test_ids_that_are_read_together_are_the_same(form: str, kind: Any) -> None:
    reader = RecordReader()
    entries = [[kind(form.format(ms, ms % 3)), "n", "1"] for ms in range(1, 20)]
    ids = [ID(ms, ms % 3) for ms in range(1, 20)]
    assert [record.id for record in reader.read("s", entries)] == ids
    together = reader.read("s", entries)
    assert [record._id for record in together] == ids
    assert reader.read("s", []) == []
    assert [record._id for record in reader.read("s", entries[:1])] == ids[:1]


def test_an_id_is_read_in_either_form_of_text() -> None:
    for text in ("5.1", b"5.1", "5-1", b"5-1"):
        assert Record(None, "s", [text, "n", "1"]).id == ID(5, 1)
