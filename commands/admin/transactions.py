"""Transactions: MULTI queues requests, EXEC runs them as a unit, WATCH makes EXEC depend on keys.

The executor queues and runs the requests; this module has the commands. The state of a watched key
is compared with its earlier state (storage/keyspace/watch), so commands that change data need no
extra calls.
"""

from __future__ import annotations

from typing import Any

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import NULL_ARRAY, OK, Run
from millstream.commands.table.registry import CommandGroup
from millstream.errors import CommandError
from millstream.storage.keyspace.database import Database
from millstream.storage.keyspace.watch import begin_watch, is_changed

command = CommandGroup("transactions")

Watches = dict[tuple[int, bytes], tuple["Database", tuple[Any, ...]]]

WATCHES_MAX = 100_000  # of one client: EXEC and CLIENT LIST check each of them
NESTED = "ERR MULTI calls can not be nested"
WATCH_INSIDE = "ERR WATCH inside MULTI is not allowed"
EXECABORT = "EXECABORT Transaction discarded because of previous errors."
TOO_MANY_WATCHES = f"ERR a client can watch at most {WATCHES_MAX} keys"


def has_changed_watches(watches: Watches) -> bool:
    """True if one of a client's watched keys has changed, so that EXEC will do nothing."""
    return any(is_changed(db, key, state) for (_, key), (db, state) in watches.items())


@command("MULTI", "noscript loading stale fast allow_busy unqueued", since="1.2.0")
def multi(ctx: Context, args: Args) -> object:
    """Starts a transaction.

    The reply is OK. The replies to the following commands are QUEUED, and EXEC runs them."""
    if ctx.session.queue is not None:
        raise CommandError(NESTED)
    ctx.session.queue = []
    return OK


@command(
    "EXEC",
    "noscript loading stale skip_slowlog unqueued",
    complexity="O(N), N the queued requests, and what each of them takes",
    since="1.2.0",
)
def exec_(ctx: Context, args: Args) -> object:
    """Executes all commands in a transaction.

    The reply is an array of the replies. If a watched key was changed, the reply is null; if a
    request was refused when it was queued, the reply is an error. In both cases, nothing is
    executed. If a request fails when it runs, its reply is the error, and the other requests still
    run.
    """
    session = ctx.session
    if session.queue is None:
        raise CommandError("ERR EXEC without MULTI")
    queue, failed = session.queue, session.queue_failed
    changed = has_changed_watches(session.watches)
    session.leave_transaction()
    if failed:
        raise CommandError(EXECABORT)
    return NULL_ARRAY if changed else Run(queue)


@command(
    "DISCARD",
    "noscript loading stale fast allow_busy unqueued",
    since="2.0.0",
    complexity="O(N), when N is the number of queued commands",
)
def discard(ctx: Context, args: Args) -> object:
    """Discards a transaction.

    The reply is OK; the watched keys are also forgotten."""
    if ctx.session.queue is None:
        raise CommandError("ERR DISCARD without MULTI")
    ctx.session.leave_transaction()
    return OK


@command(
    "WATCH key [key ...]",
    "noscript loading stale fast allow_busy unqueued",
    since="2.2.0",
    complexity="O(1) for every key",
    keys="RO",
)
def watch(ctx: Context, args: Args) -> object:
    """Monitors changes to keys to determine the execution of a transaction.

    The reply is OK. The next EXEC does nothing if any client changes one of the keys before then. A
    client can watch at most 100,000 keys. One more is an error, and the keys before it stay
    watched.
    """
    session = ctx.session
    if session.queue is not None:
        raise CommandError(WATCH_INSIDE)
    for key in args.rest():
        if (ctx.db.index, key) in session.watches:
            continue
        if len(session.watches) >= WATCHES_MAX:
            raise CommandError(TOO_MANY_WATCHES)
        session.watches[ctx.db.index, key] = (ctx.db, begin_watch(ctx.db, key))
    return OK


@command("UNWATCH", "noscript loading stale fast allow_busy", since="2.2.0")
def unwatch(ctx: Context, args: Args) -> object:
    """Forgets about watched keys of a transaction."""
    ctx.session.forget_watches()
    return OK
