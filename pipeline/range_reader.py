"""Reads ranges of entries from a live server, block by block.

`TBLOCKS` returns whole blocks, and the compiled decoder that also reads snapshots turns them into
columns. No entry becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.pipeline.batch_maker import MODES, PERMISSIVE, BatchMaker
from millstream.pipeline.partition import InputPartition
from millstream.pipeline.positions import FIRST, Id, id_from_text, id_text
from millstream.pipeline.range_plan import Losses, Range, Ranges
from millstream.pipeline.replica_wait import Lagging, ReplicaWait
from millstream.pipeline.server_connection import Address, Command, ServerConnection
from millstream.pipeline.source_options import SourceOptions
from millstream.pipeline.stream_counters import survey
from millstream.remote import pairs

if TYPE_CHECKING:
    import pyarrow as pa

# Maximum size of a reply. The reader holds one reply in addition to the batch that it builds.
BYTES_PER_REQUEST = 4 << 20
# Small ranges are requested together, up to this number of entries and streams.
ENTRIES_PER_REQUEST = 20_000
RANGES_PER_REQUEST = 200


class Page(NamedTuple):
    """A reply to TBLOCKS: the entries of the range from `first` to `last` that are in these blocks.
    `next_id`: where the next page begins; None at the end of the range."""

    first: Id
    last: Id
    next_id: Id | None
    max_evicted_id: Id
    incarnation: int
    blocks: list[bytes]

    def batches(self, key: bytes, maker: BatchMaker) -> Iterator[pa.RecordBatch]:
        """Add the entries to `maker`; yield the batches that became full."""
        return maker.add(b"".join(self.blocks), key, self.first, self.last)


class RangeReader:
    """Reads a partition. It is pickled for Spark's workers."""

    def __init__(
        self, schema: pa.Schema, options: SourceOptions, address: Address, losses: Losses
    ) -> None:
        self.schema = schema
        self.mode = options.choice("mode", MODES, PERMISSIVE)
        BatchMaker(schema, self.mode)  # refuses an invalid schema before any task starts
        self.address = address
        self.losses = losses
        self.replica_wait = ReplicaWait(options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The partition's entries, range by range, as batches."""
        if not isinstance(partition, Ranges):
            return  # Spark passes a partition of its own when there is nothing to read
        maker = BatchMaker(self.schema, self.mode)
        with self.address.open() as server:
            for range_, reading in opened(server, partition.ranges):
                before = maker.entries
                for page in self.pages(server, range_, reading):
                    yield from page.batches(range_.key, maker)
                self.check_loss(range_, reading, maker.entries - before)
        yield from maker.finish()

    def pages(self, server: ServerConnection, range_: Range, reading: RangePages) -> Iterator[Page]:
        """All pages of a range. A replica that does not have its end yet gets time to receive
        it."""
        yield from reading.pages()
        if reading.is_short:
            self._wait_for_end(server, range_)
            yield from reading.rest().pages()

    def _wait_for_end(self, server: ServerConnection, range_: Range) -> None:
        """Give a replica time to receive the end of a range, which was planned on a server that had
        it."""

        def lagging() -> Lagging:
            info = survey(server, [range_.key]).get(range_.key)
            if info is None:
                return Lagging([], [range_.key])
            is_late = info.incarnation < range_.incarnation or (
                info.incarnation == range_.incarnation and info.last_id < range_.until
            )
            return Lagging([range_.key] if is_late else [], [])

        self.replica_wait.wait(server, lagging)

    def check_loss(self, range_: Range, reading: RangePages, entries: int) -> None:
        """Report entries that existed when the range was planned and do not exist here."""
        page = reading.last_page
        if page is None:
            self.losses.deleted(range_.key, range_.after)
        elif page.incarnation != range_.incarnation:
            self.losses.made_again(range_.key, range_.after)
        elif reading.is_short:
            self.losses.ends_early(range_.key, page.last, range_.until)
        elif entries < range_.entries and page.max_evicted_id > range_.after:
            lost = range_.entries - entries
            self.losses.evicted(range_.key, range_.after, lost, is_exact=False)


def open_range(server: ServerConnection, range_: Range) -> RangePages:
    """A range, of which the first page has been read."""
    (first_page,) = _first_pages(server, [range_])
    return RangePages(server, range_, first_page)


def opened(server: ServerConnection, ranges: Iterable[Range]) -> Iterator[tuple[Range, RangePages]]:
    """Ranges, of which the first pages have been read. Small ranges are requested together."""
    for group in _groups(ranges):
        for range_, first_page in zip(group, _first_pages(server, group), strict=True):
            yield range_, RangePages(server, range_, first_page)


class RangePages:
    """Reads one range, page by page. `last_page` is None if the stream does not exist."""

    def __init__(self, server: ServerConnection, range_: Range, first_page: Page | None) -> None:
        self.last_page = first_page
        self._server = server
        self._range = range_
        self._reached = range_.after

    @property
    def is_short(self) -> bool:
        """True if the stream ends before the range, or does not exist: the server lags, or has an
        older copy of the stream."""
        page, wanted = self.last_page, self._range.incarnation
        return (
            page is None
            or page.incarnation < wanted
            or (page.incarnation == wanted and page.last < self._range.until)
        )

    def rest(self) -> RangePages:
        """The same range from the end of what was read, asked for again."""
        command = _command(self._range, "(" + id_text(self._reached), BYTES_PER_REQUEST)
        (self.last_page,) = _pages(self._server, [command])
        return self

    def pages(self) -> Iterator[Page]:
        """All pages; ends early when the stream was deleted or replaced."""
        while True:
            page = self.last_page
            if page is None or page.incarnation != self._range.incarnation:
                return
            yield page
            self._reached = max(self._reached, page.last)
            if page.next_id is None:
                return
            start = id_text(page.next_id)
            command = _command(self._range, start, BYTES_PER_REQUEST)
            (self.last_page,) = _pages(self._server, [command])


def _groups(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Groups of ranges that are requested together."""
    group: list[Range] = []
    entries = 0
    for range_ in ranges:
        if group and (
            len(group) == RANGES_PER_REQUEST or entries + range_.entries > ENTRIES_PER_REQUEST
        ):
            yield group
            group, entries = [], 0
        group.append(range_)
        entries += range_.entries
    if group:
        yield group


def _first_pages(server: ServerConnection, group: list[Range]) -> list[Page | None]:
    size_bytes = BYTES_PER_REQUEST // len(group)
    commands = [_command(range_, "(" + id_text(range_.after), size_bytes) for range_ in group]
    return _pages(server, commands)


def _command(range_: Range, start: str, size_bytes: int) -> Command:
    return "TBLOCKS", range_.key, start, id_text(range_.until), "BYTES", size_bytes


def _pages(server: ServerConnection, commands: list[Command]) -> list[Page | None]:
    return [_page(server.checked(reply)) for reply in server.pipeline(commands)]


def _page(reply: Any) -> Page | None:
    if reply is None:
        return None
    facts = pairs(reply)
    next_id, evicted = facts["next-id"], facts["max-evicted-id"]
    return Page(
        id_from_text(facts["first-id"]),
        id_from_text(facts["last-id"]),
        None if next_id is None else id_from_text(next_id),
        FIRST if evicted is None else id_from_text(evicted),
        int(facts["incarnation"]),
        facts["blocks"],
    )
