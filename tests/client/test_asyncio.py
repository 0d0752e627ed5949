"""Features of the asyncio API only: cancelled reads, tasks that stop others, async handlers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from tests.client.conftest import url_of
from tests.support.server import Server

from millstream.client import ID, MillstreamError, ShardEnded, aio
from millstream.client.core.steps import Answer, Ask


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Any:
    """`asyncio.run`, with either event loop."""

    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(coroutine, 60))

    return run


def test_close_ends_a_request_that_ignores_one_cancellation(
    run: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Ask] = []

    async def ignoring(ask: Ask) -> Answer:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asyncio.Event().wait()
        finally:
            ended.append(ask)
        raise AssertionError

    async def main() -> None:
        async with aio.connect(url_of(server)) as ms:
            await ms.tappend("s", {"n": "1"})
            async with ms.stream(["s"], position="trim_horizon") as stream:
                await stream.read()
                monkeypatch.setattr(aio.lanes, "perform", ignoring)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(stream.read(), 0.05)
        assert ended

    run(main())


def test_tasks_that_open_a_stream_together_get_no_record_twice(run: Any, server: Server) -> None:
    async def main() -> None:
        async with aio.connect(url_of(server)) as ms:
            ids = [await ms.tappend("s", {"n": n}) for n in range(5)]
            stream = ms.stream("s", "earliest", end="latest")
            reads = [stream.read(timeout=10) for _ in range(3)]
            found = await asyncio.gather(*reads, return_exceptions=True)
            assert sum(isinstance(one, MillstreamError) for one in found) == 2
            read = [one.id for one in found if not isinstance(one, BaseException)]  # type: ignore[union-attr]
            assert read + [record.id async for record in stream] == ids
            await stream.close()

    run(main())


@pytest.mark.parametrize("reads", ["stream", "consumer"])
def test_tasks_that_meet_a_bad_record_lose_no_other(run: Any, server: Server, reads: str) -> None:
    """Each of them copies it, and one of them passes it over."""

    async def main() -> None:
        async with aio.connect(url_of(server)) as ms:
            ids = [await ms.tappend("s", {"json" if n != 1 else "bad": n}) for n in range(5)]
            del ids[1]
            made: Any = ms.stream("s", "earliest")
            if reads == "consumer":
                made = ms.consumer("s", "g", retry=60, position="earliest")
            async with made.of(aio.Json(), dead_letter="letters") as reader:
                found = [await reader.read(timeout=10)]
                found += await asyncio.gather(reader.read(timeout=10), reader.read(timeout=10))
                while record := await reader.read(timeout=0):
                    found.append(record)
                assert sorted(record.id for record in found) == ids
                assert await ms.xlen("letters") == 1

    run(main())


def test_cancelled_reads_lose_nothing(run: Any, server: Server) -> None:
    async def main() -> None:
        async with aio.connect(url_of(server)) as ms:
            wanted: list[tuple[ID, str, str]] = []
            found: list[str] = []
            async with ms.stream(["s", "t"], batch=3) as stream:

                async def read() -> None:
                    while True:
                        record = await stream.read()
                        assert record is not None
                        found.append(record["n"])

                for n in range(40):
                    reader = asyncio.create_task(read())
                    for m in range(n % 4):
                        name, key = f"{n}.{m}", "st"[m % 2]
                        wanted.append((await ms.tappend(key, {"n": name}), key, name))
                    for _ in range(n % 7):
                        await asyncio.sleep(0)
                    if n % 5 == 0:
                        await asyncio.sleep(0.003)
                    reader.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await reader
                while len(found) < len(wanted):
                    record = await stream.read(timeout=10)
                    assert record is not None
                    found.append(record["n"])
            # Two entries of one millisecond can have the same ID. The names decide between them.
            assert found == [name for _, _, name in sorted(wanted)]

    run(main())


def test_a_handler_that_is_cancelled_loses_no_record(run: Any, server: Server) -> None:
    async def main() -> None:
        entered = asyncio.Event()

        async def handler(event: Any) -> None:
            if isinstance(event, ShardEnded) and not entered.is_set():
                entered.set()
                await asyncio.sleep(60)

        async with aio.connect(url_of(server)) as ms:
            await ms.tappend("s", {"n": 1})
            await ms.tseal("s", "t")
            await ms.tappend("t", {"n": 2})
            await ms.tseal("t")
            found = []
            async with ms.stream("s", "trim_horizon", on_event=handler) as stream:

                async def read() -> None:
                    async for record in stream:
                        found.append(record["n"])

                reader = asyncio.create_task(read())
                await entered.wait()
                reader.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reader
                async for record in stream:
                    found.append(record["n"])
            assert found == ["1", "2"]

    run(main())


def test_stop_ends_an_iteration_of_another_task(run: Any, server: Server) -> None:
    async def main() -> None:
        async with aio.connect(url_of(server)) as ms, ms.stream("s") as stream:

            async def read() -> list[Any]:
                return [record async for record in stream.follow(block=0.2)]

            reader = asyncio.create_task(read())
            await asyncio.sleep(0)
            stream.stop()
            assert await reader == []

    run(main())


def test_reads_without_limits_wait_for_ever(run: Any, server: Server) -> None:
    async def main() -> None:
        async with aio.connect(url_of(server)) as ms:
            async with ms.stream("s", max_wait=None) as stream:
                reader = asyncio.create_task(stream.read())
                await asyncio.sleep(0.05)
                await ms.tappend("s", {"n": 1})
                record = await reader
                assert record is not None
                assert record["n"] == "1"
            async with ms.consumer("s", "g") as consumer:
                waiter = asyncio.create_task(consumer.read())
                await asyncio.sleep(0.05)
                await ms.tappend("s", {"n": 2})
                job = await waiter
                assert job is not None

    run(main())


def test_objects_are_awaited_or_entered(run: Any, server: Server) -> None:
    async def main() -> None:
        ms = aio.connect(url_of(server))
        stream = await ms.stream("s")
        writer = await ms.writer("s", "w")
        consumer = await ms.consumer("s", "g")
        fact = await writer.fact()
        fact["n"] = 1
        await fact.complete()
        record = await stream.read(timeout=10)
        assert record is not None
        assert record.id == fact.id
        with pytest.raises(MillstreamError, match="await"):
            _ = writer.fact().id
        for made in (stream, writer, consumer):
            await made.close()
            await made.close()
        await ms.aclose()

    run(main())


def test_a_cancelled_reservation_leaves_no_orphan(run: Any, server: Server) -> None:
    async def main() -> None:
        async with aio.connect(url_of(server)) as ms:
            async with ms.writer("s", "w") as writer:
                for turns in range(12):
                    reserving = asyncio.ensure_future(writer.facts(2))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    reserving.cancel()
                    await asyncio.gather(reserving, return_exceptions=True)
                async with writer.fact() as fact:
                    fact["n"] = 1
            info = await ms.tinfo("s")
            assert info is not None
            assert info["reservations"] == 0

    run(main())


def test_a_cancelled_block_aborts_its_fact(run: Any, server: Server) -> None:
    async def main() -> None:
        async with aio.connect(url_of(server)) as ms, ms.writer("s", "w") as writer:

            async def work() -> None:
                async with writer.fact() as fact:
                    fact["n"] = 1
                    await asyncio.sleep(60)

            worker = asyncio.create_task(work())
            while not writer.pending:
                await asyncio.sleep(0.001)
            worker.cancel()
            with pytest.raises(asyncio.CancelledError):
                await worker
            assert writer.pending == 0
            info = await ms.tinfo("s")
            assert info is not None
            assert info["reservations"] == 0
            assert await ms.xlen("s") == 0

    run(main())


@pytest.mark.parametrize("kind", ["stream", "consumer"])
def test_a_stop_after_break_ends_the_next_loop(run: Any, server: Server, kind: str) -> None:
    """A loop that was left runs no longer, although the event loop closes its generator later."""

    async def main() -> None:
        async with aio.connect(url_of(server)) as ms:
            await ms.tappend("s", {"n": "0"})
            await ms.tappend("s", {"n": "1"})
            begin = {"position": "trim_horizon"}
            made = ms.stream("s", **begin) if kind == "stream" else ms.consumer("s", "g", **begin)
            async with made:
                async for record in made:
                    assert record["n"] == "0"
                    break
                made.stop()
                assert [record async for record in made] == []
                async for record in made:
                    assert record["n"] == "1"
                    made.stop()

    run(main())


def test_a_move_that_is_cancelled_in_a_handler_does_not_happen(run: Any, server: Server) -> None:
    async def main() -> None:
        entered = asyncio.Event()

        async def handler(event: Any) -> None:
            if entered.is_set():
                return
            entered.set()
            await asyncio.sleep(60)

        async with aio.connect(url_of(server)) as ms:
            for n in range(3):
                await ms.tappend("s", {"n": str(n)})
            entered.set()
            async with ms.stream("s", "trim_horizon", on_event=handler) as stream:
                first = await stream.read(timeout=10)
                assert first is not None
                entered.clear()
                moving = asyncio.create_task(stream.move_to("trim_horizon"))
                await entered.wait()
                moving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await moving
                record = await stream.read(timeout=10)
                assert record is not None
                assert record["n"] == "1"

    run(main())


def test_an_error_in_a_fact_does_not_wait_for_the_server(
    run: Any, new_server: Callable[..., Server]
) -> None:
    server = new_server().start()

    async def main() -> None:
        async with aio.connect(url_of(server)) as ms:
            fact = await ms.writer("s", "w", retry_for=90).fact()
            with pytest.raises(ValueError, match="the reason"):
                await lose_the_server_in(fact)

    async def lose_the_server_in(fact: Any) -> None:
        async with fact:
            server.kill()
            raise ValueError("the reason")

    run(main())
