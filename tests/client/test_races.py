"""Interruptions, cancellations, and several threads or tasks with one object."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis.exceptions import ConnectionError, ResponseError
from tests.client.conftest import url_of
from tests.client.proxy import Proxy
from tests.support.server import Server
from tests.support.waiting import wait_until

from millstream.client import ID, MillstreamError, aio, connect
from millstream.client.core.steps import Call
from millstream.client.core.writing import FactFields, WriterState


class Interrupted(Exception):
    """Raised by a signal handler."""


@pytest.fixture
def interrupt() -> Iterator[Callable[[float], None]]:
    """A function that lets a signal handler raise Interrupted after some seconds."""

    def handler(*_: object) -> None:
        raise Interrupted

    def later(after_s: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, after_s)

    before = signal.signal(signal.SIGALRM, handler)
    yield later
    later(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("command", ["tread", "xread"])
def test_an_interrupted_wait_leaves_no_reply_for_later_commands(
    server: Server, interrupt: Callable[[float], None], command: str
) -> None:
    with connect(url_of(server)) as ms:
        ms.set("k", "v")
        waits: dict[str, Callable[[], Any]] = {
            "tread": lambda: ms.tread("s", "$", 1, block=500),
            "xread": lambda: ms.xread({"s": "$"}, block=500),
        }
        interrupt(0.05)
        with pytest.raises(Interrupted):
            waits[command]()
        assert [ms.get("k"), ms.echo("next")] == ["v", "next"]


@pytest.mark.parametrize("kind", ["stream", "consumer"])
def test_a_read_reports_that_another_thread_closed_the_object(server: Server, kind: str) -> None:
    with connect(url_of(server)) as ms, ThreadPoolExecutor(1) as threads:
        made: Any = ms.stream("s") if kind == "stream" else ms.consumer("s", "g")
        reading = threads.submit(made.read, 10)
        wait_until(lambda: ms.info("clients")["blocked_clients"], lambda count: count == 1)
        made.close()
        with pytest.raises(MillstreamError, match="closed while"):
            reading.result(5)


@pytest.mark.parametrize("kind", ["stream", "consumer"])
def test_a_read_reports_that_another_task_closed_the_object(server: Server, kind: str) -> None:
    async def main() -> None:
        async with aio.connect(url_of(server)) as ms:
            made: Any = await (ms.stream("s") if kind == "stream" else ms.consumer("s", "g"))
            reading = asyncio.create_task(made.read(10))
            while not (await ms.info("clients"))["blocked_clients"]:
                await asyncio.sleep(0.001)
            await made.close()
            with pytest.raises(MillstreamError, match="closed while"):
                await asyncio.wait_for(reading, 5)

    asyncio.run(main())


def test_threads_acknowledge_entries_read_by_another(server: Server) -> None:
    with connect(url_of(server)) as ms:
        for n in range(300):
            ms.tappend("s", {"n": n})
        ms.tseal("s")
        with (
            ms.consumer("s", "g", retry=60, position="trim_horizon", batch=3) as consumer,
            ThreadPoolExecutor(3) as threads,
        ):
            counts = [threads.submit(consumer.ack, job) for job in consumer.follow(block=0.1)]
            assert [count.result() for count in counts] == [1] * 300


def test_an_unusable_connection_returns_to_its_pool(server: Server, proxy: Proxy) -> None:
    with (
        connect(proxy.url, max_connections=1) as ms,
        ms.writer("s", "w", retry_for=0.1) as writer,
    ):
        for _ in range(3):
            writer.append({"n": 1})
            proxy.cutting = (0, 0)
            proxy.cut_all()
            with pytest.raises(ConnectionError):
                writer.append({"n": 2})
            proxy.cutting = None
        writer.append({"n": 3})


# ---------------------------------------------------------------- writers


def test_threads_that_share_a_writer_keep_their_facts(server: Server) -> None:
    with connect(url_of(server)) as ms, ms.writer("s", "w") as writer:

        def work(thread: int) -> None:
            for n in range(25):
                with writer.fact() as fact:
                    fact["n"] = thread * 25 + n
                writer.append({"n": -1})

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
        numbers = sorted(int(record["n"]) for record in ms.trange("s"))
        assert numbers == [-1] * 100 + list(range(100))
        assert writer.metrics()["lost"] == 0


def test_tasks_that_share_a_writer_keep_their_facts(server: Server) -> None:
    async def main() -> None:
        async with aio.connect(url_of(server)) as ms:
            await ms.treserve("s", "w", 2)
            writer = ms.writer("s", "w", take_over=True)

            async def work(n: int) -> None:
                async with writer.fact() as fact:
                    fact["n"] = n

            await asyncio.gather(*map(work, range(20)))
            records = await ms.trange("s")
            assert sorted(int(record["n"]) for record in records) == list(range(20))
            assert (await ms.tpositions("s"))[0].reservations == 0
            await asyncio.gather(writer.close(), writer.close())

    asyncio.run(main())


def test_appends_of_many_tasks_are_exactly_once(server: Server, proxy: Proxy) -> None:
    """The server remembers the last 100 appends of a producer, so no more may be repeated."""

    async def main() -> None:
        async with aio.connect(proxy.url) as ms, ms.writer("s", "w") as writer:
            proxy.swallowing = [b"XADD"] * 150
            appends = [asyncio.create_task(writer.append({"n": n})) for n in range(150)]
            while len(proxy.swallowing) > 140 and not all(task.done() for task in appends):
                await asyncio.sleep(0.001)
            proxy.swallowing = []
            await asyncio.gather(*appends)
        async with aio.connect(url_of(server)) as ms:
            names = [int(record["n"]) for record in await ms.trange("s")]
            assert sorted(names) == list(range(150))

    asyncio.run(main())


def test_a_cancelled_completion_is_aborted_by_the_next_fact(server: Server, proxy: Proxy) -> None:
    async def main() -> None:
        async with aio.connect(proxy.url) as ms, ms.writer("s", "w") as writer:

            async def work() -> None:
                async with writer.fact() as fact:
                    fact["n"] = 1
                    proxy.cutting = (0, 0)  # from here on nothing is answered
                    proxy.cut_all()

            worker = asyncio.create_task(work())
            while not writer.metrics()["repeats"]:
                await asyncio.sleep(0.001)
            worker.cancel()
            with pytest.raises(asyncio.CancelledError):
                await worker
            assert writer.pending == 0
            proxy.cutting = None
            async with writer.fact():
                info = await ms.tinfo("s")
                assert info is not None
                assert info["reservations"] == 1

    asyncio.run(main())


def test_a_refused_reservation_keeps_one_whose_reply_was_lost() -> None:
    def sent(step: Any) -> tuple[Any, ...]:
        assert isinstance(step, Call)
        return step.command.words

    writing = WriterState("s", "w", "producer", 30, 30, lambda: 0.0, None)
    first = writing.reserve([FactFields(30_000)], None)
    assert sent(next(first))[0] == "TRESERVE"
    with pytest.raises(KeyboardInterrupt):
        first.throw(KeyboardInterrupt())
    second = writing.reserve([FactFields(30_000)], None)
    assert sent(next(second)) == ("TABORT", "s", "w")
    assert sent(second.send(0))[0] == "TRESERVE"
    with pytest.raises(ResponseError):
        second.throw(ResponseError("OOM"))
    third = writing.reserve([fact := FactFields(30_000)], None)
    assert sent(next(third)) == ("TABORT", "s", "w")
    assert sent(third.send(1))[0] == "TRESERVE"
    assert sent(third.send(ID(5))) == ("TABORT", "s", "w", "EXCEPT", "5.0")
    with pytest.raises(StopIteration):
        third.send(0)
    assert (fact._id, writing.pending) == (ID(5), 1)
