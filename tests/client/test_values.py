"""Records with values: every reader and writer of both APIs, and records that do not fit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from tests.client.apis import take
from tests.client.proxy import Proxy

from millstream.client import ID, InvalidFields, InvalidRecord, Json, MillstreamError, Raw, Record
from millstream.client.core.values import Values


@dataclass
class Order:
    item: str
    count: int = 1


GOOD = [Order("tea", 2), Order("salt"), Order("rice", 5)]
BAD = {"item": "milk", "count": "many"}


def fill(ms: Any, key: str = "s") -> None:
    """A bad entry after the first good one."""
    with ms.writer(key, "w").of(Order) as writer:
        writer.append(GOOD[0])
        ms.tappend(key, BAD)
        writer.append_many(GOOD[1:])


def values(stream: Any, count: int) -> list[Any]:
    return [record.value for record in take(stream, count)]


def read_all(stream: Any, way: str, found: list[Any]) -> None:
    if way == "follow":
        for record in stream.follow():
            found.append(record.value)
    while True:
        found.append((next(stream) if way == "next" else stream.read()).value)


def test_writers_write_values(ms: Any) -> None:
    with ms.writer("s", "w").of(Order) as writer:
        writer.append(GOOD[0])
        assert writer.append_many(iter(GOOD[1:])) == 2
        with writer.fact() as fact:
            fact.set(Order("oil"))
    with ms.producer("s").of(Order) as producer:
        receipt = producer.append(Order("egg", 12))
        assert receipt.result(timeout=10) == 1
    with ms.stream("s", "earliest").of(Order) as stream:
        assert values(stream, 5) == [*GOOD, Order("oil"), Order("egg", 12)]


def test_a_value_that_does_not_fit_is_not_written(ms: Any) -> None:
    wrong: Any = Order("tea", "x")  # type: ignore[arg-type]
    with ms.writer("s", "w").of(Order) as writer, ms.producer("s").of(Order) as producer:
        for append in (writer.append, producer.append, lambda value: writer.append_many([value])):
            with pytest.raises(InvalidFields, match="the field 'count'"):
                append(wrong)
        with pytest.raises(InvalidFields, match="the field 'count'"), writer.fact() as fact:
            fact.set(wrong)
    assert ms.xlen("s") == 0
    with (
        ms.writer("s", "w") as writer,
        writer.fact() as fact,
        pytest.raises(MillstreamError, match="codec"),
    ):
        fact.set(Order("tea"))


@pytest.mark.parametrize("way", ["read", "next", "follow"])
def test_a_bad_record_raises_once_and_loses_nothing(ms: Any, way: str) -> None:
    fill(ms)
    found: list[Any] = []
    with ms.stream("s", "earliest", end="latest").of(Order) as stream:
        with pytest.raises(InvalidRecord, match="'count' must be a whole number") as caught:
            read_all(stream, way, found)
        assert dict(caught.value.record) == BAD
        token = stream.token
        found += [record.value for record in stream]
        assert found == GOOD
        assert stream.metrics()["records"] == 4
    with ms.stream("s", token).of(Order) as stream:
        assert values(stream, 2) == GOOD[1:]


def test_a_token_before_a_bad_record_returns_it_again(ms: Any) -> None:
    fill(ms)
    with ms.stream("s", "earliest").of(Order) as stream:
        take(stream, 1)
        token = stream.token
    for _ in range(2):
        with ms.stream("s", token).of(Order) as stream, pytest.raises(InvalidRecord):
            stream.read(timeout=5)


def test_a_stream_passes_a_bad_record_to_the_dead_letters(ms: Any) -> None:
    for key in ("a", "b"):
        fill(ms, key)
    for _ in range(2):  # a reader that is started again makes no second copy
        with ms.stream(["a", "b"], "earliest").of(Order, dead_letter="bad") as stream:
            assert len(values(stream, 6)) == 6
    letters = list(ms.dead_letters("bad"))
    assert [letter.record.shard for letter in letters] == ["a", "b"]
    for letter in letters:
        assert dict(letter.record) == BAD
        assert letter.record in ms.tread(letter.record.shard, 0, 10)
        assert letter.reason == "invalid"
        assert letter.text == ("the field 'count' must be a whole number, not 'many'")
        assert letter.hops == 1


def test_a_consumer_passes_a_bad_record_to_the_dead_letters(ms: Any) -> None:
    fill(ms)
    with ms.consumer("s", "g", retry=60, position="earliest") as consumer:
        consumer.of(Order, dead_letter="bad")
        found = []
        for record in consumer.follow(block=0.2, ack=True):
            found.append(record.value)
            if len(found) == 3:
                consumer.stop()
        assert found == GOOD
        assert consumer.metrics()["acknowledged"] == 4
    [letter] = list(ms.dead_letters("bad"))
    assert (letter.group, dict(letter.record)) == ("g", BAD)
    assert ms.xpending("s", "g")["pending"] == 0


def test_a_bad_record_of_a_consumer_stays_pending(ms: Any) -> None:
    fill(ms)
    with ms.consumer("s", "g", retry=60, position="earliest").of(Order) as consumer:
        take(consumer, 1)
        with pytest.raises(InvalidRecord) as caught:
            consumer.read(timeout=5)
        assert values(consumer, 2) == GOOD[1:]
        assert ms.xpending("s", "g")["pending"] == 4
        assert consumer.ack(caught.value.record) == 1


def test_a_copy_that_fails_keeps_the_record(ms: Any) -> None:
    fill(ms)
    ms.set("bad", "a text")
    with ms.stream("s", "earliest").of(Order, dead_letter="bad") as stream:
        take(stream, 1)
        token = json.loads(json.dumps(stream.token))
        for _ in range(2):
            with pytest.raises(Exception, match="WRONGTYPE"):
                stream.read(timeout=5)
            assert stream.token == token
        ms.delete("bad")
        assert values(stream, 2) == GOOD[1:]
    assert ms.xlen("bad") == 1


def test_a_copy_whose_reply_is_lost_is_made_once(ms: Any, through: Any, proxy: Proxy) -> None:
    fill(ms)
    with through.stream("s", "earliest").of(Order, dead_letter="bad") as stream:
        take(stream, 1)
        proxy.swallowing = [b"dead_hops"]
        assert values(stream, 2) == GOOD[1:]
    assert proxy.swallowed == 1
    assert ms.xlen("bad") == 1


def test_a_server_that_is_away_keeps_a_bad_record(ms: Any, through: Any, proxy: Proxy) -> None:
    fill(ms)
    consumer = through.consumer("s", "g", retry=60, position="earliest", retry_for=0.2)
    consumer.of(Order, dead_letter="bad")
    take(consumer, 1)
    proxy.cutting = 0, 0
    proxy.cut_all()
    with pytest.raises(RedisConnectionError):
        consumer.read(timeout=5)
    proxy.cutting = None
    assert values(consumer, 2) == GOOD[1:]
    consumer.close()
    assert ms.xlen("bad") == 1


def test_a_copy_of_a_copy_replaces_the_facts(ms: Any) -> None:
    ms.tappend("s", BAD)
    names = [f"bad{n}" for n in range(8)]
    for source, target in zip(["s", *names], names, strict=False):
        with ms.stream(source, "earliest", end="latest").of(Order, dead_letter=target) as stream:
            assert list(stream) == []
    [letter] = list(ms.dead_letters("bad7"))
    assert (letter.hops, letter.record.shard, dict(letter.record)) == (8, "bad6", BAD)
    stream = ms.stream("bad7", "earliest").of(Order, dead_letter="bad8")
    with stream, pytest.raises(InvalidRecord):
        stream.read(timeout=5)
    assert not ms.exists("bad8")


def test_dead_letters_of_the_server_have_their_reasons(ms: Any) -> None:
    ms.tgroup("mails", "g", start="0", timeout=30_000, deadletter="mails:dead")
    written = [ms.tappend("mails", {"to": str(n)}) for n in range(3)]
    ms.execute_command("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "mails", ">")
    for entry_id in written:
        ms.tnack("mails", "g", "ann", entry_id, fatal=True, reason=f"no address {entry_id}")
    ms.tappend("mails:dead", {"of": "another client"})
    letters = list(ms.dead_letters("mails:dead"))
    assert [letter.record.id for letter in letters] == written
    assert [letter.text for letter in letters] == [f"no address {i}" for i in written]
    first = letters[0]
    assert (first.reason, first.consumer, first.deliveries) == ("fatal", "ann", 1)
    assert list(ms.dead_letters("mails:dead", first.id)) == letters[1:]


def test_a_worker_calls_its_handler_with_values(ms: Any, api: Any) -> None:
    fill(ms)
    worker = ms.worker("s", "g", dead_letter="bad", concurrency=1).of(Order)
    found: list[Order] = []

    def handle(job: Any) -> None:
        found.append(job.value)
        if len(found) == 3:
            worker.stop()

    async def handle_in_a_task(job: Any) -> None:
        handle(job)

    worker.handler(handle if api.name == "sync" else handle_in_a_task)
    worker.run()
    assert found == GOOD
    [letter] = list(ms.dead_letters("bad"))
    assert letter.reason == "fatal"
    assert "the field 'count' must be a whole number" in letter.text


def test_binary_values_work_on_both_kinds_of_connection(ms: Any, api: Any, server: Any) -> None:
    raw = api.connect(f"redis://127.0.0.1:{server.port}", decode_responses=False)
    data = bytes(range(256))
    for one, other in ((ms, raw), (raw, ms)):
        one.delete("s", "j")
        with one.writer("s", "w").of(Raw()) as writer, one.writer("j", "w").of(Json()) as packer:
            writer.append(data)
            packer.append({"a": [1, None]})
        with other.stream("s", "earliest").of(Raw()) as stream:
            assert values(stream, 1) == [data]
        with other.consumer("j", "g", retry=60, position="earliest").of(Json()) as consumer:
            assert values(consumer, 1) == [{"a": [1, None]}]


def test_an_exception_of_a_codec_names_the_record(ms: Any) -> None:
    class Failing:
        def __init__(self) -> None:
            self.fails = True

        def encode(self, value: Any) -> Any:
            if self.fails:
                raise ZeroDivisionError
            return {"n": value}

        def decode(self, record: Any) -> Any:
            if self.fails:
                raise KeyError("n")
            return record["n"]

    codec = Failing()
    with ms.writer("s", "w").of(codec) as writer:
        with pytest.raises(ZeroDivisionError):
            writer.append(1)
        codec.fails = False
        writer.append_many([1, 2])
    with ms.stream("s", "earliest").of(codec) as stream:
        codec.fails = True
        with pytest.raises(InvalidRecord, match="KeyError: 'n'") as caught:
            stream.read(timeout=5)
        codec.fails = False
        assert isinstance(caught.value.__cause__, KeyError)
        assert values(stream, 1) == ["2"]


@pytest.mark.parametrize("make", ["stream", "consumer", "writer", "producer", "worker"])
def test_what_is_no_codec_is_refused(ms: Any, make: str) -> None:
    words: dict[str, tuple[str, ...]] = {"stream": (), "producer": ()}
    new: Callable[..., Any] = getattr(ms, make)
    made = new("s", *words.get(make, ("g",)))
    with pytest.raises(ValueError, match="codec"):
        made.of(dict)
    if make != "worker":
        made.close()


def test_an_interrupted_copy_keeps_the_record() -> None:
    record = Record(ID(5), "s", ["5.0", *(word for pair in BAD.items() for word in pair)])
    buffer = [record]
    values = Values(Order, "bad", None, (time.monotonic, time.time))
    for _ in range(2):
        steps = values.admit(buffer)
        next(steps)  # the copy is on its way
        with pytest.raises(KeyboardInterrupt):
            steps.throw(KeyboardInterrupt())
        assert buffer == [record]
    assert values.buried == 0
