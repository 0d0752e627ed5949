"""A slot that is copied while clients write: captured during a snapshot, followed by the effects of
its keys, restored to another keyspace, its journal and its snapshots."""

from __future__ import annotations

import random
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from tests.support.captures import whole
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.mixed_changes import STREAMS, STRINGS, Changes, Words
from tests.support.slot_contents import packed, shown, snapshot_of, state_of

from millstream.commands.later.effect_slots import divide
from millstream.commands.later.slot_pieces import SlotPieces
from millstream.commands.runtime.effects import Effects, apply_effects
from millstream.commands.runtime.slot_effects import (
    empty_some,
    import_payload,
    note_import,
    note_owned,
)
from millstream.storage.capture import key_parts, slot_capture
from millstream.storage.capture.capture import Capture
from millstream.storage.capture.captured_keys import captured_stream
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS, cluster_slot_of
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.keyspace.slot_ranges import ranges_of
from millstream.storage.keyspace.slot_states import Import

TAGS = ("x", "yy", "stays")
SLOTS = {tag: cluster_slot_of(tag.encode()) for tag in TAGS}
MOVING = [SLOTS[tag] for tag in TAGS[:2]]
MOVE, SHARD, HISTORY = "0" * 40, "s1", "ab" * 20
NAMES = {*STREAMS, *STRINGS, "orders", "held"}
NOW_MS = InProcessServer().wall_ms


class Writer:
    """Clients of a node that write to keys of several slots."""

    def __init__(self, seed: int) -> None:
        self.server = InProcessServer(clustered=True)
        self.player: InProcessClient = self.server.player()
        self.chance = random.Random(seed)
        self.changes = {tag: Changes(seed + at) for at, tag in enumerate(TAGS)}
        for tag in TAGS:
            for words in self.changes[tag].begin():
                self.ask(tag, words)

    @property
    def frames(self) -> list[bytes]:
        return self.server.persistence.payloads

    def ask(self, tag: str, words: Words) -> None:
        own = [f"{{{tag}}}{one}" if one in NAMES else one for one in map(str, words)]
        self.player.unread = b""
        self.player.send(" ".join(word or '""' for word in own))
        try:
            self.changes[tag].learn(words, self.player.read())
        except IndexError:
            self.player.unread = b""  # a read that waits

    def write(self, count: int) -> None:
        for _ in range(count):
            tag = self.chance.choice(TAGS)
            (words,) = self.changes[tag].draw(1)
            if words[0] in ("SWAPDB", "SELECT", "MOVE"):
                continue
            if str(words[0]).startswith("FLUSH") and self.chance.random() < 0.9:
                continue
            self.ask(tag, words)
            if self.chance.random() < 0.05:
                self.server.wait_ms(self.chance.choice([1, 60, 2000]))


class Target:
    """The node to which slots are copied, with its journal."""

    def __init__(self) -> None:
        self.keyspace = Keyspace(clustered=True)
        self.keyspace.set_time(NOW_MS)
        self.keyspace.node_entries = 4
        self.effects = Effects()
        self.frames: list[bytes] = []
        note_import(
            self.keyspace, self.effects, Import(MOVE, ranges_of(MOVING), SHARD, HISTORY, 0, -1)
        )
        self.commit()

    def commit(self) -> None:
        payload = self.effects.take_payload()
        assert payload is not None
        self.frames.append(payload)

    def take(self, payload: bytes) -> None:
        import_payload(self.keyspace, self.effects, payload)
        self.commit()

    def replayed(self, base: Keyspace | None = None, after: int = 0) -> Keyspace:
        made = base or Keyspace(clustered=True)
        made.set_time(NOW_MS)
        for payload in self.frames[after:]:
            apply_effects(made, payload)
        return made


def restored(keyspace: Keyspace) -> Keyspace:
    """A keyspace made of a snapshot of this one."""
    made = Keyspace(clustered=True)
    made.set_time(NOW_MS)
    stored = StoredKeyspace(made)
    meta = msgpack.unpackb(
        msgpack.packb(StoredKeyspace(keyspace).global_meta()), strict_map_key=False
    )
    for one in list(whole(Capture(keyspace))):
        if one.kind == "stream":
            values, blocks = packed(one)
            stored.restore(0, one.key, one.kind, values, [type(b).from_bytes(d) for b, d in zip(
                one.blocks, blocks, strict=True)])  # fmt: skip
        else:
            stored.restore(0, one.key, one.kind, one.meta, [])
    stored.restore_global(meta)
    return made


def wanted(slots: list[int]) -> bytearray:
    made = bytearray(CLUSTER_SLOTS)
    for slot in slots:
        made[slot] = 1
    return made


def copy_slots(writer: Writer, target: Target, snapshots: list[tuple[Any, Any]]) -> None:
    """Copy the slots one after another while clients write, and take snapshots at both sides."""
    source, chance = writer.server.keyspace, writer.chance
    copied: list[int] = []
    taken: Capture | None = None
    before: Any = None
    for slot in MOVING:
        start = len(writer.frames)
        pieces = SlotPieces(source, slot)
        seen = start
        waiting: list[bytes] = []  # of the slot itself, until all its pieces have arrived
        while (piece := pieces.step()) is not None:
            if piece:
                target.take(piece)
            writer.write(chance.randrange(6))
            for payload in writer.frames[seen:]:
                if divided := divide(payload, wanted(copied)):
                    target.take(divided)
                waiting.append(divide(payload, wanted([slot])))
            seen = len(writer.frames)
            if taken is None and chance.random() < 0.3:
                before = {one: snapshot_of(source, [SLOTS[one]]) for one in TAGS}
                taken = Capture(source)
                snapshots.append((before, _content(taken, source)))
                taken = None
            if chance.random() < 0.2:
                snapshots.append((len(target.frames), restored(target.keyspace)))
        for divided in filter(None, waiting):
            target.take(divided)
        copied.append(slot)
    for _ in range(5):
        seen = len(writer.frames)
        writer.write(20)
        for payload in writer.frames[seen:]:
            if divided := divide(payload, wanted(MOVING)):
                target.take(divided)


def _content(capture: Capture, keyspace: Keyspace) -> dict[str, dict[bytes, Any]]:
    found: dict[str, dict[bytes, Any]] = {tag: {} for tag in TAGS}
    for one in whole(capture):
        (tag,) = [tag for tag in TAGS if cluster_slot_of(one.key) == SLOTS[tag]]
        if one.kind == "stream":
            found[tag][one.key] = shown(one)
        else:
            found[tag][one.key] = one.meta["value"], one.meta.get("expires_ms")
    return found


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even small values have several parts, and each step has one."""
    monkeypatch.setattr(key_parts, "PART_BYTES", 200)
    monkeypatch.setattr(slot_capture, "PART_BYTES", 200)
    monkeypatch.setattr("millstream.commands.later.slot_pieces.PART_BYTES", 200)
    monkeypatch.setattr(key_parts, "_RUN_BLOCKS", 1)
    monkeypatch.setattr(key_parts, "_PENDING_BYTES", key_parts.PENDING_SIZE * 2)
    monkeypatch.setattr(key_parts, "_KEYS_BYTES", key_parts.SAVED_SIZE * 2)
    monkeypatch.setattr(key_parts, "_GROUPS_AT_ONCE", 1)
    monkeypatch.setattr(key_parts, "_CONSUMERS_AT_ONCE", 1)
    monkeypatch.setattr(key_parts, "_HELD_AT_ONCE", 1)
    monkeypatch.setattr(key_parts, "_HELD_BLOCKS", 1)


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_is_exact_under_writes(seed: int, small_parts: None) -> None:
    writer, target = Writer(seed), Target()
    writer.server.keyspace.node_entries = 4
    writer.write(400)
    snapshots: list[tuple[Any, Any]] = []
    copy_slots(writer, target, snapshots)
    note_owned(target.keyspace, target.effects, MOVE, 2)
    target.commit()

    there = state_of(writer.server.keyspace, MOVING)
    assert len(there) > 2
    assert state_of(target.keyspace, MOVING) == there
    assert state_of(target.keyspace, [SLOTS["stays"]]) == {}
    assert state_of(target.replayed(), MOVING) == there
    assert writer.server.keyspace.capture is None
    for before, made in snapshots:
        if isinstance(made, Keyspace):  # of the target: the frames after it complete it
            assert state_of(target.replayed(made, before), MOVING) == there
        else:
            assert made == before


def rich_server() -> InProcessServer:
    """A node with values of every kind in one slot."""
    server = InProcessServer(clustered=True)
    server.keyspace.node_entries = 4
    player = server.player()
    for line in (
        *(f"TAPPEND {{x}}all n {number}" for number in range(30)),
        "SET {x}blocked no-stream",
        "TGROUP {x}all managed START 0 TIMEOUT 1000 MAXDELIVER 1 DEADLETTER {x}blocked",
        "TGROUP {x}all managed BACKOFF 2 10 20",
        "TGROUP {x}all ordered START 0 TIMEOUT 1000 ORDER FIELD n",
        "XGROUP CREATE {x}all plain 0",
        *(
            f"XREADGROUP GROUP {group} {name} COUNT 7 STREAMS {{x}}all >"
            for group in ("managed", "ordered", "plain")
            for name in ("ann", "bob")
        ),
        "XGROUP DELCONSUMER {x}all plain ann",
        "TPOLICY {x}all MAXLEN 1000 EVICT ACKED",
        *(f"TSCHEDULE {{x}}all IN {number}000 name{number} f v" for number in range(1, 9)),
        *(f"TAPPENDONCE {{x}}all PRODUCER p{number} 1 f v" for number in range(9)),
        *(f"XADD {{x}}all IDMP p{number} once * f v" for number in range(9)),
        *(f"XGROUP CREATECONSUMER {{x}}all plain c{number}" for number in range(5)),
        "XGROUP DELCONSUMER {x}all plain c2",
        *(f"XADD {{x}}counts {number}-0 f v" for number in range(1, 8)),
        "XGROUP CREATE {x}counts plain 0",
        "XREADGROUP GROUP plain ann STREAMS {x}counts >",
        *(f"XCLAIM {{x}}counts plain bob 0 {at}-0 RETRYCOUNT 99999999999" for at in (2, 3, 6)),
        "TRESERVE {x}all w LEASE 60000 COUNT 3",
        "TRESERVE {x}all w2 LEASE 90000 COUNT 2",
        *(f"TAPPEND {{x}}all after {number}" for number in range(9)),
        "TCREATE {x}child PARENTS {x}all",
        "TAPPEND {x}sealed f v",
        "TSEAL {x}sealed CHILDREN {x}more",
        "TMREAD 1 CLOCK STREAMS {x}all 0-0",
        "SET {x}long " + "long" * 300,
        "SET {x}short 1 PX 90000",
        "APPEND {x}grows a",
        "APPEND {x}grows b",
    ):
        player.unread = b""
        player.send(line)
        assert not player.unread.startswith(b"-"), (line, player.unread)
    server.wait_ms(1500)  # the deliveries of the managed group have failed
    return server


def test_every_kind_of_value_arrives(small_parts: None) -> None:
    source = rich_server().keyspace
    there = snapshot_of(source, MOVING)
    _, meta, blocks = there[b"{x}all"]
    assert len(blocks) > 2
    assert {"held", "schedule", "idempotence", "policy"} < set(meta)
    assert len(meta["producers"]) == 9
    groups = {group["name"]: group for group in meta["groups"]}
    assert groups[b"managed"]["dead"]
    assert groups[b"ordered"]["order_keys"]
    assert groups[b"plain"]["pending"]
    [counted] = there[b"{x}counts"][1]["groups"]
    assert len(counted["large_counts"]) == 3
    target = Target()
    snapshots = copied_slot(source, target)
    assert len(snapshots) > 30
    made = snapshot_of(target.keyspace, MOVING)
    assert made == there
    assert target.keyspace.incarnation == source.incarnation
    assert target.keyspace.open_reservations() == source.open_reservations() == 5
    for count, keyspace in snapshots:
        replayed = target.replayed(keyspace, count)
        assert snapshot_of(replayed, MOVING) == there
        assert replayed.open_reservations() == 5


def copied_slot(source: Keyspace, target: Target) -> list[tuple[int, Keyspace]]:
    """Copy a slot; a snapshot of the target after each piece, with the number of frames then."""
    pieces = SlotPieces(source, SLOTS["x"])
    snapshots = []
    while (piece := pieces.step()) is not None:
        if piece:
            target.take(piece)
            snapshots.append((len(target.frames), restored(target.keyspace)))
    return snapshots


def test_many_consumers_take_the_numbers_that_are_free() -> None:
    """The lowest one first, also after a copy in parts."""
    server, target = InProcessServer(clustered=True), Target()
    player = server.player()
    player.call("XGROUP CREATE {x}s g 0 MKSTREAM")
    for number in range(1200):
        player.call(f"XGROUP CREATECONSUMER {{x}}s g c{number}")
    for number in (1199, 701, 700, 3):
        player.call(f"XGROUP DELCONSUMER {{x}}s g c{number}")
    copied_slot(server.keyspace, target)
    assert snapshot_of(target.keyspace, MOVING) == snapshot_of(server.keyspace, MOVING)
    before = len(server.persistence.payloads)
    for number in range(6):
        player.call(f"XGROUP CREATECONSUMER {{x}}s g new{number}")
    for payload in server.persistence.payloads[before:]:
        target.take(divide(payload, wanted(MOVING)))
    assert snapshot_of(target.keyspace, MOVING) == snapshot_of(server.keyspace, MOVING)


def test_a_step_has_few_consumers_or_held_entries() -> None:
    server = InProcessServer(clustered=True)
    player = server.player()
    player.call("XGROUP CREATE {x}s g 0 MKSTREAM")
    for number in range(1800):
        player.call(f"XGROUP CREATECONSUMER {{x}}s g c{number}")
    player.call("TRESERVE {x}t w COUNT 1800")
    capture = slot_capture.SlotCapture(server.keyspace, SLOTS["x"])
    found: list[Any] = []
    while (parts := capture.step()) is not None:
        kinds = [part[2] for part in parts if part and part[0] == b"KEYPART"]
        heavy = [kind for kind in kinds if kind in (key_parts.CONSUMERS, key_parts.HELD)]
        assert len(heavy) <= 1
        found += heavy
    capture.close()
    assert found.count(key_parts.CONSUMERS) == 4
    assert found.count(key_parts.HELD) == 6  # the beginning, the writer, 4 with rows


@pytest.mark.parametrize("blocks", [1, 7])
def test_long_runs_of_held_entries_arrive(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_parts, "_HELD_BLOCKS", blocks)
    monkeypatch.setattr(key_parts, "_HELD_AT_ONCE", 3)
    server, target = InProcessServer(clustered=True), Target()
    player = server.player()
    first = player.call("TRESERVE {x}s w1")
    ids: Any = player.call("TRESERVE {x}s w2 COUNT 2500")
    more: Any = player.call("TRESERVE {x}s w3 COUNT 2500")
    for number in range(2500):
        for writer, one in (("w2", ids[number]), ("w3", more[number])):
            if number != 1800:
                player.call(f"TCOMPLETE {{x}}s {writer} {one.decode()} field {number}")
    for number in range(9):
        player.call(f"TAPPEND {{x}}s after {number}")
    there = snapshot_of(server.keyspace, MOVING)
    runs = [row for row in there[b"{x}s"][1]["held"]["segments"] if row[0] == 2]
    assert len(runs) > 1
    assert any(row[2] for row in runs)
    snapshots = copied_slot(server.keyspace, target)
    assert snapshot_of(target.keyspace, MOVING) == there
    middle, keyspace = snapshots[len(snapshots) // 2]
    again = Target()
    again.keyspace, again.frames = target.replayed(keyspace, middle), []
    before = len(server.persistence.payloads)
    assert isinstance(first, bytes)
    player.call(f"TCOMPLETE {{x}}s w1 {first.decode()} f v")
    assert player.call("XLEN {x}s") == 1801
    for payload in server.persistence.payloads[before:]:
        for one in (target, again):
            one.take(divide(payload, wanted(MOVING)))
    there = state_of(server.keyspace, MOVING)
    assert state_of(target.keyspace, MOVING) == state_of(again.keyspace, MOVING) == there


@pytest.mark.parametrize(
    ("meta", "problem"),
    [
        ({"segments": []}, "a part of what it holds comes before its beginning"),
        ({"last_id": [9, 9], "first_reserved": [1, 0], "has_forgotten": False, "segments": [
            [1, 5, 0, None, [b"f", b"v"]]]}, "does not begin with a reservation"),
        ({"last_id": [9, 9], "first_reserved": [1, 0], "has_forgotten": False, "segments": [
            [3, [], None, True]]}, "more of a run without its beginning"),
        ({"last_id": [9, 9], "first_reserved": [1, 0], "has_forgotten": False, "writers": [
            [b"w", 0, 0, 0, 0]], "segments": [[0, 10, 0, 9, 0, 0, 0, 0, 9]]}, "below one that it"),
        ({"last_id": [9, 9], "first_reserved": [1, 0], "has_forgotten": False, "writers": [
            [b"w", 0, 0, 0, 0]], "segments": [[0, 5, 0, 4, 0, 0, 0, 0, 9]] * 2}, "do not rise"),
    ],
)  # fmt: skip
def test_wrong_parts_of_held_entries_are_refused(meta: Any, problem: str) -> None:
    keyspace = Target().keyspace
    head = {name: 0 for name in key_parts._HEAD if name != "expires_ms"}
    head |= {name: [0, 0] for name in ("last_id", "first_kept", "max_evicted", "max_deleted")}
    key_parts.restore_part(keyspace, b"{x}s", key_parts.HEAD, msgpack.packb(head))
    with pytest.raises(ValueError, match=problem):
        key_parts.restore_part(keyspace, b"{x}s", key_parts.HELD, msgpack.packb(meta))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ([NOW_MS, 9, b"name"], "has a name without a value"),
        ([NOW_MS, 9, b"name", b"f", b"v", b"g"], "has a name without a value"),
        ([NOW_MS, 2**40, b"name", b"f", b"v"], "the last number of its schedule"),
    ],
)
def test_wrong_scheduled_entries_are_refused(row: list[Any], problem: str) -> None:
    """As in a snapshot."""
    db = rich_server().keyspace.databases[0]
    stream = db.writable_stream(b"{x}all")
    assert stream is not None
    keyspace = Target().keyspace

    def restore() -> None:
        for _, key, kind, data in filter(
            None, key_parts.stream_parts(captured_stream(0, b"{x}all", stream, None))
        ):
            wrong = msgpack.packb([row]) if kind == key_parts.SCHEDULED else data
            key_parts.restore_part(keyspace, key, kind, wrong)

    with pytest.raises(ValueError, match=problem):
        restore()


def test_a_slot_is_copied_again_after_a_break() -> None:
    server = rich_server()
    target = Target()
    pieces = SlotPieces(server.keyspace, SLOTS["x"])
    while (piece := pieces.step()) is not None:
        if piece:
            target.take(piece)
    pieces.close()
    player = server.player()
    player.send("DEL {x}long")
    player.send("DEL {x}all")
    assert empty_some(target.keyspace, target.effects, SLOTS["x"], 2)
    while empty_some(target.keyspace, target.effects, SLOTS["x"], 2):
        pass
    target.commit()
    assert not target.keyspace.databases[0].table
    again = SlotPieces(server.keyspace, SLOTS["x"])
    while (piece := again.step()) is not None:
        if piece:
            target.take(piece)
    there = snapshot_of(server.keyspace, MOVING)
    assert b"{x}long" not in there
    assert snapshot_of(target.keyspace, MOVING) == there
    assert snapshot_of(target.replayed(), MOVING) == there


def test_two_slots_are_captured_during_a_snapshot() -> None:
    """Each shows the moment at which it began, whatever the others have captured."""
    writer = Writer(77)
    writer.write(200)
    source = writer.server.keyspace
    targets = []
    first = {tag: snapshot_of(source, [SLOTS[tag]]) for tag in TAGS}
    captures = [SlotPieces(source, MOVING[0])]
    snapshot = Capture(source)
    writer.write(30)
    second = snapshot_of(source, [MOVING[1]])
    captures.append(SlotPieces(source, MOVING[1]))
    writer.write(60)
    for pieces in captures:
        target = Target()
        while (piece := pieces.step()) is not None:
            if piece:
                target.take(piece)
            writer.write(3)
        targets.append(target)
    assert snapshot_of(targets[0].keyspace, MOVING) == first["x"]
    assert snapshot_of(targets[1].keyspace, MOVING) == second
    writer.write(30)
    assert _content(snapshot, source) == first
    assert source.capture is None
