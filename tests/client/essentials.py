"""The essentials of the client as a program: `python essentials.py URL`, without anything else of
this repository. It prints the versions that it has used."""

import asyncio
import sys

import redis

import millstream
from millstream.client import aio, connect

url = sys.argv[1]

with connect(url) as ms:
    ms.flushall()
    with ms.writer("s", "w") as writer, ms.stream(["s", "t"]) as stream:
        with writer.fact() as fact:
            fact["n"] = 1
        writer.append({"n": 2})
        found = [stream.read(timeout=10)["n"], stream.read(timeout=10)["n"], next(stream)]
        assert found == ["1", "2", None], found
    ms.tseal("s")
    assert [record["n"] for record in ms.stream("s", "trim_horizon").follow()] == ["1", "2"]
    with ms.consumer("s", "g", retry=60, position="trim_horizon") as consumer:
        assert consumer.ack(consumer.read(timeout=10)) == 1
    with ms.pipeline() as pipe:
        assert len(pipe.tappend("u", {"n": 1}).tread("u", 0, 1).execute()[1]) == 1
    assert ms.tread("u", "$", 1, block=10) == []


async def main() -> None:
    asyncio.get_running_loop().slow_callback_duration = 60  # a busy machine is no defect
    async with aio.connect(url) as ms:
        async with ms.writer("v", "w") as writer, ms.stream(["v", "t"]) as stream:
            async with writer.fact() as fact:
                fact["n"] = 1
            await writer.append({"n": 2})
            assert [(await stream.read(timeout=10))["n"] for _ in range(2)] == ["1", "2"]
            reading = asyncio.create_task(stream.read())
            await asyncio.sleep(0.01)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        await ms.tseal("v")
        async with ms.stream("v", "trim_horizon") as stream:
            assert [record["n"] async for record in stream] == ["1", "2"]
        async with ms.consumer("v", "g", retry=60, position="trim_horizon") as consumer:
            assert await consumer.ack(await consumer.read(timeout=10)) == 1
        async with ms.pipeline() as pipe:
            assert len(await pipe.tappend("x", {"n": 1}).tread("x", 0, 1).execute()) == 2


asyncio.run(main())
print(redis.__version__, millstream.__file__)
