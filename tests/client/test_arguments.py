"""Wrong arguments: each is refused at once, by an error that names the valid ones."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
import redis
from tests.client.apis import Api, unwrap
from tests.client.conftest import url_of
from tests.support.server import Server
from tests.support.waiting import wait_until

from millstream import client as sync_client
from millstream.client import (
    InvalidFields,
    InvalidPosition,
    InvalidStream,
    MillstreamError,
    Sealed,
    Shard,
    WrongServer,
    aio,
)


def other_api(api: Api) -> Any:
    return aio.connect() if api.name == "sync" else sync_client.connect()


@pytest.mark.parametrize("url", [6455, None, b"redis://localhost"])
def test_a_url_that_is_not_text_is_named(api: Api, url: Any) -> None:
    with pytest.raises(ValueError, match="url must be text"):
        api.connect(url)


@pytest.mark.parametrize("kind", ["text", "other"])
def test_a_client_of_a_shard_is_a_connection_of_the_same_api(api: Api, ms: Any, kind: str) -> None:
    wrong = "redis://localhost:1" if kind == "text" else other_api(api)
    with pytest.raises(InvalidStream, match="make one with millstream"):
        ms.stream([Shard("s", wrong)])
    ms.tappend("t", {"n": 1})
    ms.tseal("t", "u")
    with pytest.raises(InvalidStream, match="make one with millstream"):
        ms.stream("t", "latest", resolve=lambda name: Shard(name, wrong))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("resolve", "s"),
        ("on_event", 5),
        ("create", "yes"),
        ("clock", 1),
        ("max_wait", "30"),
        ("max_wait", math.nan),
        ("batch", True),
        ("batch", 10**30),
    ],
)
def test_a_wrong_option_of_a_stream_is_named(ms: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        ms.stream("s", **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ttl", 0.0001),
        ("retry", 0.0001),
        ("expire", 0.0001),
        ("ttl", "30"),
        ("retry", math.nan),
        ("batch", "10"),
        ("batch", 10**30),
    ],
)
def test_a_wrong_option_of_a_consumer_is_named(ms: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        ms.consumer("s", "g", **{name: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, "30", None, True])
@pytest.mark.parametrize("name", ["lease", "retry_for"])
def test_a_wrong_option_of_a_writer_is_named(ms: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        ms.writer("s", "w", **{name: value})


@pytest.mark.parametrize("name", ["", "x" * 1025, b"", None, 5])
def test_a_wrong_name_of_a_writer_is_refused(ms: Any, name: Any) -> None:
    with pytest.raises(ValueError, match="the name of a writer must"):
        ms.writer("s", name)


@pytest.mark.parametrize("wrong", [None, 5, ["s"]])
def test_a_key_and_a_group_are_text_or_bytes(ms: Any, wrong: Any) -> None:
    for call in (lambda: ms.writer(wrong, "w"), lambda: ms.consumer(wrong, "g")):
        with pytest.raises(ValueError, match="key must be text or bytes"):
            call()
    with pytest.raises(ValueError, match="group must be text or bytes"):
        ms.consumer("s", wrong)


@pytest.mark.parametrize("value", ["no", None, 1])
def test_take_over_is_a_boolean(ms: Any, value: Any) -> None:
    with pytest.raises(ValueError, match="take_over must be True or False"):
        ms.writer("s", "w", take_over=value)


@pytest.mark.parametrize("count", [None, 0, -1, 10_001, "2", 2.0])
def test_a_wrong_number_of_facts_is_refused(ms: Any, count: Any) -> None:
    with ms.writer("s", "w") as writer, pytest.raises(ValueError, match="number of facts"):
        writer.facts(count)


@pytest.mark.parametrize("fields", [{}, [], "text", b"", 5, None, [5], [("a",)], ["ab"]])
def test_an_entry_without_fields_is_refused(ms: Any, fields: Any) -> None:
    with ms.writer("s", "w") as writer:
        for call in (writer.append, lambda words: ms.tappend("s", words)):
            with pytest.raises(ValueError, match="field"):
                call(fields)
    assert ms.exists("s") == 0


@pytest.mark.parametrize(
    "value", [None, True, {"a": 1}, [1], datetime(2026, 1, 1), Decimal("1.5")], ids=repr
)
def test_a_value_of_another_type_is_named(ms: Any, value: Any) -> None:
    with ms.writer("s", "w") as writer, ms.pipeline() as pipe:
        [fact] = writer.facts(1)
        calls = [
            lambda: writer.append({"good": 1, "bad": value}),
            lambda: writer.append([("bad", value)]),
            lambda: fact.__setitem__("bad", value),
            lambda: ms.tappend("s", {"bad": value}),
            lambda: ms.tappev("s", {"bad": value}, count=1),
            lambda: ms.tappendonce("s", {"bad": value}, producer="p", seq=1),
            lambda: ms.tappendmany({"s": [(1, {"bad": value})]}, producer="p"),
            lambda: ms.tcomplete("s", "w", fact.id, {"bad": value}),
            lambda: pipe.tappend("s", {"bad": value}),
        ]
        for call in calls:
            with pytest.raises(InvalidFields, match="'bad'") as raised:
                call()
            assert isinstance(raised.value, MillstreamError)
        with pytest.raises(InvalidFields, match="name of a field"):
            writer.append([(value, 1)])
    assert ms.xlen("s") == 0


@pytest.mark.parametrize("fields", [{"bad": "ok \ud800"}, {"bad\ud800": 1}], ids=ascii)
def test_text_that_has_no_bytes_in_utf_8_is_named(ms: Any, fields: dict[str, Any]) -> None:
    with ms.writer("s", "w") as writer, ms.pipeline() as pipe:
        calls = [
            lambda: writer.append(fields),
            lambda: ms.tappend("s", fields),
            lambda: ms.tappev("s", fields, count=1),
            lambda: ms.tappendonce("s", fields, producer="p", seq=1),
            lambda: ms.tappendmany({"s": [(1, fields)]}, producer="p"),
            lambda: ms.tcomplete("s", "w", "1.1", fields),
            lambda: pipe.tappend("s", fields),
        ]
        for call in calls:
            with pytest.raises(InvalidFields, match=r"field 'bad.*UTF-8"):
                call()
    assert ms.xlen("s") == 0


def test_a_value_above_the_servers_limit_is_sent_once(
    api: Api, new_server: Callable[..., Server]
) -> None:
    ms = api.connect(url_of(new_server().start()))
    ms.config_set("proto-max-bulk-len", 2**20)
    value = "x" * (2**20 + 1)
    with ms.writer("s", "w") as writer:
        [fact] = writer.facts(1)
        fact["bad"] = value
        calls = (
            lambda: writer.append({"bad": value}),
            lambda: ms.tappend("s", {"bad": value}),
            fact.complete,
        )
        for call in calls:
            with pytest.raises(InvalidFields, match=r"'bad' has 1,048,577 .*proto-max-bulk-len"):
                call()
        assert writer.metrics()["repeats"] == 0
        writer.append({"good": "x" * 2**20})


def test_an_acknowledgement_is_repeated_for_a_chosen_time(
    api: Api, new_server: Callable[..., Server]
) -> None:
    server = new_server().start()
    ms = api.connect(url_of(server), timeout=0.2)
    ms.tappend("s", {"n": 1})
    consumer = ms.consumer("s", "g", retry=60, position="trim_horizon", retry_for=0.1)
    job = consumer.read(5)
    server.signal(signal.SIGSTOP)
    try:
        with pytest.raises((redis.ConnectionError, redis.TimeoutError)):
            consumer.ack(job)
    finally:
        server.signal(signal.SIGCONT)
    patient = api.connect(url_of(server))

    def is_acknowledged() -> bool:
        with suppress(redis.ConnectionError, redis.TimeoutError):
            consumer.ack(job)
        return int(patient.xpending("s", "g")["pending"]) == 0

    wait_until(is_acknowledged)
    with pytest.raises(ValueError, match="retry_for"):
        ms.consumer("s", "g", retry_for=-1)
    consumer.close()


def test_the_name_of_a_child_is_returned_unchanged(ms: Any) -> None:
    names = ["a\nb", "it's", "a', 'b", "x\\ny", "\udcff"]
    ms.tappend("s", {"n": 1})
    ms.tseal("s", *(name.encode("utf-8", "surrogateescape") for name in names))
    with ms.writer("s", "w") as writer:
        calls = (
            lambda: ms.tappend("s", {"n": 1}),
            lambda: writer.append({"n": 1}),
            lambda: writer.facts(1),
        )
        for call in calls:
            with pytest.raises(Sealed) as sealed:
                call()
            assert sealed.value.children == names


@pytest.mark.parametrize("timeout", ["1", math.nan, True])
def test_a_wrong_timeout_is_refused(ms: Any, timeout: Any) -> None:
    for made in (ms.stream("s"), ms.consumer("s", "g")):
        with made, pytest.raises(ValueError, match="timeout"):
            made.read(timeout=timeout)


def test_a_token_that_was_not_parsed_is_recognized(ms: Any) -> None:
    with pytest.raises(InvalidPosition, match=r"json\.loads"):
        ms.stream("s", '{"v": 1, "shards": {}}')


def test_a_second_task_on_one_stream_is_refused(server: Server) -> None:
    async def run() -> None:
        async with aio.connect(url_of(server)) as ms, ms.stream("s") as stream:
            first = asyncio.create_task(stream.read())
            await asyncio.sleep(0)  # it is at its first wait now
            with pytest.raises(MillstreamError, match="another thread or task"):
                await stream.read(1)
            await ms.tappend("s", {"n": 1})
            record = await first
            assert record is not None
            assert record["n"] == "1"
            await ms.tappend("s", {"n": 2})
            assert await stream.read() is not None

    asyncio.run(run())


def test_a_second_thread_on_one_stream_is_refused(server: Server) -> None:
    found: list[Any] = []
    with sync_client.connect(url_of(server)) as ms, ms.stream("s") as stream:
        reader = threading.Thread(target=lambda: found.append(stream.read()))
        reader.start()
        wait_until(lambda: int(ms.info("clients")["blocked_clients"]))
        with pytest.raises(MillstreamError, match="another thread or task"):
            stream.read(1)
        ms.tappend("s", {"n": 1})
        reader.join()
    assert found[0]["n"] == "1"


# ---------------------------------------------------------------- text


def test_a_value_that_is_not_utf_8_is_kept_and_stops_no_reader(ms: Any) -> None:
    for value in (b"tea", b"\xff\xfe", "süß"):
        ms.tappend("s", {"n": value})
    with (
        ms.stream("s", "trim_horizon") as stream,
        ms.consumer("s", "g", position="trim_horizon") as consumer,
    ):
        for made in (stream, consumer):
            found = [made.read(timeout=5)["n"] for _ in range(3)]
            assert [text.encode("utf-8", "surrogateescape") for text in found] == [
                b"tea",
                b"\xff\xfe",
                "süß".encode(),
            ]


def test_text_with_surrogates_is_written_as_the_original_bytes(ms: Any) -> None:
    ms.tappend("s", {"n": b"\xff\xfe"})
    [record] = ms.tread("s", 0, 1)
    with ms.writer("s", "w") as writer:
        writer.append(record)
        [fact] = writer.facts(1)
        fact["n"] = record["n"]
        fact.complete()
    ms.tappend("s", record.pairs)
    ms.xadd("s", dict(record))
    with ms.pipeline() as pipe:
        pipe.tappend("s", record)
        pipe.execute()
    assert [found["n"] for found in ms.tread("s", 0, 10)] == [record["n"]] * 6


# ---------------------------------------------------------------- errors of other servers


def test_a_wrong_id_of_a_plain_xadd_is_the_errors_of_redis(ms: Any) -> None:
    with pytest.raises(redis.ResponseError, match="Invalid stream ID") as raised:
        ms.xadd("s", {"n": 1}, id="wrong")
    assert not isinstance(raised.value, WrongServer)
    with ms.pipeline() as pipe:
        pipe.xadd("s", {"n": 1}, id="wrong")
        with pytest.raises(redis.ResponseError) as raised:
            pipe.execute()
    assert not isinstance(raised.value, WrongServer)


def test_a_key_that_is_not_a_stream_is_named(ms: Any) -> None:
    ms.set("text", "hello")
    with pytest.raises(redis.ResponseError, match=r"WRONGTYPE .*'text' is not a stream"):
        ms.tappend("text", {"n": 1})
    writer = ms.writer("text", "w", take_over=False)
    with writer, pytest.raises(redis.ResponseError, match=r"WRONGTYPE .*'text' is not a stream"):
        writer.append({"n": 1})
    with pytest.raises(redis.ResponseError, match=r"WRONGTYPE .*'text' is not a stream"):
        ms.stream(["s", "text"])
    with ms.stream(["s", "t"], "trim_horizon") as stream:
        ms.delete("t")
        ms.set("t", "hello")
        with pytest.raises(redis.ResponseError, match=r"WRONGTYPE .*one of 's', 't' is not a"):
            stream.read(timeout=5)


@pytest.mark.parametrize("transaction", [True, False])
def test_a_pipeline_reports_that_a_server_is_redis(
    api: Api, redis_server: Server, transaction: bool
) -> None:
    ms = api.connect(url_of(redis_server))
    with ms.pipeline(transaction=transaction) as pipe:
        pipe.set("a", "b")
        pipe.tappend("s", {"n": 1})
        with pytest.raises(WrongServer, match="not a millstream server"):
            pipe.execute()


def test_a_pipeline_is_chained(ms: Any) -> None:
    with ms.pipeline() as pipe:
        inner = unwrap(pipe)
        assert inner.tappend("s", {"n": 1}) is inner
        assert inner.treserve("s", "w", 2) is inner
        assert len(pipe.execute()) == 2


def test_the_watermark_of_a_new_stream_is_young(ms: Any) -> None:
    with ms.stream("s") as stream:
        assert 0 <= stream.metrics()["watermark_age_s"] < 10


# ---------------------------------------------------------------- odd values

NUMBERS: list[Any] = [math.nan, -1, "1", True, 10**400, [], b""]


@pytest.mark.parametrize("value", [*NUMBERS, math.inf, 1e300])
def test_a_wrong_time_of_a_scheduled_entry_is_named(ms: Any, value: Any) -> None:
    with pytest.raises(ValueError, match="after must be a number of seconds"):
        ms.schedule("s", {"n": 1}, after=value)
    assert ms.exists("s") == 0


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_a_number_that_is_no_float_is_named(ms: Any, value: int) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("retry_for", lambda: ms.writer("s", "w", retry_for=value)),
        ("lease", lambda: ms.writer("s", "w", lease=value)),
        ("linger", lambda: ms.producer("s", linger=value)),
        ("max_wait", lambda: ms.stream("s", max_wait=value)),
        ("ttl", lambda: ms.consumer("s", "g", ttl=value)),
        ("timeout", lambda: ms.worker("s", "g", timeout=value)),
        ("timeout", lambda: ms.stream("s").read(timeout=value)),
        ("block", lambda: next(iter(ms.stream("s").follow(block=value)))),
        ("delay", lambda: sync_client.Retry(delay=value)),
    ]
    for name, call in calls:
        with pytest.raises(ValueError, match=name):
            call()


@pytest.mark.parametrize("value", [*NUMBERS, 0, math.inf, 1e300])
def test_a_wrong_timeout_of_a_connection_is_named(value: Any) -> None:
    for connect in (sync_client.connect, aio.connect):
        with pytest.raises(ValueError, match="timeout must be"):
            connect("redis://localhost:1", timeout=value)


@pytest.mark.parametrize("group", ["", b""])
def test_an_empty_group_is_refused(ms: Any, group: Any) -> None:
    with pytest.raises(ValueError, match="group must not be empty"):
        ms.consumer("s", group)
    with pytest.raises(ValueError, match="group must not be empty"):
        ms.worker("s", group)
    assert ms.exists("s") == 0


def test_an_empty_dead_letter_or_shard_name_is_refused(ms: Any) -> None:
    for made in (ms.stream("s"), ms.consumer("s", "g")):
        with made, pytest.raises(ValueError, match="dead_letter must not be empty"):
            made.of(sync_client.Json(), dead_letter="")
    with pytest.raises(InvalidStream, match="name of a shard must not be empty"):
        ms.stream([Shard("s", name="")])


@pytest.mark.parametrize("keys", [None, 5, [], [None], [[]], ["s", b"s"]])
def test_wrong_keys_of_a_worker_are_named(ms: Any, keys: Any) -> None:
    with pytest.raises(ValueError, match="keys must be"):
        ms.worker(keys, "g")


def test_rules_of_a_worker_are_checked_when_it_is_made(ms: Any) -> None:
    for wrong in (
        {"max_deliver": 3},
        {"max_deliver": 3, "dead_letter": ""},
        {"max_deliver": 1_000_001, "dead_letter": "d"},
        {"backoff": [30 * 86_400 + 1]},
        {"dead_letter": "s"},
        {"dead_letter": b"s"},
    ):
        with pytest.raises(ValueError, match=r"max_deliver|backoff|dead_letter"):
            ms.worker("s", "g", **wrong)
    ms.worker("s", "g", max_deliver=0)
    ms.worker("s", "g", max_deliver=3, configure=False)


@pytest.mark.parametrize("delay", [*NUMBERS, math.inf, 0.0001])
def test_a_wrong_delay_of_a_retry_is_named(delay: Any) -> None:
    with pytest.raises(ValueError, match="delay must be"):
        sync_client.Retry(delay=delay)


@pytest.mark.parametrize("value", [math.nan, "1", True, 10**400])
def test_a_wrong_timeout_of_a_receipt_is_named(ms: Any, value: Any) -> None:
    with ms.producer("s", linger=60) as producer:
        receipt = producer.append({"n": 1})
        with pytest.raises(ValueError, match="timeout"):
            receipt.result(timeout=value)
        with pytest.raises(TimeoutError):
            receipt.result(timeout=-1)
        producer.flush()
        assert receipt.result(timeout=math.inf) == receipt.result(timeout=1e300) == 1


@pytest.mark.parametrize("block", [math.nan, math.inf, -1, "5", 1.5, 10**400])
def test_a_wrong_time_to_wait_of_a_command_is_named(ms: Any, block: Any) -> None:
    for call in (
        lambda: ms.tread("s", 0, 1, block=block),
        lambda: ms.tpeek("s", 0, 1, block=block),
        lambda: ms.tmread(1, {"s": 0}, block=block),
        lambda: ms.tposition("s", wait="1.1", ms=block),
    ):
        with pytest.raises(ValueError, match="time to wait must be"):
            call()


@pytest.mark.parametrize("where", [5, "n", [5], ["abc"], [("n",)], [("n", "EQ")]])
def test_a_wrong_condition_is_named(ms: Any, where: Any) -> None:
    for call in (
        lambda: ms.trange("s", where=where),
        lambda: ms.tread("s", 0, 1, where=where),
        lambda: ms.tmread(1, {"s": 0}, where=where),
    ):
        with pytest.raises(ValueError, match="condition"):
            call()
    with pytest.raises(ValueError, match="at least one stream"):
        ms.tmread(1, {})


@pytest.mark.parametrize("kind", [sync_client.Raw, sync_client.Json, sync_client.MsgPack])
@pytest.mark.parametrize("field", [None, 5])
def test_a_wrong_field_of_a_codec_is_named(kind: Any, field: Any) -> None:
    with pytest.raises(ValueError, match="field must be text"):
        kind(field=field)


@pytest.mark.parametrize("value", [5, "text", None, {1}])
def test_what_is_no_list_or_mapping_is_named(ms: Any, value: Any) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("streams", lambda: ms.tappendmany(value, producer="p")),
        ("streams", lambda: ms.tmread(1, value)),
        ("parents", lambda: ms.tcreate("s", parents=value)),
    ]
    if value is not None:  # stays as it is
        calls.append(("backoff", lambda: ms.tgroup("s", "g", start=0, backoff=value)))
    if not isinstance(value, str) and value is not None:
        calls.append(("order", lambda: ms.tgroup("s", "g", start=0, order=value)))
    for name, call in calls:
        with pytest.raises(ValueError, match=f"{name} must be a (list|mapping)"):
            call()
    with ms.consumer("s", "g") as consumer, pytest.raises(ValueError, match="ack must be True"):
        consumer.follow(ack=value)
