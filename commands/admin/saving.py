"""Saving, waiting for what was saved, and stopping.

There is no fork: BGSAVE and BGREWRITEAOF are the same work with another name, and INFO persistence
shows each under its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.commands.runtime.arguments import take_timeout
from millstream.commands.runtime.replies import NO_REPLY, OK, BlockedRead, Simple, Wait
from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError

if TYPE_CHECKING:
    from millstream.commands.runtime.arguments import Args
    from millstream.commands.runtime.context import Context


@command(
    "SAVE",
    arity=1,
    flags="admin noscript no_async_loading no_multi",
    group="server",
    summary="Synchronously saves the database(s) to disk.",
    complexity="O(N), N the number of keys in all databases",
)
def save(ctx: Context, args: Args) -> object:
    """OK when the snapshot is on disk. No other client is served in that time: prefer BGSAVE."""
    ctx.server.save()
    return OK


@command(
    "BGSAVE",
    arity=-1,
    flags="admin noscript no_async_loading",
    group="server",
    summary="Asynchronously saves the database(s) to disk.",
    syntax="[SCHEDULE]",
)
def bgsave(ctx: Context, args: Args) -> object:
    """Starts a snapshot in the background, without a fork; LASTSAVE and INFO persistence show when
    it is done. With SCHEDULE, if the journal is being rewritten, the snapshot is taken after that
    instead of failing with an error.
    """
    schedule = args.option(b"SCHEDULE")
    args.finish()
    return Simple(ctx.server.bgsave(schedule).encode())


@command(
    "BGREWRITEAOF",
    arity=1,
    flags="admin noscript no_async_loading",
    group="server",
    summary="Asynchronously rewrites the append-only file to disk.",
)
def bgrewriteaof(ctx: Context, args: Args) -> object:
    """Replaces a long journal by a new base and an empty journal. During a BGSAVE, the rewrite
    starts after it.
    """
    return Simple(ctx.server.rewrite().encode())


@command(
    "LASTSAVE",
    arity=1,
    flags="loading stale fast",
    group="server",
    summary="Returns the Unix timestamp of the last successful save to disk.",
    categories=("admin", "dangerous"),
    tips="nondeterministic_output",
)
def lastsave(ctx: Context, args: Args) -> object:
    return ctx.server.last_save_s


@command(
    "SHUTDOWN",
    arity=-1,
    flags="admin noscript loading stale no_multi allow_busy",
    group="server",
    summary="Synchronously saves the database(s) to disk and shuts down the server.",
    syntax="[save-selector: NOSAVE | SAVE] [NOW] [FORCE] [ABORT]",
    complexity="O(N) when saving, N the number of keys in all databases",
    traits="unblocked",
)
def shutdown(ctx: Context, args: Args) -> object:
    """Closes the connection and stops the server. The journal always gets a last fsync; SAVE also
    writes a snapshot. If the journal has failed, all data is first written to a new base, unless
    NOSAVE is given; if that fails the server keeps running. NOW is accepted (there are no replicas
    to wait for). FORCE stops the server even if the snapshot or base fails. ABORT has nothing to
    abort.
    """
    given = {word.upper() for word in args.rest()}
    if (
        not given <= {b"NOSAVE", b"SAVE", b"NOW", b"FORCE", b"ABORT"}
        or {b"NOSAVE", b"SAVE"} <= given
    ):
        raise CommandError(SYNTAX)
    if b"ABORT" in given:
        raise CommandError(SYNTAX if len(given) > 1 else "ERR No shutdown in progress.")
    wish = True if b"SAVE" in given else False if b"NOSAVE" in given else None
    try:
        ctx.server.shutdown(wish)
    except CommandError:
        if b"FORCE" not in given:
            raise CommandError("ERR Errors trying to SHUTDOWN. Check logs.") from None
        ctx.server.shutdown(False)
    return NO_REPLY


# Waiting for replicas and for the disk


def _take_deadline(ctx: Context, args: Args) -> int:
    """The moment a time-out in milliseconds ends at; 0 for never."""
    timeout_ms = take_timeout(args)
    return ctx.steady_ms + timeout_ms if timeout_ms else 0


class ReplicasWait(BlockedRead):
    """WAIT for replicas that do not come: it ends with its time."""

    def __init__(self) -> None:
        self.keys = []

    def timeout_reply(self, ctx: Context) -> object:
        return 0


@command(
    "WAIT",
    arity=3,
    flags="blocking",
    group="generic",
    since="3.0.0",
    summary="Blocks until the asynchronous replication of all preceding write commands sent by the "
    "connection is completed.",
    syntax="numreplicas timeout",
    categories=("connection",),
    tips="request_policy:all_shards response_policy:agg_min",
)
def wait(ctx: Context, args: Args) -> object:
    """0: there are no replicas. The reply comes at once if no replica is requested, otherwise after
    `timeout` (milliseconds; 0: never). In a transaction it comes at once.
    """
    wanted = args.take_int()
    deadline_ms = _take_deadline(ctx, args)
    if wanted <= 0 or not ctx.may_block:
        return 0
    return Wait(ReplicasWait(), deadline_ms)


class SyncWait(BlockedRead):
    """WAITAOF: ends when the journal is on the disk up to `position`, or with its time. The server
    looks at `sync_waits` whenever the journal was forced to disk, and when the journal is turned
    off. `needs_journal`: numlocal is 1. `ends_synced`: no replica is requested."""

    def __init__(self, ctx: Context, position: int, local: int, replicas: int) -> None:
        self.keys = []
        self.client_id = ctx.session.id
        self.position = position
        self.needs_journal = local > 0
        self.ends_synced = replicas == 0

    def timeout_reply(self, ctx: Context) -> object:
        if self.needs_journal and not ctx.server.keeps_journal:
            return CommandError(AOF_OFF)
        return [int(ctx.server.journal_synced >= self.position), 0]

    def ended(self, ctx: Context) -> None:
        ctx.server.sync_waits.pop(self.client_id, None)


AOF_OFF = "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled."


@command(
    "WAITAOF",
    arity=4,
    flags="blocking",
    group="generic",
    since="7.2.0",
    summary="Blocks until all of the preceding write commands sent by the connection are written "
    "to the append-only file of the master and/or replicas.",
    syntax="numlocal numreplicas timeout",
    categories=("connection",),
    tips="request_policy:all_shards response_policy:agg_min",
)
def waitaof(ctx: Context, args: Args) -> object:
    """[1, 0] when everything done so far is in the journal on disk, whatever appendfsync says; [0,
    0] if `timeout` (milliseconds; 0: never) ends first. numlocal is 0 or 1. A wait for replicas
    always times out. In a transaction the reply comes at once and shows the current state. With
    numlocal 1, `CONFIG SET appendonly no` ends the wait with an error.
    """
    local = args.take_int()
    if not 0 <= local <= 1:
        raise CommandError("ERR value is out of range, value must between 0 and 1")
    replicas = args.take_int()
    if replicas < 0:
        raise CommandError("ERR value is out of range, must be positive")
    deadline_ms = _take_deadline(ctx, args)
    if local and not ctx.server.keeps_journal:
        raise CommandError(AOF_OFF)
    reached = 0
    if ctx.server.keeps_journal:
        waiting = SyncWait(ctx, ctx.server.journal_position(), local, replicas)
        reached = int(ctx.server.journal_synced >= waiting.position)
    if (reached >= local and not replicas) or not ctx.may_block:
        return [reached, 0]
    if not ctx.server.keeps_journal:
        return Wait(ReplicasOnly(), deadline_ms)
    if local:
        ctx.server.wait_for_sync(waiting)
    return Wait(waiting, deadline_ms)


class ReplicasOnly(ReplicasWait):
    """WAITAOF for replicas without a journal here."""

    def timeout_reply(self, ctx: Context) -> object:
        return [0, 0]
