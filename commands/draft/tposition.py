"""TPOSITION: how far a stream is settled, as a whole or for one writer; can wait until it is."""

from __future__ import annotations

from millstream.commands.engine.lifecycle import live_held
from millstream.commands.engine.listings import named_rows
from millstream.commands.engine.reservation_arguments import take_writer
from millstream.commands.runtime.arguments import Args, take_timeout
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import BlockedRead, LongReply, Several, Wait
from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, WRONG_TYPE, CommandError
from millstream.ids import Id
from millstream.storage.reservations.held import handed_out_id
from millstream.storage.streams.stream import Stream

EntryId = tuple[int, int]
WriterRow = tuple[bytes, EntryId | None, EntryId | None, EntryId | None, int]


@command(
    "TPOSITION key [mode: writers: WRITERS | options: [WRITER name] [WAIT id milliseconds]]",
    "readonly blocking",
    complexity="O(1); with WRITERS O(n), n the number of writers",
)
def tposition(ctx: Context, args: Args) -> object:
    """Returns the position of a stream or of a writer; can wait for it.

    The reply is the last ID handed out before the oldest reservation, of the stream or of one
    writer: everything up to it is settled. With WAIT, the reply is sent as soon as the position is
    at least this ID, or is null after the timeout (0: never). With WRITERS: for each writer its
    name, its position, the greatest ID that it has settled below its oldest reservation, the number
    of its reservations, and the oldest one.
    """
    key = args.take()
    if args.remaining == 1 and args.option(b"WRITERS"):
        return _writers(ctx, key)
    writer: bytes | None = None
    wait: EntryId | None = None
    timeout_ms = 0
    while args.remaining:
        if args.option(b"WRITER"):
            writer = take_writer(args)
        elif args.option(b"WAIT"):
            wait = args.take_entry_id(dot_allowed=True)
            timeout_ms = take_timeout(args)
        else:
            raise CommandError(SYNTAX)
    stream = _stream(ctx, key)
    position = _position(stream, writer)
    if wait is None or position >= wait:
        return Id(*position, True)
    read = PositionRead()
    read.db_index = ctx.db.index
    read.keys = [(ctx.db.index, key)]
    read.writer = writer
    read.wanted = wait
    return Wait(read, ctx.steady_ms + timeout_ms if timeout_ms else 0)


def _stream(ctx: Context, key: bytes) -> Stream | None:
    """The stream, after reservations whose leases have ended were given up."""
    stream = ctx.read_for_update(key)
    if stream is not None:
        live_held(ctx, key, stream)
    return stream


def _position(stream: Stream | None, writer: bytes | None) -> EntryId:
    if stream is None:
        return 0, 0
    if writer is None:
        return stream.last_id
    own = None if stream.held is None else stream.held.writers.position(writer)
    return handed_out_id(stream) if own is None else own


def _writers(ctx: Context, key: bytes) -> object:
    stream = _stream(ctx, key)
    if stream is None or stream.held is None:
        return []
    handed_out = handed_out_id(stream)
    rows = stream.held.writers.rows()
    return LongReply(
        named_rows(
            [row[0] for row in rows],
            range(len(rows)),
            lambda part: Several([_writer(rows[place], handed_out) for place in part]),
        )
    )


def _writer(row: WriterRow, handed_out: EntryId) -> list[object]:
    name, oldest, before, last, reservations = row
    return [
        name,
        Id(*(before or handed_out), True),
        Id(*(last or (0, 0)), True),
        reservations,
        None if oldest is None else Id(*oldest, True),
    ]


class PositionRead(BlockedRead):
    """A TPOSITION that waits."""

    db_index: int
    writer: bytes | None
    wanted: EntryId

    def attempt(self, ctx: Context) -> object:
        key = self.keys[0][1]
        value = ctx.db.get(key)
        if value is not None and not isinstance(value, Stream):
            raise CommandError(WRONG_TYPE)
        position = _position(value, self.writer)
        return Id(*position, True) if position >= self.wanted else None

    def timeout_reply(self, ctx: Context) -> None:
        return None
