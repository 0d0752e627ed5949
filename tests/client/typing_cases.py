"""Types of the client for type checkers; tests/client/test_types.py compares the notes."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_type

from millstream.client import (
    ID,
    Consumer,
    DeadLetter,
    Fact,
    Job,
    Json,
    Millstream,
    MsgPack,
    Pipeline,
    Producer,
    Raw,
    Receipt,
    Record,
    Row,
    Seek,
    Shard,
    Stream,
    Worker,
    Writer,
    aio,
    connect,
)

text = connect()
raw = connect(decode_responses=False)
assert_type(text, Millstream[str])
assert_type(raw, Millstream[bytes])
assert_type(text.tappend("s", {"n": 1}), ID)
assert_type(text.treserve("s", "w"), ID)
assert_type(text.treserve("s", "w", lease=5), ID)
assert_type(text.treserve("s", "w", 2), list[ID])
assert_type(text.tread("s", 0, 10), list[Record[str] | None])
assert_type(raw.tread(b"s", 0, 10), list[Record[bytes] | None])
assert_type(
    text.tread("s", 0, 10, withinfo=True),
    tuple[tuple[ID | None, ID | None], list[Record[str] | None]],
)
assert_type(text.tappev("s", count=1), int)
assert_type(text.tappev("s", {"n": 1}, count=1), ID)
assert_type(text.tmread(10, {"s": "0"}), list[Row[str]])
assert_type(text.tseek("s", "0", 1), Seek)
assert_type(text.tposition("s"), ID | None)

assert_type(text.tpolicy("s"), dict[str, Any] | None)
assert_type(text.tpolicy("s", maxlen=1), bool)


def either(decodes: bool) -> None:
    assert_type(connect(decode_responses=decodes), Millstream[str] | Millstream[bytes])


def default(ms: Millstream, pipe: Pipeline) -> None:
    """Without a parameter, these classes are those of text."""
    assert_type(ms, Millstream[str])
    assert_type(pipe, Pipeline[str])


with connect() as entered, entered.pipeline() as pipe:
    assert_type(entered, Millstream[str])
    assert_type(pipe, Pipeline[str])
    assert_type(pipe.tappend("s", {"n": 1}), Pipeline[str])
    assert_type(pipe.tappend("s", {"n": 1}).treserve("s", "w"), Pipeline[str])

text.stream("s", datetime.now())
text.stream("s", {"v": 1})
text.stream([Shard("s", raw), b"t"])
Shard("s", aio.connect())
text.consumer("s", "g", position=ID(5))
stream = text.stream(["s", "t"], "latest")
assert_type(stream, Stream[str])
assert_type(next(stream), Record[str] | None)
assert_type(raw.stream("s").read(), Record[bytes] | None)
for record in stream.follow():
    assert_type(record, Record[str])
    assert_type(record["n"], str)
    assert_type(record.pairs, list[tuple[str, str]])
with text.writer("s", "w") as writer, writer.fact() as fact:
    assert_type(writer, Writer[str])
    assert_type(fact, Fact[str])
    assert_type(writer.append({"n": 1}), ID)
    assert_type(writer.facts(2), list[Fact[str]])
    assert_type(writer.append_many([{"n": 1}, [("n", 2)]], seq=1), int)
    assert_type(writer.last_seq(), int | None)
with text.producer("s", "p", linger=0.01) as producer:
    assert_type(producer, Producer[str])
    assert_type(producer.append({"n": 1}), Receipt)
    assert_type(producer.append({"n": 1}, 5).result(timeout=1), int)
    assert_type(producer.last_seq, int | None)
assert_type(text.tinfo("s", producer="p"), int | None)
assert_type(raw.consumer("s", "g"), Consumer[bytes])


async def main() -> None:
    async with aio.connect(decode_responses=False) as ms:
        assert_type(ms, aio.Millstream[bytes])
        assert_type(await ms.treserve("s", "w"), ID)
        assert_type(await ms.treserve("s", "w", 2), list[ID])
        assert_type(await ms.tread("s", 0, 10), list[Record[bytes] | None])
        async with ms.pipeline() as queue:
            assert_type(queue, aio.Pipeline[bytes])
            assert_type(queue.tappend("s", {"n": 1}), aio.Pipeline[bytes])
        async with ms.stream("s") as following:
            assert_type(following, aio.Stream[bytes])
            assert_type(await following.read(), Record[bytes] | None)
            async for record in following:
                assert_type(record, Record[bytes])
        async with ms.writer("s", "w") as writer:
            assert_type(await writer.append({"n": 1}), ID)
            async with writer.fact() as fact:
                assert_type(fact, aio.Fact[bytes])
        async with ms.producer("s") as sender:
            receipt = await sender.append({"n": 1})
            assert_type(await receipt, int)


worker = text.worker(["a", "b"], "g", timeout=5, backoff=[1, 2.5])
assert_type(worker, Worker[str])
assert_type(raw.worker(b"a", b"g"), Worker[bytes])


@worker.handler
def handle(job: Job[str]) -> None:
    assert_type(job["n"], str)
    assert_type(job.attempt, int)
    assert_type(job.lost, bool)
    assert_type(job.extend(60), bool)


assert_type(handle(Job.__new__(Job)), None)
assert_type(worker.run(), None)


@dataclass
class Order:
    item: str
    count: int = 1


class Upper:
    """A codec of a user."""

    def encode(self, value: str) -> dict[str, str]:
        return {"text": value.upper()}

    def decode(self, record: Record[Any]) -> str:
        return str(record["text"])


orders = text.stream("s", "earliest").of(Order, dead_letter="bad")
assert_type(orders, Stream[Order])
for order in orders:
    assert_type(order, Record[Order])
    assert_type(order.value, Order)
    assert_type(order["item"], str)
assert_type(raw.stream("s").of(Order), Stream[Order])
assert_type(text.stream("s").of(Json(Order)), Stream[Order])
assert_type(text.stream("s").of(MsgPack(Order)), Stream[Order])
assert_type(text.stream("s").of(Json()), Stream[Any])
assert_type(text.stream("s").of(Raw()), Stream[bytes])
assert_type(text.stream("s").of(Upper()), Stream[str])
assert_type(text.consumer("s", "g").of(Order), Consumer[Order])
with text.writer("s", "w").of(Order) as order_writer:
    assert_type(order_writer, Writer[Order])
    assert_type(order_writer.append(Order("tea")), ID)
    assert_type(order_writer.append_many([Order("tea")], seq=1), int)
    with order_writer.fact() as order_fact:
        order_fact.set(Order("tea"))
with text.producer("s").of(Order) as order_producer:
    assert_type(order_producer, Producer[Order])
    assert_type(order_producer.append(Order("salt")), Receipt)
text.producer("s").of(Raw()).append(b"data")
for letter in text.dead_letters("bad"):
    assert_type(letter, DeadLetter[str])
    assert_type(letter.record["item"], str)

order_worker = text.worker("s", "g").of(Order)
assert_type(order_worker, Worker[Order])


@order_worker.handler
def handle_order(job: Job[Order]) -> None:
    assert_type(job.value, Order)


def work_on(job: Job[Order]) -> None:
    assert_type(handle_order(job), None)


async def with_values() -> None:
    async with aio.connect() as ms:
        async with ms.stream("s").of(Order) as following:
            assert_type(following, aio.Stream[Order])
            async for record in following:
                assert_type(record.value, Order)
        async with ms.writer("s", "w").of(Order) as writer:
            assert_type(await writer.append(Order("tea")), ID)
        async for letter in ms.dead_letters("bad"):
            assert_type(letter, DeadLetter[str])
