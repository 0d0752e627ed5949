"""Consumers: how many entries they fetch, how they end, and what closing them costs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis
from tests.client.apis import rest, take

from millstream.client import ID, Record
from millstream.client.core.deliveries import Deliveries, Terms
from millstream.client.core.steps import Answer, Call, Wait


def fill(ms: Any, count: int = 4) -> None:
    for n in range(count):
        ms.tappend("s", {"n": n})


def test_a_consumer_without_retry_fetches_one_entry_at_a_time(ms: Any) -> None:
    fill(ms)
    with ms.consumer("s", "g", position="trim_horizon") as first:
        assert take(first, 1)[0]["n"] == "0"
    with ms.consumer("s", "g") as second:
        assert [record["n"] for record in take(second, 3)] == ["1", "2", "3"]


def test_a_consumer_with_retry_fetches_a_batch(ms: Any) -> None:
    fill(ms)
    with ms.consumer("s", "g", retry=60, position="trim_horizon") as consumer:
        take(consumer, 1)
        assert consumer.metrics()["buffered"] == 3


def test_closing_warns_of_entries_that_are_lost(ms: Any, caplog: pytest.LogCaptureFixture) -> None:
    fill(ms)
    with ms.consumer("s", "g", position="trim_horizon", batch=4) as consumer:
        take(consumer, 1)
    assert "3 entries of the group 'g' were fetched and not handed out" in caplog.text
    caplog.clear()
    with ms.consumer("s", "h", retry=60, position="trim_horizon") as consumer:
        take(consumer, 1)
    assert caplog.text == ""


def test_closing_tries_once_to_acknowledge_what_is_finished(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deliveries = Deliveries("server", "s", "g", Terms(0, 60, 0), "latest", 1, lambda: 0.0)
    finishing = deliveries.finish(Record(ID(5), "s", ["5.0", "n", "1"]))
    assert isinstance(next(finishing), Call)
    with pytest.raises(KeyboardInterrupt):
        finishing.throw(KeyboardInterrupt())
    closing = deliveries.close()
    step = next(closing)
    assert isinstance(step, Call)
    assert step.command.words == ("TACK", "s", "g", "5.0")
    with pytest.raises(StopIteration):
        closing.throw(redis.ConnectionError("gone"))
    assert "1 finished entries of the group 'g' could not be acknowledged" in caplog.text


@pytest.mark.parametrize("retry", [None, 60])
def test_follow_ends_at_the_end_of_a_sealed_stream(ms: Any, retry: float | None) -> None:
    fill(ms)
    ms.tseal("s")
    with ms.consumer("s", "g", retry=retry, position="trim_horizon") as consumer:
        found = [record["n"] for record in consumer.follow(block=0.1, ack=True)]
        assert found == ["0", "1", "2", "3"]
        assert rest(consumer) == []


def test_follow_goes_on_while_entries_of_a_sealed_stream_may_come_again(ms: Any) -> None:
    fill(ms, 1)
    ms.tseal("s")
    with (
        ms.consumer("s", "g", retry=0.5, position="trim_horizon") as one,
        ms.consumer("s", "g", retry=60) as two,
    ):
        take(one, 1)  # not acknowledged: it goes to the other one
        assert [record["n"] for record in two.follow(block=0.1, ack=True)] == ["0"]


def test_next_reads_also_when_a_look_for_the_end_is_on_its_way() -> None:
    now_s = 0.0
    deliveries = Deliveries("server", "s", "g", Terms(0, 60, 0), "latest", 1, lambda: now_s)
    reading = deliveries.read(1.0)
    first = next(reading)
    assert isinstance(first, Wait)
    look = reading.send([Answer(first.asks[0], [[]])])  # nothing there: has the stream ended?
    assert isinstance(look, Wait)
    assert [command.name for command in look.asks[0].commands] == ["TINFO", "XINFO"]
    now_s = 2.0
    with pytest.raises(StopIteration):
        reading.send([])
    at_once = deliveries.read(0)
    assert next(at_once) == Wait(look.asks, None)
    again = at_once.send([Answer(look.asks[0], [None, None])])
    assert isinstance(again, Wait)
    record = Record(ID(5), "s", ["5.0", "n", "1"])
    with pytest.raises(StopIteration) as ended:
        at_once.send([Answer(again.asks[0], [[record]])])
    assert ended.value.value == record


def test_stop_ends_a_read_without_a_timeout(ms: Any) -> None:
    with ms.consumer("s", "g") as consumer:
        threading.Timer(0.05, consumer.stop).start()
        assert consumer.read() is None
        ms.tappend("s", {"n": 1})
        assert consumer.read()["n"] == "1"
