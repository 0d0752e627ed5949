"""FastStream on our server, in the style of its documentation, with a restart in between.

Left alone, redis-py speaks RESP3 and gives replies in the form of RESP2, which FastStream needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import redis
from faststream import AckPolicy
from faststream.redis import RedisBroker, StreamSub
from tests.support.program import Restart, run_with_restarts
from tests.support.server import Server
from tests.support.waiting import POLL_S

PROTOCOLS = pytest.mark.parametrize("query", ["?protocol=2", ""], ids=["RESP2", "RESP3"])

ORDERS = 10
TAKEN_OVER_AFTER_MS = 50


def broker_of(server: Server, query: str) -> RedisBroker:
    return RedisBroker(f"redis://127.0.0.1:{server.port}{query}", logger=None)


def stream_of(consumer: str, **options: int) -> StreamSub:
    return StreamSub("orders", group="shop", consumer=consumer, polling_interval=20, **options)


async def until(good: Callable[[], bool]) -> None:
    """The program's own deadline ends a wait for what never comes."""
    while not good():
        await asyncio.sleep(POLL_S)


async def pending(broker: RedisBroker) -> int:
    summary = await (await broker.connect()).xpending("orders", "shop")
    return int(summary["pending"])


@PROTOCOLS
@pytest.mark.parametrize(
    "takes_over_by",
    [
        "min_idle_time",
        "claim_min_idle_time",
    ],
)
def test_work_that_one_worker_fails_is_done_by_another(
    durable_server: Server, query: str, takes_over_by: str
) -> None:
    """`min_idle_time` is FastStream's name of XAUTOCLAIM, `claim_min_idle_time` of CLAIM."""

    async def program(restart: Restart) -> None:
        done: list[int] = []
        failed: list[int] = []
        broker = broker_of(durable_server, query)

        @broker.subscriber(stream=stream_of("anna"), ack_policy=AckPolicy.NACK_ON_ERROR)
        async def only_even_ones(number: int) -> None:
            if number % 2:
                failed.append(number)
                raise ValueError(number)
            done.append(number)

        async with broker:
            await broker.start()
            for number in range(ORDERS):
                await broker.publish(number, stream="orders", maxlen=1000)
            await until(lambda: len(done) + len(failed) == ORDERS)

        await restart()

        broker = broker_of(durable_server, query)
        idle = {takes_over_by: TAKEN_OVER_AFTER_MS}

        @broker.subscriber(stream=stream_of("bert", **idle))
        async def the_rest(number: int) -> None:
            done.append(number)

        async with broker:
            assert await pending(broker) == len(failed) == ORDERS / 2
            await broker.start()
            await until(lambda: len(done) >= ORDERS)
            while await pending(broker):
                await asyncio.sleep(POLL_S)
        assert sorted(done) == list(range(ORDERS))

    run_with_restarts(durable_server, program)


@PROTOCOLS
def test_a_managed_group_delivers_failed_work_again(server: Server, query: str) -> None:
    """The worker claims nothing: the server delivers again what was not acknowledged."""
    with redis.Redis(port=server.port) as client:
        client.execute_command("TGROUP", "orders", "shop", "START", "0", "TIMEOUT", "50")

    async def program(restart: Restart) -> None:
        done: list[int] = []
        failed: list[int] = []
        broker = broker_of(server, query)

        @broker.subscriber(stream=stream_of("anna"), ack_policy=AckPolicy.NACK_ON_ERROR)
        async def the_second_time(number: int) -> None:
            if number not in failed:
                failed.append(number)
                raise ValueError(number)
            done.append(number)

        async with broker:
            await broker.start()
            for number in range(ORDERS):
                await broker.publish(number, stream="orders")
            await until(lambda: len(done) >= ORDERS)
            while await pending(broker):
                await asyncio.sleep(POLL_S)
        assert sorted(set(done)) == sorted(failed) == list(range(ORDERS))

    run_with_restarts(server, program)


@PROTOCOLS
def test_a_running_worker_continues_after_a_restart(durable_server: Server, query: str) -> None:
    """One subscriber of each kind: a group's, a group's in batches, and one without a group."""

    async def program(restart: Restart) -> None:
        broker = broker_of(durable_server, query)
        got: dict[str, list[int]] = {"group": [], "batches": [], "plain": []}

        @broker.subscriber(stream=stream_of("anna"))
        async def group(number: int) -> None:
            got["group"].append(number)

        @broker.subscriber(
            stream=StreamSub(
                "orders", group="books", consumer="carl", batch=True, polling_interval=20
            )
        )
        async def batches(numbers: list[int]) -> None:
            got["batches"] += numbers

        @broker.subscriber(stream=StreamSub("orders", last_id="0", polling_interval=20))
        async def plain(number: int) -> None:
            got["plain"].append(number)

        async with broker:
            await broker.start()
            for number in range(ORDERS):
                await broker.publish(number, stream="orders")
            await until(lambda: all(len(numbers) == ORDERS for numbers in got.values()))
            while await pending(broker):
                await asyncio.sleep(POLL_S)
            await restart()
            for number in range(ORDERS, 2 * ORDERS):
                await broker.publish(number, stream="orders")
            await until(lambda: all(len(numbers) >= 2 * ORDERS for numbers in got.values()))
        assert got == {kind: list(range(2 * ORDERS)) for kind in got}

    run_with_restarts(durable_server, program)


@PROTOCOLS
def test_a_handlers_reply_arrives_over_a_channel(server: Server, query: str) -> None:
    async def program(restart: Restart) -> None:
        broker = broker_of(server, query)

        @broker.subscriber(stream=stream_of("anna"))
        async def twice(number: int) -> int:
            return 2 * number

        async with broker:
            await broker.start()
            answer = await broker.request(21, stream="orders", timeout=10)
            assert await answer.decode() == 42

    run_with_restarts(server, program)
