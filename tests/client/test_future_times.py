"""A stream that begins at a time in the future: its first record is at or after that time.

Time passes in the IDs: entries with explicit IDs stand for those that are appended later.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.client.apis import take

from millstream.client import ID, RecordsExpired

WHEN = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
WHEN_MS = int(WHEN.timestamp() * 1000)


def add(ms: Any, key: str, ms_after: int, n: str) -> None:
    ms.xadd(key, {"n": n}, id=f"{WHEN_MS + ms_after}-0")


@pytest.mark.parametrize("order", ["strict", "available"])
@pytest.mark.parametrize("clock", [None, True, False])
@pytest.mark.parametrize("shards", [["s"], ["s", "t"]], ids=len)
@pytest.mark.parametrize("restored", [False, True])
def test_the_first_record_is_at_or_after_a_time_in_the_future(
    ms: Any, order: str, clock: bool | None, shards: list[str], restored: bool
) -> None:
    ms.tappend("s", {"n": "old"})
    stream = ms.stream(shards, WHEN, order=order, clock=clock)
    now = ms.tappend("s", {"n": "now"})
    assert now.ms < WHEN_MS  # nothing is promised that far
    assert stream.read(timeout=0.01) is None
    if restored:
        saved = json.loads(json.dumps(stream.token))
        stream.close()
        ms.tappend("s", {"n": "while away"})
        stream = ms.stream(shards, saved, order=order, clock=clock)
    assert stream.read(timeout=0.01) is None
    assert stream.lag()["s"] == 0
    assert stream.metrics()["watermark_age_s"] == 0
    for key in shards:
        add(ms, key, -1, "before")
        add(ms, key, 0, "at")
        add(ms, key, 1, "after")
    with stream:
        expected = [("at", "s"), ("at", "t"), ("after", "s"), ("after", "t")]
        expected = [pair for pair in expected if pair[1] in shards]
        if clock is False and order == "strict" and len(shards) > 1:
            expected.pop()  # held back: no entry of the other shard shows that it is the next
        found = [(record["n"], record.shard) for record in take(stream, len(expected))]
        assert (found if order == "strict" else sorted(found)) == (
            expected if order == "strict" else sorted(expected)
        )


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("split", ["before", "after"])
def test_children_begin_at_the_time_in_the_future(ms: Any, restored: bool, split: str) -> None:
    ms.tappend("s", {"n": "old"})
    if split == "before":
        ms.tseal("s", "s1", "s2")
    stream = ms.stream("s", WHEN)
    if restored:
        saved = json.loads(json.dumps(stream.token))
        stream.close()
        stream = ms.stream("s", saved)
    if split == "after":
        ms.tappend("s", {"n": "early"})
        ms.tseal("s", "s1", "s2")
    ms.tappend("s1", {"n": "too early"})
    assert stream.read(timeout=0.05) is None
    add(ms, "s1", -1, "before")
    add(ms, "s2", 5, "after")
    add(ms, "s1", 7, "later")
    with stream:
        assert [record["n"] for record in take(stream, 1)] == ["after"]


def test_a_stream_that_is_created_again_is_read_from_the_time_on(ms: Any) -> None:
    ms.tappend("s", {"n": "old"})
    with ms.stream("s", WHEN) as stream:
        assert stream.read(timeout=0.01) is None
        ms.delete("s")
        ms.tappend("s", {"n": "early"})
        add(ms, "s", 3, "after")
        with pytest.raises(RecordsExpired):
            stream.read(timeout=5)
        assert "since" in stream.token
        assert take(stream, 1)[0]["n"] == "after"
        assert "since" not in stream.token
        ms.delete("s")
        ms.xadd("s", {"n": "again"}, id="1-1")
        with pytest.raises(RecordsExpired):
            stream.read(timeout=5)
        assert take(stream, 1)[0]["n"] == "again"


def test_move_to_a_time_in_the_future_waits_for_it(ms: Any) -> None:
    ms.tappend("s", {"n": "old"})
    with ms.stream("s", "trim_horizon") as stream:
        stream.move_to(WHEN)
        assert stream.read(timeout=0.01) is None
        add(ms, "s", 0, "at")
        assert take(stream, 1)[0].id == ID(WHEN_MS)
