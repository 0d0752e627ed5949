"""`df.write.format("millstream")` and `df.writeStream`: rows become entries, each exactly once.

Spark may run a task twice, at the same time even, and a query that was killed repeats its last
batch. So every row has a number that is the same each time, and `TAPPENDONCE key PRODUCER name
number` appends it once: the server keeps the last number of each producer. A streaming write's
producer is the query and the partition, and the number holds the batch; a batch write's producer is
the option `dedupeToken` (or a fresh one) and the partition. Rows that bring their ids need no
number: `TAPPENDONCE key ID id` drops an id that is not above the stream's last.

This rests on a partition having the same rows in the same order when it is computed again. Where
the order may differ, behind a shuffle for example, the option `sortRows` puts the rows of a
partition in the order of all their columns first.

Rows are sent in transactions: a row that is refused in the middle of a pipeline, while rows behind
it are taken, would be below the producer's number when it is tried again, and lost.
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

from millstream.pipeline.options import OptionError, Options
from millstream.pipeline.positions import id_text, key_text
from millstream.pipeline.rows import Entry, Layout, RowError
from millstream.pipeline.server import Address, Command, Server, ServerError
from millstream.pipeline.survey import survey

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

# A transaction's bounds: enough to hide the way to the server and back, little enough for one tick.
ROWS_PER_REQUEST = 500
BYTES_PER_REQUEST = 1 << 20

# How many sorted rows are made into entries at once.
ROWS_PER_BATCH = 10_000

# A producer's name may have 1,024 bytes, the partition included.
TOKEN_BYTES_MAX = 1000

# The low bits of a streaming write's number are the row, those above it the batch.
ROW_BITS = 20


@dataclass
class Written(WriterCommitMessage):
    """What one task did: rows appended, and rows that were there already."""

    appended: int
    repeated: int


class Numbering(NamedTuple):
    """Names and numbers the rows of one partition."""

    name: str
    batch: int | None

    def __call__(self, row: int) -> tuple[str, int]:
        """The producer and the number of a row. A producer's numbers rise from batch to batch, so
        rows beyond 2^20 in a batch of a streaming write belong to further producers."""
        if self.batch is None:
            return self.name, row
        beyond, low = divmod(row, 1 << ROW_BITS)
        name = f"{self.name}.{beyond}" if beyond else self.name
        return name, self.batch << ROW_BITS | low


class RowWriter:
    """What batch and streaming writes share; travels to the workers."""

    def __init__(self, schema: StructType, options: Options, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "a stream is only ever appended to: write with mode append (a streaming query with "
                "outputMode append, or with update and foreachBatch), and delete the stream before "
                "if it is to be made anew"
            )
        self.layout = Layout(schema, options)
        self.address = Address.from_options(options)
        self.sort_by = _sort_columns(schema) if options.flag("sortRows", False) else []

    def write(self, batches: Iterable[pa.RecordBatch], numbering: Numbering) -> Written:
        if self.sort_by:
            batches = _sorted(batches, self.sort_by)
        with self.address.open() as server:
            sender = _Sender(server, numbering)
            try:
                for row, entry in enumerate(self._entries(batches)):
                    sender.add(row, entry)
                sender.flush()
            except (RowError, ServerError) as error:
                raise type(error)(f"{error} (partition {_partition()})") from error
        return sender.written

    def _entries(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Entry]:
        row = 0
        for batch in batches:
            yield from self.layout.entries(batch, row)
            row += batch.num_rows


class BatchWriter(DataSourceArrowWriter):
    """`df.write`. Without a `dedupeToken` a job writes once however often its tasks are tried; with
    one, running the same job again writes nothing again."""

    def __init__(self, schema: StructType, options: Options, overwrite: bool) -> None:
        self.rows = RowWriter(schema, options, overwrite)
        self.token = options.text("dedupeToken") or uuid.uuid4().hex
        if len(self.token.encode()) > TOKEN_BYTES_MAX:
            raise options.wrong("dedupeToken", f"at most {TOKEN_BYTES_MAX} bytes long")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.rows.write(iterator, Numbering(f"{self.token}:{_partition()}", None))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_written("the job", messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`. The query's id is that of its checkpoint, so it outlives the process."""

    def __init__(self, schema: StructType, options: Options, overwrite: bool) -> None:
        self.rows = RowWriter(schema, options, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        query, batch = _property("sql.streaming.queryId"), _property("streaming.sql.batchId")
        return self.rows.write(iterator, Numbering(f"{query}:{_partition()}", int(batch)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _log_written(f"batch {batchId}", messages)


class _Sender:
    """Sends entries in transactions and looks at what became of each."""

    def __init__(self, server: Server, numbering: Numbering) -> None:
        self.written = Written(0, 0)
        self._server = server
        self._numbering = numbering
        self._rows: list[tuple[int, Entry]] = []
        self._size_bytes = 0

    def add(self, row: int, entry: Entry) -> None:
        self._rows.append((row, entry))
        self._size_bytes += sum(map(len, entry.words))
        if len(self._rows) >= ROWS_PER_REQUEST or self._size_bytes >= BYTES_PER_REQUEST:
            self.flush()

    def flush(self) -> None:
        rows, self._rows, self._size_bytes = self._rows, [], 0
        try:
            replies = self._server.transaction(self._command(*row) for row in rows)
        except ServerError as error:
            raise ServerError(f"rows {rows[0][0]} to {rows[-1][0]}: {error}") from error
        refused = []
        for (row, entry), reply in zip(rows, replies, strict=True):
            if isinstance(reply, Exception):
                raise RowError(f"row {row}, key {key_text(entry.key)!r}: {reply}")
            if reply is not None:
                self.written.appended += 1
            elif entry.id is None:
                self.written.repeated += 1
            else:
                refused.append((row, entry))
        self._check_refused(refused)

    def _command(self, row: int, entry: Entry) -> Command:
        if entry.id is not None:
            return "TAPPENDONCE", entry.key, "ID", id_text(entry.id), *entry.words
        name, number = self._numbering(row)
        return "TAPPENDONCE", entry.key, "PRODUCER", name, number, *entry.words

    def _check_refused(self, refused: list[tuple[int, Entry]]) -> None:
        """Rows whose id is not above the stream's last must have been written before: the entry is
        there, or was evicted since. Otherwise they would be lost without a word."""
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
                raise RowError(f"row {row}: {_named(entry)} is there with other fields")
            self.written.repeated += 1
        self._check_missing(missing)

    def _check_missing(self, missing: list[tuple[int, Entry]]) -> None:
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


def _named(entry: Entry) -> str:
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
    # In small batches: each is made into Python objects as a whole.
    table = pa.Table.from_batches(held).sort_by(columns)
    parts: list[pa.RecordBatch] = table.to_batches(ROWS_PER_BATCH)
    return parts


def _log_written(what: str, messages: list[WriterCommitMessage | None]) -> None:
    written = [message for message in messages if isinstance(message, Written)]
    log.info(
        "%s: %d entries appended, %d were there already",
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
        raise ServerError(f"Spark does not say {name}, so a repeated batch could not be recognized")
    return value
