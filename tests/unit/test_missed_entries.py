"""The number of entries that were trimmed before a group read them is exact.

Random steps run through commands and on a naive model, which looks at each trimmed entry and each
group. After every step the numbers are the same in XINFO, in INFO, and in the keyspace that the
journal leads to; from time to time the stream goes through a snapshot, in both of its forms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.effort import examples
from tests.support.in_process import InProcessServer
from tests.support.resp import Simple
from tests.unit.models import EntryId

from millstream.storage.capture.small_streams import SmallStreams
from millstream.storage.streams.head_eviction import missed_by
from millstream.storage.streams.stream_snapshot import copy_stream, dump_stream, load_stream

NAMES = ["g", "h", "i"]
names = st.sampled_from(NAMES)
NODE_ENTRIES = 3


@dataclass
class ModelGroup:
    offset: EntryId
    missed: int = 0


def shown(entry_id: EntryId) -> str:
    return f"{entry_id[0]}-{entry_id[1]}"


def missed_in_xinfo(rows: Any) -> dict[str, int]:
    """Each group's number in XINFO GROUPS or in the groups of XINFO STREAM FULL."""
    maps = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
    return {row[b"name"].decode(): row.get(b"entries-missed", 0) for row in maps}


class MissedEntriesMachine(RuleBasedStateMachine):
    @initialize(count=st.integers(0, 40))
    def start(self, count: int) -> None:
        self.in_process = InProcessServer()
        self.in_process.keyspace.node_entries = NODE_ENTRIES
        self.player = self.in_process.player()
        self.player.call("XGROUP CREATE s first 0 MKSTREAM")
        self.player.call("XGROUP DESTROY s first")
        self.entries: list[EntryId] = []
        self.last: EntryId = (0, 0)
        self.last_deleted: EntryId = (0, 1)
        self.groups: dict[str, ModelGroup] = {}
        self.lost = 0
        for _ in range(count):
            self.append()

    def append(self) -> None:
        self.last = self.last[0] + 1, 0
        self.player.call(f"XADD s {shown(self.last)} f v")
        self.entries.append(self.last)

    def trimmed(self, count: int) -> None:
        """The oldest entries were trimmed."""
        gone, self.entries = self.entries[:count], self.entries[count:]
        for group in self.groups.values():
            missed = sum(entry_id > group.offset for entry_id in gone)
            group.missed += missed
            self.lost += missed

    def some_id(self, data: st.DataObject) -> EntryId:
        return data.draw(st.integers(0, self.last[0] + 3)), data.draw(st.sampled_from([0, 0, 7]))

    @rule(count=st.integers(1, 9))
    def append_some(self, count: int) -> None:
        for _ in range(count):
            self.append()

    @rule(keep=st.integers(0, 30))
    def append_with_maxlen(self, keep: int) -> None:
        self.last = self.last[0] + 1, 0
        self.player.call(f"XADD s MAXLEN {keep} {shown(self.last)} f v")
        self.entries.append(self.last)
        self.trimmed(max(0, len(self.entries) - keep))

    @rule(keep=st.integers(0, 30), approx=st.booleans(), data=st.data())
    def trim(self, keep: int, approx: bool, data: st.DataObject) -> None:
        how = "~" if approx else "="
        if data.draw(st.booleans()):
            count = self.player.call(f"XTRIM s MAXLEN {how} {keep}")
        else:
            count = self.player.call(f"XTRIM s MINID {how} {shown(self.some_id(data))}")
        assert isinstance(count, int)
        self.trimmed(count)

    @rule(keep=st.integers(0, 12))
    def trim_only_what_no_group_holds(self, keep: int) -> None:
        self.player.call(f"XTRIM s MAXLEN {keep} ACKED")
        self.entries = [
            entry_id for entry_id in self.entries if self.in_process.stream().has_entry(*entry_id)
        ]

    @rule(keep=st.integers(1, 20), exact=st.booleans())
    def set_policy(self, keep: int, exact: bool) -> None:
        self.player.call(f"TPOLICY s MAXLEN {keep} {'EXACT' if exact else 'APPROX'}")
        self.trimmed(len(self.entries) - len(self.in_process.stream()))
        self.player.call("TPOLICY s MAXLEN 0")

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        entry_id = self.some_id(data)
        if self.player.call(f"XDEL s {shown(entry_id)}"):
            self.last_deleted = max(self.last_deleted, entry_id)
        self.entries = [one for one in self.entries if one != entry_id]

    @rule(name=names, data=st.data())
    def make_or_move_group(self, name: str, data: st.DataObject) -> None:
        offset = self.some_id(data)
        if name not in self.groups:
            self.player.call(f"XGROUP CREATE s {name} {shown(offset)}")
            self.groups[name] = ModelGroup(offset)
        else:
            self.player.call(f"XGROUP SETID s {name} {shown(offset)}")
            self.groups[name].offset = offset

    @rule(name=names)
    def destroy_group(self, name: str) -> None:
        self.player.call(f"XGROUP DESTROY s {name}")
        self.groups.pop(name, None)

    @rule(name=names, count=st.integers(1, 12), noack=st.booleans())
    def read(self, name: str, count: int, noack: bool) -> None:
        if name in self.groups:
            ack = "NOACK " if noack else ""
            self.player.call(f"XREADGROUP GROUP {name} c COUNT {count} {ack}STREAMS s >")
            group = self.groups[name]
            new = [entry_id for entry_id in self.entries if entry_id > group.offset][:count]
            group.offset = max([group.offset, *new])

    @rule(name=names, data=st.data())
    def claim_with_last_id(self, name: str, data: st.DataObject) -> None:
        if name in self.groups:
            last = self.some_id(data)
            self.player.call(f"XCLAIM s {name} c 0 1-1 LASTID {shown(last)}")
            self.groups[name].offset = max(self.groups[name].offset, last)

    @rule(data=st.data())
    def move_last_id(self, data: st.DataObject) -> None:
        """XSETID refuses an ID below an entry, or below one that was deleted."""
        last = max(self.some_id(data), self.last_deleted, *self.entries[-1:])
        assert self.player.call(f"XSETID s {shown(last)}") == Simple("OK")
        self.last = last

    @precondition(lambda self: self.groups)
    @rule()
    def save_and_load(self) -> None:
        """In a snapshot, in a copy, and after a look at whether the compact form is possible."""
        stream = self.in_process.stream()
        dumped, _ = dump_stream(stream)
        SmallStreams(1 << 20).add(0, b"s", stream, None)
        shared, blocks = dump_stream(stream, shared=True)
        assert dumped["groups"] == list(shared["groups"])
        loaded = load_stream(dumped, blocks, 0)
        for one in (loaded, copy_stream(loaded, stream.incarnation, 0)):
            assert {
                name.decode(): missed_by(one, group) for name, group in one.groups.items()
            } == self.missed()

    def missed(self) -> dict[str, int]:
        return {name: group.missed for name, group in self.groups.items()}

    @invariant()
    def numbers_are_those_of_the_model(self) -> None:
        stream = self.in_process.stream()
        assert [entry[:2] for entry in stream.range()] == self.entries
        assert {
            name.decode(): missed_by(stream, group) for name, group in stream.groups.items()
        } == self.missed()
        assert self.in_process.keyspace.missed_entries == self.lost

    @rule()
    def look(self) -> None:
        assert missed_in_xinfo(self.player.call("XINFO GROUPS s")) == self.missed()
        full: Any = self.player.call("XINFO STREAM s FULL")
        assert missed_in_xinfo(full[full.index(b"groups") + 1]) == self.missed()

    @rule()
    def replay(self) -> None:
        again = self.in_process.replayed().databases[0].stream(b"s")
        assert again is not None
        assert {
            name.decode(): missed_by(again, group) for name, group in again.groups.items()
        } == self.missed()


MissedEntriesMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
TestMissedEntries = MissedEntriesMachine.TestCase


def trimmed_unread(in_process: InProcessServer, count: int) -> None:
    player = in_process.players[0]
    for _ in range(count):
        player.call("XADD s MAXLEN 2 * f v")


def test_the_log_names_a_group_at_most_once_a_minute() -> None:
    in_process = InProcessServer()
    player = in_process.player()
    player.call("XGROUP CREATE s fast 0 MKSTREAM")
    for _ in range(4):
        trimmed_unread(in_process, 1)
        player.call("XREADGROUP GROUP fast c STREAMS s >")
    assert in_process.logged == []
    player.call("XGROUP CREATE s late 0")
    trimmed_unread(in_process, 2)
    [line] = in_process.logged
    assert line.startswith("entries that group 'late' of stream 's' had not read are evicted: 1 ")
    in_process.wait_ms(60_000)
    trimmed_unread(in_process, 1)
    assert "evicted: 3 entries" in in_process.logged[1], "one of the first trims, and two now"
    assert len(in_process.logged) == 2
    assert in_process.keyspace.missed_entries == 4


def test_a_reader_after_the_trim_continues_without_a_new_loss() -> None:
    in_process = InProcessServer()
    player = in_process.player()
    player.call("XGROUP CREATE s g 0 MKSTREAM")
    trimmed_unread(in_process, 5)
    player.call("XREADGROUP GROUP g c STREAMS s >")
    trimmed_unread(in_process, 2)
    assert missed_in_xinfo(player.call("XINFO GROUPS s")) == {"g": 3}
