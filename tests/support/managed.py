"""Tests of groups with rules: what a group holds, and what replaying its effects leads to."""

from __future__ import annotations

from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Reply
from tests.support.storage_access import check_group

from millstream.storage.groups.group import Group, copied_rules
from millstream.storage.groups.group_snapshot import dump_group, load_group


def check_effects(in_process: InProcessServer) -> None:
    """Check that the effects lead to the same groups as the commands did, and so does a dump."""
    replayed = in_process.replayed()
    for key in in_process.keyspace.databases[0].keys():  # noqa: SIM118
        again = replayed.databases[0].stream(key)
        assert again is not None
        for name, group in in_process.stream(key).groups.items():
            check_group(group)
            assert shown(again.groups[name]) == shown(group)
            assert shown(load_group(dump_group(group), 0)) == shown(group)


def shown(group: Group) -> list[object]:
    waiting = [row[:2] for row in group.pending.rows() if group.pending.is_waiting(*row[:2])]
    rules = copied_rules(group) | {"ttl_ms": group.ttl_ms}
    place = group.offset_ms, group.offset_seq, group.entries_read
    return [rules, place, sorted(group.pending.consumers), group.pending.rows(), waiting]


def entry(number: int) -> list[Reply]:
    return [b"%d-1" % number, [b"n", b"%d" % number]]


def read(*numbers: int) -> list[Reply]:
    return [[b"s", [entry(number) for number in numbers]]]


def pending(player: InProcessClient) -> list[tuple[object, ...]]:
    """(number, consumer, idle time, deliveries) of all pending entries."""
    reply = player.call("XPENDING s g - + 1000")
    assert isinstance(reply, list)
    return [(int(row[0].partition(b"-")[0]), *row[1:]) for row in reply]  # type: ignore[union-attr, index, misc]


def facts(player: InProcessClient, name: str = "g") -> dict[Reply, Reply]:
    reply = player.call(f"TINFO s GROUP {name}")
    assert isinstance(reply, list)
    return dict(zip(reply[::2], reply[1::2], strict=True))
