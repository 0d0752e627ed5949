"""Tests of groups with rules: what a group holds, and what replaying its effects leads to."""

from __future__ import annotations

from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Reply
from tests.support.storage_access import check_group, key_entries

from millstream.storage.groups.dead_entries import dead_entries
from millstream.storage.groups.group import Group, copied_rules
from millstream.storage.groups.group_snapshot import dump_group, load_group
from millstream.storage.streams.stream import Stream


def check_effects(in_process: InProcessServer) -> None:
    """Check that the effects lead to the same groups as the commands did, and so does a dump."""
    replayed = in_process.replayed()
    for key, value in in_process.keyspace.databases[0].table.items():
        if not isinstance(value, Stream):
            continue
        again = replayed.databases[0].get(key)
        assert isinstance(again, Stream)
        assert again.last_id == value.last_id
        assert len(again) == len(value)
        for name, group in value.groups.items():
            check_group(group)
            assert shown(again.groups[name]) == shown(group)
            assert shown(load_group(dump_group(group), 0)) == shown(group)


def shown(group: Group) -> list[object]:
    waiting = [row[:2] for row in group.pending.rows() if group.pending.is_waiting(*row[:2])]
    rules = copied_rules(group) | {"ttl_ms": group.ttl_ms}
    place = group.offset_ms, group.offset_seq, group.entries_read
    dead = dead_entries(group.pending), group.dead_letters
    return [
        rules,
        place,
        key_entries(group),
        sorted(group.pending.consumers),
        group.pending.rows(),
        waiting,
        dead,
    ]


def entry(number: int) -> list[Reply]:
    return [b"%d-1" % number, [b"n", b"%d" % number]]


def read(*numbers: int) -> list[Reply]:
    return [[b"s", [entry(number) for number in numbers]]]


def pending(player: InProcessClient) -> list[tuple[object, ...]]:
    """(number, consumer, idle time, deliveries) of all pending entries."""
    reply = player.call("XPENDING s g - + 1000")
    assert isinstance(reply, list)
    return [(int(row[0].partition(b"-")[0]), *row[1:]) for row in reply]  # type: ignore[union-attr, index, misc]


def facts(player: InProcessClient, name: str = "g", key: str = "s") -> dict[Reply, Reply]:
    reply = player.call(f"TINFO {key} GROUP {name}")
    assert isinstance(reply, list)
    return dict(zip(reply[::2], reply[1::2], strict=True))
