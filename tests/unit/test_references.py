"""KEEPREF, DELREF and ACKED remove exactly these references in XADD, XTRIM, XDELEX, XACKDEL.

Random steps run through commands and on naive models: lists of ids, and the simulation's model of a
group. After every step both show the same entries, pending ids and counters, and
the journal leads to the same state.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.sim.data import ZERO, Group, Pending
from tests.support.effort import examples
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Error, Reply
from tests.support.storage_access import check_stream
from tests.unit.models import EntryId, StreamModel

from millstream.errors import INVALID_ID, WRONG_TYPE
from millstream.storage.streams.retention import unheld
from millstream.storage.streams.stream_snapshot import dump_stream

NODE_ENTRIES = 3
POLICIES = ["", "KEEPREF", "DELREF", "ACKED"]
WORDS = [b"f", b"v"]
GROUPS = ["g", "h"]

policies = st.sampled_from([*POLICIES, "ACKED"])


def shown(entry_id: EntryId) -> str:
    return f"{entry_id[0]}-{entry_id[1]}"


def parsed(text: Any) -> EntryId:
    ms, seq = text.split(b"-")
    return int(ms), int(seq)


def pending_ids(player: InProcessClient, group: str = "g") -> list[EntryId]:
    rows = player.call(f"XPENDING s {group} - + 10000")
    assert isinstance(rows, list)
    return [parsed(row[0]) for row in rows]  # type: ignore[index]


class ReferencesMachine(RuleBasedStateMachine):
    @initialize(first=st.integers(0, 8), second=st.integers(0, 8), noack=st.booleans())
    def start(self, first: int, second: int, noack: bool) -> None:
        self.in_process = InProcessServer()
        self.in_process.keyspace.node_entries = NODE_ENTRIES
        self.in_process.keyspace.node_bytes = 2**32 - 1
        self.player = self.in_process.player()
        self.model = StreamModel(NODE_ENTRIES)
        self.groups: dict[str, Group] = {}
        self.add(10)
        for name, count in zip(GROUPS, (first, second), strict=True):
            if count:
                self.make_group(name, at_end=False)
                self.read(name, count, noack and name == "h")

    # ------------------------------------------------------------ the model

    @property
    def nodes(self) -> list[list[EntryId]]:
        return [node for block in self.model.blocks for node in block]

    def holds(self, entry_id: EntryId) -> bool:
        return any(group.holds(entry_id) for group in self.groups.values())

    def is_pending(self, entry_id: EntryId) -> bool:
        return any(entry_id in group.pending for group in self.groups.values())

    def not_held(
        self, keep: int | None, minid: EntryId | None, about: bool, limit: int
    ) -> list[EntryId]:
        """The ids that trimming with ACKED removes."""
        kept = set(self.model.ids)
        left = len(kept)
        gone: list[EntryId] = []
        for node in self.nodes:
            live = [entry_id for entry_id in node if entry_id in kept]
            is_whole = (
                left - len(live) >= keep if keep is not None else node[-1] < (minid or (0, 0))
            )
            if keep is not None and left <= keep:
                break
            if limit and len(gone) + len(live) > limit:
                break
            for entry_id in live:
                if (keep is not None and left <= keep) or (minid is not None and entry_id >= minid):
                    break
                if not self.holds(entry_id):
                    gone.append(entry_id)
                    left -= 1
            if not is_whole:
                break
        return gone

    def head(
        self, policy: str, keep: int | None, minid: EntryId | None, about: bool, limit: int
    ) -> list[EntryId]:
        """The ids that trimming removes when it asks no group."""
        if about:
            most = self.model.goes_by_nodes(keep, minid, limit)
            if policy not in ("", "KEEPREF"):
                within = self.model.goes_by_nodes(0, None, limit)
                most = min(within, len(self.head(policy, keep, minid, False, 0)))
            return self.model.ids[:most]
        if keep is not None:
            return self.model.ids[: max(0, len(self.model.ids) - keep)]
        return [entry_id for entry_id in self.model.ids if entry_id < (minid or (0, 0))]

    def trim(
        self, policy: str, keep: int | None, minid: EntryId | None, about: bool, limit: int
    ) -> int:
        if policy == "ACKED" and self.groups:
            return self.model.evict_ids(self.not_held(keep, minid, about, limit))
        gone = self.head(policy, keep, minid, about, limit)
        if policy == "DELREF":
            for group in self.groups.values():
                group.forget(gone)
        return self.model.evict_ids(gone)

    # ------------------------------------------------------------ steps

    @rule(count=st.integers(1, 12))
    def add(self, count: int) -> None:
        for _ in range(count):
            entry_id = self.model.last_id[0] + 1, 1
            assert self.player.call(f"XADD s {shown(entry_id)} f v") == shown(entry_id).encode()
            self.model.append(entry_id, WORDS, self.in_process.stream().block_count)

    @rule(name=st.sampled_from(GROUPS), at_end=st.booleans())
    def make_group(self, name: str, at_end: bool) -> None:
        if name not in self.groups:
            self.player.call(f"XGROUP CREATE s {name} {'$' if at_end else '0'}")
            offset = self.model.last_id if at_end else ZERO
            self.groups[name] = Group(offset, ZERO, 0, 0)

    @rule(name=st.sampled_from(GROUPS), count=st.integers(1, 8), noack=st.booleans())
    def read(self, name: str, count: int, noack: bool) -> None:
        group = self.groups.get(name)
        if group is None:
            return
        new = [entry_id for entry_id in self.model.ids if entry_id > group.offset][:count]
        word = "NOACK " if noack else ""
        self.player.call(f"XREADGROUP GROUP {name} c COUNT {count} {word}STREAMS s >")
        group.offset = new[-1] if new else group.offset
        if not noack:
            group.pending |= {one: Pending(0, 0, 1, None, b"c") for one in new}

    @rule(data=st.data(), trailing=st.integers(0, 4))
    def catch_up(self, data: st.DataObject, trailing: int) -> None:
        """Every group reads on and acknowledges all but a few entries, here or there."""
        for name in self.groups:
            self.read(name, max(1, len(self.model.ids) - trailing), noack=False)
            pending = sorted(self.groups[name].pending)
            kept = set(data.draw(st.lists(st.sampled_from(pending), max_size=2))) if pending else ()
            acked = [one for one in pending if one not in kept]
            if acked:
                assert self.player.call(f"XACK s {name} {' '.join(map(shown, acked))}") == len(
                    acked
                )
            self.groups[name].forget(acked)

    def some_ids(self, data: st.DataObject) -> list[EntryId]:
        pending = [one for group in self.groups.values() for one in group.pending]
        known = sorted({*self.model.ids, *pending, (self.model.last_id[0] + 5, 1), (0, 5)})
        return data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=6))

    @rule(data=st.data(), name=st.sampled_from(GROUPS))
    def acknowledge(self, data: st.DataObject, name: str) -> None:
        group = self.groups.get(name)
        ids = self.some_ids(data)
        if group is not None:
            self.player.call(f"XACK s {name} {' '.join(map(shown, ids))}")
            group.forget(ids)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        ids = self.some_ids(data)
        reply = self.player.call(f"XDEL s {' '.join(map(shown, ids))}")
        assert reply == sum(self.model.delete(entry_id) for entry_id in ids)

    @rule(
        data=st.data(),
        policy=policies,
        by_id=st.booleans(),
        about=st.booleans(),
        limit=st.sampled_from([None, 0, 1, 4, 100]),
    )
    def xtrim(
        self, data: st.DataObject, policy: str, by_id: bool, about: bool, limit: int | None
    ) -> None:
        self.trim_by(data, policy, by_id, about, limit, adding=False)

    @rule(data=st.data(), policy=policies, by_id=st.booleans(), about=st.booleans())
    def xadd_and_trim(self, data: st.DataObject, policy: str, by_id: bool, about: bool) -> None:
        self.trim_by(data, policy, by_id, about, None, adding=True)

    def trim_by(
        self,
        data: st.DataObject,
        policy: str,
        by_id: bool,
        about: bool,
        limit: int | None,
        adding: bool,
    ) -> None:
        limit = limit if about else None
        keep = None if by_id else data.draw(st.integers(0, len(self.model.ids) + 2))
        minid = self.some_ids(data)[0] if by_id else None
        words = [f"MINID {'~ ' if about else ''}{shown(minid)}" if minid else ""]
        words += [f"MAXLEN {'~ ' if about else '= '}{keep}" if keep is not None else ""]
        words += [f"LIMIT {limit}" if limit is not None else ""]
        data.draw(st.randoms()).shuffle(
            words := [*filter(None, words)][: 1 if limit is None else 9]
        )
        options = " ".join(filter(None, [*words, policy]))
        most = 100 * NODE_ENTRIES if limit is None and about else limit or 0
        if adding:
            entry_id = self.model.last_id[0] + 1, 1
            assert self.player.call(f"XADD s {options} {shown(entry_id)} f v") == (
                shown(entry_id).encode()
            )
            self.model.append(entry_id, WORDS, self.blocks_after_adding())
            self.trim(policy, keep, minid, about, most)
        else:
            assert self.player.call(f"XTRIM s {options}") == self.trim(
                policy, keep, minid, about, most
            )

    def blocks_after_adding(self) -> int:
        """The number of blocks before the trim: a full last block takes no more entries."""
        blocks = self.model.blocks
        is_full = blocks and len(blocks[-1]) == 4 and len(blocks[-1][-1]) == NODE_ENTRIES
        return len(blocks) + int(not self.model.tail_is_open or bool(is_full))

    @rule(data=st.data(), policy=policies, policy_first=st.booleans())
    def xdelex(self, data: st.DataObject, policy: str, policy_first: bool) -> None:
        ids = self.some_ids(data)
        block = f"IDS {len(ids)} {' '.join(map(shown, ids))}"
        words = f"{policy} {block}" if policy_first else f"{block} {policy}"
        expected = []
        if policy == "DELREF":
            for group in self.groups.values():
                group.forget(ids)
        for entry_id in ids:
            held = self.holds(entry_id)
            if policy == "ACKED" and held:
                expected.append(2)
            else:
                expected.append(1 if self.model.delete(entry_id) else -1)
        assert self.player.call(f"XDELEX s {words}") == expected

    @rule(data=st.data(), policy=policies, name=st.sampled_from(GROUPS))
    def xackdel(self, data: st.DataObject, policy: str, name: str) -> None:
        ids = self.some_ids(data)
        reply = self.player.call(
            f"XACKDEL s {name} {policy} IDS {len(ids)} {' '.join(map(shown, ids))}"
        )
        group = self.groups.get(name)
        if group is None:
            assert reply == [-1] * len(ids)
            return
        acked = [one for at, one in enumerate(ids) if one in group.pending and one not in ids[:at]]
        group.forget(acked)
        if policy == "DELREF":
            for other in self.groups.values():
                other.forget(acked)
        expected = []
        for at, entry_id in enumerate(ids):
            if entry_id not in acked or entry_id in ids[:at]:
                expected.append(-1)
                continue
            held = self.holds(entry_id)
            if policy == "ACKED" and held:
                expected.append(2)
            else:
                self.model.delete(entry_id)
                expected.append(1)
        assert reply == expected

    # ------------------------------------------------------------ what must hold

    @invariant()
    def shows_the_same(self) -> None:
        stream = self.in_process.stream()
        check_stream(stream)
        assert [entry[:2] for entry in stream.range()] == self.model.ids
        assert stream.entries_evicted == self.model.evicted
        assert stream.entries_deleted == self.model.deleted
        assert stream.max_evicted_id == self.model.max_evicted
        assert stream.max_deleted_id == self.model.max_deleted
        for name, group in self.groups.items():
            assert pending_ids(self.player, name) == sorted(group.pending)

    @precondition(lambda self: len(self.in_process.persistence.payloads) % 4 == 0)
    @invariant()
    def is_replayed(self) -> None:
        stream = self.in_process.stream()
        again = self.in_process.replayed().databases[0].stream(b"s")
        assert again is not None
        assert again.range() == stream.range()
        lived, replayed = dump_stream(stream)[0], dump_stream(again)[0]
        for name in ("max_evicted", "max_deleted", "entries_evicted", "entries_deleted"):
            assert replayed[name] == lived[name]
        assert [group["pending"] for group in replayed["groups"]] == [
            group["pending"] for group in lived["groups"]
        ]


ReferencesMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestReferences = ReferencesMachine.TestCase


# ---------------------------------------------------------------- one by one


def filled(player: InProcessClient, count: int = 5) -> None:
    for number in range(1, count + 1):
        player.call(f"XADD s {number}-1 n {number}")


def ids(player: InProcessClient) -> list[int]:
    reply = player.call("XRANGE s - +")
    assert isinstance(reply, list)
    return [parsed(entry[0])[0] for entry in reply]  # type: ignore[index]


def test_acked_keeps_held_entries_and_continues_after_them(player: InProcessClient) -> None:
    filled(player, 10)
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g c COUNT 8 STREAMS s >")
    player.call("XACK s g 1-1 2-1 4-1 6-1 7-1")
    assert player.call("XTRIM s MAXLEN 7 ACKED") == 3
    assert ids(player) == [3, 5, 6, 7, 8, 9, 10]
    assert player.call("XTRIM s MAXLEN 0 ACKED") == 2
    assert ids(player) == [3, 5, 8, 9, 10]
    assert player.call("XTRIM s MINID 99 ACKED") == 0
    reply = player.call("XINFO STREAM s")
    assert isinstance(reply, list)
    assert reply[reply.index(b"max-deleted-entry-id") + 1] == b"0-0"


def test_a_delref_trim_keeps_references_to_deleted_entries(
    player: InProcessClient,
) -> None:
    """As in Redis 8.2; none are dropped from the first kept id on."""
    filled(player)
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g c STREAMS s >")
    player.call("XDEL s 2-1 4-1 5-1")
    assert player.call("XTRIM s MINID 5-1 DELREF") == 2
    assert pending_ids(player) == [(2, 1), (4, 1), (5, 1)]
    player.call("XADD s 6-1 n 6")
    player.call("XREADGROUP GROUP g c STREAMS s >")
    assert player.call("XTRIM s MAXLEN 0 DELREF") == 1
    assert pending_ids(player) == [(2, 1), (4, 1), (5, 1)]
    assert player.call("XDELEX s DELREF IDS 1 2-1") == [-1]
    assert pending_ids(player) == [(4, 1), (5, 1)]


def test_a_stream_without_groups_has_no_references(player: InProcessClient) -> None:
    filled(player)
    assert player.call("XDELEX s ACKED IDS 1 1-1") == [1]
    assert player.call("XTRIM s MAXLEN 2 ACKED") == 2
    assert ids(player) == [4, 5]


def test_held_entries_are_not_examined_one_by_one(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    in_process.keyspace.node_entries = 100
    for number in range(1, 5001):
        player.call(f"XADD s {number}-1 n {number}")
    player.call("XGROUP CREATE s all $")
    player.call("XGROUP CREATE s g 0")
    stream = in_process.stream()
    assert unheld(stream, keep=10) == ([], 0)
    assert unheld(stream, minid=(4000, 0)) == ([], 0)
    player.call("XREADGROUP GROUP g c COUNT 4900 STREAMS s >")
    gone, looked_at = unheld(stream, keep=10)
    assert (gone, looked_at < 1000) == ([], True)
    player.call("XACK s g 4701-1 4702-1")
    gone, looked_at = unheld(stream, keep=10)
    assert (gone, looked_at < 1000) == ([(4701, 1), (4702, 1)], True)
    player.call("XACK s g 3-1")
    gone, looked_at = unheld(stream, keep=10)
    # The first block is gone through, and the one with those above.
    assert gone == [(3, 1), (4701, 1), (4702, 1)]
    assert looked_at < 1000
    for number in range(1, 4901, 7):
        player.call(f"XACK s g {number}-1")
    assert len(unheld(stream, keep=10)[0]) == 703
    player.call("XTRIM s MAXLEN 10 ACKED")
    assert unheld(stream, keep=10) == ([], 0)
    player.call("XACK s g 2-1")
    assert unheld(stream, keep=10) == ([(2, 1)], 1)
    player.call("XDEL s 4-1")
    player.call("XACK s g 7-1 4703-1")
    assert unheld(stream, minid=(4703, 0))[0] == [(2, 1), (7, 1)]
    assert unheld(stream, minid=(4704, 0), limit=200)[0] == [(2, 1), (7, 1), (4703, 1)]
    assert unheld(stream, minid=(4704, 0), limit=87)[0] == [(2, 1), (7, 1)]


@pytest.mark.parametrize("append", ["XADD s MAXLEN {} {}-1 n 1", "TAPPEV s COUNT {} n 1"])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_trim_by_length_after_each_append_keeps_the_newest(append: str, deleted: bool) -> None:
    """Across the ends of nodes and blocks, with lengths that shrink and grow again."""
    in_process = InProcessServer()
    player = in_process.player()
    in_process.keyspace.node_entries = NODE_ENTRIES
    ids: list[EntryId] = []
    evicted = 0
    for number in range(1, 200):
        keep = 40 if number < 100 else 1 + number % 25
        in_process.wall_ms += 1
        reply = player.call(append.format(keep, number))
        assert isinstance(reply, bytes)
        ms, seq = map(int, reply.replace(b".", b"-").split(b"-"))
        ids.append((ms, seq))
        evicted += max(0, len(ids) - keep)
        ids = ids[-keep:]
        if deleted and number % 7 == 0 and len(ids) > 2:
            player.call(f"XDEL s {shown(ids.pop(len(ids) // 2))}")
        stream = in_process.stream()
        check_stream(stream)
        assert [entry[:2] for entry in stream.range()] == ids
        assert stream.entries_evicted == evicted
    again = in_process.replayed().databases[0].stream(b"s")
    assert again is not None
    assert dump_stream(again)[0] == dump_stream(in_process.stream())[0]


def test_the_trim_of_an_append_is_not_counted_as_a_change(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    for line, changes in {
        "XADD s 1-1 n 1": 1,
        "XADD s 2-1 n 1": 1,
        "XADD s MAXLEN 0 3-1 n 1": 1,
        "TAPPEND s n 1": 1,
        "TAPPEV s COUNT 0 n 1": 1,
        "XADD s * n 1": 1,
        "XADD s * n 2": 1,
        "XADD s * n 3": 1,
        "TAPPEV s COUNT 2": 1,
        "XGROUP CREATE s g $": 1,
        "XADD s MAXLEN 1 ACKED * n 4": 1,
        "XADD s * n 5": 1,
        "XGROUP SETID s g $": 1,
        "XTRIM s MAXLEN 0 ACKED": 2,
        "XTRIM s MAXLEN 0": 0,
    }.items():
        before = in_process.keyspace.dirty
        assert not isinstance(player.call(line), Error), line
        assert in_process.keyspace.dirty - before == changes, line


def test_an_expired_group_keeps_no_entry() -> None:
    in_process = InProcessServer()
    player = in_process.player()
    filled(player)
    player.call("TREAD s 0 0 GROUP g 1000")
    assert player.call("XDELEX s ACKED IDS 1 1-1") == [2]
    in_process.wall_ms += 1001
    assert player.call("XDELEX s ACKED IDS 1 1-1") == [1]
    assert player.call("XTRIM s MAXLEN 0 ACKED") == 4


def test_a_draft_reader_gets_a_nil_for_entries_evicted_by_acked(player: InProcessClient) -> None:
    filled(player)
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g c COUNT 4 STREAMS s >")
    player.call("XACK s g 2-1 3-1")
    assert player.call("XTRIM s MAXLEN 0 ACKED") == 2
    reply = player.call("TREAD s 1-1 10")
    assert isinstance(reply, list)
    assert len(reply) == 3
    assert player.call("TREAD s 3-1 10") == reply[1:]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("XDELEX s KEEPREF DELREF IDS 1 1-1", "ERR syntax error"),
        ("XDELEX s IDS 1 1-1 2-1", "ERR syntax error"),
        ("XDELEX s ACKED 1 1-1", "ERR syntax error"),
        ("XDELEX s 1-1 2-1 IDS", "ERR syntax error"),
        ("XDELEX s IDS x 1-1", "ERR Number of IDs must be a positive integer"),
        ("XDELEX s IDS 0 1-1", "ERR Number of IDs must be a positive integer"),
        ("XDELEX s IDS -1 1-1", "ERR Number of IDs must be a positive integer"),
        ("XDELEX s IDS 2 1-1", "ERR The `numids` parameter must match the number of arguments"),
        ("XDELEX s IDS 1", "ERR wrong number of arguments for 'xdelex' command"),
        ("XDELEX str IDS 1 1-1", WRONG_TYPE),
        (
            "XDELEX s IDS 1 1.1",
            "ERR Invalid stream ID specified as stream command argument",
        ),
        ("XTRIM s MAXLEN 0 ACKED DELREF", "ERR syntax error"),
        ("XADD s ACKED KEEPREF * f v", INVALID_ID),
    ],
)
def test_a_refused_command_changes_nothing(player: InProcessClient, line: str, words: str) -> None:
    filled(player)
    player.call("SET str x")
    assert player.call(line) == Error(words)
    assert ids(player) == [1, 2, 3, 4, 5]


def test_a_policy_without_trimming_is_accepted(player: InProcessClient) -> None:
    reply: Reply = player.call("XADD s ACKED 1-1 f v")
    assert reply == b"1-1"


def test_a_trim_at_a_node_end_keeps_references_in_the_next_node() -> None:
    in_process = InProcessServer()
    in_process.keyspace.node_entries = NODE_ENTRIES
    player = in_process.player()
    for ms in range(1, 2 * NODE_ENTRIES + 1):
        player.call(f"XADD s {ms}-1 f v")
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g c STREAMS s >")
    player.call(f"XDEL s {NODE_ENTRIES + 1}-1")
    trimmed = player.call(f"XTRIM s MAXLEN ~ {NODE_ENTRIES - 1} DELREF")
    assert trimmed == NODE_ENTRIES
    assert pending_ids(player, "g") == [
        (ms, 1) for ms in range(NODE_ENTRIES + 1, 2 * NODE_ENTRIES + 1)
    ]
