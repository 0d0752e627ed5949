"""TINFO: details of a stream as a whole, the rules of one of its groups, and the progress of one of
its producers."""

from __future__ import annotations

from millstream.commands.draft.tgroup import rules_of
from millstream.commands.draft.tpolicy import policy_reply
from millstream.commands.engine.group_replies import shown_count
from millstream.commands.engine.lifecycle import live_group, live_held
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError
from millstream.ids import Id
from millstream.storage.groups.dead_entries import dead_count
from millstream.storage.groups.group import UNTIL_RESUMED, Group
from millstream.storage.reservations.held import handed_out_id
from millstream.storage.streams.head_eviction import lost_by
from millstream.storage.streams.lineage import Lineage
from millstream.storage.streams.retention import bytes_of
from millstream.storage.streams.settled import oldest_held_entry
from millstream.storage.streams.stream import Stream

Fields = dict[bytes, object]
UINT64_MAX = 2**64 - 1


@command("TINFO key [GROUP group | PRODUCER name]", "readonly")
def tinfo(ctx: Context, args: Args) -> Fields | bytes | None:
    """Returns details of a stream as a whole, of one of its groups, or the last seq of a
    producer."""
    key = args.take()
    group_name = producer_name = None
    if args.remaining:
        is_group = args.option(b"GROUP")
        if not (is_group or args.option(b"PRODUCER")) or args.remaining != 1:
            raise CommandError(SYNTAX)
        if is_group:
            group_name = args.take()
        else:
            producer_name = args.take()
    stream = ctx.read_for_update(key)
    if stream is None:
        return None
    if producer_name is not None:
        return _last_seq(stream, producer_name)
    if group_name is not None:
        group = live_group(ctx, key, stream, group_name)
        return None if group is None else _group_fields(stream, group, ctx.steady_ms)
    return (
        {
            b"first-id": None if stream.first_id is None else Id(*stream.first_id, True),
            b"last-id": Id(*stream.last_id, True),
            b"max-evicted-id": Id(*stream.max_evicted_id, True),
            b"length": len(stream),
            b"entries-added": shown_count(stream.entries_added),
            b"entries-evicted": stream.entries_evicted,
            b"entries-deleted": stream.entries_deleted,
            b"blocks": stream.block_count,
            b"bytes": bytes_of(stream),
            b"groups": stream.live_group_count(ctx.steady_ms),
            b"producers": 0 if stream.producers is None else len(stream.producers),
            b"policy": policy_reply(stream.policy),
            b"incarnation": stream.incarnation,
        }
        | _ordering_fields(ctx, key, stream)
        | _held_fields(stream)
    )


def _last_seq(stream: Stream, producer: bytes) -> bytes | None:
    """As text: a seq has up to 64 bits, and an integer of the protocol has a sign."""
    seq = None if stream.producers is None else stream.producers.last_seq(producer)
    return None if seq is None else b"%d" % seq


def _held_fields(stream: Stream) -> Fields:
    """The group that holds the oldest entry, and the entry."""
    held = oldest_held_entry(stream)
    if held is None:
        return {b"held-by": None, b"held-id": None}
    name, entry_id = held
    return {b"held-by": name, b"held-id": Id(*entry_id, True)}


def _group_fields(stream: Stream, group: Group, now_ms: int) -> Fields:
    """The rules of a group, and how many of its pending entries are with readers or wait."""
    rules, dead = rules_of(group), dead_count(group.pending)
    order, order_field = rules["order"]
    return {
        b"timeout": rules["timeout_ms"],
        b"backoff": list(rules["backoff_ms"]),
        b"maxdeliver": rules["max_deliver"],
        b"deadletter": rules["dead_letter"],
        b"maxinflight": rules["max_in_flight"],
        b"order": order,
        b"order-field": order_field,
        b"run": rules["run"],
        b"where": rules["where"],
        b"consumer-ttl": rules["consumer_ttl_ms"],
        b"ttl": group.ttl_ms,
        b"pause": _pause_left_ms(rules["paused_until_ms"], now_ms),
        b"in-flight": group.in_flight,
        b"waiting": group.pending.waiting_count - dead,
        b"parked": group.parked,
        b"dead": dead,
        b"dead-letters": sum(group.dead_letters.values()),
        b"lost": lost_by(stream, group),
    }


def _pause_left_ms(until_ms: int, now_ms: int) -> int:
    """The rest of a pause; -1 if only PAUSE 0 ends it."""
    return -1 if until_ms == UNTIL_RESUMED else max(0, until_ms - now_ms)


def _ordering_fields(ctx: Context, key: bytes, stream: Stream) -> Fields:
    """Reservations, promises, lineage and scheduled entries."""
    held = live_held(ctx, key, stream)
    oldest = None if held is None else held.oldest_id
    lineage = stream.lineage or Lineage()
    promised = (ctx.keyspace.promised_ms, UINT64_MAX) if stream.is_followed else None
    return {
        b"handed-out-id": Id(*handed_out_id(stream), True),
        b"reservations": 0 if held is None else held.reservations,
        b"held": 0 if held is None else held.entries,
        b"held-bytes": 0 if held is None else held.size_bytes,
        b"oldest-reservation": None if oldest is None else Id(*oldest, True),
        b"writers": 0 if held is None else len(held.writers.by_name),
        b"promised-id": None if promised is None else Id(*promised, True),
        b"sealed": int(stream.is_sealed),
        b"parents": lineage.parents,
        b"children": lineage.children,
        b"scheduled": 0 if stream.schedule is None else len(stream.schedule),
        b"next-scheduled": stream.schedule.next_due_ms if stream.schedule else None,
    }
