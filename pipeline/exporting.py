"""Copies the entries of a snapshot, or of a live server, into one file. Needs pyarrow, not Spark.

Exporting uses the same plan, the same chunks or blocks and the same columns as Spark's tasks. One
process reads the partitions one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import IO, Any
from urllib.parse import urlsplit

import pyarrow as pa

from millstream.pipeline.batch_maker import PERMISSIVE, BatchMaker
from millstream.pipeline.chunk_reader import PartitionReader
from millstream.pipeline.ddl import arrow_from_ddl
from millstream.pipeline.files import Folder
from millstream.pipeline.outputs import OUTPUTS, replacing
from millstream.pipeline.positions import FIRST, Position
from millstream.pipeline.range_plan import Losses, Planner
from millstream.pipeline.range_reader import RangeReader
from millstream.pipeline.schema import plan_columns
from millstream.pipeline.selection import Selection, before
from millstream.pipeline.server_connection import Address
from millstream.pipeline.snapshot_plan import ScanPartition, plan
from millstream.pipeline.source_options import (
    LIVE,
    SCAN,
    OptionError,
    SourceOptions,
    check_server_url,
)
from millstream.pipeline.stream_counters import KeyPatterns, survey
from millstream.remote import add_password

PORTION_BYTES = 16 << 20
# How long a server that was reached may be away. Shorter than for Spark's tasks, because a user is
# waiting.
TIMEOUT_S = 10

# Reports progress as (done, total): bytes of a snapshot, entries of a server.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ExportRequest:
    """The data to export, and its form. `source`: a data directory, its URI, or a server's URL;
    `key`: patterns of keys, none for all; `start` and `end`: an ID, milliseconds or an ISO time,
    both inclusive."""

    source: str
    format: str
    key: Sequence[str] = ()
    start: str | None = None
    end: str | None = None
    schema: str | None = None
    mode: str = PERMISSIVE
    db: int | None = None

    @property
    def is_live(self) -> bool:
        return self.source.startswith(("redis://", "rediss://", "unix://"))


def export_to(name: str, request: ExportRequest, progress: Progress) -> int:
    """Write the file of this path or URI, replacing an existing one; return its number of rows."""
    with replacing(name) as file:
        return export(file, request, progress)


def export(file: IO[bytes], request: ExportRequest, progress: Progress) -> int:
    """Write everything to an open file; return the number of rows.

    OptionError, DataError or ServerError says in one sentence what cannot be done. In the mode
    FAILFAST, BadValue names the value that does not fit.
    """
    schema = arrow_from_ddl(request.schema)
    plan_columns(schema)  # refuses columns that cannot be read
    batches = (_of_server if request.is_live else _of_snapshot)(request, schema, progress)
    first = list(islice(batches, 1))  # errors are raised before anything is written
    rows = 0
    with closing(OUTPUTS[request.format](file, schema)) as output:
        for batch in chain(first, batches):
            output.write(batch)
            rows += batch.num_rows
    return rows


def _of_snapshot(
    request: ExportRequest, schema: pa.Schema, progress: Progress
) -> Iterator[pa.RecordBatch]:
    selection = selection_of(request)
    wanted = KeyPatterns(request.key)
    selection.want_key(lambda key: isinstance(key, bytes) and wanted.wants(key))
    folder = Folder.of(request.source)
    parts = plan(folder, request.db or 0, selection, PORTION_BYTES, 1)
    sizes = [_size_bytes(part) for part in parts if isinstance(part, ScanPartition)]
    maker = BatchMaker(schema, request.mode)
    for number, part in enumerate(parts, 1):
        assert isinstance(part, ScanPartition)
        yield from PartitionReader(part).batches(maker)
        progress(sum(sizes[:number]), sum(sizes))
    yield from maker.finish()


def _size_bytes(part: ScanPartition) -> int:
    return sum(chunk.pieces.length for chunk in part.chunks)


def _of_server(
    request: ExportRequest, schema: pa.Schema, progress: Progress
) -> Iterator[pa.RecordBatch]:
    """The entries that exist now. Entries evicted before they are read are missing, with a warning
    in the log."""
    options = live_options(request)
    selection = selection_of(request)
    losses = Losses(is_fatal=False)
    address = Address.from_options(options)
    reader = RangeReader(schema, options, address, losses)
    if selection.is_empty:
        return
    begin, end = before(selection.first) or FIRST, selection.last
    with address.open() as server:
        server.connect()
        infos = survey(server, KeyPatterns(request.key).find(server))
        starts = {key: Position(begin, None, info.incarnation) for key, info in infos.items()}
        ends = {
            key: Position(min(end, info.last_id), None, info.incarnation)
            for key, info in infos.items()
        }
        parts = Planner(options, losses).plan(server, starts, ends)
    counts = [sum(range_.entries for range_ in part.ranges) for part in parts]
    for number, part in enumerate(parts, 1):
        yield from reader.read(part)
        progress(sum(counts[:number]), sum(counts))


def live_options(request: ExportRequest) -> SourceOptions:
    """The options for reading the server. As in the tools, the password may be in REDISCLI_AUTH."""
    given = {"server": request.source, "mode": request.mode, "timeout": str(TIMEOUT_S)}
    if request.db is not None:
        given["db"] = str(request.db)
    check_server_url(request.source)
    settings: dict[str, Any] = {"password": urlsplit(request.source).password}
    if not settings["password"]:
        add_password(settings)
        given |= {name: text for name, text in settings.items() if text}
    return SourceOptions(given, LIVE)


def selection_of(request: ExportRequest) -> Selection:
    """The IDs to export."""
    given = _bound("--from", request.start, "startId", "startingTimestamp")
    given |= _bound("--to", request.end, "endId", "endingTimestamp")
    return Selection.of(SourceOptions(given, SCAN), True)


def _bound(flag: str, text: str | None, *names: str) -> dict[str, str]:
    """The bound as an option: an ID if the text is a valid ID, else a time."""
    if text is None:
        return {}
    for name in names:
        with suppress(OptionError):
            Selection.of(SourceOptions({name: text}, SCAN), False)
            return {name: text}
    raise OptionError(
        f"{flag} is {text!r}; it must be an ID like 1526919030474-55, milliseconds since 1970, or"
        " a time like 2026-11-01T12:00:00Z"
    )
