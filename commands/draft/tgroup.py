"""TGROUP: the rules of a consumer group, stored with the group and enforced by the server.

With a TIMEOUT the group is managed: an entry that is not acknowledged within this time is due, and
the next read of the group delivers it again, whatever the dialect of the reader.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.commands.draft.tnack import DELAY_MAX_MS
from millstream.commands.engine.claiming import no_group
from millstream.commands.engine.lifecycle import live_group, new_group, note_used
from millstream.commands.runtime.arguments import Args, parse_integer
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import OK, Simple
from millstream.commands.runtime.stream_effects import GROUPRULES, GROUPTTL
from millstream.commands.table.registry import command
from millstream.errors import INVALID_ID, NOT_INTEGER, SYNTAX, CommandError
from millstream.ids import parse
from millstream.storage.groups.group import Group
from millstream.storage.streams.stream import Stream

OPTIONS = (b"START", b"TTL", b"TIMEOUT", b"BACKOFF")
TIMEOUT_MAX_MS = 86_400_000
DELAYS_MAX = 16
BAD_TIMEOUT = f"ERR TIMEOUT must be from 0 to {TIMEOUT_MAX_MS}"
BAD_DELAYS = f"ERR BACKOFF must have from 0 to {DELAYS_MAX} values"
BAD_DELAY = f"ERR a BACKOFF value must be from 0 to {DELAY_MAX_MS}"
NEEDS_TIMEOUT = "ERR BACKOFF needs a TIMEOUT"


@dataclass
class Rules:
    """The options of a request; None: not given. `start` is b"$" or an ID."""

    start: bytes | tuple[int, int] | None = None
    ttl_ms: int | None = None
    timeout_ms: int | None = None
    backoff_ms: tuple[int, ...] | None = None


@command(
    "TGROUP key group [START id] [TTL ms] [TIMEOUT ms] [BACKOFF numdelays [ms ...]]",
    "write",
    complexity="O(1)",
)
def tgroup(ctx: Context, args: Args) -> Simple:
    """Sets the rules by which the server delivers the entries of a consumer group.

    Rules that are not given stay as they are. Options come in any order, and of a repeated one the
    last counts. The reply is OK.
    """
    key, name = args.take(), args.take()
    rules = _take_rules(args)
    stream = ctx.write_stream(key)
    group = None if stream is None else live_group(ctx, key, stream, name)
    timeout_ms, backoff_ms = _resulting(rules, group)
    if stream is None or group is None:
        if rules.start is None:
            raise no_group(key, name)
        _check(timeout_ms, backoff_ms)
        stream, group = _make_group(ctx, key, name, rules)
    else:
        _check(timeout_ms, backoff_ms)
    if rules.ttl_ms is not None and rules.ttl_ms != group.ttl_ms:
        stream.set_ttl(group, rules.ttl_ms, ctx.steady_ms)
        ctx.changed(GROUPTTL, key, name, rules.ttl_ms, event=None)
    if (timeout_ms, backoff_ms) != (group.timeout_ms, group.backoff_ms):
        group.set_delivery_rules(timeout_ms, backoff_ms)
        ctx.keyspace.has_rules = True
        # Entries may be due for readers that wait: the effect wakes them.
        delays = (len(backoff_ms), *backoff_ms)
        words: tuple[bytes | int, ...] = (b"TIMEOUT", timeout_ms, b"BACKOFF", *delays)
        ctx.changed(GROUPRULES, key, name, *words, event=None)
    note_used(ctx, key, group)
    return OK


def _take_rules(args: Args) -> Rules:
    """The options from the cursor on. Unknown words are refused before malformed values."""
    first = args.pos
    while args.remaining and _skip_option(args):
        pass
    args.pos = first
    rules = Rules()
    while args.remaining:
        word = args.take().upper()
        if word == b"START":
            rules.start = _take_start(args)
        elif word == b"TTL":
            rules.ttl_ms = args.take_int_between(0, 2**63 - 1, NOT_INTEGER)
        elif word == b"TIMEOUT":
            rules.timeout_ms = args.take_int_between(0, TIMEOUT_MAX_MS, BAD_TIMEOUT)
        else:
            count = args.take_int_between(0, DELAYS_MAX, BAD_DELAYS)
            rules.backoff_ms = tuple(
                args.take_int_between(0, DELAY_MAX_MS, BAD_DELAY) for _ in range(count)
            )
    return rules


def _skip_option(args: Args) -> bool:
    """Skip an option with its values; False if the number of its values is malformed."""
    word = args.take().upper()
    if word not in OPTIONS or not args.remaining:
        raise CommandError(SYNTAX)
    value = args.take()
    if word != b"BACKOFF":
        return True
    count = parse_integer(value)
    if count is None or not 0 <= count <= DELAYS_MAX:
        return False
    if args.remaining < count:
        raise CommandError(SYNTAX)
    args.pos += count
    return True


def _take_start(args: Args) -> bytes | tuple[int, int]:
    word = args.take()
    if word == b"$":
        return word
    try:
        return parse(word, True)
    except ValueError:
        raise CommandError(INVALID_ID) from None


def _resulting(rules: Rules, group: Group | None) -> tuple[int, tuple[int, ...]]:
    """The rules of delivery of the group after the request."""
    timeout_ms, backoff_ms = rules.timeout_ms, rules.backoff_ms
    if timeout_ms is None:
        timeout_ms = 0 if group is None else group.timeout_ms
    if backoff_ms is None:
        backoff_ms = () if group is None else group.backoff_ms
    return timeout_ms, backoff_ms


def _check(timeout_ms: int, backoff_ms: tuple[int, ...]) -> None:
    if backoff_ms and not timeout_ms:
        raise CommandError(NEEDS_TIMEOUT)


def _make_group(ctx: Context, key: bytes, name: bytes, rules: Rules) -> tuple[Stream, Group]:
    """Create the group, and the stream if it is missing."""
    if ctx.memory_error is not None:
        raise CommandError(ctx.memory_error)
    stream = ctx.open_stream(key)
    start = stream.last_id if isinstance(rules.start, bytes) else rules.start
    assert start is not None
    entries_read = 0 if start == (0, 0) else -1
    return stream, new_group(ctx, key, stream, name, start, entries_read, rules.ttl_ms or 0)
