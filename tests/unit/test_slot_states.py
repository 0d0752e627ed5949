"""Slots that move between shards: which keys are hidden, and what waits until they are served."""

from __future__ import annotations

import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.captures import whole
from tests.support.in_process import InProcessServer
from tests.support.resp import Error, Null, Simple

from millstream.commands.later.effect_slots import divide
from millstream.commands.later.slot_pieces import SlotPieces
from millstream.commands.runtime.effects import APPLY, CODES, Effects, apply_effects, split_effects
from millstream.commands.runtime.slot_effects import (
    import_payload,
    note_dropped,
    note_import,
    note_left,
    note_owned,
    note_stay,
)
from millstream.server.backup.stream_copy import capture_stream
from millstream.server.metrics.stream_series import choose
from millstream.server.monitor.info import keyspace_section
from millstream.server.repair.checking import new_keyspace
from millstream.storage.blocks import lazyfree
from millstream.storage.capture.capture import Capture
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.keyspace import slot_keys, slot_states
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS, cluster_slot_of
from millstream.storage.keyspace.database import Database
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.keyspace.slot_keys import keys_of_slots, some_keys_of
from millstream.storage.keyspace.slot_ranges import Ranges, parse_ranges, ranges_of, ranges_text
from millstream.storage.keyspace.slot_states import TIMER, Import
from millstream.storage.streams.stream import Stream

HIDDEN, SHOWN = "{h}", "{s}"
SLOT = cluster_slot_of(b"h")
RANGES: Ranges = ((SLOT, SLOT),)
MOVE = "1f"


class Node(InProcessServer):
    """A node that serves all slots but those that are hidden."""

    def __init__(self) -> None:
        super().__init__(clustered=True)
        self.client = self.player()
        self.call = self.client.call
        self.hidden: list[frozenset[int]] = []
        self.keyspace.on_slots_hidden = lambda: self.hidden.append(self.keyspace.hidden_slots)

    @property
    def states(self) -> tuple[Keyspace, Effects]:
        return self.keyspace, self.executor.effects

    def leave(self) -> None:
        note_left(*self.states, MOVE, RANGES, "s2")
        self.settle()

    def stay(self) -> None:
        note_stay(*self.states, MOVE)
        self.settle()

    def arrive(self) -> None:
        note_import(*self.states, Import(MOVE, RANGES, "s1", "ab" * 20, 7, -1))
        self.settle()

    def own(self) -> None:
        note_owned(*self.states, MOVE, 2)
        self.settle()

    def drop(self) -> None:
        note_dropped(*self.states, MOVE, 2)
        self.settle()


@pytest.fixture
def node() -> Node:
    node = Node()
    for tag in (HIDDEN, SHOWN):
        for name in "abc":
            node.call(f"SET {tag}{name} {name}")
    return node


def wanted(slot: int) -> bytearray:
    made = bytearray(CLUSTER_SLOTS)
    made[slot] = 1
    return made


def shown_of(payload: bytes) -> bytes:
    """The names of the effects of a frame."""
    return b" ".join(words[0] for _, words, _ in split_effects(payload))


def names(node: Node) -> set[bytes]:
    found = node.call("KEYS *")
    assert isinstance(found, list)
    return set(found)


def scanned(node: Node) -> set[bytes]:
    found: set[bytes] = set()
    cursor = b"0"
    while True:
        cursor, keys = node.call(f"SCAN {cursor.decode()} COUNT 2")
        found.update(keys)
        if cursor == b"0":
            return found


def test_no_command_lists_or_counts_hidden_keys(node: Node) -> None:
    shown = {f"{SHOWN}{name}".encode() for name in "abc"}
    everything = names(node)
    assert len(everything) == 6
    node.leave()
    assert names(node) == scanned(node) == shown
    assert node.call("KEYS {h}a") == []
    assert node.call("DBSIZE") == 3
    assert node.call("RANDOMKEY") in shown
    assert node.keyspace.slot_states.left[MOVE].ranges == RANGES
    node.stay()
    assert names(node) == scanned(node) == everything
    assert node.hidden == [{SLOT}, frozenset()]


def test_debug_shows_no_hidden_keys(node: Node) -> None:
    commands = ("OBJECT {h}a", "DIGEST-VALUE {h}a {s}b")
    before = node.call("DEBUG DIGEST")
    *_, [of_hidden, of_shown] = shown = [node.call(f"DEBUG {words}") for words in commands]
    node.leave()
    assert node.call("DEBUG OBJECT {h}a") == Error("ERR no such key")
    assert node.call("DEBUG OBJECT {s}a") != Error("ERR no such key")
    assert node.call("DEBUG DIGEST-VALUE {h}a {s}b") == [Simple("0" * 40), of_shown]
    assert of_hidden != of_shown
    node.call("DEBUG POPULATE 1 {h}new")
    assert b"{h}new:0" not in node.keyspace.databases[0].table
    without = node.call("DEBUG DIGEST")
    assert without != before
    node.stay()
    assert node.call("DEBUG DIGEST") == before
    assert [node.call(f"DEBUG {words}") for words in commands] == shown
    node.call("DEL {h}a {h}b {h}c")
    assert node.call("DEBUG DIGEST") == without


def test_no_backup_of_a_hidden_stream_is_made(node: Node) -> None:
    node.call("XADD {h}stream 1-1 f v")
    commits: Any = SimpleNamespace(last_seq=1)

    def is_copied() -> bool:
        return capture_stream(node.keyspace, 0, b"{h}stream", commits, 1) is not None

    assert is_copied()
    node.leave()
    assert not is_copied()
    node.stay()
    assert is_copied()


def test_info_and_metrics_leave_out_hidden_keys(node: Node) -> None:
    for tag in (HIDDEN, SHOWN):
        node.call(f"XADD {tag}stream * f v")
    for key, ttl_s in ((f"{HIDDEN}a", 1000), (f"{HIDDEN}b", 1000), (f"{SHOWN}a", 10)):
        node.call(f"EXPIRE {key} {ttl_s}")
    node.leave()
    assert keyspace_section(node.keyspace).startswith("db0:keys=4,expires=1,avg_ttl=10000,")
    *_, chosen = choose(node.keyspace, ("*",), 10)
    assert chosen is not None
    assert chosen.places == [(0, b"{s}stream")]
    node.call("FLUSHALL")
    assert keyspace_section(node.keyspace) == ""
    node.stay()
    assert keyspace_section(node.keyspace).startswith("db0:keys=4,expires=2,avg_ttl=1000000,")


def test_a_database_of_hidden_keys_seems_empty(node: Node) -> None:
    node.call("DEL {s}a {s}b {s}c")
    node.leave()
    assert node.call("RANDOMKEY") == Null.BULK
    assert node.call("DBSIZE") == 0


def test_many_hidden_keys_are_not_listed_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.commands.generic.databases.KEYS_AT_ONCE", 2)
    node = Node()
    for tag in (HIDDEN, SHOWN):
        node.call(f"MSET {tag}a 1 {tag}b 1")
    node.leave()
    assert names(node) == {b"{s}a", b"{s}b"}
    assert node.call("KEYS {h}a") == []


@pytest.mark.parametrize("command", ["FLUSHALL", "FLUSHDB"])
def test_a_flush_leaves_hidden_keys(node: Node, command: str) -> None:
    node.call("XADD {h}stream 5-1 f v")
    node.call("XGROUP CREATE {h}stream g 0")
    node.call("APPEND {h}a more")
    node.call("PEXPIRE {h}b 90000")
    expiry_ms = node.keyspace.databases[0].expiry_ms(b"{h}b")
    node.leave()
    node.call(command)
    assert names(node) == set()
    node.stay()
    for keyspace in (node.keyspace, node.replayed()):
        db = keyspace.databases[0]
        assert set(db.table) == {b"{h}a", b"{h}b", b"{h}c", b"{h}stream"}
        assert db.get(b"{h}a") == b"amore"
        assert db.expiry_ms(b"{h}b") == expiry_ms
    assert node.call("XLEN {h}stream") == 1
    flushed = next(one for one in reversed(node.persistence.payloads) if b"FLUSH" in shown_of(one))
    assert divide(flushed, wanted(SLOT)) == b""
    other = cluster_slot_of(b"s")
    (effect,) = split_effects(divide(flushed, wanted(other)))
    assert effect[1] == [b"FLUSHSLOTS", b"%d" % other]


def test_a_snapshot_has_hidden_keys_after_a_flush(node: Node) -> None:
    node.call("XADD {h}stream 5-1 f v")
    node.leave()
    capture = Capture(node.keyspace)
    node.call("FLUSHALL")
    node.stay()
    node.call("XADD {h}stream 6-1 f v")
    node.call("SET {h}a later")
    found = {one.key: one for one in whole(capture)}
    assert len(found) == 7
    assert found[b"{h}a"].meta["value"] == b"a"
    assert found[b"{h}stream"].meta["length"] == 1


def test_an_incarnation_is_not_used_again_after_a_move(node: Node) -> None:
    """A stream of the source that was deleted before its slot was copied may have had the last
    one, also if the clock of the source was ahead."""
    source = Keyspace(clustered=True)
    source.incarnation = (node.wall_ms + 90_000) << 20
    node.arrive()
    pieces = SlotPieces(source, SLOT)
    for piece in iter(pieces.step, None):
        import_payload(*node.states, piece)
    node.own()
    node.call("XADD {h}new * f v")
    for keyspace in (node.keyspace, node.replayed()):
        stream = keyspace.databases[0].table[b"{h}new"]
        assert isinstance(stream, Stream)
        assert stream.incarnation > source.incarnation


def test_what_is_due_for_hidden_keys_waits(node: Node) -> None:
    for tag in (HIDDEN, SHOWN):
        node.call(f"PEXPIRE {tag}a 50")
        node.call(f"XADD {tag}old {node.wall_ms}-1 f v")
        node.call(f"TPOLICY {tag}old MAXAGE 500")
        node.call(f"TSCHEDULE {tag}later IN 20 name f v")
        node.call(f"TRESERVE {tag}held w LEASE 100")
        node.call(f"TAPPEND {tag}work f v")
        node.call(f"TGROUP {tag}work g START 0 TIMEOUT 100 MAXDELIVER 1 DEADLETTER {tag}dead")
        node.call(f"XREADGROUP GROUP g c STREAMS {tag}work >")
    node.leave()
    frames = len(node.persistence.payloads)
    for _ in range(30):
        node.wait_ms(100)
    changed = {
        key
        for payload in node.persistence.payloads[frames:]
        for _, words, _ in split_effects(payload)
        if words[0] != b"TIME"
        for key in words[1:2]
    }
    shown = {SHOWN.encode() + name for name in (b"a", b"old", b"later", b"held", b"work", b"dead")}
    assert changed == shown
    db = node.keyspace.databases[0]
    assert b"{h}a" in db.table
    node.stay()
    node.wait_ms(1)
    node.wait_ms(1000)
    assert b"{h}a" not in db.table
    assert node.call("XLEN {h}old") == 0
    assert node.call("XLEN {h}later") == 1
    assert node.call("XLEN {h}dead") == 1
    held = node.stream(b"{h}held").held
    assert held is not None
    assert held.reservations == 0


def test_what_is_due_again_and_again_is_done_once(node: Node) -> None:
    node.arrive()
    for _ in range(3):
        assert node.keyspace.slot_states.set_aside(TIMER, 0, b"{h}a", b"group")
    note_owned(*node.states, MOVE, 2)
    assert [request[2:] for request in node.keyspace.timer_requests] == [(b"{h}a", b"group")]


def test_hidden_keys_are_freed_in_steps(node: Node) -> None:
    node.leave()
    lazyfree.defer(True)
    try:
        node.drop()
        states = node.keyspace.slot_states
        assert not states.left
        assert states.is_freeing(RANGES)
        assert node.keyspace.hidden_slots == {SLOT}
        assert lazyfree.free_step(8)
        assert len(node.keyspace.databases[0]) == 4
        assert len(names(node)) == 3
        restored = Keyspace(clustered=True)
        StoredKeyspace(restored).restore_global(StoredKeyspace(node.keyspace).global_meta())
        assert restored.slot_states.is_freeing(RANGES)
        while lazyfree.free_step(8):
            pass
        assert not states.is_freeing(RANGES)
        assert not node.keyspace.hidden_slots
        assert len(node.keyspace.databases[0]) == 3
    finally:
        lazyfree.defer(False)
    assert set(node.replayed().databases[0].table) == set(node.keyspace.databases[0].table)


def test_what_was_being_freed_is_not_shown_after_a_restart(node: Node) -> None:
    node.leave()
    lazyfree.defer(True)
    try:
        node.drop()
        meta = StoredKeyspace(node.keyspace).global_meta()
    finally:
        lazyfree.defer(False)
    restored = Keyspace(clustered=True)
    restored.expiring = False
    StoredKeyspace(restored).restore_global(meta)
    restored.databases[0].set(b"{h}a", b"v")  # the keys of a base follow
    assert restored.hidden_slots == {SLOT}
    again = Keyspace(clustered=True)
    again.databases[0].set(b"{h}a", b"v")
    StoredKeyspace(again).restore_global(meta)
    again.slot_states.free_now()
    assert not again.databases[0].table
    assert not again.slot_states
    restored.expiring = True
    while lazyfree.free_step(8):
        pass
    assert not restored.databases[0].table
    assert not restored.hidden_slots


def test_an_import_does_not_mix_with_what_was_dropped(node: Node) -> None:
    node.leave()
    lazyfree.defer(True)
    try:
        node.drop()
        node.arrive()
        assert not node.keyspace.slot_states.is_freeing(RANGES)
        assert not keys_of_slots(node.keyspace.databases[0], [SLOT])
        while lazyfree.free_step(8):
            pass
        assert node.keyspace.hidden_slots == {SLOT}
    finally:
        lazyfree.defer(False)
    node.own()
    assert not node.keyspace.slot_states


def test_states_are_the_same_after_a_replay_and_in_a_snapshot(node: Node) -> None:
    node.arrive()
    note_import(*node.states, Import(MOVE, RANGES, "s1", "ab" * 20, 9, SLOT))
    other = ranges_of([7, 8, 9, 100])
    note_left(*node.states, "2e", other, "s2")
    node.settle()
    states = node.keyspace.slot_states
    assert states.imports[MOVE].number == 9
    assert states.imports[MOVE].copied == SLOT
    assert states.left["2e"].ranges == ((7, 9), (100, 100))
    restored = Keyspace(clustered=True)
    StoredKeyspace(restored).restore_global(StoredKeyspace(node.keyspace).global_meta())
    replayed = node.replayed()
    for keyspace in (restored, replayed):
        assert keyspace.slot_states.imports == states.imports
        assert keyspace.slot_states.left == states.left
        assert keyspace.hidden_slots == node.keyspace.hidden_slots == {SLOT, 7, 8, 9, 100}
    restored.begin_again()
    assert not restored.hidden_slots
    assert not restored.slot_states


class Model:
    """A node whose slots move at random, and what its clients have to see. `tags` has the state of
    the slot of each tag."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.node = Node()
        self.tags = dict.fromkeys("abcd", "shown")
        self.keys: dict[bytes, tuple[bytes, int]] = {}  # with the value and the expiry, 0: never
        self.moves: dict[str, str] = {}  # by tag
        self.count = 0

    def key(self, tag: str) -> str:
        return f"{{{tag}}}{self.chance.randrange(5)}"

    def ranges(self, tag: str) -> Ranges:
        slot = cluster_slot_of(tag.encode())
        return ((slot, slot),)

    def visible(self) -> dict[bytes, tuple[bytes, int]]:
        now_ms = self.node.wall_ms
        return {
            key: (value, at_ms)
            for key, (value, at_ms) in self.keys.items()
            if self.tags[chr(key[1])] == "shown" and not 0 < at_ms <= now_ms
        }

    def put(self, tag: str) -> None:
        """A client, or the source of an import, sets a key that may expire."""
        self.count += 1
        key, value = self.key(tag), f"v{self.count}"
        span_ms = self.chance.choice([0, 0, 40, 300])
        at_ms = self.node.wall_ms + span_ms if span_ms else 0
        if self.tags[tag] == "shown":
            self.node.call(f"SET {key} {value}" + (f" PX {span_ms}" if span_ms else ""))
        else:
            effects = Effects()
            effects.record(0, b"SET", key.encode(), value.encode())
            if at_ms:
                effects.record(0, b"EXPIRE", key.encode(), at_ms)
            payload = effects.take_payload()
            assert payload is not None
            import_payload(*self.node.states, payload)
            self.node.settle()
        self.keys[key.encode()] = value.encode(), at_ms

    def move(self, tag: str) -> None:
        state, states = self.tags[tag], self.node.states
        self.count += 1
        if state == "shown":
            self.moves[tag] = f"{self.count:x}"
            note_left(*states, self.moves[tag], self.ranges(tag), "s2")
            self.tags[tag] = "left"
        elif state == "gone":
            if self.node.keyspace.slot_states.is_freeing(self.ranges(tag)):
                return
            self.moves[tag] = f"{self.count:x}"
            made = Import(self.moves[tag], self.ranges(tag), "s1", "ab" * 20, 1, -1)
            note_import(*states, made)
            self.tags[tag] = "arriving"
        elif self.chance.random() < 0.5:
            note_dropped(*states, self.moves[tag], 2)
            self.tags[tag] = "gone"
            self.keys = {key: row for key, row in self.keys.items() if chr(key[1]) != tag}
        else:
            epoch = () if state == "left" else (self.count,)
            (note_stay if state == "left" else note_owned)(*states, self.moves[tag], *epoch)
            self.tags[tag] = "shown"
        self.node.settle()

    def step(self) -> None:
        node, tag = self.node, self.chance.choice("abcd")
        act = self.chance.random()
        if act < 0.55 and self.tags[tag] in ("shown", "arriving"):
            self.put(tag)
        elif act < 0.7:
            self.move(tag)
        elif act < 0.72:
            node.call("FLUSHALL")
            self.keys = {k: v for k, v in self.keys.items() if self.tags[chr(k[1])] != "shown"}
        elif act < 0.8:
            lazyfree.free_step(4)
        else:
            node.wait_ms(self.chance.choice([1, 30, 200]))

    def check(self) -> None:
        self.node.wait_ms(1)  # a look-up would delete what should have expired
        wanted = self.visible()
        assert self.node.call("DBSIZE") == len(wanted)
        counted = keyspace_section(self.node.keyspace)
        assert counted.startswith(f"db0:keys={len(wanted)}," if wanted else "")
        assert bool(counted) == bool(wanted)
        assert names(self.node) == scanned(self.node) == set(wanted)
        found = self.node.call("RANDOMKEY")
        assert found in wanted if wanted else found == Null.BULK

    def contents(self, keyspace: Keyspace) -> dict[bytes, tuple[bytes, int]]:
        """All keys, hidden or not, without those that are being freed."""
        db = keyspace.databases[0]
        return {
            key: (bytes(value), db.expiry_ms(key))
            for key, value in db.table.items()
            if self.tags[chr(key[1])] != "gone" and isinstance(value, bytes)
        }


@pytest.mark.parametrize("seed", range(6))
def test_clients_see_the_keys_of_slots_that_are_served(seed: int) -> None:
    model = Model(seed)
    lazyfree.defer(seed % 2 == 1)
    try:
        for _ in range(400):
            model.step()
            model.check()
    finally:
        lazyfree.defer(False)
    there = model.contents(model.node.keyspace)
    hidden = {k: v for k, v in model.keys.items() if model.tags[chr(k[1])] != "shown"}
    assert there == {**model.visible(), **hidden}
    assert model.contents(model.node.replayed()) == there


def test_requests_that_waited_follow_the_effect(node: Node) -> None:
    """They may run as soon as their slot is served."""
    node.leave()
    node.keyspace.on_slots_hidden = lambda: node.client.send("SET {h}later v")
    note_stay(*node.states, MOVE)
    node.settle()
    names = [
        words[0] for one in node.persistence.payloads[-2:] for _, words, _ in split_effects(one)
    ]
    assert [name for name in names if name in (b"STAY", b"SET")] == [b"STAY", b"SET"]


def test_moves_with_a_slot_in_common_are_refused(node: Node) -> None:
    node.leave()
    with pytest.raises(ValueError, match="slots in common"):
        note_import(*node.states, Import("2e", ((0, CLUSTER_SLOTS - 1),), "s1", "ab", 1, -1))
    with pytest.raises(ValueError, match="known already"):
        note_left(*node.states, MOVE, ((1, 1),), "s2")
    with pytest.raises(ValueError, match="no import 2e"):
        note_owned(*node.states, "2e", 2)
    with pytest.raises(ValueError, match="no slots have left"):
        note_stay(*node.states, "2e")
    note_dropped(*node.states, "2e", 2)
    assert node.keyspace.hidden_slots == {SLOT}


def test_every_effect_is_divided_or_left_out() -> None:
    no_slot = {
        *(b"HISTORY", b"TIME", b"SWAPDB", b"SOURCE", b"KNOWN", b"STREAMS"),
        *(b"IMPORT", b"LEAVE", b"STAY", b"OWN", b"DROPSLOTS"),
    }
    for name in {*CODES, *APPLY} - {b"SELECT", b"FLUSHSLOTS"}:
        effects = Effects()
        effects.record(0, name, b"{s}key", b"x")
        effects.record(0, name, b"{h}key", b"x")
        payload = effects.take_payload()
        assert payload is not None
        found = [words for _, words, _ in split_effects(divide(payload, wanted(SLOT)))]
        if name in no_slot:
            assert found == []
        elif name == b"DEL":
            assert found == [[name, b"{h}key"]]
        elif name in (b"FLUSHALL", b"FLUSHDB"):
            assert found == [[b"FLUSHSLOTS", b"%d" % SLOT]] * 2
        elif name == b"CLOCK":
            assert len(found) == 2
        else:
            assert found == [[name, b"{h}key", b"x"]]


def test_keys_of_other_databases_are_not_divided() -> None:
    effects = Effects()
    effects.record(0, b"SET", b"{h}a", b"1")
    effects.record(3, b"SET", b"{h}b", b"1")
    effects.record(0, b"SET", b"{h}c", b"1")
    payload = effects.take_payload()
    assert payload is not None
    keyspace = Keyspace(clustered=True)
    apply_effects(keyspace, divide(payload, bytes([1]) * CLUSTER_SLOTS))
    assert set(keyspace.databases[0].table) == {b"{h}a", b"{h}c"}


@pytest.mark.parametrize("text", [b"", b"5-4", b"1,1", b"3-9,5", b"0-16384", b"-1", b"x"])
def test_malformed_ranges_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_ranges(text)


def test_ranges_have_a_text() -> None:
    ranges = ranges_of([5, 0, 1, 2, 16383])
    assert ranges_text(ranges) == b"0-2,5,16383"
    assert parse_ranges(b"0-2,5,16383") == ranges


def test_slots_are_emptied_in_the_database_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check has 10,000 databases, and a journal may empty every slot many times."""
    keyspace = Keyspace(10_000)
    asked = []

    def noted(db: Database, slots: Iterable[int], most: int) -> list[bytes]:
        asked.append(db)
        return some_keys_of(db, slots, most)

    monkeypatch.setattr(slot_keys, "some_keys_of", noted)
    monkeypatch.setattr(slot_states, "some_keys_of", noted)
    keyspace.slot_states.empty({SLOT})
    keyspace.slot_states.leave(MOVE, RANGES, "s2")
    keyspace.slot_states.drop(MOVE, 2)
    assert not keyspace.hidden_slots
    assert asked == [keyspace.databases[0]] * len(asked)


def test_the_keys_of_a_slot_are_found_at_once_in_a_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slot_keys, "cluster_slot_of", None)  # of each key
    keyspace = new_keyspace(1, clustered=True)
    db = keyspace.databases[0]
    db.put(b"{h}a", b"1")
    db.put(b"{s}a", b"1")
    assert keyspace.slot_states.empty({SLOT}) == 1
    assert list(db.table) == [b"{s}a"]
