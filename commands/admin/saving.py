"""Saving and stopping.

There is no fork: BGSAVE and BGREWRITEAOF are the same procedure with two names, and INFO
persistence shows each under its own name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import NO_REPLY, OK, BlockedRead, Simple, Wait
from millstream.commands.table.registry import OUR_FIRST_VERSION, CommandGroup
from millstream.errors import SYNTAX, CommandError

command = CommandGroup("server")


if TYPE_CHECKING:

    class Snapshots(Protocol):
        last_save_s: int
        """Unix time of the last snapshot that succeeded."""

        def save(self) -> None:
            """Writes a snapshot before it returns."""

        def bgsave(self, schedule: bool) -> str:
            """Starts or schedules a snapshot in the background; returns Redis' reply."""

        def rewrite(self) -> str:
            """Starts or schedules a rewrite of the journal in the background; returns Redis'
            reply."""

    class Shutdown(Protocol):
        """Stopping the server."""

        def wait_for_replicas(self, save: bool | None, is_forced: bool, client_id: int) -> bool:
            """Waits for replicas that lack the last changes, then stops; false if there are none.
            `save`: SAVE or NOSAVE."""

        def save_and_stop(self, save: bool | None, is_forced: bool) -> None:
            """Stops the server after this tick. `save` None writes a snapshot only if there is no
            other copy of the data (journal off, save points set)."""

        def abort(self) -> None:
            """Ends the wait for replicas without stopping. CommandError if there is none."""

    class Backups(Protocol):
        """The backups that the server sends (server/backup/sending)."""

        def begin(self, client: Any, stream: tuple[int, bytes] | None) -> None:
            """Sends all data, or a stream (its database and key), to the client. CommandError if
            that is impossible."""

    class SavingHost(Protocol):
        @property
        def backups(self) -> Backups: ...
        @property
        def snapshots(self) -> Snapshots: ...
        @property
        def shutdown(self) -> Shutdown: ...


SHUTDOWN_FAILED = "ERR Errors trying to SHUTDOWN. Check logs."


@command(
    "SAVE",
    "admin noscript no_async_loading no_multi audited",
    complexity="O(N), N the number of keys in all databases",
)
def save(ctx: Context[SavingHost], args: Args) -> object:
    """Synchronously saves the database(s) to disk.

    The reply is OK when the snapshot is on disk. No other client is served during that time: prefer
    BGSAVE."""
    ctx.server.snapshots.save()
    return OK


@command("BGSAVE [SCHEDULE]", "admin noscript no_async_loading audited")
def bgsave(ctx: Context[SavingHost], args: Args) -> object:
    """Asynchronously saves the database(s) to disk.

    Starts a snapshot in the background, without a fork; LASTSAVE and INFO persistence show when
    it is done. If the journal is being rewritten, it fails with an error or, with SCHEDULE, takes
    the snapshot afterwards.
    """
    schedule = args.option(b"SCHEDULE")
    args.finish()
    return Simple(ctx.server.snapshots.bgsave(schedule).encode())


@command("BGREWRITEAOF", "admin noscript no_async_loading audited")
def bgrewriteaof(ctx: Context[SavingHost], args: Args) -> object:
    """Asynchronously rewrites the append-only file to disk.

    Replaces a long journal with a new base and an empty journal. During a BGSAVE, the rewrite
    starts after it.
    """
    return Simple(ctx.server.snapshots.rewrite().encode())


@command(
    "BACKUP [stream: STREAM db:integer name]",
    "admin noscript no_async_loading no_multi dataless audited",
    since=OUR_FIRST_VERSION,
    complexity="O(N), N the bytes of the data, outside of the event loop",
)
def backup(ctx: Context[SavingHost], args: Args) -> object:
    """Sends a complete copy of the data over this connection.

    `millstream backup` sends this command and writes the copy to a data directory. The copy has
    everything that was acknowledged before the command, in all databases. No setting changes, and
    nothing is left if the connection ends early. The reply is a line that describes the copy; after
    it, everything is a record of a link. Then the server closes the connection. With STREAM, the
    copy has only one stream, with its groups and everything else that belongs to it.
    """
    stream = None
    if args.remaining:
        if not args.option(b"STREAM"):
            raise CommandError(SYNTAX)
        stream = args.take_int(), args.take()
    args.finish()
    ctx.server.backups.begin(ctx.session, stream)
    return NO_REPLY


@command("LASTSAVE", "loading stale fast nondeterministic_output @admin @dangerous")
def lastsave(ctx: Context[SavingHost], args: Args) -> object:
    """Returns the Unix timestamp of the last successful save to disk."""
    return ctx.server.snapshots.last_save_s


@command(
    "SHUTDOWN [save-selector: NOSAVE | SAVE] [NOW] [FORCE] [ABORT]",
    "admin noscript loading stale no_multi allow_busy unblocked audited",
    complexity="O(N) when saving, N the number of keys in all databases",
)
def shutdown(ctx: Context[SavingHost], args: Args) -> object:
    """Synchronously saves the database(s) to disk and shuts down the server.

    Closes the connection and stops the server. Unless NOW is given, the server first holds back
    writes and waits up to `shutdown-timeout` seconds until all replicas have everything. The
    journal always gets a last fsync; SAVE also writes a snapshot. If the journal has failed, all
    data is first written to a new base, unless NOSAVE is given; if that fails, the server keeps
    running. FORCE stops the server even if the snapshot or base fails. ABORT, from another client,
    ends the wait for replicas, and the server continues to run.
    """
    given = {word.upper() for word in args.rest()}
    if (
        not given <= {b"NOSAVE", b"SAVE", b"NOW", b"FORCE", b"ABORT"}
        or {b"NOSAVE", b"SAVE"} <= given
    ):
        raise CommandError(SYNTAX)
    if b"ABORT" in given:
        if len(given) > 1:
            raise CommandError(SYNTAX)
        ctx.server.shutdown.abort()
        return OK
    saves = True if b"SAVE" in given else False if b"NOSAVE" in given else None
    is_forced = b"FORCE" in given
    waits = b"NOW" not in given and ctx.server.shutdown.wait_for_replicas(
        saves, is_forced, ctx.session.id
    )
    if waits and ctx.may_block:
        return Wait(ShutdownWait(ctx), 0)
    if not waits:
        ctx.server.shutdown.save_and_stop(saves, is_forced)
    return NO_REPLY


class ShutdownWait(BlockedRead):
    """The wait of SHUTDOWN: until the server stops, or the stop is cancelled."""

    def __init__(self, ctx: Context) -> None:
        self.keys = []

    def timeout_reply(self, ctx: Context) -> object:
        return CommandError(SHUTDOWN_FAILED)  # CLIENT UNBLOCK
