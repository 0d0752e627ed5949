"""Consumers: how many entries they fetch, how they end, and what closing them costs."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import redis
from tests.client.apis import rest, take, unwrap
from tests.support.waiting import wait_until

from millstream.client import ID, InvalidPosition, Record
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


def test_due_entries_are_delivered_to_one_consumer(
    ms: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fill(ms, 3)
    with (
        ms.consumer("s", "g", retry=0.3, position="trim_horizon") as one,
        ms.consumer("s", "g", retry=60) as two,
    ):
        one.ack(*take(one, 1))
        assert one.metrics()["buffered"] == 2
        assert [record["n"] for record in take(two, 2)] == ["1", "2"]
        assert one.read(timeout=0) is None
        assert (one.metrics()["overdue"], one.metrics()["buffered"]) == (2, 0)
    assert "2 entries of the group 'g' were fetched and not handed out within" in caplog.text


def test_overdue_entries_of_a_group_that_vanishes_are_delivered(ms: Any) -> None:
    fill(ms, 3)
    with ms.consumer("s", "g", retry=0.1, position="trim_horizon") as consumer:
        take(consumer, 1)
        ms.xgroup_destroy("s", "g")
        wait_until(lambda: overdue(consumer), bool)
        assert [record["n"] for record in take(consumer, 2)] == ["1", "2"]


def overdue(consumer: Any) -> bool:
    deliveries = unwrap(consumer)._deliveries
    return bool(time.monotonic() >= deliveries._due_s)


@pytest.mark.parametrize(
    ("terms", "kept"),
    [
        (Terms(0, 5, 0), False),
        (Terms(0, 5, 6), False),
        (Terms(0, 5, 5), True),  # expired: no other consumer gets them
        (Terms(0, 5, 1), True),
        (Terms(0, None, 0), True),
    ],
    ids=repr,
)
def test_buffered_entries_are_dropped_if_others_may_get_them(terms: Terms, kept: bool) -> None:
    now_s = 0.0
    deliveries = Deliveries("server", "s", "g", terms, "latest", 3, lambda: now_s)
    records = [Record(ID(n), "s", [f"{n}.0", "n", str(n)]) for n in (1, 2, 3)]
    first = deliveries.read(9.0)
    step = next(first)
    assert isinstance(step, Wait)
    now_s = 5.5  # a reply that comes late is handed out by the call that asked for it
    assert result(first, [Answer(step.asks[0], [records])]) is records[0]
    following = deliveries.read(0)
    if kept:
        assert result(following) is records[1]
        return
    step = next(following)
    assert isinstance(step, Wait)
    assert step.asks[0].commands[0].words[:4] == ("TREAD", "s", ">", 3)


def result(steps: Any, answers: Any = None) -> Any:
    with pytest.raises(StopIteration) as ended:
        steps.send(answers)
    return ended.value.value


def test_an_overdue_reply_to_an_earlier_call_is_dropped() -> None:
    now_s = 0.0
    deliveries = Deliveries("server", "s", "g", Terms(0, 5, 0), "latest", 3, lambda: now_s)
    reading = deliveries.read(1.0)
    step = next(reading)
    assert isinstance(step, Wait)
    reading.close()  # cancelled
    now_s = 5.5
    reading = deliveries.read(1.0)
    assert next(reading) == Wait(step.asks, 1.0)
    again = reading.send([Answer(step.asks[0], [[Record(ID(1), "s", ["1.0", "n", "1"])]])])
    assert isinstance(again, Wait)
    assert again.asks != step.asks


@pytest.mark.parametrize(("retry_s", "most_ms"), [(0.2, 50), (2, 500), (60, 1000), (0, 1000)])
def test_a_request_waits_for_a_part_of_the_retry_time(retry_s: float, most_ms: int) -> None:
    deliveries = Deliveries("server", "s", "g", Terms(0, retry_s, 0), "latest", 3, lambda: 0.0)
    step = next(deliveries.read(9.0))
    assert isinstance(step, Wait)
    words = step.asks[0].commands[0].words
    assert words[words.index("BLOCK") + 1] == most_ms


def test_entries_that_are_due_at_once_are_fetched_one_by_one(ms: Any) -> None:
    fill(ms, 2)
    with ms.consumer("s", "g", retry=0, position="trim_horizon", batch=10) as consumer:
        assert [record["n"] for record in take(consumer, 2)] == ["0", "0"]
        consumer.ack(*ms.trange("s"))
        assert consumer.read(timeout=0)["n"] == "1"


@pytest.mark.parametrize("position", ["first", "", "$", "1-", b"0", 5, None, 1.5, {"v": 1}])
def test_a_wrong_position_names_the_words_that_are_allowed(ms: Any, position: Any) -> None:
    wanted = "use 'trim_horizon', 'latest', an ID|the token is malformed"
    with pytest.raises(InvalidPosition, match=wanted):
        ms.consumer("s", "g", position=position)


def test_closing_warns_of_entries_that_are_lost(ms: Any, caplog: pytest.LogCaptureFixture) -> None:
    fill(ms)
    with ms.consumer("s", "g", position="trim_horizon", batch=4) as consumer:
        take(consumer, 1)
    assert "3 entries of the group 'g' were fetched and not handed out" in caplog.text
    caplog.clear()
    with ms.consumer("s", "h", retry=60, position="trim_horizon") as consumer:
        take(consumer, 1)
    assert caplog.text == ""


def test_closing_tries_once_to_acknowledge_finished_entries(
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


def test_follow_continues_while_a_sealed_stream_may_redeliver(ms: Any) -> None:
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
