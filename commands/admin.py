"""Commands about the server itself: INFO, CONFIG, saving, shutting down, memory.

They ask the process through `ctx.server` (commands/outside); what they decide themselves is the
grammar and the words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.commands.containers import container
from millstream.commands.registry import command
from millstream.commands.replies import NO_REPLY, OK, Simple, Verbatim
from millstream.errors import SYNTAX, CommandError

if TYPE_CHECKING:
    from millstream.commands.arguments import Args
    from millstream.commands.context import Context

KEY_OVERHEAD_BYTES = 120  # a key's place in the table and the headers of its two byte strings


@command(
    "INFO",
    arity=-1,
    flags="loading stale",
    group="server",
    summary="Returns information and statistics about the server.",
    syntax="[section [section ...]]",
    categories=("dangerous",),
)
def info(ctx: Context, args: Args) -> object:
    """Text: `# Section` lines, each followed by `name:value` lines with Redis' names. Sections:
    server, clients, memory, persistence, stats, replication, cpu, modules, errorstats, cluster,
    keyspace; with `all` or `everything` also commandstats."""
    sections = [word.decode("utf-8", "replace").lower() for word in args.rest()]
    return Verbatim(ctx.server.info(sections).encode("utf-8", "surrogateescape"))


@command(
    "TIME",
    arity=1,
    flags="loading stale fast",
    group="server",
    summary="Returns the server time.",
)
def time(ctx: Context, args: Args) -> object:
    """[seconds since 1970, microseconds of that second], the clock commands run by: it moves in
    milliseconds."""
    seconds, rest_ms = divmod(ctx.now_ms, 1000)
    return [str(seconds).encode(), str(rest_ms * 1000).encode()]


# CONFIG

container("CONFIG", group="server", summary="A container for server configuration commands.")


@command(
    "CONFIG|GET",
    arity=-3,
    flags="admin noscript loading stale",
    group="server",
    summary="Returns the effective values of configuration parameters.",
    syntax="parameter [parameter ...]",
    complexity="O(N), N the number of directives",
)
def config_get(ctx: Context, args: Args) -> object:
    """A map from directive to value, for the directives that match one of the glob patterns."""
    found = ctx.server.config_get(args.rest())
    return {
        name.encode(): value.encode("utf-8", "surrogateescape") for name, value in found.items()
    }


@command(
    "CONFIG|SET",
    arity=-4,
    flags="admin noscript loading stale",
    group="server",
    summary="Sets configuration parameters in-flight.",
    syntax="parameter value [parameter value ...]",
    complexity="O(N), N the number of pairs",
)
def config_set(ctx: Context, args: Args) -> object:
    """OK, or an error and then none of the pairs has been set."""
    words = args.rest()
    if len(words) % 2:
        raise CommandError(SYNTAX)
    ctx.server.config_set(list(zip(words[::2], words[1::2], strict=True)))
    return OK


@command(
    "CONFIG|RESETSTAT",
    arity=2,
    flags="admin noscript loading stale",
    group="server",
    summary="Resets the server's statistics.",
)
def config_resetstat(ctx: Context, args: Args) -> object:
    ctx.server.reset_stats()
    return OK


# Saving and stopping


@command(
    "SAVE",
    arity=1,
    flags="admin noscript no_async_loading no_multi",
    group="server",
    summary="Synchronously saves the database(s) to disk.",
    complexity="O(N), N the number of keys in all databases",
)
def save(ctx: Context, args: Args) -> object:
    """OK once the snapshot is on disk. No other client is served meanwhile: prefer BGSAVE."""
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
    """A snapshot in the background, without a fork; LASTSAVE and INFO persistence tell when it
    is done. SCHEDULE: while the journal is rewritten, afterwards instead of an error."""
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
    """A new base and an empty journal in place of a long one; during a BGSAVE, afterwards."""
    return Simple(ctx.server.rewrite().encode())


@command(
    "LASTSAVE",
    arity=1,
    flags="loading stale fast",
    group="server",
    summary="Returns the Unix timestamp of the last successful save to disk.",
    categories=("admin", "dangerous"),
)
def lastsave(ctx: Context, args: Args) -> object:
    return ctx.server.last_save_s


@command(
    "SHUTDOWN",
    arity=-1,
    flags="admin noscript loading stale no_multi allow_busy",
    group="server",
    summary="Synchronously saves the database(s) to disk and shuts down the server.",
    syntax="[NOSAVE | SAVE] [NOW] [FORCE] [ABORT]",
    complexity="O(N) when saving, N the number of keys in all databases",
)
def shutdown(ctx: Context, args: Args) -> object:
    """Closes the connection and stops the server. The journal always gets its last fsync; SAVE
    writes a snapshot as well. NOW is accepted (there are no replicas to wait for); FORCE stops
    even when the snapshot fails. ABORT has nothing to abort."""
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


# MEMORY

container("MEMORY", group="server", summary="A container for memory diagnostics commands.")


@command(
    "MEMORY|USAGE",
    arity=-3,
    flags="readonly",
    keys=(2, 2, 1),
    group="server",
    summary="Estimates the memory usage of a key.",
    syntax="key [SAMPLES count]",
)
def memory_usage(ctx: Context, args: Args) -> object:
    """Bytes that the key and its value take, null when the key does not exist. A stream knows its
    size, so nothing is sampled; SAMPLES is checked and accepted."""
    key = args.take()
    while args.remaining:
        if args.remaining < 2 or not args.option(b"SAMPLES") or args.take_int() < 0:
            raise CommandError(SYNTAX)
    value = ctx.db.get(key)
    if value is None:
        return None
    size = len(value) if isinstance(value, bytes) else value.memory_bytes
    return KEY_OVERHEAD_BYTES + len(key) + size
