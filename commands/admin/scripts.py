"""Scripts: there is no Lua, but a few known scripts are implemented.

Clients release or extend a lock with a script. Its text is fixed, so its SHA1 identifies it. This
module has a function for each of these scripts; any other script is refused. Therefore locks of
redis-py work without an interpreter. As in Redis, a digest is known after its text was loaded by
SCRIPT LOAD or EVAL, until SCRIPT FLUSH or the end of the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from millstream.commands.generic.expiry import expire_from_now
from millstream.commands.generic.keys import delete_keys, look_up, look_up_no_touch
from millstream.commands.generic.strings import as_string
from millstream.commands.runtime.arguments import Args, parse_integer
from millstream.commands.runtime.context import Context, Session
from millstream.commands.runtime.replies import OK
from millstream.commands.table.containers import Container, wrong_subcommand
from millstream.commands.table.registry import CommandGroup
from millstream.errors import NOT_INTEGER, CommandError

command = CommandGroup("scripting", since="2.6.0")

NO_SCRIPT = "NOSCRIPT No matching script. Please use EVAL."
NOT_RUNNING = "NOTBUSY No scripts in execution right now."
DIGEST_LETTERS = 40


if TYPE_CHECKING:

    class ScriptAccess(Protocol):
        def check_script(self, client: Session, words: list[bytes]) -> None:
            """Refuses a command that a script runs, if the client's user may not run it."""

    class ScriptHost(Protocol):
        @property
        def access(self) -> ScriptAccess: ...


class Script:
    """A known script: its name, its function, and the number of arguments that it reads."""

    def __init__(
        self,
        title: str,
        run: Callable[[Context, bytes, list[bytes]], int],
        arguments: int,
    ) -> None:
        self.title = title
        self.run = run
        self.arguments = arguments


# ---------------------------------------------------------------- locks: a key that holds a token


def _is_held(ctx: Context, key: bytes, token: bytes) -> bool:
    _runs(ctx, b"GET", key)
    return as_string(look_up(ctx, key)) == token


def _runs(ctx: Context[ScriptHost], *words: bytes) -> None:
    """Check that the user may run a command that the script runs."""
    if ctx.session.permission is not None:
        ctx.server.access.check_script(ctx.session, list(words))


def _must_write(ctx: Context, *words: bytes) -> None:
    """Refuse a write by a script while writes are refused. As in Redis, EVAL itself is not a write
    command."""
    _runs(ctx, *words)
    if ctx.write_error is not None:
        raise CommandError(ctx.write_error)


def _number(text: bytes) -> int:
    number = parse_integer(text)
    if number is None:
        raise CommandError(NOT_INTEGER)
    return number


def release(ctx: Context, key: bytes, arguments: list[bytes]) -> int:
    """Arguments: token. Delete the lock; 1, or 0 when it is not held with this token."""
    if not _is_held(ctx, key, arguments[0]):
        return 0
    _must_write(ctx, b"DEL", key)
    delete_keys(ctx, [key])
    return 1


def reacquire(ctx: Context, key: bytes, arguments: list[bytes]) -> int:
    """Arguments: token, milliseconds. Set the lock's time to live; 1, or 0 when it is not held with
    this token."""
    if not _is_held(ctx, key, arguments[0]):
        return 0
    _must_write(ctx, b"PEXPIRE", key, arguments[1])
    expire_from_now(ctx, key, _number(arguments[1]))
    return 1


def extend(ctx: Context, key: bytes, arguments: list[bytes]) -> int:
    """Arguments: token, milliseconds, replace. Extend the lock's time to live by the milliseconds
    (replace is 0), or set it to them. 1, or 0 when the lock is not held with this token or never
    expires."""
    token, text, *replace = arguments
    if not _is_held(ctx, key, token):
        return 0
    _runs(ctx, b"PTTL", key)
    look_up_no_touch(ctx, key)  # the script's PTTL, which Redis counts as a look-up
    at_ms = ctx.db.expiry_ms(key)
    if not at_ms:
        return 0
    _must_write(ctx, b"PEXPIRE", key, text)
    left_ms = at_ms - ctx.now_ms if replace in ([], [b"0"]) else 0
    expire_from_now(ctx, key, left_ms + _number(text))
    return 1


# By the SHA1 of their text.
SCRIPTS = {
    b"c3f8721cbb97f72bc19e972846bd7aaf91901658": Script("release of a redis-py lock", release, 1),
    b"a4e8783852e6b949f9ef3a97212805108459a890": Script("extend of a redis-py lock", extend, 3),
    b"1cac51482acf5858da00f6d685d68f886cd6b6b2": Script(
        "reacquire of a redis-py lock", reacquire, 2
    ),
    # redis-py before 3.5: always adds to the time to live
    b"4a484ac024e9b025224cd9f8e1d59dbf3c15d00d": Script("extend of an old redis-py", extend, 2),
}
UNKNOWN_TEXT = (
    "ERR this server does not run Lua, only the scripts of redis-py's locks, "
    "which it knows by SHA1: "
) + ", ".join(f"{digest.decode()} ({script.title})" for digest, script in SCRIPTS.items())


def _load(ctx: Context, text: bytes) -> bytes:
    """Load a known script; return its digest."""
    from hashlib import sha1

    digest = sha1(text, usedforsecurity=False).hexdigest().encode()
    if digest not in SCRIPTS:
        raise CommandError(UNKNOWN_TEXT)
    ctx.scripts.add(digest)
    return digest


# ---------------------------------------------------------------- running


def _take_key_count(args: Args) -> int:
    keys = args.take_int()
    if keys > args.remaining:
        raise CommandError("ERR Number of keys can't be greater than number of args")
    if keys < 0:
        raise CommandError("ERR Number of keys can't be negative")
    return keys


def _run(ctx: Context, digest: bytes, keys: int, words: list[bytes]) -> int:
    script = SCRIPTS[digest]
    arguments = words[keys:]
    if not keys or len(arguments) < script.arguments:
        raise CommandError(
            f"ERR the {script.title} takes one key and {script.arguments} argument(s)"
        )
    return script.run(ctx, words[0], arguments[: script.arguments])


@command(
    "EVAL script numkeys [key [key ...]] [arg [arg ...]]",
    "noscript stale skip_monitor tells",
    complexity="O(1), like every known script",
)
def eval_(ctx: Context, args: Args) -> object:
    """Executes a server-side Lua script.

    The reply is the result of the script. There is no Lua: the server knows only the scripts of
    redis-py's `Lock` (release, extend, reacquire), by the SHA1 of their text. Any other script is
    an error.
    """
    text = args.take()
    keys = _take_key_count(args)
    return _run(ctx, _load(ctx, text), keys, args.rest())


@command(
    "EVALSHA sha1 numkeys [key [key ...]] [arg [arg ...]]",
    "noscript stale skip_monitor tells",
    complexity="O(1), like every known script",
)
def evalsha(ctx: Context, args: Args) -> object:
    """Executes a server-side Lua script by SHA1 digest.

    Works like EVAL, for a script that was loaded with SCRIPT LOAD or EVAL. If it was not loaded,
    the error is `NOSCRIPT`, and clients then load the script.
    """
    digest = args.take().lower()
    if len(digest) != DIGEST_LETTERS:
        raise CommandError(NO_SCRIPT)
    keys = _take_key_count(args)
    if digest not in ctx.scripts:
        raise CommandError(NO_SCRIPT)
    return _run(ctx, digest, keys, args.rest())


# ---------------------------------------------------------------- SCRIPT, FUNCTION


def _takes_mode(args: Args) -> bool:
    """True if the remaining words are empty, or ASYNC or SYNC."""
    chosen = args.option(b"ASYNC") or args.option(b"SYNC")
    return not args.remaining and (chosen or args.count == 2)


script_command = Container(
    "SCRIPT",
    "scripting",
    "A container for Lua scripts management commands.",
    since="2.6.0",
    tags="noscript",
)


@script_command(
    "LOAD script",
    "stale request_policy:all_nodes response_policy:all_succeeded",
    complexity="O(N), N the length of the script",
)
def script_load(ctx: Context, args: Args) -> object:
    """Loads a server-side Lua script to the script cache.

    The reply is the SHA1 of the text, for EVALSHA. If the script is not one of the known scripts
    (see EVAL), the reply is an error that names them.
    """
    return _load(ctx, args.take())


@script_command(
    "EXISTS sha1 [sha1 ...]",
    "request_policy:all_shards response_policy:agg_logical_and",
    complexity="O(N), N the number of digests",
)
def script_exists(ctx: Context, args: Args) -> object:
    """Determines whether server-side Lua scripts exist in the script cache.

    For each digest, 1 if its script is loaded, otherwise 0."""
    return [int(digest.lower() in ctx.scripts) for digest in args.rest()]


@script_command(
    "FLUSH [flush-type: ASYNC | SYNC]", "request_policy:all_nodes response_policy:all_succeeded"
)
def script_flush(ctx: Context, args: Args) -> object:
    """Removes all server-side Lua scripts from the script cache.

    The reply is OK; scripts must be loaded again."""
    if not _takes_mode(args):
        raise CommandError("ERR SCRIPT FLUSH only support SYNC|ASYNC option")
    ctx.scripts.clear()
    return OK


@script_command("KILL", "allow_busy request_policy:all_shards response_policy:one_succeeded")
def script_kill(ctx: Context, args: Args) -> object:
    """Terminates a server-side Lua script during execution.

    The reply is always the error `NOTBUSY`: no script is still running when another command
    arrives."""
    raise CommandError(NOT_RUNNING)


function_command = Container(
    "FUNCTION",
    "scripting",
    "A container for function commands.",
    since="7.0.0",
    tags="write noscript",
)


@function_command(
    "FLUSH [flush-type: ASYNC | SYNC]", "request_policy:all_shards response_policy:all_succeeded"
)
def function_flush(ctx: Context, args: Args) -> object:
    """Deletes all libraries and functions.

    The reply is OK: there are no functions, and none can be loaded."""
    if args.remaining > 1:
        raise wrong_subcommand("FUNCTION", args[1])
    if not _takes_mode(args):
        raise CommandError("ERR FUNCTION FLUSH only supports SYNC|ASYNC option")
    return OK
