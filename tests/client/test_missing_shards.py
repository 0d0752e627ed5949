"""Missing shards: the stream warns, then raises ShardUnavailable, then continues."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.apis import Api, take
from tests.client.conftest import url_of
from tests.support.server import Server

from millstream.client import ID, ShardEnded, ShardMissing, ShardUnavailable
from millstream.client.core.follower import Follower
from millstream.client.core.options import Options
from millstream.client.core.position import Oldest
from millstream.client.core.shard_order import Servers
from millstream.client.core.shards import Shard
from millstream.client.core.steps import Answer, Steps, Together, Wait


def sealed(ms: Any, *children: str, elsewhere: bool = False) -> None:
    ms.tappend("p", {"n": 1})
    ms.tseal("p", *children, elsewhere=elsewhere)


def nowhere(ms: Any, how: str) -> None:
    """Seal `p` so that its child `p1` cannot be found."""
    sealed(ms, "p1", elsewhere=how == "elsewhere")
    if how == "deleted":
        ms.delete("p1")


def unavailable(stream: Any, timeout: float = 10.0) -> ShardUnavailable:
    with pytest.raises(ShardUnavailable) as caught:
        stream.read(timeout=timeout)
    return caught.value


def read_when_available(stream: Any) -> Any:
    """The next record. Until the stream has tried again to reach the server, a call raises."""
    until_s = time.monotonic() + 10
    while True:
        try:
            return stream.read(timeout=10)
        except ShardUnavailable:
            assert time.monotonic() < until_s


def read_until(stream: Any, done: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 10
    while not done():
        assert stream.read(timeout=0.1) is None
        assert time.monotonic() < until_s


@pytest.mark.parametrize("how", ["elsewhere", "deleted", "resolved to none"])
@pytest.mark.parametrize("order", ["strict", "available"])
def test_a_child_that_does_not_exist_is_an_error_with_its_cure(
    ms: Any, how: str, order: str, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Any] = []
    nowhere(ms, "elsewhere" if how == "resolved to none" else how)
    with ms.stream(
        "p",
        "trim_horizon",
        order=order,
        max_wait=0.3,
        on_event=events.append,
        resolve=(lambda name: None) if how == "resolved to none" else None,
    ) as stream:
        take(stream, 1)
        error = unavailable(stream)
        assert error.shard == "p1"
        assert "'p' is sealed and continues in it" in str(error)
        assert "TCREATE" in str(error)
        assert "resolve" in str(error)
        assert [event for event in events if isinstance(event, ShardMissing)] == [
            ShardMissing("p1", ("p",))
        ]
        assert caplog.text.count("the stream waits for it") == 1
        unavailable(stream, timeout=0)  # until it exists
        ms.tcreate("p1", None, ["p"])
        ms.tappend("p1", {"n": 2})
        assert take(stream, 1)[0]["n"] == "2"
        assert ShardEnded("p", ("p1",)) in events


def test_the_warning_appears_without_max_wait_too(
    ms: Any, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere(ms, "deleted")
    with ms.stream("p", "trim_horizon", max_wait=None) as stream:
        take(stream, 1)
        read_until(stream, lambda: bool(caplog.text))
        assert "shard 'p1': the stream waits for it, because 'p' is sealed" in caplog.text


def test_a_missing_child_that_blocks_other_shards_is_an_error(ms: Any) -> None:
    nowhere(ms, "elsewhere")
    with ms.stream(["p", "q"], "trim_horizon", max_wait=0.3) as stream:
        take(stream, 1)
        ms.tappend("q", {"n": 2})
        assert unavailable(stream).shard == "p1"
        ms.tcreate("p1", None, ["p"])
        assert take(stream, 1)[0].shard == "q"


def test_records_of_other_shards_precede_the_error_of_a_child(ms: Any) -> None:
    nowhere(ms, "elsewhere")
    with ms.stream(["p", "q"], "trim_horizon", order="available", max_wait=0.2) as stream:
        take(stream, 1)
        assert unavailable(stream).shard == "p1"
        ms.tappend("q", {"n": 2})
        assert stream.read(timeout=5)["n"] == "2"


def test_a_restored_stream_names_the_child_that_is_nowhere(ms: Any) -> None:
    nowhere(ms, "elsewhere")
    with ms.stream("p", "trim_horizon", max_wait=0.2) as stream:
        take(stream, 1)
        unavailable(stream)
        saved = json.loads(json.dumps(stream.token))
    for key in ("p", "nothing"):  # the parent exists, then it is deleted, too
        with ms.stream("p", saved, max_wait=0.2) as stream:
            assert unavailable(stream).shard == "p1"
        ms.delete(key, "p")
    ms.tcreate("p1")
    ms.tappend("p1", {"n": 2})
    with ms.stream("p", saved) as stream:
        assert take(stream, 1)[0]["n"] == "2"


def test_a_child_that_is_deleted_while_it_is_read_is_an_error(ms: Any) -> None:
    sealed(ms, "p1")
    ms.tappend("p1", {"n": 2})
    with ms.stream("p", "trim_horizon", max_wait=0.3) as stream:
        take(stream, 2)
        ms.delete("p1")
        error = unavailable(stream)
        assert (error.shard, "'p' is sealed" in str(error)) == ("p1", True)


def test_resolve_is_called_again_for_a_missing_child(
    api: Api, servers: Callable[[int], list[Server]]
) -> None:
    one, two = servers(2)
    first, second = api.connect(url_of(one)), api.connect(url_of(two))
    places: dict[str, Any] = {}
    nowhere(first, "elsewhere")
    with first.stream("p", "trim_horizon", max_wait=0.2, resolve=places.get) as stream:
        take(stream, 1)
        unavailable(stream)
        second.tappend("p1", {"n": 2})
        places["p1"] = api.shard("p1", second)
        assert take(stream, 1)[0]["n"] == "2"


def test_a_child_on_a_server_that_is_away_is_an_error(
    api: Api, servers: Callable[[int], list[Server]]
) -> None:
    one, two = servers(2)
    first, second = api.connect(url_of(one)), api.connect(url_of(two))
    events: list[Any] = []
    nowhere(first, "elsewhere")
    with first.stream(
        "p",
        "trim_horizon",
        max_wait=0.3,
        resolve=lambda name: api.shard(name, second),
        on_event=events.append,
    ) as stream:
        take(stream, 1)
        two.stop()
        error = unavailable(stream)
        assert error.shard == "p1"
        assert ("p1",) in [getattr(event, "shards", None) for event in events]
        two.start()
        second.tappend("p1", {"n": 2})
        assert read_when_available(stream)["n"] == "2"


def test_a_key_that_is_deleted_is_reported(ms: Any, caplog: pytest.LogCaptureFixture) -> None:
    events: list[Any] = []
    ms.tappend("s", {"n": 1})
    with ms.stream("s", "trim_horizon", on_event=events.append) as stream:
        take(stream, 1)
        ms.delete("s")
        read_until(stream, lambda: bool(caplog.text))
        assert events[-1] == ShardMissing("s", ())
        assert "shard 's': its key does not exist; the stream waits for it" in caplog.text


def test_an_end_whose_children_are_unknowable_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers = Servers("server", None)
    follower = Follower(
        servers, Options(100, "strict", "raise", 30.0, None, True), lambda: 1.0, lambda: 1.0
    )
    opening = follower.open([Shard("p")], Oldest(), create=False)
    step = next(opening)
    assert isinstance(step, Together)
    info = {"incarnation": 7, "sealed": False, "children": [], "parents": []}
    finish(opening, [[info]])
    reading = follower.read(1.0)
    step = next(reading)
    assert isinstance(step, Wait)
    row = ["p", "0.0", "5.0", [], 1, 7]
    step = reading.send([Answer(step.asks[0], [[row]])])
    assert isinstance(step, Wait)
    finish(reading, [Answer(step.asks[0], [None])])  # deleted since
    assert follower.ended
    assert follower.watermark == ID(5)
    assert "shard 'p': its key was deleted before" in caplog.text


def finish(steps: Steps[Any], result: Any) -> None:
    """Send a result, and let all further steps do nothing."""
    try:
        while True:
            steps.send(result)
            result = None
    except StopIteration:
        return
