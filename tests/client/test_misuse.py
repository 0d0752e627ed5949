"""Mistakes of programs: objects from before a fork, objects that were not awaited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.client.apis import Api, take
from tests.support.server import Server

from millstream.client import MillstreamError, aio


def test_an_object_created_before_a_fork_raises_in_the_child(api: Api, ms: Any) -> None:
    with (
        ms.writer("k", "w") as writer,
        ms.stream("k") as stream,
        ms.consumer("k", "g", batch=10) as consumer,
    ):
        for _ in range(4):
            writer.append({"by": "parent"})
        following = iter(stream.follow())
        for read in (stream.read, consumer.read, lambda _: next(following)):
            assert read(5)["by"] == "parent"  # the others are buffered
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = len([use for use in uses(writer, stream, consumer) if not refused(use)])
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        writer.append({"by": "parent"})
        assert [record["by"] for record in ms.trange("k")] == ["parent"] * 5
        assert len(take(stream, 3)) == 3
        assert len(take(consumer, 4)) == 4


def uses(writer: Any, stream: Any, consumer: Any) -> Iterator[Callable[[], object]]:
    yield lambda: writer.append({"by": "child"})
    yield lambda: writer.pending
    yield writer.metrics
    yield lambda: stream.read(0)
    yield lambda: next(stream)
    yield lambda: next(iter(stream.follow()))
    yield lambda: stream.move_to("latest")
    for name in ("token", "watermark", "gaps", "shards", "ended"):
        yield partial(getattr, stream, name)
    yield from (stream.metrics, stream.lag, stream.heartbeat)
    yield lambda: consumer.read(0)
    yield lambda: next(iter(consumer.follow()))
    yield lambda: consumer.ack("1.1")
    yield lambda: consumer.missed
    yield from (consumer.metrics, consumer.lag)
    yield from (writer.close, stream.close, consumer.close)


def refused(use: Callable[[], object]) -> bool:
    try:
        use()
    except MillstreamError as error:
        return "before a fork" in str(error)
    return False


@pytest.mark.parametrize("way", ["read", "follow", "lag", "move_to"])
def test_an_asyncio_stream_without_await_opens_at_its_first_use(server: Server, way: str) -> None:
    async def run() -> object:
        async with aio.connect(f"redis://localhost:{server.port}") as ms:
            await ms.tappend("k", {"n": 1})
            stream = ms.stream("k", "trim_horizon")
            try:
                if way == "read":
                    return (await stream.read(5) or {})["n"]
                if way == "lag":
                    return str((await stream.lag())["k"])
                if way == "move_to":
                    await stream.move_to("latest")
                    await ms.tappend("k", {"n": 1})
                    return (await stream.read(5) or {})["n"]
                async for record in stream:
                    return record["n"]
            finally:
                await stream.close()
        return None

    assert asyncio.run(run()) == "1"


def test_an_asyncio_stream_that_was_not_awaited_has_not_ended(server: Server) -> None:
    async def run() -> list[str]:
        async with aio.connect(f"redis://localhost:{server.port}") as ms:
            await ms.tappend("k", {"n": 1})
            await ms.tseal("k")
            stream = ms.stream("k", "trim_horizon")
            for position in ("token", "watermark", "shards"):
                with pytest.raises(MillstreamError, match=r"not open yet.*await it"):
                    getattr(stream, position)
            assert stream.metrics()["records"] == 0
            found = []
            while not stream.ended:
                if (record := await stream.read(timeout=5)) is not None:
                    found.append(record["n"])
            saved = stream.token
            await stream.close()
            again = ms.stream("k", saved)
            assert (again.token, again.ended) == (saved, False)
            await again.close()
            return found

    assert asyncio.run(run()) == ["1"]


def test_an_asyncio_writer_without_await_takes_over_at_first_use(
    server: Server,
) -> None:
    async def run() -> None:
        async with aio.connect(f"redis://localhost:{server.port}") as ms:
            await ms.treserve("k", "w")
            writer = ms.writer("k", "w", take_over=True)
            await writer.append({"n": 1})
            assert (await ms.tpositions("k"))[0].reservations == 0
            await writer.close()

    asyncio.run(run())
