"""taskiq-redis on our server, in the style of its documentation: tasks and their results.

Its stream broker holds a lock of redis-py while it claims what others left lying, and that lock is
given back by a script.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import redis
from taskiq import AsyncBroker
from taskiq.api import run_receiver_task
from taskiq_redis import (
    PubSubBroker,
    RedisAsyncResultBackend,
    RedisStreamBroker,
)
from tests.support.program import Restart, run_with_restarts
from tests.support.server import Server
from tests.support.waiting import POLL_S

# Left alone, redis-py speaks RESP3 and gives replies in the form of RESP2, which taskiq needs.
PROTOCOLS = pytest.mark.parametrize("query", ["?protocol=2", ""], ids=["RESP2", "RESP3"])

TASKS = 10
RESULT_DEADLINE_S = 20
CANCEL_AGAIN_S = 0.5


def url_of(server: Server, query: str) -> str:
    return f"redis://127.0.0.1:{server.port}{query}"


@asynccontextmanager
async def worker_of(broker: AsyncBroker) -> AsyncIterator[None]:
    """A worker, started again when it loses its connection, as taskiq's process manager does."""

    async def work() -> None:
        while True:
            with suppress(redis.ConnectionError):
                await run_receiver_task(broker)
            await asyncio.sleep(POLL_S)

    before = asyncio.all_tasks()
    asyncio.create_task(work())  # noqa: RUF006 - found in all_tasks()
    try:
        yield
    finally:
        # The libraries lose a cancellation that arrives during a reply, so cancel until all end.
        while started := asyncio.all_tasks() - before:
            for task in started:
                task.cancel()
            await asyncio.wait(started, timeout=CANCEL_AGAIN_S)


async def result_of(task: Any) -> Any:
    result = await task.wait_result(check_interval=POLL_S, timeout=RESULT_DEADLINE_S)
    result.raise_for_error()
    return result.return_value


@PROTOCOLS
def test_tasks_on_a_stream_are_done_over_a_restart(durable_server: Server, query: str) -> None:
    url = url_of(durable_server, query)

    def broker_of() -> tuple[RedisStreamBroker, Any]:
        broker = RedisStreamBroker(url, xread_block=50, consumer_id="0").with_result_backend(
            RedisAsyncResultBackend(url, result_ex_time=1000)
        )

        @broker.task(task_name="double")
        async def double(number: int) -> int:
            return 2 * number

        return broker, double

    async def program(restart: Restart) -> None:
        broker, double = broker_of()
        await broker.startup()
        async with worker_of(broker):
            tasks = [await double.kiq(number) for number in range(TASKS)]
            assert [await result_of(task) for task in tasks] == [2 * n for n in range(TASKS)]
        ids = [(await double.kiq(number)).task_id for number in range(TASKS)]
        await broker.shutdown()
        await restart()
        broker, double = broker_of()
        await broker.startup()
        async with worker_of(broker):
            for number, task_id in enumerate(ids):
                while not await broker.result_backend.is_result_ready(task_id):
                    await asyncio.sleep(POLL_S)
                result = await broker.result_backend.get_result(task_id)
                assert result.return_value == 2 * number
        await broker.shutdown()

    run_with_restarts(durable_server, program)
    with redis.Redis(port=durable_server.port) as client:
        assert client.xpending("taskiq", "taskiq")["pending"] == 0


@PROTOCOLS
def test_a_task_left_by_a_killed_worker_is_done_by_another(server: Server, query: str) -> None:
    url = url_of(server, query)

    async def program(restart: Restart) -> None:
        broker = RedisStreamBroker(
            url, xread_block=50, consumer_id="0", idle_timeout=50
        ).with_result_backend(RedisAsyncResultBackend(url, keep_results=False))

        @broker.task
        async def double(number: int) -> int:
            return 2 * number

        await broker.startup()
        left = await double.kiq(21)
        with redis.Redis(port=server.port) as killed_worker:
            assert killed_worker.xreadgroup("taskiq", "killed", {"taskiq": ">"})
        async with worker_of(broker):
            while not await left.is_ready():
                await double.kiq(0)  # a worker claims after it has read something
                await asyncio.sleep(POLL_S)
            assert await result_of(left) == 42

    run_with_restarts(server, program)


@PROTOCOLS
def test_a_managed_group_delivers_a_killed_workers_task(server: Server, query: str) -> None:
    """The worker claims nothing in this time: the server delivers the task again."""
    url = url_of(server, query)

    async def program(restart: Restart) -> None:
        broker = RedisStreamBroker(url, xread_block=50, consumer_id="0").with_result_backend(
            RedisAsyncResultBackend(url, keep_results=False)
        )

        @broker.task
        async def double(number: int) -> int:
            return 2 * number

        with redis.Redis(port=server.port) as killed_worker:
            killed_worker.execute_command(
                "TGROUP", "taskiq", "taskiq", "START", "0", "TIMEOUT", "50"
            )
            await broker.startup()
            left = await double.kiq(21)
            assert killed_worker.xreadgroup("taskiq", "killed", {"taskiq": ">"})
        async with worker_of(broker):
            assert await result_of(left) == 42
        await broker.shutdown()

    run_with_restarts(server, program)


@PROTOCOLS
def test_tasks_sent_to_all_workers_return_results(server: Server, query: str) -> None:
    url = url_of(server, query)

    async def program(restart: Restart) -> None:
        broker = PubSubBroker(url).with_result_backend(
            RedisAsyncResultBackend(url, keep_results=False, result_px_time=1_000_000)
        )

        @broker.task
        async def double(number: int) -> int:
            return 2 * number

        await broker.startup()
        async with worker_of(broker):
            with redis.Redis(port=server.port) as client:
                while not client.pubsub_numsub("taskiq")[0][1]:
                    await asyncio.sleep(POLL_S)
            tasks = [await double.kiq(number) for number in range(TASKS)]
            assert [await result_of(task) for task in tasks] == [2 * n for n in range(TASKS)]
            assert not await tasks[0].is_ready()
        await broker.shutdown()

    run_with_restarts(server, program)
