"""Removes the consumers of a group that have left: CONSUMERTTL of TGROUP.

A consumer leaves if it holds no entry, does not wait, and was not seen for the time that the rules
name. A timer of the group looks at the consumers, some in each turn.
"""

from __future__ import annotations

from millstream.commands.runtime.context import Context
from millstream.commands.runtime.effects import EFFECT_BYTES
from millstream.commands.runtime.stream_effects import CONSUMERDROP
from millstream.errors import CommandError
from millstream.storage.groups.group import Group
from millstream.storage.groups.pending_sweeps import delete_consumer, idle_consumers

# The least time between two looks at all consumers: one leaves within a second.
AGAIN_MS = 500
# The delay of a look that finds no space in the journal.
NO_ROOM_MS = 1000
# The most consumers that one turn looks at, and removes.
LOOKS_MAX = 2000
REMOVED_MAX = 100


def remove_idle_consumers(ctx: Context, key: bytes, group: Group) -> None:
    """Remove idle consumers, and set the time of the next look."""
    rules = group.rules
    assert rules is not None
    first = rules.consumer_looked
    seen_before_ms = ctx.steady_ms - rules.consumer_ttl_ms
    idle, following, oldest_ms = idle_consumers(group, seen_before_ms, first, LOOKS_MAX)
    if idle:
        blocked = _blocked_consumers(ctx, key, group.name)
        idle = [name for name in idle if name not in blocked]
    if not _remove(ctx, key, group, idle[:REMOVED_MAX]):
        rules.consumer_check_ms = ctx.steady_ms + NO_ROOM_MS
    elif len(idle) > REMOVED_MAX:
        rules.consumer_check_ms = ctx.steady_ms + 1
    elif following:
        rules.consumer_looked = following
        rules.consumer_check_ms = ctx.steady_ms + 1
    else:
        rules.consumer_looked = 0
        rules.consumer_check_ms = ctx.steady_ms + AGAIN_MS
        if first == 0:  # all were looked at: none leaves earlier, and none that is created now
            soonest_ms = min(oldest_ms, ctx.steady_ms) + rules.consumer_ttl_ms
            rules.consumer_check_ms = max(rules.consumer_check_ms, soonest_ms)


def _remove(ctx: Context, key: bytes, group: Group, names: list[bytes]) -> bool:
    """Remove consumers; False if the journal has no space for that."""
    words = EFFECT_BYTES + len(key) + len(group.name)
    try:
        ctx.effects.require_room(sum(words + len(name) for name in names))
    except CommandError:
        return False
    for name in names:
        delete_consumer(group, name)
        ctx.changed(CONSUMERDROP, key, group.name, name, event=b"xgroup-delconsumer")
    return True


def _blocked_consumers(ctx: Context, key: bytes, name: bytes) -> set[bytes]:
    """The names of the consumers of a group that wait in an XREADGROUP."""
    waiting = ctx.db.waiting.get(key)
    return set() if waiting is None else waiting.consumers_of(name)
