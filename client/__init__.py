"""The Python client of millstream: one ordered sequence over many shards.

    from millstream.client import connect

    with connect("redis://localhost:6455") as ms:
        with ms.stream(["orders:0", "orders:1"], "trim_horizon") as stream:
            for record in stream.follow():
                ...

The same for asyncio is `millstream.client.aio`. docs/client.md is the guide.
"""

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
from millstream.client.threads.connection import Millstream, Pipeline, connect
from millstream.client.threads.consumer import Consumer
from millstream.client.threads.producer import Producer, Receipt
from millstream.client.threads.stream import Stream
from millstream.client.threads.worker import Job, Worker
from millstream.client.threads.writer import Fact, Writer

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
