"""The `repr` of objects and errors, as logs show them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from millstream.client import (
    ID,
    MillstreamError,
    RecordsExpired,
    Sealed,
    ShardUnavailable,
)


def test_objects_show_their_stream_and_their_state(ms: Any) -> None:
    ms.tappend("s", {"n": 1})
    with ms.stream("s") as stream, ms.writer("s", "api-1") as writer:
        assert repr(stream) == f"Stream(s; watermark {stream.watermark})"
        with writer.fact() as fact:
            fact["n"] = 1
            assert repr(writer) == "Writer(s as api-1; open facts: 1)"
            assert repr(fact) == f"Fact({fact.id} {{'n': 1}})"
    assert repr(stream) == "Stream(s; closed)"
    many = ms.stream([f"s{n}" for n in range(9)])
    assert repr(many).startswith("Stream(s0, s1, s2, s3, s4, ..; watermark")
    with ms.consumer(b"s", "g", retry=60, position="earliest") as consumer:
        record = consumer.read(timeout=5)
        assert repr(consumer) == "Consumer(s, group g; records: 1)"
        assert repr(record) == f"Record(s {record.id} {{'n': '1'}})"
    with ms.producer("s", "p", linger=60) as producer:
        producer.append({"n": 1})
        assert repr(producer) == "Producer(s as p; entries that wait: 1)"
    assert repr(ms.worker(["a", "b"], "g")) == "Worker(a, b, group g; waits for run())"
    many.close()


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (RecordsExpired("s", ID(1), ID(5)), "shard='s', after=ID(ms=1, seq=0), resumed=ID(ms=5"),
        (ShardUnavailable("s", None), "shard='s', cause=None"),
        (Sealed("SEALED it continues in 'a', 'b'"), "children=['a', 'b']"),
        (MillstreamError("text"), "MillstreamError('text')"),
    ],
)
def test_errors_show_their_attributes(error: MillstreamError, shown: str) -> None:
    assert shown in repr(error)
    assert str(error) in repr(error).replace('"', "'") or "'" in str(error)
    assert repr(pickle.loads(pickle.dumps(error))) == repr(error)
