"""The effect of `stop`: what it ends, and what it leaves alone."""

from __future__ import annotations

import signal
import threading
import time
from functools import partial
from typing import Any

import pytest
from tests.client.apis import take, unwrap
from tests.client.conftest import url_of
from tests.support.server import Server

from millstream.client import MillstreamError, ShardEnded, connect, redis_py
from millstream.client.core.deadlines import Stops


def fill(ms: Any, count: int = 5) -> None:
    for n in range(count):
        ms.tappend("s", {"n": n})


def test_stop_ends_a_read_without_a_timeout_within_a_second(ms: Any) -> None:
    with ms.stream("s") as stream:
        threading.Timer(0.05, stream.stop).start()
        began_s = time.monotonic()
        assert stream.read() is None
        assert time.monotonic() - began_s < 3
        ms.tappend("s", {"n": 1})
        assert stream.read()["n"] == "1"


@pytest.mark.parametrize("kind", ["stream", "consumer"])
def test_a_loop_waits_for_records_and_ends_with_stop(ms: Any, kind: str) -> None:
    fill(ms, 2)
    made = ms.stream if kind == "stream" else partial(ms.consumer, group="g", retry=60)
    with made("s", position="trim_horizon") as source:
        threading.Timer(0.5, source.stop).start()
        assert [record["n"] for record in source] == ["0", "1"]
        assert source.metrics()["requests"] < 20


@pytest.mark.parametrize("kind", ["stream", "consumer"])
def test_a_loop_ends_at_the_end_of_a_sealed_stream(ms: Any, kind: str) -> None:
    fill(ms, 2)
    ms.tseal("s")
    made = ms.stream if kind == "stream" else partial(ms.consumer, group="g")
    with made("s", position="trim_horizon") as source:
        assert [record["n"] for record in source] == ["0", "1"]


@pytest.mark.parametrize("kind", ["stream", "consumer"])
def test_a_signal_ends_a_loop_that_waits(server: Server, kind: str) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with connect(url_of(server)) as ms:
            source: Any = ms.stream("s") if kind == "stream" else ms.consumer("s", "g")
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with source, pytest.raises(KeyboardInterrupt):
                next(iter(source))
    finally:
        signal.signal(signal.SIGALRM, before)


def test_stop_ends_every_follow_that_runs(ms: Any) -> None:
    fill(ms)
    found = []
    with ms.stream("s", "trim_horizon") as stream:
        for outer in stream.follow():
            found.append(outer["n"])
            for inner in stream.follow():
                found.append(inner["n"])
                stream.stop()
        assert found == ["0", "1"]
        assert [record["n"] for record in take(stream, 3)] == ["2", "3", "4"]


def test_a_stop_before_a_break_does_not_end_the_next_follow(ms: Any) -> None:
    fill(ms)
    with ms.stream("s", "trim_horizon") as stream:
        for _ in stream.follow():
            stream.stop()
            break
        for record in stream.follow():
            assert record["n"] == "1"
            break
        else:
            pytest.fail("the stop of the loop before has ended this one")


def test_a_stop_before_a_follow_ends_it_and_only_it(ms: Any) -> None:
    fill(ms)
    with ms.stream("s", "trim_horizon") as stream:
        stream.stop()
        assert list(stream.follow()) == []
        assert take(stream, 1)[0]["n"] == "0"


@pytest.mark.parametrize("block", [0, -1, float("nan"), "1"])
@pytest.mark.parametrize("kind", ["stream", "consumer"])
def test_a_follow_that_would_ask_without_a_pause_is_refused(
    ms: Any, kind: str, block: float
) -> None:
    made = ms.stream("s") if kind == "stream" else ms.consumer("s", "g")
    with made, pytest.raises(ValueError, match="block"):
        next(iter(made.follow(block=block)))


def test_a_stream_that_a_handler_closes_sends_no_more_requests(
    ms: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(ms)
    asked_after_close = []

    def borrow(client: Any) -> Any:
        if closed:
            asked_after_close.append(client)
        return borrow_before(client)

    def handler(event: Any) -> Any:
        if not isinstance(event, ShardEnded):
            return None
        closed.append(event)
        return unwrap(stream).close()  # asyncio's handler returns an awaitable

    closed: list[Any] = []
    borrow_before = redis_py.borrow
    monkeypatch.setattr(redis_py, "borrow", borrow)
    stream = ms.stream("s", "trim_horizon", on_event=handler)
    ms.tseal("s", "t")
    with pytest.raises(MillstreamError, match="closed"):
        take(stream, 6)
    assert len(closed) == 1
    assert asked_after_close == []


def test_a_stop_is_counted_once_for_each_follow() -> None:
    stops = Stops()
    outer, inner = stops.begin_follow("outer"), stops.begin_follow("inner")
    assert not stops.since(inner)
    stops.stop()
    assert stops.since(inner)
    stops.end_follow("inner")
    assert stops.since(outer)
    stops.end_follow("outer")
    stops.end_follow("outer")
    assert not stops.since(stops.begin())
