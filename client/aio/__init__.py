"""The client for asyncio.

    from millstream.client import aio

    async with aio.connect("redis://localhost:6455") as ms:
        async with ms.stream(["orders:0", "orders:1"], "trim_horizon") as stream:
            async for record in stream:
                ...

The names are those of `millstream.client`. The examples in the docstrings run in `python -m
asyncio`. A connection belongs to one event loop.
Methods that talk to the server are awaited. Streams, writers, consumers and facts are awaited or
entered with `async with`. `async for` over a stream or a consumer is `follow`, and `await
read(timeout=0)` takes the place of `next`. A cancelled `read` loses nothing.
"""

from millstream.client.aio.connection import Millstream, Pipeline, connect
from millstream.client.aio.consumer import Consumer
from millstream.client.aio.producer import Producer, Receipt
from millstream.client.aio.stream import Stream
from millstream.client.aio.worker import Job, Worker
from millstream.client.aio.writer import Fact, Writer
from millstream.client.codecs import Codec, InvalidRecord, Json, MsgPack, Raw
from millstream.client.core.shards import Shard
from millstream.client.errors import (
    FactAlreadyDone,
    InvalidFields,
    InvalidPosition,
    InvalidStream,
    MillstreamError,
    NotReserved,
    Refused,
    ReservationLost,
    Sealed,
    ShardUnavailable,
    Stalled,
    WrongServer,
)
from millstream.client.events import (
    Disconnected,
    Event,
    Gap,
    Reconnected,
    RecordsExpired,
    ShardEnded,
    ShardMissing,
    ShardOpened,
)
from millstream.client.ids import ID
from millstream.client.jobs import Dead, Retry
from millstream.client.records import Record
from millstream.client.rows import DeadLetter, Row, Seek, WriterPosition

__all__ = [
    "ID",
    "Codec",
    "Consumer",
    "Dead",
    "DeadLetter",
    "Disconnected",
    "Event",
    "Fact",
    "FactAlreadyDone",
    "Gap",
    "InvalidFields",
    "InvalidPosition",
    "InvalidRecord",
    "InvalidStream",
    "Job",
    "Json",
    "Millstream",
    "MillstreamError",
    "MsgPack",
    "NotReserved",
    "Pipeline",
    "Producer",
    "Raw",
    "Receipt",
    "Reconnected",
    "Record",
    "RecordsExpired",
    "Refused",
    "ReservationLost",
    "Retry",
    "Row",
    "Sealed",
    "Seek",
    "Shard",
    "ShardEnded",
    "ShardMissing",
    "ShardOpened",
    "ShardUnavailable",
    "Stalled",
    "Stream",
    "Worker",
    "Writer",
    "WriterPosition",
    "WrongServer",
    "connect",
]
