"""The pending entries of a group: XPENDING, XCLAIM, XAUTOCLAIM, XNACK.

Entries delivered by TREAD have no owner and may have a retry and an expiry. A consumer that claims
such an entry owns it, and the entry loses its retry and expiry. Entries released by XNACK have no
owner, and 0 as their last delivery: a claim finds these entries first, whatever its minimum idle
time. A released entry keeps its retry, which is due at once. Semantics and error words are Redis
8.6's, those of XNACK 8.8's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.clock_offset import shifted_ms
from millstream.commands.engine.delivery import drop_gone
from millstream.commands.engine.entries_by_id import entries_by_id
from millstream.commands.engine.group_replies import pending_range
from millstream.commands.engine.lifecycle import (
    change_entries,
    checked_consumer_name,
    live_group,
    note_seen,
    note_used,
    read_effects_most,
    requesting_consumer,
    take_group,
)
from millstream.commands.engine.listings import pending_summary
from millstream.commands.engine.ranges import take_end_id, take_start_id
from millstream.commands.runtime.replies import ArrayHead, Raw, Several
from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError, shown
from millstream.ids import Id, parse
from millstream.storage.streams.stream import Claim

if TYPE_CHECKING:
    from millstream.commands.runtime.arguments import Args
    from millstream.commands.runtime.context import Context
    from millstream.storage.streams.consumers import Consumer
    from millstream.storage.streams.group import Group
    from millstream.storage.streams.stream import Stream

EntryId = tuple[int, int]

LOOKS_PER_CLAIM = 10  # XAUTOCLAIM examines this number of entries for each that it may return
DEFAULT_COUNT = 100
# The maximum COUNT of XAUTOCLAIM, so that the size of the IDs fits into a 64-bit number, as in
# Redis: an ID has 16 bytes.
COUNT_LARGEST = (2**63 - 1) // 16
IDS_AT_ONCE = 128
NO_ID, LAST_ID = (0, 0), (2**64 - 1, 2**64 - 1)

COUNT_NOT_POSITIVE = "ERR COUNT must be > 0"
BAD_RETRYCOUNT = "ERR Invalid RETRYCOUNT value, must be >= 0"
NACK_NOT_POSITIVE = "ERR numids must be a positive integer"
NACK_TOO_FEW = "ERR number of IDs doesn't match numids"


def _asked(ctx: Context, args: Args) -> tuple[bytes, Stream, Group]:
    """Key, stream and group of a command whose first words are a key and a group."""
    key, name, stream, group = take_group(ctx, args)
    if stream is None or group is None:
        raise _no_group(key, name)
    return key, stream, group


def _group_in(
    ctx: Context, key: bytes, stream: Stream | None, name: bytes
) -> tuple[bytes, Stream, Group]:
    group = None if stream is None else live_group(ctx, key, stream, name)
    if stream is None or group is None:
        raise _no_group(key, name)
    return key, stream, group


def _no_group(key: bytes, name: bytes) -> CommandError:
    return CommandError(f"NOGROUP No such key '{shown(key)}' or consumer group '{shown(name)}'")


# ---------------------------------------------------------------- XPENDING


@command(
    "XPENDING key group [filters: [IDLE min-idle-time:integer] start end count [consumer]]",
    "readonly nondeterministic_output",
    complexity="O(log n) to find the start and O(m) for the m pending entries looked at",
    since="5.0.0",
)
def xpending(ctx: Context, args: Args) -> object:
    """Returns a summary or a list of a group's pending entries."""
    if args.count == 3:
        key, _, group = _asked(ctx, args)
        note_used(ctx, key, group)
        return pending_summary(group)
    if not 6 <= args.count <= 9:
        raise CommandError(SYNTAX)
    args.pos = 3
    min_idle_ms = 0
    if args.option(b"IDLE"):
        min_idle_ms = args.take_int()
        if args.count < 8:
            raise CommandError(SYNTAX)
    # The count is checked before the IDs, as in Redis.
    args.pos += 2
    limit = args.take_int()
    args.pos -= 3
    start, end = take_start_id(args), take_end_id(args)
    args.pos += 1
    name = args.take() if args.remaining else None
    args.pos = 1
    key, _, group = _asked(ctx, args)
    note_used(ctx, key, group)
    owner = None if name is None else group.consumer(name)
    if name is not None and owner is None:
        return []
    return pending_range(group, start, end, limit, min_idle_ms, ctx.steady_ms, owner)


# ---------------------------------------------------------------- claiming


def _record_claim(ctx: Context, key: bytes, group: Group, consumer: Consumer, claim: Claim) -> None:
    """Record a claim as one effect. `claim.count` is the new number of deliveries: a number, `+`
    for one more, `=` for no change."""
    claimed = claim.claimed
    if claimed:
        name, now_ms = consumer.name, ctx.steady_ms
        effect = (b"CLAIM", key, group.name, name, now_ms, claim.delivery_ms, claim.count)
        change_entries(ctx, effect, claimed, None, len(claimed))
        if claim.count != b"=":
            ctx.keyspace.redelivered_claimed += len(claimed)
    else:
        note_seen(ctx, key, group, consumer)


# ---------------------------------------------------------------- XCLAIM


class _ClaimOptions:
    delivery_ms: int
    count = b"+"  # in the form of the effect
    force = False
    just_id = False
    last_id: EntryId | None = None


@command(
    "XCLAIM key group consumer min-idle-time id [id ...] [IDLE ms] [TIME unix-time-milliseconds] "
    "[RETRYCOUNT count] [FORCE] [JUSTID] [LASTID lastid]",
    "write fast nondeterministic_output",
    complexity="O(log n) for each id, n the number of the group's pending entries",
    since="5.0.0",
)
def xclaim(ctx: Context, args: Args) -> list[Raw] | list[Id]:
    """Transfers pending entries with a given idle time to a consumer, by ID."""
    key, stream, group = _asked(ctx, args)
    name = args.take()
    min_idle_ms = args.take_int_or("ERR Invalid min-idle-time argument for XCLAIM")
    ids = _take_ids(args)
    options = _take_claim_options(ctx, args)
    checked_consumer_name(name)
    if options.last_id is not None and (group.offset_ms, group.offset_seq) < options.last_id:
        _move_offset(ctx, key, group, options.last_id)
    consumer = requesting_consumer(ctx, key, group, name)
    idle_ms, delivery_ms, count = max(min_idle_ms, 0), options.delivery_ms, options.count
    claim = Claim(idle_ms, delivery_ms, count, ctx.steady_ms, options.force)
    try:
        stream.claim(group, consumer, ids, len(ids), claim)
    finally:
        _record_claim(ctx, key, group, consumer, claim)
        drop_gone(ctx, key, group, claim.gone)
    note_used(ctx, key, group)
    if options.just_id:
        return [Id(*entry_id) for entry_id in claim.claimed]
    return [Raw(stream.encoded_entry(*entry_id) or b"") for entry_id in claim.claimed]


def _take_ids(args: Args) -> list[EntryId]:
    """Take the IDs of an XCLAIM; the first word that is not an ID begins the options."""
    ids = []
    while args.remaining:
        try:
            ids.append(parse(args[args.pos], False))
        except ValueError:
            break
        args.pos += 1
    return ids


def _take_claim_options(ctx: Context, args: Args) -> _ClaimOptions:
    options = _ClaimOptions()
    at_ms = ctx.steady_ms
    retry_count = -1
    while args.remaining:
        if args.option(b"FORCE"):
            options.force = True
        elif args.option(b"JUSTID"):
            options.just_id = True
        elif args.remaining < 2:
            raise _unknown_option(args)
        elif args.option(b"IDLE"):
            idle_ms = args.take_int_or("ERR Invalid IDLE option argument for XCLAIM")
            at_ms = ctx.steady_ms - max(idle_ms, 0)
        elif args.option(b"TIME"):
            wall_ms = args.take_int_or("ERR Invalid TIME option argument for XCLAIM")
            # A time in the future is replaced by now, as in Redis.
            is_past = wall_ms <= ctx.now_ms
            at_ms = shifted_ms(wall_ms, -ctx.wall_ahead_ms) if is_past else ctx.steady_ms
        elif args.option(b"RETRYCOUNT"):
            retry_count = args.take_int_or("ERR Invalid RETRYCOUNT option argument for XCLAIM")
        elif args.option(b"LASTID"):
            options.last_id = args.take_entry_id()
        else:
            raise _unknown_option(args)
    # So is a time before 1970.
    options.delivery_ms = at_ms if at_ms >= 0 else ctx.steady_ms
    if retry_count >= 0:
        options.count = b"%d" % retry_count
    elif options.just_id:
        options.count = b"="
    return options


def _unknown_option(args: Args) -> CommandError:
    return CommandError(f"ERR Unrecognized XCLAIM option '{shown(args[args.pos])}'")


def _move_offset(ctx: Context, key: bytes, group: Group, last_id: EntryId) -> None:
    """LASTID: the group continues after this ID; its number of entries read does not change."""
    group.offset_ms, group.offset_seq = last_id
    last, read = bytes(Id(*last_id)), b"%d" % group.entries_read
    ctx.changed(b"GROUPSETID", key, group.name, last, read, event=None)


# ---------------------------------------------------------------- XAUTOCLAIM


@command(
    "XAUTOCLAIM key group consumer min-idle-time start [COUNT count] [JUSTID]",
    "write fast nondeterministic_output",
    since="6.2.0",
    complexity="O(1) if COUNT is small",
    keys="RW delete",
)
def xautoclaim(ctx: Context, args: Args) -> Several | list[object]:
    """Transfers pending entries with a given idle time to a consumer, in ID order."""
    refusal = stream = None
    key, group_name, name = args.take(), args.take(), args.take()
    try:
        stream = ctx.read_for_update(key)
    except CommandError as error:
        refusal = error  # Redis looks up the key first, and checks its type after the arguments
    min_idle_ms = args.take_int_or("ERR Invalid min-idle-time argument for XAUTOCLAIM")
    start = take_start_id(args)
    count, just_id = _take_scan_options(args)
    if refusal is not None:
        raise refusal
    key, stream, group = _group_in(ctx, key, stream, group_name)
    checked_consumer_name(name)
    ids_most = min(count, group.pending_count)
    ctx.effects.require_room(read_effects_most(key, group, name, ids_most))
    consumer = requesting_consumer(ctx, key, group, name)
    claim = Claim(max(min_idle_ms, 0), ctx.steady_ms, b"=" if just_id else b"+", ctx.steady_ms)
    claimed, gone = claim.claimed, claim.gone
    looks = count * LOOKS_PER_CLAIM
    try:
        following = NO_ID
        while ids := group.ids_from(*start, IDS_AT_ONCE):
            most = count - len(claimed) - len(gone)
            seen = stream.claim(group, consumer, ids[:looks], most, claim)
            looks -= seen
            if seen < len(ids):
                following = ids[seen]
                break
            if ids[-1] == LAST_ID:
                break
            start = _above(ids[-1])
    finally:
        _record_claim(ctx, key, group, consumer, claim)
        drop_gone(ctx, key, group, gone)
    note_used(ctx, key, group)
    gone_ids = [Id(*entry_id) for entry_id in gone]
    if just_id:
        return [Id(*following), [Id(*entry_id) for entry_id in claimed], gone_ids]
    entries = [ArrayHead(len(claimed)), entries_by_id(stream, claimed)]
    return Several([ArrayHead(3), Id(*following), *entries, gone_ids])


def _above(entry_id: EntryId) -> EntryId:
    ms, seq = entry_id
    return (ms, seq + 1) if seq < LAST_ID[1] else (ms + 1, 0)


def _take_scan_options(args: Args) -> tuple[int, bool]:
    """Take the options: the maximum of entries to claim, and whether only IDs are wanted."""
    count, just_id = DEFAULT_COUNT, False
    while args.remaining:
        if args.remaining > 1 and args.option(b"COUNT"):
            count = args.take_int_or(COUNT_NOT_POSITIVE)
            if not 0 < count <= COUNT_LARGEST:
                raise CommandError(COUNT_NOT_POSITIVE)
        elif args.option(b"JUSTID"):
            just_id = True
        else:
            raise CommandError(SYNTAX)
    return count, just_id


# ---------------------------------------------------------------- XNACK


@command(
    "XNACK key group <mode: SILENT | FAIL | FATAL> {ids: IDS numids id [id ...]} [RETRYCOUNT "
    "count] [FORCE]",
    "write fast",
    since="8.8.0",
    complexity="O(log n) for each id, n the number of the group's pending entries",
)
def xnack(ctx: Context, args: Args) -> int:
    """Returns pending entries to the group without an owner; any consumer can claim them."""
    key, stream, group = _asked(ctx, args)
    count = _take_mode(args)
    force = False
    first = given = 0
    while args.remaining:
        if args.remaining > 1 and args.option(b"IDS"):
            first = args.pos + 1
            given = args.skip_ids(NACK_NOT_POSITIVE, NACK_TOO_FEW)
        elif args.remaining > 1 and args.option(b"RETRYCOUNT"):
            count = b"%d" % _take_retry_count(args)
        elif args.option(b"FORCE"):
            force = True
        else:
            raise CommandError(f"ERR Unrecognized XNACK option '{shown(args[args.pos])}'")
    if not given:
        raise CommandError("ERR syntax error, expected IDS keyword")
    released = []
    for entry_id in args.ids_at(first, given):
        if group.has(*entry_id) or (force and stream.has_entry(*entry_id)):
            group.release(*entry_id, count, ctx.steady_ms)
            released.append(entry_id)
    if released:
        # Released entries can be claimed at once: the effect wakes the readers.
        effect = (b"RELEASE", key, group.name, ctx.steady_ms, count)
        change_entries(ctx, effect, released, None, len(released))
    note_used(ctx, key, group)
    return len(released)


def _take_mode(args: Args) -> bytes:
    """Take the mode, as the effect's new number of deliveries: a number, `-` for one less, `=` for
    no change."""
    if args.option(b"SILENT"):
        return b"-"
    if args.option(b"FAIL"):
        return b"="
    if args.option(b"FATAL"):
        return b"%d" % (2**63 - 1)
    raise CommandError("ERR mode must be SILENT, FAIL, or FATAL")


def _take_retry_count(args: Args) -> int:
    count = args.take_int()
    if count < 0:
        raise CommandError(BAD_RETRYCOUNT)
    return count
