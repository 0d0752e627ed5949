"""The beginning and the end of streams and consumers: IDs, times, ends."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.client.apis import ids, rest, take
from tests.support.waiting import wait_until

from millstream.client import ID, InvalidPosition


def fill(ms: Any, *keys: str) -> list[ID]:
    """Entries 1.0, 2.0 .. 8.0, in turn in these streams."""
    for n in range(8):
        ms.xadd(keys[n % len(keys)], {"n": n}, id=f"{n + 1}-0")
    return [ID(n + 1, 0) for n in range(8)]


def moment(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


@pytest.mark.parametrize("position", [ID(3, 0), "3.0", "3-0", moment(4)])
def test_a_start_at_an_id_begins_after_it(ms: Any, position: Any) -> None:
    written = fill(ms, "a", "b")
    with ms.stream(["a", "b"], position, end="latest") as stream:
        assert ids(rest(stream)) == [str(one) for one in written[3:]]
        stream.seek("earliest")
        assert ids(take(stream, 8)) == [str(one) for one in written]
        assert stream.ended
    for number, key in enumerate("ab"):
        with ms.consumer(key, "g", retry=60, position=position) as consumer:
            assert ids([consumer.read(timeout=5)]) == [str(written[4 - number])]


@pytest.mark.parametrize("end", [ID(5, 0), "5.0", moment(6)])
@pytest.mark.parametrize("order", ["strict", "available"])
def test_a_stream_ends_at_an_id_or_before_a_time(ms: Any, end: Any, order: Any) -> None:
    written = fill(ms, "a", "b")
    with ms.stream(["a", "b"], "earliest", end=end, order=order) as stream:
        assert stream.lag() == {"a": 3, "b": 2}
        found = rest(stream)
        assert sorted(ids(found)) == [str(one) for one in written[:5]]
        assert stream.ended
        assert stream.read(timeout=0) is None
        assert stream.lag() == {"a": 0, "b": 0}
        token = stream.token
    with ms.stream(["a", "b"], token, end="latest") as stream:  # the rest, once
        assert ids(rest(stream)) == [str(one) for one in written[5:]]


def test_the_latest_end_is_what_there_is_at_the_beginning(ms: Any) -> None:
    with ms.writer("a", "w") as writer:
        first = writer.append({"n": 1})
        fact = writer.fact()  # open: nothing after it is there
        with fact:
            writer.append({"n": 3})
            with ms.stream("a", "earliest", end="latest") as stream:
                fact["n"] = 2
                fact.complete()
                ms.tappend("a", {"n": 4})
                assert ids(rest(stream)) == [str(first)]
                token = stream.token
    with ms.stream("a", token, end="latest") as stream:
        assert [record["n"] for record in rest(stream)] == ["2", "3", "4"]


def test_an_end_lies_in_children_of_a_sealed_shard(ms: Any) -> None:
    found = [ms.tappend("a", {"n": 1})]
    ms.tseal("a", "b", "c")
    for n, key in ((2, "b"), (3, "c"), (4, "b"), (5, "c")):
        # Equal IDs of two shards would be in another order.
        wait_until(lambda: time.time() * 1000 >= found[-1].ms + 1, what="a later ID")
        found.append(ms.tappend(key, {"n": n}))
    last = found[-2]
    for end, wanted in (("latest", "12345"), (last, "1234")):
        with ms.stream("a", "earliest", end=end) as stream:
            assert [record["n"] for record in rest(stream)] == list(wanted)


def test_a_stream_of_nothing_ends_at_once(ms: Any) -> None:
    with ms.stream(["a", "b"], "earliest", end="latest") as stream:
        assert stream.read() is None
        assert stream.ended
    fill(ms, "a")
    with ms.stream("a", ID(7, 0), end=ID(5, 0)) as stream:
        assert rest(stream) == []


def test_an_end_in_the_future_is_waited_for(ms: Any) -> None:
    begun = time.time()
    end = datetime.fromtimestamp(begun + 0.4, UTC)
    with ms.stream(["a", "b"], "latest", end=end) as stream:
        new = ms.tappend("a", {"n": 1})
        assert ids(rest(stream)) == [str(new)]
        assert time.time() >= begun + 0.4


@pytest.mark.parametrize("end", ["earliest", "trim_horizon", {"v": 1}, 5, "never", ""])
def test_an_end_that_is_none_is_refused(ms: Any, end: Any) -> None:
    with pytest.raises(InvalidPosition):
        ms.stream("a", end=end)


def test_seek_moves_a_group(ms: Any) -> None:
    written = fill(ms, "s")
    with ms.consumer("s", "g", retry=60, batch=3, position="earliest") as consumer:
        assert ids([consumer.read(timeout=5)]) == ["1.0"]
        consumer.seek(ID(6, 0))
        assert ids([consumer.read(timeout=5)]) == ["7.0"]
        consumer.seek(moment(2))
        found = [consumer.read(timeout=5) for _ in range(7)]
        assert ids(found) == [str(one) for one in written[1:]]
        consumer.seek("latest")
        assert consumer.read(timeout=0) is None
        with pytest.raises(InvalidPosition):
            consumer.seek({"v": 1})


def test_a_worker_begins_at_a_time(ms: Any) -> None:
    fill(ms, "s")
    seen: list[str] = []
    worker = ms.worker("s", "g", position=moment(7), concurrency=1)

    @worker.handler
    def handle(job: Any) -> None:
        seen.append(str(job.id))
        if len(seen) == 2:
            worker.stop()

    worker.run()
    assert seen == ["7.0", "8.0"]
