"""Policies with EVICT ACKED and DONE remove only what no group holds, and count what is lost.

Random steps run through commands and on a naive model, which looks at each entry that is gone and
at each group. After every step nothing that a group held is gone, unless a trim or a hard limit
took it, and then each group that held it has counted it. The journal and snapshots lead to the
same state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.effort import examples
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Error, Null, Simple
from tests.unit.models import EntryId
from tests.unit.test_policy import block_rows, policy_of, replays

from millstream.commands.engine import policies
from millstream.storage.streams.head_eviction import lost_by
from millstream.storage.streams.settled import oldest_held_entry
from millstream.storage.streams.stream_snapshot import copy_stream, dump_stream, load_stream

OK = Simple("OK")
NAMES = ["g", "h"]
names = st.sampled_from(NAMES)
NODE_ENTRIES = 2  # a block has four nodes


@dataclass
class Reader:
    offset: EntryId
    pending: set[EntryId] = field(default_factory=set)
    lost: int = 0

    def holds(self, entry_id: EntryId) -> bool:
        return entry_id > self.offset or entry_id in self.pending


def shown(entry_id: EntryId) -> str:
    return f"{entry_id[0]}-{entry_id[1]}"


def fields(reply: Any) -> dict[bytes, Any]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


class HeldEntriesMachine(RuleBasedStateMachine):
    @initialize(count=st.integers(0, 40))
    def start(self, count: int) -> None:
        self.in_process = InProcessServer()
        self.in_process.keyspace.node_entries = NODE_ENTRIES
        self.player = self.in_process.player()
        self.player.call("XADD s 1-0 f v")
        self.last: EntryId = (1, 0)
        self.entries: list[EntryId] = [(1, 0)]
        self.groups: dict[str, Reader] = {}
        self.policy = {"EVICT": "ANY", "MAXLEN": 0, "HARDLEN": 0, "trim": "APPROX"}
        self.lost = 0
        self.append(count)

    @property
    def is_exact(self) -> bool:
        return self.policy["trim"] == "EXACT"

    def append(self, count: int, options: str = "") -> None:
        for _ in range(count):
            self.last = self.last[0] + 1, 0
            self.player.call(f"XADD s {options} {shown(self.last)} f v")
            self.entries.append(self.last)
            self.follow(trims=bool(options))

    def holders(self, entry_id: EntryId) -> list[Reader]:
        return [reader for reader in self.groups.values() if reader.holds(entry_id)]

    def follow(self, *, trims: bool = False) -> None:
        """Take over which entries are gone. Only trims and hard limits take what a group holds."""
        stream = self.in_process.stream()
        trims = trims or (self.policy["EVICT"] == "ANY" and self.policy["MAXLEN"] != 0)
        gone = [one for one in self.entries if not stream.has_entry(*one)]
        over_hard = self.policy["HARDLEN"] and len(self.entries) > int(self.policy["HARDLEN"])
        for entry_id in gone:
            holders = self.holders(entry_id)
            assert not holders or trims or over_hard, f"{entry_id} was held"
            for reader in holders:
                reader.lost += 1
                self.lost += 1
        self.entries = [one for one in self.entries if one not in gone]

    def some_id(self, data: st.DataObject) -> EntryId:
        return data.draw(st.integers(0, self.last[0] + 3)), 0

    @rule(count=st.integers(1, 9))
    def append_some(self, count: int) -> None:
        self.append(count)

    @rule(count=st.integers(1, 4), keep=st.integers(0, 30))
    def append_with_maxlen(self, count: int, keep: int) -> None:
        self.append(count, f"MAXLEN {keep}")

    @rule(keep=st.integers(0, 30), how=st.sampled_from(["=", "~"]))
    def trim(self, keep: int, how: str) -> None:
        self.player.call(f"XTRIM s MAXLEN {how} {keep}")
        self.follow(trims=True)

    @rule(
        evict=st.sampled_from(["ANY", "ACKED", "DONE", "DONE"]),
        keep=st.sampled_from([0, 0, 3, 10]),
        hard=st.sampled_from([0, 0, 20]),
        trim=st.sampled_from(["EXACT", "APPROX"]),
    )
    def set_policy(self, evict: str, keep: int, hard: int, trim: str) -> None:
        hard = 0 if evict == "ANY" else hard
        words = f"EVICT {evict} MAXLEN {keep} HARDLEN {hard}"
        assert self.player.call(f"TPOLICY s {trim} {words}") == OK
        self.policy = {"EVICT": evict, "MAXLEN": keep, "HARDLEN": hard, "trim": trim}
        self.follow()

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        entry_id = self.some_id(data)
        self.player.call(f"XDEL s {shown(entry_id)}")
        self.entries = [one for one in self.entries if one != entry_id]
        self.follow()

    @rule(name=names, data=st.data())
    def make_or_move_group(self, name: str, data: st.DataObject) -> None:
        offset = self.some_id(data)
        if name in self.groups:
            self.player.call(f"XGROUP SETID s {name} {shown(offset)}")
            self.groups[name].offset = offset
        else:
            self.player.call(f"XGROUP CREATE s {name} {shown(offset)}")
            self.groups[name] = Reader(offset)
        self.follow()

    @rule(name=names)
    def destroy_group(self, name: str) -> None:
        self.player.call(f"XGROUP DESTROY s {name}")
        self.groups.pop(name, None)
        self.follow()

    @rule(name=names, count=st.integers(1, 20), noack=st.booleans())
    def read(self, name: str, count: int, noack: bool) -> None:
        if name in self.groups:
            ack = "NOACK " if noack else ""
            self.player.call(f"XREADGROUP GROUP {name} c COUNT {count} {ack}STREAMS s >")
            reader = self.groups[name]
            new = [one for one in self.entries if one > reader.offset][:count]
            reader.offset = max([reader.offset, *new])
            if not noack:
                reader.pending.update(new)
            self.follow()

    @rule(name=names, data=st.data(), later=st.booleans())
    def acknowledge(self, name: str, data: st.DataObject, later: bool) -> None:
        if name in self.groups and (pending := sorted(self.groups[name].pending)):
            first = data.draw(st.integers(0, len(pending) - 1)) if later else 0
            some = pending[first : first + data.draw(st.integers(1, 25))]
            self.player.call(f"XACK s {name} {' '.join(map(shown, some))}")
            self.groups[name].pending.difference_update(some)
            self.follow()

    @rule(name=names, data=st.data(), how=st.sampled_from(["XCLAIM", "XNACK"]))
    def make_pending_again(self, name: str, data: st.DataObject, how: str) -> None:
        if name in self.groups and self.entries:
            entry_id = data.draw(st.sampled_from(self.entries))
            if how == "XCLAIM":
                self.player.call(f"XCLAIM s {name} c 0 {shown(entry_id)} FORCE")
            else:
                self.player.call(f"XNACK s {name} FAIL IDS 1 {shown(entry_id)} FORCE")
            self.groups[name].pending.add(entry_id)
            self.follow()

    @rule(name=names)
    def delete_consumer(self, name: str) -> None:
        if name in self.groups:
            mine = self.player.call(f"XPENDING s {name} - + 1000 c")
            self.player.call(f"XGROUP DELCONSUMER s {name} c")
            gone = {tuple(map(int, row[0].split(b"-"))) for row in mine}  # type: ignore[union-attr, index, misc]
            self.groups[name].pending -= gone  # type: ignore[arg-type]
            self.follow()

    @rule()
    def wait(self) -> None:
        """Settled blocks after a held entry leave within a second."""
        self.in_process.wait_ms(1000)
        self.follow()
        is_over = self.policy["MAXLEN"] and len(self.entries) > int(self.policy["MAXLEN"])
        if self.is_exact and is_over and self.policy["EVICT"] != "ANY":
            assert all(self.holders(one) for one in self.entries)
        if self.policy["EVICT"] == "DONE" and self.groups:
            read = min(reader.offset for reader in self.groups.values())
            stream = self.in_process.stream()
            for rows, last_id, _ in block_rows(stream)[1:-1]:
                assert last_id >= read or any(self.holders(row[:2]) for row in rows)

    @rule()
    def save_and_load(self) -> None:
        stream = self.in_process.stream()
        dumped, _ = dump_stream(stream)
        shared, blocks = dump_stream(stream, shared=True)
        assert dumped["groups"] == list(shared["groups"])
        loaded = load_stream(dumped, blocks, 0)
        for one in (loaded, copy_stream(loaded, stream.incarnation, 0)):
            assert {name: lost_by(one, group) for name, group in one.groups.items()} == {
                name.encode(): reader.lost for name, reader in self.groups.items()
            }
            assert oldest_held_entry(one) == oldest_held_entry(stream)

    @rule()
    def replay(self) -> None:
        replays(self.in_process)

    @invariant()
    def what_is_shown_is_that_of_the_model(self) -> None:
        stream = self.in_process.stream()
        assert [entry[:2] for entry in stream.range()] == self.entries
        for name, reader in self.groups.items():
            info = fields(self.player.call(f"TINFO s GROUP {name}"))
            assert info[b"lost"] == reader.lost
        assert self.in_process.keyspace.lost_entries == self.lost
        held = next(((one, self.holders(one)) for one in self.entries if self.holders(one)), None)
        info = fields(self.player.call("TINFO s"))
        if held is None:
            assert (info[b"held-by"], info[b"held-id"]) == (Null.BULK, Null.BULK)
        else:
            assert self.groups[info[b"held-by"].decode()] in held[1]
            assert info[b"held-id"] == b"%d.%d" % held[0]
        if self.policy["EVICT"] == "ANY":
            return
        if self.entries:
            assert stream.max_evicted_id < self.entries[0], "TMREAD would skip it"
        if self.policy["EVICT"] == "DONE" and self.groups:
            assert not self.entries or self.holders(self.entries[0])
        if self.is_exact and self.policy["HARDLEN"]:
            assert len(self.entries) <= int(self.policy["HARDLEN"])


HeldEntriesMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
TestHeldEntries = HeldEntriesMachine.TestCase


# ---------------------------------------------------------------- the command

NEEDS_EVICT = "ERR HARDLEN, HARDAGE and HARDBYTES need EVICT ACKED or EVICT DONE"


def fill(player: InProcessClient, first: int, last: int) -> None:
    for number in range(first, last + 1):
        player.call(f"XADD s {number}-0 f v")


def length(player: InProcessClient) -> Any:
    return player.call("XLEN s")


@pytest.mark.parametrize(
    ("before", "line", "error"),
    [
        ("", "HARDLEN 5", NEEDS_EVICT),
        ("MAXLEN 9", "EVICT ANY HARDBYTES 5", NEEDS_EVICT),
        ("EVICT DONE HARDAGE 9000000000000", "EVICT ANY", NEEDS_EVICT),
        ("EVICT ACKED HARDLEN 9", "MAXLEN 1 EVICT ANY", NEEDS_EVICT),
        ("EVICT DONE", "HARDLEN -1", "ERR The HARDLEN argument must be >= 0."),
        ("EVICT DONE", "HARDAGE x", "ERR value is not an integer or out of range"),
    ],
)
def test_an_impossible_policy_changes_nothing(
    player: InProcessClient, before: str, line: str, error: str
) -> None:
    fill(player, 1, 3)
    if before:
        player.call(f"TPOLICY s {before}")
    shown = policy_of(player)
    assert player.call(f"TPOLICY s {line}") == Error(error)
    assert policy_of(player) == shown
    assert length(player) == 3


@pytest.mark.parametrize("line", ["EVICT", "EVICT ALL", "EVICT DONE EVICT"])
def test_an_unknown_word_after_evict_is_a_syntax_error(player: InProcessClient, line: str) -> None:
    fill(player, 1, 1)
    reply = player.call(f"TPOLICY s {line}")
    assert isinstance(reply, Error)
    assert reply.text.startswith("ERR syntax error")


def test_a_policy_shows_eight_fields_while_groups_matter(player: InProcessClient) -> None:
    fill(player, 1, 1)
    assert player.call("TPOLICY s EVICT DONE") == OK
    assert list((policy_of(player) or {}).items()) == [
        (b"maxlen", 0), (b"maxage", 0), (b"maxbytes", 0), (b"trim", b"approx"),
        (b"evict", b"done"), (b"hardlen", 0), (b"hardage", 0), (b"hardbytes", 0),
    ]  # fmt: skip
    player.call("TPOLICY s EVICT ACKED HARDLEN 7 HARDAGE 8000 HARDBYTES 9000 EXACT MAXLEN 3")
    assert list((policy_of(player) or {}).values()) == [3, 0, 0, b"exact", b"acked", 7, 8000, 9000]
    player.call("TPOLICY s HARDLEN 0 HARDAGE 0 HARDBYTES 0 evict any")
    assert list(policy_of(player) or {}) == [b"maxlen", b"maxage", b"maxbytes", b"trim"]
    player.call("TPOLICY s MAXLEN 0")
    assert policy_of(player) is None
    assert player.call("TPOLICY s EVICT ANY") == OK
    assert policy_of(player) is None


# ---------------------------------------------------------------- what leaves, and when


@pytest.mark.parametrize("trim", ["", "XTRIM s MINID 2-5"])
def test_the_first_kept_entry_holds_nothing_after_its_deletion(
    in_process: InProcessServer, player: InProcessClient, trim: str
) -> None:
    fill(player, 1, 6)
    player.call("XGROUP CREATE s g 0")
    player.call("TPOLICY s EVICT DONE")
    player.call("XREADGROUP GROUP g c STREAMS s >")
    player.call("XACK s g 1-0")
    if trim:
        player.call(trim)
    assert player.call("XDEL s 2-0 3-0") == (1 if trim else 2)
    player.call("XACK s g 4-0")
    assert length(player) == 2
    player.call("XACK s g 5-0 6-0")
    assert length(player) == 0


@pytest.mark.parametrize("trim", ["", "EXACT", "APPROX"])
def test_done_removes_settled_entries_one_by_one(
    in_process: InProcessServer, player: InProcessClient, trim: str
) -> None:
    fill(player, 1, 5)
    player.call("XGROUP CREATE s g 0")
    player.call("XGROUP CREATE s h 0")
    player.call(f"TPOLICY s EVICT DONE {trim}")
    for name in ("g", "h"):
        player.call(f"XREADGROUP GROUP {name} c STREAMS s >")
        assert length(player) == 5
    player.call("XACK s g 1-0 2-0 3-0")
    assert length(player) == 5
    player.call("XACK s h 1-0 3-0")
    assert length(player) == 4
    player.call("TACK s h 2.0")
    assert length(player) == 2
    assert in_process.stream().max_evicted_id == (3, 0)
    replays(in_process)


@pytest.mark.parametrize(
    "settle",
    [
        ("XREADGROUP GROUP g c NOACK STREAMS s >",),
        ("TREAD s 0 100 GROUP g 0",),
        ("XGROUP SETID s g $",),
        ("XGROUP DESTROY s g",),
        ("XREADGROUP GROUP g c STREAMS s >", "XGROUP DELCONSUMER s g c"),
        ("XREADGROUP GROUP g c STREAMS s >", "XACKDEL s g IDS 4 1-0 2-0 3-0 4-0"),
        ("XCLAIM s g c 0 9-0 LASTID 4-0",),
        ("MULTI", "XGROUP SETID s g 4-0", "EXEC"),
    ],
)
def test_every_way_to_settle_entries_lets_done_remove_them(
    in_process: InProcessServer, player: InProcessClient, settle: tuple[str, ...]
) -> None:
    player.call("XGROUP CREATE s g 0 MKSTREAM")
    player.call("XGROUP CREATE s new $")
    fill(player, 1, 4)
    player.call("TPOLICY s EVICT DONE")
    player.call("XGROUP SETID s new $")
    assert length(player) == 4
    for line in settle:
        player.call(line)
    assert length(player) == 0
    replays(in_process)


def test_a_policy_that_failed_is_retried(
    in_process: InProcessServer, player: InProcessClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object) -> None:
        raise MemoryError

    for key in ("s", "t"):
        player.call(f"XGROUP CREATE {key} g 0 MKSTREAM")
        player.call(f"TPOLICY {key} EVICT DONE HARDLEN 2 EXACT")
        player.call(f"XADD {key} 1-0 n 1")
        player.call(f"XADD {key} 2-0 n 1")
    monkeypatch.setattr(policies, "oldest_held_entry", broken)
    for line in ("MULTI", "XADD s 3-0 n 1", "XADD t 3-0 n 1", "EXEC"):
        player.call(line)
    assert [player.call(f"XLEN {key}") for key in ("s", "t")] == [3, 3]
    in_process.wait_ms(1500)  # the timer fails, too
    monkeypatch.undo()
    in_process.wait_ms(1500)
    assert [player.call(f"XLEN {key}") for key in ("s", "t")] == [2, 2]
    replays(in_process)


def test_a_waiting_read_without_acks_settles_too(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    fill(player, 1, 1)
    player.call("XGROUP CREATE s g $")
    player.call("TPOLICY s EVICT DONE")
    assert length(player) == 0
    in_process.player().send("XREADGROUP GROUP g c BLOCK 0 NOACK STREAMS s >")
    fill(player, 2, 2)
    assert length(player) == 0


def test_an_entry_deleted_at_the_head_uncovers_settled_ones(player: InProcessClient) -> None:
    fill(player, 1, 4)
    player.call("XGROUP CREATE s g 0")
    player.call("TPOLICY s EVICT DONE")
    player.call("XREADGROUP GROUP g c STREAMS s >")
    player.call("XACK s g 2-0 3-0")
    assert length(player) == 4
    player.call("XDEL s 1-0")
    assert length(player) == 1


def test_pending_entries_that_were_deleted_hold_nothing(player: InProcessClient) -> None:
    fill(player, 1, 6)
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g c STREAMS s >")
    player.call("XDEL s 2-0 4-0")
    player.call("TPOLICY s EVICT DONE")
    player.call("XACK s g 1-0 3-0")
    assert length(player) == 2


def test_the_first_group_at_the_end_lets_done_empty_the_stream(player: InProcessClient) -> None:
    fill(player, 1, 4)
    player.call("TPOLICY s EVICT DONE")
    assert length(player) == 4, "without groups nothing is removed"
    player.call("XGROUP CREATE s g $")
    assert length(player) == 0
    assert player.call("XADD s 5-0 f v") == b"5-0"
    assert length(player) == 1


def test_a_group_that_is_ahead_of_the_stream_hides_no_new_entry(player: InProcessClient) -> None:
    fill(player, 1, 2)
    player.call("TPOLICY s EVICT DONE")
    player.call("XGROUP CREATE s g 100-0")
    assert length(player) == 0
    player.call("XGROUP SETID s g 0")
    fill(player, 3, 4)
    assert length(player) == 2


def test_acked_limits_without_groups_are_those_of_any(player: InProcessClient) -> None:
    fill(player, 1, 9)
    player.call("TPOLICY s EVICT ACKED MAXLEN 4 EXACT")
    assert length(player) == 4
    player.call("XADD s 10-0 f v")
    assert length(player) == 4


def test_acked_limits_keep_what_a_group_holds(player: InProcessClient) -> None:
    fill(player, 1, 9)
    player.call("XGROUP CREATE s g 0")
    player.call("TPOLICY s EVICT ACKED MAXLEN 3 EXACT")
    assert length(player) == 9
    player.call("XREADGROUP GROUP g c STREAMS s >")
    player.call("XACK s g 2-0 3-0 4-0 5-0 6-0 7-0 8-0")
    rows: Any = player.call("XRANGE s - +")
    assert [row[0] for row in rows] == [b"1-0", b"8-0", b"9-0"]
    assert fields(player.call("TINFO s"))[b"max-evicted-id"] == b"0.0"


def test_settled_blocks_after_a_held_entry_count_as_deleted(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    in_process.keyspace.node_entries = NODE_ENTRIES
    fill(player, 1, 50)
    player.call("XGROUP CREATE s g 0")
    player.call("TPOLICY s EVICT DONE")
    player.call("XREADGROUP GROUP g c STREAMS s >")
    player.call("XACK s g " + " ".join(f"{n}-0" for n in range(2, 51)))
    assert length(player) == 50
    in_process.wait_ms(1000)
    assert 1 < length(player) <= 16
    info = fields(player.call("TINFO s"))
    assert info[b"first-id"] == info[b"held-id"] == b"1.0"
    assert (info[b"held-by"], info[b"max-evicted-id"]) == (b"g", b"0.0")
    assert info[b"entries-deleted"] == 50 - length(player)
    replays(in_process)
    player.call("XACK s g 1-0")
    assert length(player) == 0
    replays(in_process)


def test_hard_limits_win_over_groups_and_are_counted_and_logged(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("XGROUP CREATE s late 0 MKSTREAM")
    player.call("XGROUP CREATE s slow 0")
    fill(player, 1, 4)
    player.call("TPOLICY s EVICT DONE HARDLEN 4 EXACT")
    player.call("XREADGROUP GROUP slow c STREAMS s >")
    player.call("XACK s slow 1-0")
    fill(player, 5, 6)
    assert length(player) == 4
    lost = {
        name: fields(player.call(f"TINFO s GROUP {name}"))[b"lost"] for name in ("late", "slow")
    }
    assert lost == {"late": 2, "slow": 1}
    [line] = in_process.logged
    assert line.startswith("a hard limit of stream 's' evicted entries that group 'late' held: 1 ")
    in_process.wait_ms(1000)
    fill(player, 7, 7)
    assert "held: 4 entries" in in_process.logged[1]
    replays(in_process)


def test_hard_age_evicts_within_a_second_without_clients(in_process: InProcessServer) -> None:
    player = in_process.player()
    player.call("XADD s * f v")
    player.call("XGROUP CREATE s g 0")
    player.call("TPOLICY s EVICT ACKED MAXAGE 1000 HARDAGE 5000 EXACT")
    in_process.wait_ms(4500)
    assert length(player) == 1
    in_process.wait_ms(1000)
    assert length(player) == 0
    assert fields(player.call("TINFO s GROUP g"))[b"lost"] == 1
    replays(in_process)


def test_max_age_takes_what_is_acknowledged_later(in_process: InProcessServer) -> None:
    player = in_process.player()
    entry: Any = player.call("XADD s * f v")
    player.call("XGROUP CREATE s g 0")
    player.call("TPOLICY s EVICT ACKED MAXAGE 1000 EXACT")
    player.call("XREADGROUP GROUP g c STREAMS s >")
    in_process.wait_ms(5000)
    assert length(player) == 1
    player.call(f"XACK s g {entry.decode()}")
    assert length(player) == 0


def test_trims_count_pending_entries_as_lost(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    fill(player, 1, 8)
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g c COUNT 6 STREAMS s >")
    player.call("XDEL s 2-0 8-0")
    player.call("XACK s g 1-0")
    player.call("XTRIM s MAXLEN 4")
    assert fields(player.call("TINFO s GROUP g"))[b"lost"] == 1
    player.call("TAPPEV s COUNT 2 f v")
    assert fields(player.call("TINFO s GROUP g"))[b"lost"] == 4
    assert in_process.keyspace.lost_entries == 4
    replays(in_process)


def test_a_renamed_stream_keeps_its_policy(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    fill(player, 1, 4)
    player.call("XGROUP CREATE s g 0")
    player.call("TPOLICY s EVICT DONE")
    player.call("XREADGROUP GROUP g c STREAMS s >")
    player.call("RENAME s t")
    player.call("XACK t g 1-0 2-0")
    assert player.call("XLEN t") == 2
    player.call("RENAME t s")
    player.call("XACK s g 3-0")
    assert length(player) == 1
    replays(in_process)


def test_a_base_with_such_a_policy_has_version_5(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    fill(player, 1, 1)
    player.call("TPOLICY s MAXLEN 5")
    assert not in_process.keyspace.has_rules
    player.call("TPOLICY s EVICT ACKED")
    assert in_process.keyspace.has_rules
    assert in_process.replayed().has_rules
