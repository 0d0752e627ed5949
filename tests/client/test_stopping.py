"""What a call of `stop` ends, and what it leaves alone."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from tests.client.apis import take

from millstream.client.core.waiting import Stops


def fill(ms: Any, count: int = 5) -> None:
    for n in range(count):
        ms.tappend("s", {"n": n})


def test_stop_ends_a_read_without_a_timeout_within_a_second_or_so(ms: Any) -> None:
    with ms.stream("s") as stream:
        threading.Timer(0.05, stream.stop).start()
        began_s = time.monotonic()
        assert stream.read() is None
        assert time.monotonic() - began_s < 3
        ms.tappend("s", {"n": 1})
        assert stream.read()["n"] == "1"


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


def test_a_stop_is_counted_once_for_each_follow() -> None:
    stops = Stops()
    with stops.following() as outer:
        with stops.following() as inner:
            assert not stops.since(inner)
            stops.stop()
            assert stops.since(inner)
        assert stops.since(outer)
    assert not stops.since(stops.begin())
