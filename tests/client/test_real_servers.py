"""Streams against real servers: positions, errors, servers that stop, and what users may call."""

from __future__ import annotations

import json
import logging
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.client.apis import Api, drain, ids, rest, take
from tests.client.conftest import url_of
from tests.client.proxy import Proxy
from tests.support.resp import encode_command
from tests.support.server import Server
from tests.support.waiting import wait_until

from millstream.client import (
    ID,
    Disconnected,
    FactAlreadyDone,
    Gap,
    InvalidPosition,
    InvalidStream,
    MillstreamError,
    NotReserved,
    Reconnected,
    RecordsExpired,
    ReservationLost,
    Sealed,
    Shard,
    ShardEnded,
    ShardOpened,
    ShardUnavailable,
    Stalled,
    WrongServer,
)


def saved(stream: Any) -> Any:
    return json.loads(json.dumps(stream.token))


def calls(ms: Any, command: str) -> int:
    """The number of times that the server has run a command."""
    stats = ms.info("commandstats").get(f"cmdstat_{command}")
    return int(stats["calls"]) if stats else 0


# ---------------------------------------------------------------- positions


def test_latest_delivers_later_completions(ms: Any) -> None:
    ms.tappend("s", {"n": "old"})
    reserved = ms.treserve("s", "w")
    ms.tappend("s", {"n": "after"})
    with ms.stream("s") as stream:
        assert next(stream) is None
        ms.tcomplete("s", "w", reserved, {"n": "completed"})
        assert [record["n"] for record in take(stream, 2)] == ["completed", "after"]


def test_a_start_reports_no_gap_for_earlier_evictions(ms: Any) -> None:
    for n in range(6):
        ms.tappend("s", {"n": n})
    first = ms.trange("s", count=1)[0]
    ms.xtrim("s", maxlen=2, approximate=False)
    for position in ("trim_horizon", first.created_at, "latest"):
        with ms.stream("s", position) as stream:
            ms.tappend("s", {"n": "new"})
            assert take(stream, 1)
            assert stream.gaps == []


def test_latest_and_times_apply_to_the_children_of_sealed_shards(ms: Any) -> None:
    ms.tappend("s", {"n": "parent"})
    ms.tseal("s", "left", "right")
    old = ms.tappend("left", {"n": "old"})
    wait_until(lambda: ms.time()[0] * 1000 + ms.time()[1] // 1000 > old.ms + 2)
    new = ms.tappend("right", {"n": "new"})
    with ms.stream("s") as stream:
        assert sorted(stream.shards) == ["left", "right"]
        assert next(stream) is None
    with ms.stream("s", new.created_at) as stream:
        assert [record["n"] for record in take(stream, 1)] == ["new"]
        assert next(stream) is None


def test_a_shard_missing_from_the_token_starts_at_its_beginning(ms: Any) -> None:
    ms.tappend("s", {"n": 1})
    with ms.stream("s", "trim_horizon") as stream:
        take(stream, 1)
        token = saved(stream)
    ms.tappend("t", {"n": 2})
    with ms.stream(["s", "t"], token) as stream:
        assert [(record.shard, record["n"]) for record in take(stream, 1)] == [("t", "2")]
        assert next(stream) is None


@pytest.mark.parametrize(
    "position",
    [
        "oldest",
        "",
        b"latest",
        0,
        1.5,
        None,
        [],
        (1, 2),
        {},
        {"v": 1},
        {"v": True, "shards": {"s": {"at": "1.0"}}},
        {"v": "1", "shards": {"s": {"at": "1.0"}}},
        {"v": 2, "shards": {"s": {"at": "1.0"}}},
        {"v": 1, "shards": {}},
        {"v": 1, "shards": []},
        {"v": 1, "shards": {"s": None}},
        {"v": 1, "shards": {"s": {}}},
        {"v": 1, "shards": {"s": {"at": None}}},
        {"v": 1, "shards": {"s": {"at": 5}}},
        {"v": 1, "shards": {"s": {"at": "x"}}},
        {"v": 1, "shards": {"s": {"at": "1.0.0"}}},
        {"v": 1, "shards": {"s": {"at": "1.99999999999999999999"}}},
        {"v": 1, "shards": {"s": {"at": "1.0", "in": "5"}}},
        {"v": 1, "shards": {"s": {"at": "1.0", "fresh": 1}}},
        {"v": 1, "shards": {"s": {"at": "1.0", "end": "2.0"}}},
        {"v": 1, "shards": {"s": {"at": "1.0", "end": "2.0", "children": "ab"}}},
        {"v": 1, "shards": {"s": {"at": "1.0", "more": 1}}},
        {"v": 1, "shards": {"s": {"done": ["t"], "at": "1.0"}}},
        {"v": 1, "shards": {"s": {"done": [1]}}},
        {"v": 1, "shards": {"s": {"done": ["t"], "parents": "p"}}},
        {"v": 1, "shards": {"s": {"at": "1.0"}}, "more": 1},
        {"v": 1, "shards": {5: {"at": "1.0"}}},
    ],
    ids=repr,
)
def test_an_invalid_position_is_refused_and_changes_nothing(ms: Any, position: Any) -> None:
    ms.tappend("s", {"n": 1})
    with pytest.raises(InvalidPosition):
        ms.stream("s", position)
    with ms.stream("s", "trim_horizon") as stream:
        with pytest.raises(ValueError, match=r"\w"):
            stream.move_to(position)
        assert take(stream, 1)[0]["n"] == "1"


@pytest.mark.parametrize(
    "shards",
    [
        [],
        {},
        5,
        None,
        [5],
        [None],
        ["s", "s"],
        [Shard("s"), "s"],
        [Shard(5)],
        [Shard("s", None, 5)],
    ],  # type: ignore[arg-type]
    ids=repr,
)
def test_an_invalid_list_of_shards_is_refused(ms: Any, shards: Any) -> None:
    with pytest.raises(InvalidStream):
        ms.stream(shards)


def test_a_token_of_other_shards_is_refused(ms: Any) -> None:
    ms.tappend("s", {"n": 1})
    with ms.stream("s", "trim_horizon") as stream:
        token = saved(stream)
    with pytest.raises(InvalidStream, match="other"):
        ms.stream("other", token)
    ms.delete("s")
    with pytest.raises(InvalidStream, match="s"):
        ms.stream("s", token)


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 0},
        {"batch": 1.5},
        {"batch": True},
        {"order": "loose"},
        {"on_gap": "ignore"},
        {"max_wait": -1},
        {"max_wait": float("nan")},
    ],
    ids=repr,
)
def test_wrong_options_are_refused(ms: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ms.stream("s", **options)


# ---------------------------------------------------------------- reading


def test_an_iteration_continues_after_none(ms: Any) -> None:
    with ms.stream("s") as stream:
        assert next(stream) is None
        ms.tappend("s", {"n": 1})
        assert next(stream)["n"] == "1"
        assert next(stream) is None


def test_follow_ends_at_the_end(ms: Any) -> None:
    ms.tappend("s", {"n": 1})
    ms.tseal("s")
    with ms.stream("s", "trim_horizon") as stream:
        assert [record["n"] for record in stream.follow()] == ["1"]
        assert stream.ended
        assert stream.shards == []
        assert next(stream) is None
        assert stream.read() is None
        assert list(stream.follow()) == []
        token = saved(stream)
    with ms.stream("s", token) as stream:
        assert stream.ended
        assert list(stream.follow()) == []


@pytest.mark.parametrize("timeout", [0, 0.0, -1, 0.05])
def test_a_timeout_of_any_kind_reads_existing_records(ms: Any, timeout: float) -> None:
    ms.tappend("s", {"n": 1})
    with ms.stream("s", "trim_horizon") as stream:
        assert wait_until(lambda: stream.read(timeout=timeout))["n"] == "1"
        assert stream.read(timeout=timeout) is None


def test_a_very_long_timeout_is_allowed(ms: Any) -> None:
    ms.tappend("s", {"n": 1})
    with ms.stream("s", "trim_horizon", max_wait=None) as stream:
        assert stream.read(timeout=1e12)["n"] == "1"
        adder = threading.Timer(0.1, append_elsewhere, (ms, "s"))
        adder.start()
        assert stream.read(timeout=1e12)["n"] == "later"
        adder.join()


def append_elsewhere(ms: Any, key: str) -> None:
    """Append from a thread, with its own connection in either API."""
    kwargs = ms.connection_pool.connection_kwargs
    with redis.Redis(kwargs["host"], kwargs["port"]) as other:
        other.execute_command("TAPPEND", key, "n", "later")


def test_a_record_is_a_mapping(ms: Any) -> None:
    entry_id = ms.tappend("s", [("tag", "a"), ("tag", "b"), ("n", 1)])
    with ms.stream(Shard("s", name="shard:0"), "trim_horizon") as stream:
        [record] = take(stream, 1)
    assert dict(record) == {"tag": "b", "n": "1"}
    assert record.pairs == [("tag", "a"), ("tag", "b"), ("n", "1")]
    assert (record.id, record.shard, record.late) == (entry_id, "shard:0", False)
    assert record.created_at.tzinfo is UTC
    assert len({record, record}) == 1


def test_reads_return_only_what_meets_the_conditions(api: Api, server: Server) -> None:
    ms = api.connect(url_of(server))
    ids = [ms.tappend("s", {"n": n, "kind": "abc"[n % 3]}) for n in range(9)]
    where = [("kind", "IN", {"a", "c"}), ("n", "between", "(2", 6.5)]
    assert [record.id for record in ms.trange("s", where=where)] == [ids[3], ids[5], ids[6]]
    assert [record.id for record in ms.tread("s", 0, 1, where=where)] == [ids[3]]
    [row] = ms.tmread(10, {"s": ids[5]}, where=[("kind", "PREFIX", "a")])
    assert ([record.id for record in row.entries], row.next) == ([ids[6]], ids[8])
    with pytest.raises(ValueError, match="the values of IN must be a list or a set"):
        ms.trange("s", where=[("kind", "IN", "abc")])


def test_bytes_are_returned_as_bytes(api: Api, server: Server) -> None:
    ms = api.connect(url_of(server), decode_responses=False)
    ms.tappend(b"s\xff", {b"n\xff": b"1\xfe"})
    [row] = ms.tmread(10, {b"s\xff": 0})
    assert (row.key, dict(row.entries[0])) == (b"s\xff", {b"n\xff": b"1\xfe"})
    ms.tseal(b"s\xff", b"child\xff")
    ms.tappend(b"child\xff", {b"n": b"2"})
    ms.tseal(b"child\xff")
    with ms.stream(b"s\xff", "trim_horizon") as stream:
        [record] = take(stream, 1)
        assert dict(record) == {b"n\xff": b"1\xfe"}
        assert isinstance(record.shard, str)
        token = saved(stream)
    with ms.stream(b"s\xff", token) as stream:
        assert [dict(record) for record in rest(stream)] == [{b"n": b"2"}]
    with ms.consumer(b"child\xff", b"g", position="trim_horizon") as consumer:
        assert dict(next(consumer)) == {b"n": b"2"}
    with ms.writer(b"w", b"me\xff") as writer:
        with writer.fact() as fact:
            fact[b"n"] = b"3"
        assert dict(ms.trange(b"w")[0]) == {b"n": b"3"}
    assert ms.tpositions(b"w")[0].name == b"me\xff"


def test_a_unix_socket_works(api: Api, server: Server, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    Proxy(server.port, path=path)
    ms = api.connect(f"unix://{path}")
    ms.tappend("s", {"n": 1})
    ms.tseal("s")
    with ms.stream("s", "trim_horizon") as stream:
        assert [record["n"] for record in stream.follow()] == ["1"]


def test_the_place_of_an_idle_shard_is_its_watermark(ms: Any) -> None:
    with ms.stream(["s", "idle"]) as stream:
        ms.tappend("idle", {"n": 0})
        take(stream, 1)
        new = ms.tappend("s", {"n": 1})
        assert take(stream, 1)[0].id == new
        assert ID.parse(saved(stream)["shards"]["idle"]["at"]) >= new


def test_a_watermark_is_true_and_never_decreases_at_a_split(ms: Any) -> None:
    ms.tappend("s", {"n": 1})
    with ms.stream(["s", "t"], "trim_horizon") as stream:
        marks = [stream.watermark]
        take(stream, 1)
        marks.append(stream.watermark)
        ms.tseal("s", "left", "right")

        def shards() -> list[str]:
            assert stream.read(timeout=0.01) is None
            marks.append(stream.watermark)
            return sorted(stream.shards)

        wait_until(shards, lambda found: found == ["left", "right", "t"])
        new = ms.tappend("left", {"n": 2})
        assert take(stream, 1)[0].id == new
        marks.append(stream.watermark)
        assert marks == sorted(marks)
        assert marks[0] < new
        assert 0 <= stream.metrics()["watermark_age_s"] < 3600


def test_an_open_reservation_delays_others_in_strict_order_only(ms: Any) -> None:
    reserved = ms.treserve("s", "w")
    new = ID.parse(ms.xadd("t", {"n": 1}, id=f"{reserved.ms + 1}-0"))
    strict = ms.stream(["s", "t"], "trim_horizon")
    loose = ms.stream(["s", "t"], "trim_horizon", order="available")
    assert strict.read(timeout=0.1) is None
    assert take(loose, 1)[0].id == new
    assert strict.watermark < reserved
    ms.tcomplete("s", "w", reserved, {"n": 0})
    assert ids(take(strict, 2)) == [str(reserved), str(new)]
    [late] = take(loose, 1)
    assert (late.id, late.late) == (reserved, True)
    assert loose.metrics()["late"] == 1
    strict.close()
    loose.close()


def test_lag_counts_unread_entries(ms: Any) -> None:
    for n in range(5):
        ms.tappend("s", {"n": n})
    with ms.stream(["s", "t"], "trim_horizon", batch=2) as stream:
        assert stream.lag() == {"s": 5, "t": 0}
        take(stream, 1)
        assert stream.lag() == {"s": 4, "t": 0}


def test_metrics_have_the_names_of_the_documentation(ms: Any) -> None:
    ms.tappend("s", {"n": 1})
    with ms.stream("s", "trim_horizon") as stream:
        take(stream, 1)
        metrics = stream.metrics()
    names = "records requests buffered reconnects gaps late watermark_age_s"
    assert set(metrics) == set(names.split())
    assert (metrics["records"], metrics["requests"], metrics["buffered"]) == (1, 1, 0)


def test_a_heartbeat_is_one_request_per_server_in_five_seconds(ms: Any) -> None:
    ms.tappend("s", {"n": 1})
    with ms.stream(["s", "t"], "latest") as stream:
        before = calls(ms, "tmread"), calls(ms, "tinfo")
        ms.tseal("s", "left", "right")
        for _ in range(20):
            stream.heartbeat()
        after = calls(ms, "tmread"), calls(ms, "tinfo")
        assert sum(after) - sum(before) <= 1
        assert stream.watermark >= ms.tinfo("s")["handed-out-id"]


def test_clock_false_binds_no_ids(ms: Any) -> None:
    ms.xadd("s", {"n": 1}, id="5-1")
    ms.xadd("t", {"n": 2}, id="6-1")
    with ms.stream(["s", "t"], "trim_horizon", clock=False) as stream:
        assert ids(take(stream, 1)) == ["5.1"]
        assert stream.read(timeout=0.05) is None  # s may get an entry below 6.1
        ms.xadd("s", {"n": 3}, id="7-1")
        assert ids(take(stream, 1)) == ["6.1"]
    assert ms.tinfo("s")["promised-id"] is None


# ---------------------------------------------------------------- stopping and closing


def test_stop_ends_follow_from_another_thread(ms: Any) -> None:
    with ms.stream("s") as stream:
        threading.Timer(0.05, stream.stop).start()
        assert list(stream.follow(block=0.2)) == []
        ms.tappend("s", {"n": 1})
        for record in stream.follow():
            assert record["n"] == "1"
            stream.stop()


def test_stop_ends_follow_from_a_signal_handler(ms: Any) -> None:
    with ms.stream("s") as stream:
        before = signal.signal(signal.SIGUSR1, lambda *_: stream.stop())
        threading.Timer(0.05, signal.raise_signal, (signal.SIGUSR1,)).start()
        try:
            assert list(stream.follow(block=0.2)) == []
        finally:
            signal.signal(signal.SIGUSR1, before)


class Interrupted(BaseException):
    pass


def test_a_signal_handler_that_raises_loses_nothing(api: Api, ms: Any) -> None:
    """As KeyboardInterrupt does. For asyncio that ends the loop, so only the sync API has this."""
    if api.name == "asyncio":
        return

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with ms.stream(["s", "t"], max_wait=3.0) as stream:
            for n in range(20):
                with suppress(Interrupted):
                    signal.setitimer(signal.ITIMER_REAL, 0.002 * (n % 5) + 0.0005)
                    while stream.read(timeout=0.5) is None:
                        pass
                signal.setitimer(signal.ITIMER_REAL, 0)
                ms.tappend("s", {"n": n})
                assert take(stream, 1)[0]["n"] == str(n)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_closing_twice_is_allowed_and_a_closed_object_raises(ms: Any) -> None:
    stream = ms.stream("s")
    writer = ms.writer("s", "w")
    consumer = ms.consumer("s", "g")
    fact = writer.fact()
    for made in (stream, writer, consumer):
        made.close()
        made.close()
    for call in (
        stream.read,
        stream.heartbeat,
        stream.lag,
        lambda: stream.move_to("latest"),
        lambda: next(stream),
        lambda: list(stream.follow()),
        lambda: writer.append({"n": 1}),
        lambda: writer.facts(2),
        writer.heartbeat,
        writer.position,
        consumer.read,
        consumer.lag,
        consumer.heartbeat,
        lambda: consumer.ack("1.0"),
    ):
        with pytest.raises(MillstreamError, match="closed"):
            call()
    assert saved(stream)
    assert stream.metrics()
    fact.abort()  # it was given up when the writer was closed
    assert ms.tinfo("s")["reservations"] == 0


def test_a_stream_closed_during_a_wait_leaves_no_blocked_reader(ms: Any) -> None:
    stream = ms.stream("s")
    assert stream.read(timeout=0.01) is None
    stream.close()
    wait_until(lambda: int(ms.info("clients")["blocked_clients"]), lambda count: count == 0)


# ---------------------------------------------------------------- gaps and lineage


def test_a_gap_is_raised_once_and_reading_continues(ms: Any, caplog: Any) -> None:
    for n in range(5):
        ms.tappend("s", {"n": n})
    events: list[Any] = []
    with ms.stream("s", "trim_horizon", batch=1, on_event=events.append) as stream:
        first = take(stream, 1)[0].id
        ms.xtrim("s", maxlen=2, approximate=False)
        with (
            caplog.at_level(logging.WARNING, "millstream.client"),
            pytest.raises(RecordsExpired) as raised,
        ):
            stream.read(timeout=1)
        assert "removed" in caplog.text
        gap = Gap("s", first, raised.value.resumed)
        assert stream.gaps == [gap]
        assert events.count(gap) == 1
        assert [record["n"] for record in take(stream, 2)] == ["3", "4"]
        assert stream.metrics()["gaps"] == 1


def test_a_deletion_of_single_entries_is_not_a_gap(ms: Any) -> None:
    entries = [ms.tappend("s", {"n": n}) for n in range(4)]
    ms.tseal("s")
    with ms.stream("s", "trim_horizon", batch=1) as stream:
        take(stream, 1)
        ms.xdel("s", *(str(entry_id).replace(".", "-") for entry_id in entries[1:3]))
        assert [record["n"] for record in rest(stream)] == ["3"]
        assert stream.gaps == []


def test_a_key_deleted_and_created_again_is_read_from_its_start(ms: Any) -> None:
    ms.tappend("s", {"n": 1})
    with ms.stream("s", "trim_horizon") as stream:
        [record] = take(stream, 1)
        ms.delete("s")
        assert next(stream) is None
        ms.tappend("s", {"n": 2})
        with pytest.raises(RecordsExpired) as raised:
            stream.read(timeout=1)
        assert (raised.value.after, raised.value.resumed) == (record.id, ID(0, 0))
        assert take(stream, 1)[0]["n"] == "2"
        assert next(stream) is None


def test_events_report_a_split(ms: Any) -> None:
    events: list[Any] = []
    ms.tappend("s", {"n": 1})
    ms.tseal("s", "left", "right")
    ms.tseal("left")
    ms.tseal("right")
    with ms.stream("s", "trim_horizon", on_event=events.append) as stream:
        rest(stream)
    assert events == [
        ShardOpened("s"),
        ShardEnded("s", ("left", "right")),
        ShardOpened("left"),
        ShardOpened("right"),
        ShardEnded("left", ()),
        ShardEnded("right", ()),
    ]


def test_an_event_handler_that_raises_is_logged_and_skipped(
    ms: Any, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Any] = []

    def fail(event: Any) -> None:
        events.append(event)
        raise ZeroDivisionError

    for n in range(3):
        ms.tappend("s", {"n": n})
    with ms.stream("s", "trim_horizon", on_event=fail, on_gap="skip") as stream:
        assert take(stream, 1)[0]["n"] == "0"
        ms.xtrim("s", maxlen=0, approximate=False)
        stream.move_to(saved(stream))
        ms.tappend("s", {"n": 3})
        ms.tseal("s", "t")
        ms.tseal("t")
        assert [record["n"] for record in rest(stream)] == ["3"]
        assert len(stream.gaps) == 1
    kinds = [type(event) for event in events]
    assert kinds == [ShardOpened, ShardOpened, Gap, ShardEnded, ShardOpened, ShardEnded]
    assert caplog.text.count("on_event raised an error") == len(events)


def test_children_on_another_server_are_found_by_resolve(
    api: Api, servers: Callable[[int], list[Server]]
) -> None:
    one, two = servers(2)
    first, second = api.connect(url_of(one)), api.connect(url_of(two))
    first.tappend("s", {"n": 1})
    final = first.execute_command("TSEAL", "s", "ELSEWHERE", "CHILDREN", "t")
    made: list[str] = []

    def resolve(name: str) -> Shard | None:
        made.append(name)
        return api.shard("the:" + name, second)

    with first.stream("s", "trim_horizon", resolve=resolve) as stream:
        assert take(stream, 1)[0]["n"] == "1"
        assert stream.read(timeout=0.05) is None
        assert stream.shards == ["s"]  # until the child exists
        second.tcreate("the:t", final, ["s"])
        second.tappend("the:t", {"n": 2})
        [record] = take(stream, 1)
        assert (record.shard, record["n"]) == ("t", "2")
        token = saved(stream)
    second.tappend("the:t", {"n": 3})
    with first.stream("s", token, resolve=resolve) as stream:
        assert [record["n"] for record in take(stream, 1)] == ["3"]


def test_a_child_on_an_absent_server_is_found_when_it_returns(
    api: Api, servers: Callable[[int], list[Server]]
) -> None:
    one, two = servers(2)
    first, second = api.connect(url_of(one)), api.connect(url_of(two), timeout=1.0)
    first.tappend("s", {"n": 1})
    first.tseal("s", "t", elsewhere=True)
    second.tappend("t", {"n": 2})
    second.tseal("t")
    two.stop()
    with first.stream(
        "s", "trim_horizon", resolve=lambda name: api.shard(name, second), max_wait=None
    ) as stream:
        assert take(stream, 1)[0]["n"] == "1"
        assert stream.read(timeout=0.3) is None
        two.launch()
        assert stream.read()["n"] == "2"
        assert list(stream.follow()) == []


# ---------------------------------------------------------------- errors


def test_refusals_are_errors_of_the_client_and_of_redis_py(ms: Any) -> None:
    ms.tappend("sealed", {"n": 1})
    ms.tseal("sealed", "left", "right")
    ms.execute_command("CONFIG", "SET", "stream-reservations-max", "2")
    done, lost = ms.treserve("s", "w", 2)
    try:
        with pytest.raises(Stalled):
            ms.treserve("s", "w")
    finally:
        ms.execute_command("CONFIG", "SET", "stream-reservations-max", "10000")
    ms.tcomplete("s", "w", done, {"n": 1})
    ms.tabort("s", "w", lost)
    refused: list[tuple[type[Exception], Callable[[], Any]]] = [
        (Sealed, lambda: ms.tappend("sealed", {"n": 1})),
        (FactAlreadyDone, lambda: ms.tcomplete("s", "w", done, {"n": 1})),
        (NotReserved, lambda: ms.tcomplete("s", "w", done, {"n": 2})),
        (ReservationLost, lambda: ms.tcomplete("s", "w", lost, {"n": 2})),
        (NotReserved, lambda: ms.tcomplete("s", "w", ID(2**60), {"n": 2})),
    ]
    for kind, call in refused:
        with pytest.raises(kind) as raised:
            call()
        assert isinstance(raised.value, (MillstreamError, redis.ResponseError))
        assert isinstance(raised.value, redis.ResponseError)
    with pytest.raises(Sealed) as sealed:
        ms.tappend("sealed", {"n": 1})
    assert sealed.value.children == ["left", "right"]
    with ms.pipeline(transaction=False) as pipe:
        pipe.tappend("sealed", {"n": 1})
        pipe.tappend("s", {"n": 1})
        error, new = pipe.execute(raise_on_error=False)
    assert isinstance(error, Sealed)
    assert isinstance(new, ID)
    with ms.pipeline() as pipe:
        pipe.tappend("sealed", {"n": 1})
        with pytest.raises(Sealed):
            pipe.execute()


def test_a_pipeline_returns_the_results_of_the_methods(ms: Any) -> None:
    for transaction in (True, False):
        ms.flushall()
        with ms.pipeline(transaction=transaction) as pipe:
            pipe.tappend("s", {"n": 1})
            pipe.tread("s", 0, 10)
            pipe.treserve("s", "w", 2)
            pipe.tmread(10, {"s": 0})
            pipe.tinfo("s")
            pipe.tpositions("s")
            pipe.tseek("s", 0, 1)
            pipe.set("a", "b")
            new, records, reserved, rows, info, writers, seek, done = pipe.execute()
        assert records[0].id == new
        assert rows[0].entries[0]["n"] == "1"
        assert [type(one) for one in reserved] == [ID, ID]
        assert info["last-id"] == new
        assert writers[0].reservations == 2
        assert seek.id == new
        assert done is True


def test_a_shard_that_is_not_a_stream_is_an_error_each_time(ms: Any) -> None:
    ms.tappend("s", {"n": 1})
    with ms.stream(["s", "t"], "trim_horizon") as stream:
        ms.delete("t")
        ms.set("t", "text")
        for _ in range(2):
            with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                read_until_error(stream)
        ms.delete("t")
        assert take(stream, 1)[0]["n"] == "1"


def test_a_server_that_is_redis_is_named_in_the_error(api: Api, redis_server: Server) -> None:
    ms = api.connect(url_of(redis_server))
    for call in (
        lambda: ms.tappend("s", {"n": 1}),
        lambda: ms.stream("s"),
        lambda: ms.consumer("s", "g"),
        lambda: ms.writer("s", "w").append({"n": 1}),
        lambda: ms.writer("s", "w").facts(2),
    ):
        with pytest.raises(WrongServer, match="not a millstream server"):
            call()
    assert ms.set("a", "b")


def test_a_missing_shard_is_created_unless_that_is_forbidden(ms: Any) -> None:
    new = ms.tappend("s", {"n": 1})
    with ms.stream(["s", "t"], "trim_horizon", create=False, max_wait=0.1) as stream:
        assert ms.exists("t") == 0
        with pytest.raises(ShardUnavailable) as raised:
            read_until_error(stream)
        assert raised.value.shard == "t"
        assert "does not exist" in str(raised.value)
        assert "create it with TCREATE" in str(raised.value)
        assert ms.exists("t") == 0
        ms.tcreate("t")
        assert ids(stream_until_available(stream)) == [str(new)]
    with ms.stream(["s", "u"], "trim_horizon") as stream:
        assert ms.exists("u") == 1
        assert take(stream, 1)[0].id == new
        ms.delete("u")
        new = ms.tappend("s", {"n": 2})
        with suppress(RecordsExpired):
            assert take(stream, 1)[0].id == new


def read_until_error(stream: Any) -> None:
    for _ in range(1000):
        assert stream.read(timeout=0.1) is None


def stream_until_available(stream: Any) -> list[Any]:
    """The next record, as soon as every shard has answered."""

    def read() -> Any:
        with suppress(ShardUnavailable):
            return stream.read(timeout=0.5)

    return [wait_until(read)]


# ---------------------------------------------------------------- servers that are away


def test_a_reader_continues_after_its_server_was_killed(api: Api, durable_server: Server) -> None:
    ms = api.connect(url_of(durable_server), timeout=1.0)
    events: list[Any] = []
    with ms.stream(["s", "t"], on_event=events.append) as stream, ms.writer("s", "w") as writer:
        for round_ in range(3):
            wanted = [writer.append({"n": n}) for n in range(5)]
            assert [record.id for record in take(stream, 5)] == wanted
            durable_server.kill()
            assert stream.read(timeout=0.1) is None
            durable_server.launch()
            wanted = [writer.append({"n": round_})]
            assert [record.id for record in take(stream, 1)] == wanted
        assert stream.gaps == []
        assert stream.metrics()["reconnects"] >= 3
        assert len(ms.trange("s")) == 18
    names = [type(event) for event in events]
    assert names.count(Disconnected) == names.count(Reconnected) >= 3


def test_a_server_that_is_replaced_by_an_empty_one_is_noticed(
    api: Api, new_server: Callable[..., Server]
) -> None:
    old = new_server("old").start()
    ms = api.connect(url_of(old), timeout=1.0)
    ms.tappend("s", {"n": 1})
    stream = ms.stream("s", "trim_horizon")
    take(stream, 1)
    token = saved(stream)
    old.kill()
    empty = new_server("new")
    empty.port = old.port
    empty.start()
    with pytest.raises(InvalidStream):
        ms.stream("s", token)
    assert stream.read(timeout=0.2) is None
    ms.tappend("s", {"n": 2})
    with pytest.raises(RecordsExpired):
        take(stream, 1)
    assert take(stream, 1)[0]["n"] == "2"
    with pytest.raises(RecordsExpired), ms.stream("s", token) as again:
        take(again, 1)
    stream.close()


def test_a_server_that_is_stopped_for_a_while_answers_late(
    api: Api, durable_server: Server
) -> None:
    ms = api.connect(url_of(durable_server), timeout=0.3)
    new = ms.tappend("s", {"n": 1})
    with ms.stream(["s", "t"], "trim_horizon", max_wait=1.0) as stream:
        durable_server.signal(signal.SIGSTOP)
        try:
            with pytest.raises(ShardUnavailable):
                read_until_error(stream)
        finally:
            durable_server.signal(signal.SIGCONT)
        assert ids(stream_until_available(stream)) == [str(new)]


def test_a_read_outlasts_the_timeout_while_the_server_waits(api: Api, server: Server) -> None:
    ms = api.connect(url_of(server), timeout=0.3)
    assert ms.tread("s", "$", 10, block=700) == []
    assert ms.tmread(10, {"s": "$"}, block=700)[0].entries == []
    assert ms.tpeek("s", "$", 10, block=700)[1] == []
    assert ms.tposition("s", wait=ID(5), ms=700) is None
    assert not ms.xread({"s": "$"}, block=700)
    assert ms.tread("s", "$", 10, block=700, group="g") == []
    with ms.pipeline(transaction=False) as pipe:
        pipe.tread("s", "$", 10, block=700)
        pipe.tposition("s", wait=ID(5), ms=700)
        assert pipe.execute() == [[], None]
    with ms.stream("s") as stream:
        assert stream.read(timeout=1.0) is None
        assert stream.metrics()["reconnects"] == 0
    assert ms.ping()


def test_a_write_is_never_sent_twice(api: Api, proxy: Proxy, ms: Any) -> None:
    through = api.connect(proxy.url, timeout=2.0)
    through.ping()
    writes: list[tuple[bytes, Callable[[], Any]]] = [
        (b"TAPPEND", lambda: through.tappend("s", {"n": 1})),
        (b"XADD", lambda: through.xadd("s", {"n": 1})),
        (b"TRESERVE", lambda: through.treserve("r", "w")),
        (b"INCRBY", lambda: through.incr("counter")),
        (b"TAPPEND", lambda: through.pipeline().tappend("s", {"n": 1}).execute()),
        (b"TREAD", lambda: through.tread("s", 0, 1, group="g", retry=1000)),
    ]
    for word, write in writes:
        proxy.swallowing = [word]
        before = calls(ms, word.decode().lower())
        with pytest.raises(redis.ConnectionError):
            write()
        assert calls(ms, word.decode().lower()) == before + 1, word
    assert ms.xlen("s") == 3
    assert ms.get("counter") == "1"


def test_a_read_is_sent_again_after_a_broken_connection(api: Api, proxy: Proxy, ms: Any) -> None:
    through = api.connect(proxy.url, timeout=2.0)
    ms.tappend("s", {"n": 1})
    for word, read in (
        (b"TREAD", lambda: through.tread("s", 0, 1)[0]["n"]),
        (b"TINFO", lambda: through.tinfo("s") and "1"),
        (b"XLEN", lambda: str(through.xlen("s"))),
        (b"TMREAD", lambda: through.tmread(1, {"s": 0})[0].entries[0]["n"]),
    ):
        proxy.swallowing = [word]
        assert read() == "1"
        assert proxy.swallowing == []
    for word in (b"TINFO", b"TMREAD", b"TSEEK"):
        proxy.swallowing = [word]
        with through.stream(["s", "t"], "latest") as stream:
            assert stream.lag() == {"s": 0, "t": 0}
        assert proxy.swallowing == []


def test_a_reader_survives_connections_cut_anywhere(api: Api, proxy: Proxy, ms: Any) -> None:
    wanted = [str(ms.tappend(f"s{n % 3}", {"n": n, "fill": "x" * 200})) for n in range(60)]
    for key in ("s0", "s1", "s2"):
        ms.tseal(key)
    proxy.cutting = (500, 8000)
    through = api.connect(proxy.url, timeout=2.0)
    found: list[str] = []
    token: Any = "trim_horizon"
    while True:
        try:
            stream = through.stream(["s0", "s1", "s2"], token, batch=7)
        except redis.ConnectionError:
            continue
        for _ in range(8):
            record = stream.read(timeout=1.0)
            found += [] if record is None else [str(record.id)]
        token = saved(stream)
        ended = stream.ended
        stream.close()
        if ended:
            break
    assert found == wanted
    assert proxy.connections > 5


# ---------------------------------------------------------------- memory


@pytest.mark.timeout(300)
def test_the_memory_of_a_reader_does_not_grow_with_records_read(
    api: Api, ms: Any, server: Server
) -> None:
    total, part = 300_000, 25_000  # a Python object for each record would take 5 MB
    append = encode_command(("XADD", "s", "*", "n", "0123456789"))
    ms.tcreate("s")
    ms.tpolicy("s", maxlen=50_000)
    with server.client() as raw, ms.stream("s", batch=5000) as stream:
        raw.send("CLIENT", "REPLY", "OFF")
        sizes: list[int] = []
        for _ in range(total // part):
            raw.send_raw(append * part)
            drain(stream, part)
            sizes.append(resident_bytes())
        assert stream.metrics()["records"] == total
        assert max(sizes[5:]) - max(sizes[:5]) < 4_000_000, sizes


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
