"""`df.write.format("millstream")` and `df.writeStream`: rows become entries, each exactly once.

Spark may run a task twice, even at the same time, and a query that was killed repeats its last
batch. Therefore every row has a number that is the same each time, and `TAPPENDMANY` appends each
number once: the server keeps the last number of each producer. For a streaming write, the producer
is the query and the partition, and the number contains the batch. For a batch write, the producer
is the option `dedupeToken` (or a random token) and the partition. Rows with their own IDs need no
number: `TAPPENDMANY` with `ID` skips an ID that is not above the stream's last ID.

This requires that a partition has the same rows in the same order when it is computed again. Where
the order may differ, for example after a shuffle, the option `sortRows` first sorts the rows of a
partition by all their columns.

A request is sent after the reply to the previous one, and the server accepts or refuses it as a
whole. If a row were refused and later rows accepted, the retried row would be below the producer's
number and be lost. docs/decisions/032-rows-in-bulk.md has the figures.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import ArrayType, MapType
from redis.exceptions import ClusterCrossSlotError as CrossSlotError

from millstream.pipeline.positions import id_text, key_text
from millstream.pipeline.row_encoder import Request, RowEncoder, RowFault
from millstream.pipeline.row_layout import RowEntry, RowError, RowLayout
from millstream.pipeline.server_connection import Address, Command, ServerConnection, ServerError
from millstream.pipeline.source_options import OptionError, SourceOptions
from millstream.pipeline.stream_counters import survey

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

# Number of sorted rows that are encoded together.
ROWS_PER_BATCH = 10_000

# A producer's name may have 1,024 bytes, including the partition.
TOKEN_BYTES_MAX = 1000

# In the numbers of a streaming write, the low bits are the row and the bits above are the batch.
ROW_BITS = 20
ROWS_PER_PRODUCER = 1 << ROW_BITS


@dataclass
class Written(WriterCommitMessage):
    """The result of one task: rows appended, and rows that already existed."""

    appended: int
    repeated: int


class Numbering(NamedTuple):
    """Names and numbers the rows of one partition."""

    name: str
    batch: int | None

    def __call__(self, row: int) -> tuple[str, int]:
        """The producer and the number of a row. A producer's numbers must increase from batch to
        batch, so rows above 2^20 in a batch of a streaming write belong to further producers."""
        if self.batch is None:
            return self.name, row
        beyond, low = divmod(row, ROWS_PER_PRODUCER)
        name = f"{self.name}.{beyond}" if beyond else self.name
        return name, self.batch << ROW_BITS | low


class RowWriter:
    """The common part of batch and streaming writes. It is pickled for Spark's workers."""

    def __init__(self, schema: StructType, options: SourceOptions, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "a stream is only ever appended to: write with mode append (a streaming query with "
                "outputMode append, or with update and foreachBatch), and delete the stream before "
                "if it is to be created again"
            )
        self.layout = RowLayout(schema, options)
        self.address = Address.from_options(options)
        self.sort_by = _sort_columns(schema) if options.flag("sortRows", False) else []

    def write(self, batches: Iterable[pa.RecordBatch], numbering: Numbering) -> Written:
        if self.sort_by:
            batches = _sorted(batches, self.sort_by)
        with self.address.open() as server:
            sender = _Sender(server, self.layout, numbering)
            try:
                for batch in batches:
                    sender.add(batch)
            except (RowError, ServerError) as error:
                raise type(error)(f"{error} (partition {_partition()})") from error
        return sender.written


class BatchWriter(DataSourceArrowWriter):
    """`df.write`. A job writes each row once, even if its tasks are retried. With a `dedupeToken`,
    running the same job again also writes nothing twice."""

    def __init__(self, schema: StructType, options: SourceOptions, overwrite: bool) -> None:
        self.rows = RowWriter(schema, options, overwrite)
        self.token = options.text("dedupeToken") or uuid.uuid4().hex
        if len(self.token.encode()) > TOKEN_BYTES_MAX:
            raise options.wrong("dedupeToken", f"at most {TOKEN_BYTES_MAX} bytes long")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.rows.write(iterator, Numbering(f"{self.token}:{_partition()}", None))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_written("the job", messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`. The query's ID is stored in its checkpoint, so it survives a restart."""

    def __init__(self, schema: StructType, options: SourceOptions, overwrite: bool) -> None:
        self.rows = RowWriter(schema, options, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        query, batch = _property("sql.streaming.queryId"), _property("streaming.sql.batchId")
        return self.rows.write(iterator, Numbering(f"{query}:{_partition()}", int(batch)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _log_written(f"batch {batchId}", messages)


class _Sender:
    """Sends rows, and checks the rows that the server did not append."""

    def __init__(self, server: ServerConnection, layout: RowLayout, numbering: Numbering) -> None:
        self.written = Written(0, 0)
        self._server = server
        self._layout = layout
        self._numbering = numbering
        self._next_row = 0
        self._is_by_slot = False  # the server is one of a cluster

    def add(self, batch: pa.RecordBatch) -> None:
        """Append the rows of a batch."""
        while batch.num_rows:
            # All rows of a request have the same producer.
            part = batch.slice(0, ROWS_PER_PRODUCER - self._next_row % ROWS_PER_PRODUCER)
            self._send(_Portion(part, self._next_row, self._layout))
            self._next_row += part.num_rows
            batch = batch.slice(part.num_rows)

    def _send(self, part: _Portion) -> None:
        name, number = self._numbering(part.first_row)
        try:
            encoder = self._layout.encoder(part.batch, name.encode(), number)
            encoder.by_slot = self._is_by_slot
            while (request := encoder.next()) is not None:
                self._send_request(part, encoder, request)
        except RowFault as fault:
            raise RowError(f"row {part.first_row + fault.row}: {fault.reason}") from None

    def _send_request(self, part: _Portion, encoder: RowEncoder, request: Request) -> None:
        try:
            reply = self._server.encoded(request.data)
            if isinstance(reply, CrossSlotError) and not encoder.by_slot:
                encoder.by_slot = self._is_by_slot = True
                encoder.take_back(request)
                return
            if isinstance(reply, Exception):
                self._send_singly(part.entries(encoder.rows_of(request)), reply)
                return
        except ServerError as error:
            rows = encoder.rows_of(request)
            low, high = part.first_row + min(rows), part.first_row + max(rows)
            raise ServerError(f"rows {low} to {high}: {error}") from error
        self.written.appended += reply
        if reply < request.entries and self._layout.has_id:
            rows = encoder.rows_of(request)
            # With one stream, the skipped rows are the first ones. With several streams, the reply
            # does not show which rows were skipped.
            self._check_refused(
                part.entries(rows[: request.entries - reply] if request.streams == 1 else rows)
            )
        self.written.repeated += request.entries - reply

    def _send_singly(self, rows: list[tuple[int, RowEntry]], refusal: Exception) -> None:
        """Append the rows of a refused request one by one, up to the row that is at fault."""
        if not str(refusal).startswith("WRONGTYPE"):
            self._server.checked(refusal)
        refused = []
        for row, entry in rows:
            (reply,) = self._server.pipeline([self._command(row, entry)])
            if isinstance(reply, Exception):
                raise RowError(f"row {row}, key {key_text(entry.key)!r}: {reply}")
            if reply is None and entry.id is not None:
                refused.append((row, entry))
            self.written.appended += reply is not None
            self.written.repeated += reply is None
        self._check_refused(refused)

    def _command(self, row: int, entry: RowEntry) -> Command:
        if entry.id is not None:
            return "TAPPENDONCE", entry.key, "ID", id_text(entry.id), *entry.words
        name, number = self._numbering(row)
        return "TAPPENDONCE", entry.key, "PRODUCER", name, number, *entry.words

    def _check_refused(self, refused: list[tuple[int, RowEntry]]) -> None:
        """Check that skipped rows, whose ID is not above the stream's last ID, were written before:
        the entry exists, or was evicted since. Otherwise rows would be lost silently."""
        found = self._server.pipeline(
            ("TRANGE", entry.key, id_text(entry.id), id_text(entry.id))
            for _, entry in refused
            if entry.id is not None
        )
        missing = []
        for (row, entry), reply in zip(refused, found, strict=True):
            entries = self._server.checked(reply)
            if not entries:
                missing.append((row, entry))
            elif entries[0][1:] != entry.words:
                raise RowError(f"row {row}: {_named(entry)} exists with different fields")
        self._check_missing(missing)

    def _check_missing(self, missing: list[tuple[int, RowEntry]]) -> None:
        infos = survey(self._server, {entry.key for _, entry in missing})
        for row, entry in missing:
            info = infos.get(entry.key)
            if info is None or entry.id is None or entry.id > info.max_evicted_id:
                last = "gone" if info is None else id_text(info.last_id)
                raise RowError(
                    f"row {row}: the id of {_named(entry)} is not above the stream's last, {last}, "
                    "and no such entry is there. Entries must be written in the order of their "
                    "ids, those of one stream in one partition"
                )


class _Portion:
    """A batch, or a part of it, whose rows have the same producer; `first_row` is the number of the
    first row in the partition."""

    def __init__(self, batch: pa.RecordBatch, first_row: int, layout: RowLayout) -> None:
        self.batch = batch
        self.first_row = first_row
        self._layout = layout
        self._entries: list[RowEntry] = []

    def entries(self, rows: list[int]) -> list[tuple[int, RowEntry]]:
        """The rows with these indexes, with their numbers."""
        if not self._entries:
            self._entries = list(self._layout.entries(self.batch, self.first_row))
        return [(self.first_row + row, self._entries[row]) for row in rows]


def _named(entry: RowEntry) -> str:
    assert entry.id is not None
    return f"{id_text(entry.id)} of {key_text(entry.key)!r}"


def _sort_columns(schema: StructType) -> list[tuple[str, str]]:
    for field in schema.fields:
        if isinstance(field.dataType, MapType | ArrayType):
            raise OptionError(
                f"option 'sortRows' cannot put the column {field.name!r} in order: it is "
                f"{field.dataType.simpleString()}"
            )
    return [(field.name, "ascending") for field in schema.fields]


def _sorted(
    batches: Iterable[pa.RecordBatch], columns: list[tuple[str, str]]
) -> list[pa.RecordBatch]:
    """All rows of the partition in the order of their columns."""
    held = list(batches)
    if not held:
        return []
    # Small batches, because each batch becomes Python objects as a whole.
    table = pa.Table.from_batches(held).sort_by(columns)
    parts: list[pa.RecordBatch] = table.to_batches(ROWS_PER_BATCH)
    return parts


def _log_written(what: str, messages: list[WriterCommitMessage | None]) -> None:
    written = [message for message in messages if isinstance(message, Written)]
    log.info(
        "%s: %d entries appended, %d already existed",
        what,
        sum(message.appended for message in written),
        sum(message.repeated for message in written),
    )


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None, "rows are written by Spark's tasks"
    return context.partitionId()


def _property(name: str) -> str:
    context = TaskContext.get()
    value = None if context is None else context.getLocalProperty(name)
    if value is None:
        raise ServerError(
            f"Spark does not pass {name}, so a repeated batch could not be recognized"
        )
    return value
