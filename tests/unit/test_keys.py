"""Commands on keys and strings, called as the executor calls them, under a fake clock."""

from __future__ import annotations

import tracemalloc
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.captures import each
from tests.support.in_process import InProcessServer
from tests.support.resp import Simple, encode_command
from tests.support.storage_access import acknowledge_id, check_stream, deliver_id

from millstream.commands.admin import scripts
from millstream.commands.runtime.arguments import OwnedArgs
from millstream.commands.runtime.context import Context, Session
from millstream.commands.runtime.effects import EffectError, Effects, apply_effects
from millstream.commands.runtime.replies import OK
from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS
from millstream.errors import CommandError
from millstream.storage.capture.capture import Capture
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.head_eviction import evict_before
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import dump_stream

NOW_MS = 1_700_000_000_000
LETTERS = b"g$xnmoct"

load_table()


class Host:
    """The process as these commands see it."""

    def __init__(self) -> None:
        self.numbers = count()
        self.save_points = ""
        self.appendonly = "no"
        self.config = SimpleNamespace(
            proto_max_bulk_len=2 * 1024**2,
            shown=lambda name: {"save": self.save_points, "appendonly": self.appendonly}[name],
        )
        self.snapshots = self
        self.saves = 0
        self.saving_fails = False
        self.seen: list[str] = []
        self.pubsub = self

    def random_number(self) -> int:
        return next(self.numbers)

    def save(self) -> None:
        self.saves += 1
        if self.saving_fails:
            raise CommandError("ERR Background save already in progress")

    def keyspace_event(self, kind: bytes, event: bytes, key: bytes, db_index: int) -> None:
        assert kind in LETTERS
        self.seen.append(f"{db_index} {event.decode()} {key.decode()}")


class Room:
    """The commands without the server around them."""

    def __init__(self) -> None:
        self.keyspace = Keyspace()
        self.effects = Effects()
        self.host = Host()
        self.ctx = Context(self.keyspace, self.effects, self.host)  # type: ignore[arg-type]
        self.ctx.session = Session(1)
        self.ctx.db = self.keyspace.databases[0]
        self.keyspace.expiring = True
        self.keyspace.on_expired = self._on_expired
        self.be_at(NOW_MS)

    def _on_expired(self, db_index: int, key: bytes) -> None:
        self.effects.record(db_index, b"DEL", key)
        self.ctx.notify(b"expired", key, db_index)

    def be_at(self, now_ms: int) -> None:
        self.ctx.now_ms = self.ctx.steady_ms = now_ms
        self.keyspace.set_time(now_ms)

    def call(self, *words: bytes | str | int) -> Any:
        request = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        row = COMMANDS[request[0].lower()]
        args = OwnedArgs(request)
        if row.subcommands:
            row, args.pos = row.subcommands[request[1].lower()], 2
        return row.handler(self.ctx, args)

    def refusal(self, *words: bytes | str | int) -> str:
        with pytest.raises(CommandError) as refused:
            self.call(*words)
        return refused.value.message

    def events(self) -> list[str]:
        seen, self.host.seen = self.host.seen, []
        return seen

    def add_stream(self, key: bytes, db: int = 0) -> Stream:
        stream = self.keyspace.databases[db].make_stream(key, self.keyspace.next_incarnation(1))
        self.effects.record(db, b"STREAM", key, stream.incarnation)
        for ms in (1, 2, 3):
            stream.append_entry(ms, 1, [b"f", b"v"])
            self.effects.record(db, b"APPEND", key, b"%d-1" % ms, b"f", b"v")
        return stream

    def replayed(self) -> Keyspace:
        """A keyspace made of nothing but the effects recorded so far."""
        copy = Keyspace()
        copy.set_time(NOW_MS + 10**9)  # no effect depends on when it is applied
        apply_effects(copy, self.effects.take_payload())
        return copy


def contents(keyspace: Keyspace) -> dict[tuple[int, bytes], tuple[Any, int]]:
    """Values and expiries; of a stream its metadata and its blocks' bytes."""
    found: dict[tuple[int, bytes], tuple[Any, int]] = {}
    for db in keyspace.databases:
        for key in list(db.keys()):
            value: Any = db.get(key)
            if isinstance(value, Stream):
                meta, blocks = dump_stream(value)
                value = (meta, [block.to_bytes() for block in blocks])
            found[db.index, key] = (value, db.expiry_ms(key))
    return found


@pytest.fixture
def room() -> Room:
    return Room()


# ---------------------------------------------------------------- appending


def test_appending_takes_memory_for_the_entries_only(room: Room) -> None:
    room.call("SET", "s", b"x" * 1_000_000)
    room.call("APPEND", "s", "y")
    room.call("APPEND", "s", "y")
    tracemalloc.start()
    try:
        for _ in range(10):
            room.call("APPEND", "s", "y")
            room.call("STRLEN", "s")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 500_000
    assert room.call("GET", "s") == b"x" * 1_000_000 + b"y" * 12


APPENDING = [
    ("GET", "k"), ("GET", "k2"), ("STRLEN", "k"), ("STRLEN", "k2"), ("MGET", "k", "k2"),
    ("APPEND", "k", "0"), ("APPEND", "k", "12"), ("APPEND", "k2", "3"), ("APPEND", "k", ""),
    ("SET", "k", "v"), ("SET", "k", "1", "KEEPTTL"), ("INCR", "k2"), ("GETDEL", "k2"),
    ("DEL", "k"), ("RENAME", "k", "k2"), ("COPY", "k", "k2", "REPLACE"), ("MOVE", "k2", "1"),
    ("SWAPDB", "0", "1"), ("PEXPIRE", "k", "1000000"), ("PERSIST", "k"), ("EXISTS", "k"),
    ("OBJECT", "ENCODING", "k"), ("GETEX", "k", "PX", "500"), ("FLUSHDB",), ("TYPE", "k2"),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_a_string_that_grows_is_a_string_like_any(seed: int) -> None:
    """As in a database where every value is read, and so settled, after each command; a point in
    time taken on the way is what was there then."""
    chance = Random(seed)
    room, settled = Room(), Room()
    capture, then, taken = None, {}, {}
    for _ in range(200):
        words = chance.choice(APPENDING + APPENDING[5:9] * 4)
        answers = []
        for one in (room, settled):
            try:
                answers.append(one.call(*words))
            except CommandError as error:
                answers.append(error.message)
        assert answers[0] == answers[1], words
        contents(settled.keyspace)
        if capture is None and chance.random() < 0.05:
            capture, then = Capture(room.keyspace), contents(settled.keyspace)
        elif capture is not None and chance.random() < 0.3:
            found = capture.step(1)
            for one in each(found):
                taken[one.db, one.key] = (one.meta["value"], one.meta.get("expires_ms", 0))
            if found is None:
                assert taken == then
                capture.close()
                capture, taken = None, {}
    expected = contents(settled.keyspace)
    assert contents(room.keyspace) == expected
    assert contents(room.replayed()) == expected


# ---------------------------------------------------------------- copying over and over


def test_copies_of_a_stream_seal_nothing(room: Room) -> None:
    room.add_stream(b"s")
    for number in range(60):
        room.call("COPY", "s", "copy", "REPLACE")
        room.call("RENAME", "copy", "s")
        stream = room.ctx.db.stream(b"s")
        assert stream is not None
        stream.append_entry(10 + number, 1, [b"f", b"v"])
        room.effects.record(0, b"APPEND", b"s", b"%d-1" % (10 + number), b"f", b"v")
    assert (stream.length, stream.block_count) == (63, 1)
    assert contents(room.replayed()) == contents(room.keyspace)


# ---------------------------------------------------------------- locks, by script


LOCKS = {script.run: digest for digest, script in reversed(scripts.SCRIPTS.items())}
OLD_EXTEND = b"4a484ac024e9b025224cd9f8e1d59dbf3c15d00d"


def play(room: Room, digest: bytes, *arguments: bytes | str | int) -> Any:
    room.ctx.scripts.add(digest)
    return room.call("EVALSHA", digest.upper(), 1, "lock", *arguments)


def test_a_script_records_its_effects(room: Room) -> None:
    room.call("SET", "lock", "token", "PX", 1000)
    assert play(room, LOCKS[scripts.extend], "token", 500, "0") == 1
    assert room.call("PTTL", "lock") == 1500
    assert play(room, OLD_EXTEND, "token", 500) == 1
    assert room.call("PTTL", "lock") == 2000
    assert play(room, LOCKS[scripts.extend], "token", 500, "1") == 1
    assert room.call("PTTL", "lock") == 500
    assert play(room, LOCKS[scripts.reacquire], "token", 700) == 1
    assert play(room, LOCKS[scripts.release], "other") == 0
    assert contents(room.replayed()) == contents(room.keyspace) == {
        (0, b"lock"): (b"token", NOW_MS + 700)
    }  # fmt: skip
    dirty, room.ctx.events = room.keyspace.dirty, LETTERS
    assert play(room, LOCKS[scripts.release], "token") == 1
    assert room.keyspace.dirty == dirty + 1
    assert room.events()[-1] == "0 del lock"
    assert contents(room.keyspace) == {}


def test_a_script_changes_nothing_while_writes_are_refused(room: Room) -> None:
    room.call("SET", "lock", "token", "PX", 1000)
    room.ctx.write_error = "MISCONF full"
    assert play(room, LOCKS[scripts.release], "other") == 0
    for digest, script in scripts.SCRIPTS.items():
        with pytest.raises(CommandError, match="MISCONF full"):
            play(room, digest, *["token", "5", "0"][: script.arguments])
    assert room.call("PTTL", "lock") == 1000


def test_a_script_requires_its_key_and_its_arguments(room: Room) -> None:
    for digest in scripts.SCRIPTS:
        with pytest.raises(CommandError, match="takes one key and"):
            play(room, digest)
        assert "takes one key and" in room.refusal("EVALSHA", digest, 0, "token", "1", "0")


# ---------------------------------------------------------------- expiry


def test_an_expiry_is_recorded_as_a_time(room: Room) -> None:
    room.call("SET", "a", "v", "EX", 10)
    room.call("SET", "b", "v")
    room.call("PEXPIRE", "b", 5)
    room.call("SETEX", "c", 7, "v")
    room.call("PERSIST", "c")
    replayed = room.replayed()
    assert contents(replayed) == {
        (0, b"a"): (b"v", NOW_MS + 10_000),
        (0, b"b"): (b"v", NOW_MS + 5),
        (0, b"c"): (b"v", 0),
    }


def test_a_key_exists_until_its_expiry_and_not_at_it(room: Room) -> None:
    room.call("SET", "a", "v", "PX", 10)
    room.be_at(NOW_MS + 9)
    assert room.call("PTTL", "a") == 1
    assert room.call("TTL", "a") == 0
    room.be_at(NOW_MS + 10)
    assert room.call("PTTL", "a") == -2
    assert room.call("DBSIZE") == 0
    assert contents(room.replayed()) == {}


@pytest.mark.parametrize(
    ("left_ms", "seconds"), [(499, 0), (500, 1), (1499, 1), (1500, 2), (100_000, 100)]
)
def test_ttl_rounds_to_the_nearest_second(room: Room, left_ms: int, seconds: int) -> None:
    room.call("SET", "a", "v", "PX", left_ms)
    assert room.call("TTL", "a") == seconds


def test_a_change_keeps_an_expiry_and_a_replacement_does_not(room: Room) -> None:
    changes = [("INCR",), ("DECRBY", 3), ("APPEND", "0"), ("SET", "5", "KEEPTTL")]
    for name, *rest in changes:
        room.call("SET", "a", "1", "PX", 1000)
        room.call(name, "a", *rest)
        assert room.call("PTTL", "a") == 1000, name
        assert contents(room.replayed())[0, b"a"][1] == NOW_MS + 1000, name
    for words in (("SET", "a", "1"), ("MSET", "a", "1"), ("SET", "a", "1", "GET")):
        room.call("SET", "a", "1", "PX", 1000)
        room.call(*words)
        assert room.call("PTTL", "a") == -1, words
        assert contents(room.replayed())[0, b"a"][1] == 0, words


@pytest.mark.parametrize(
    "words",
    [
        ("EXPIRE", "a", 0),
        ("PEXPIREAT", "a", NOW_MS),
        ("EXPIREAT", "a", -1),
        ("GETEX", "a", "PXAT", NOW_MS),
        ("GETDEL", "a"),
    ],
)
def test_an_expiry_in_the_past_deletes_at_once(room: Room, words: tuple[Any, ...]) -> None:
    room.call("SET", "a", "v")
    room.ctx.events = LETTERS
    room.call(*words)
    assert room.events() == ["0 del a"]
    assert room.call("DBSIZE") == 0
    assert contents(room.replayed()) == {}


def test_commands_without_a_change_record_nothing(room: Room) -> None:
    room.call("SET", "a", "v")
    room.effects.take_payload()
    changes = room.keyspace.dirty
    for words in (
        ("EXPIRE", "a", 100, "XX"),
        ("EXPIRE", "none", 100),
        ("PERSIST", "a"),
        ("GETEX", "a"),
        ("GETEX", "a", "PERSIST"),
        ("SETNX", "a", "w"),
        ("SET", "a", "w", "NX"),
        ("RENAME", "a", "a"),
        ("RENAMENX", "a", "a"),
        ("COPY", "none", "b"),
        ("MOVE", "none", 1),
        ("TOUCH", "a"),
        ("GETDEL", "none"),
    ):
        room.call(*words)
        assert room.effects.take_payload() == b"", words
    assert room.keyspace.dirty == changes


@pytest.mark.parametrize(("look", "found"), [(("KEYS", "*"), []), (("RANDOMKEY",), None)])
def test_looking_for_keys_deletes_those_that_are_due(
    room: Room, look: tuple[str, ...], found: object
) -> None:
    for number in range(20):
        room.call("SET", f"k{number}", "v", "PX", 10)
    room.be_at(NOW_MS + 10)
    assert room.call("DBSIZE") == 20
    assert room.call(*look) == found
    assert room.call("DBSIZE") == 0


def test_a_scan_leaves_no_key_that_is_due(room: Room) -> None:
    room.call("SET", "stays", "v")
    for number in range(50):
        room.call("SET", f"k{number}", "v", "PX", 10)
    room.be_at(NOW_MS + 10)
    cursor, found = b"0", []
    while True:
        cursor, keys = room.call("SCAN", cursor)
        found += keys
        if cursor == b"0":
            break
    assert found == [b"stays"]
    assert room.call("DBSIZE") == 1


def test_a_due_key_is_not_found_while_it_may_not_be_deleted(room: Room) -> None:
    room.call("SET", "a", "v", "PX", 10)
    room.be_at(NOW_MS + 10)
    room.keyspace.may_delete = False
    assert room.call("GET", "a") is None
    assert room.call("KEYS", "*") == []
    assert room.call("TTL", "a") == -2
    assert room.call("RANDOMKEY") == b"a"  # Redis, too, gives up at some time
    assert room.call("DBSIZE") == 1


# ---------------------------------------------------------------- streams under other names


def test_copy_creates_an_incarnation_and_rename_keeps_it(room: Room) -> None:
    stream = room.add_stream(b"s")
    before = stream.incarnation
    assert room.call("COPY", "s", "t") == 1
    copy = room.ctx.db.stream(b"t")
    assert copy is not None
    assert copy.incarnation > before
    room.call("RENAME", "t", "u")
    assert room.ctx.db.stream(b"u") is copy
    assert contents(room.replayed()) == contents(room.keyspace)


def test_a_copy_and_its_original_change_apart(room: Room) -> None:
    stream = room.add_stream(b"s")
    group = stream.make_group(b"g", 0, 0)
    group.pending.make_consumer(b"alice", NOW_MS)
    deliver_id(group, 1, 1, NOW_MS, b"alice")
    room.call("COPY", "s", "t", "DB", 1)
    copy = room.keyspace.databases[1].stream(b"t")
    assert copy is not None
    assert copy.range() == stream.range()
    assert copy.groups[b"g"].pending.rows() == group.pending.rows()
    stream.append_entry(9, 9, [b"only", b"here"])
    stream.delete_id(1, 1)
    acknowledge_id(group, 1, 1)
    copy.append_entry(7, 7, [b"only", b"there"])
    evict_before(copy, 2, 1)
    assert [entry[:2] for entry in stream.range()] == [(2, 1), (3, 1), (9, 9)]
    assert [entry[:2] for entry in copy.range()] == [(2, 1), (3, 1), (7, 7)]
    assert len(copy.groups[b"g"].pending.rows()) == 1
    check_stream(copy)
    check_stream(stream)


def test_a_capture_stays_right_under_renames_copies_and_swaps(room: Room) -> None:
    room.add_stream(b"s")
    room.add_stream(b"t", db=1)
    room.call("SET", "a", "v", "PX", 1000)
    room.call("SET", "b", "w")
    before = contents(room.keyspace)
    capture = Capture(room.keyspace)
    room.call("RENAME", "s", "b")
    room.call("COPY", "a", "s")
    room.call("EXPIRE", "a", 5000)
    room.call("SWAPDB", 0, 1)
    room.call("COPY", "t", "a", "DB", 3)
    room.call("MOVE", "t", 2)
    room.call("PEXPIRE", "a", 7)
    taken = Keyspace()
    while (found := capture.step(1)) is not None:
        for key in each(found):
            StoredKeyspace(taken).restore(key.db, key.key, key.kind, key.meta, key.blocks)
    capture.close()
    assert contents(taken) == before


def test_swapped_databases_keep_their_expiries(room: Room) -> None:
    room.call("SET", "a", "v", "PX", 10)
    room.call("SWAPDB", 0, 1)
    room.be_at(NOW_MS + 10)
    assert room.keyspace.expire_due(10) == 1
    assert contents(room.keyspace) == {}
    assert contents(room.replayed()) == {}


# ---------------------------------------------------------------- events


def test_events_are_in_the_order_of_redis(room: Room) -> None:
    room.ctx.events = LETTERS
    expected: dict[tuple[Any, ...], list[str]] = {
        ("SET", "a", "1", "EX", 9): ["0 new a", "0 set a", "0 expire a"],
        ("SET", "a", "2"): ["0 overwritten a", "0 set a"],
        ("GETEX", "a", "PERSIST"): [],
        ("APPEND", "b", "x"): ["0 new b", "0 append b"],
        ("INCR", "a"): ["0 incrby a"],
        ("RENAME", "a", "b"): ["0 new b", "0 rename_from a", "0 rename_to b", "0 overwritten b"],
        ("COPY", "b", "a", "DB", 2): ["2 new a", "2 copy_to a"],
        ("COPY", "b", "a", "DB", 2, "REPLACE"): ["2 new a", "2 copy_to a", "2 overwritten a"],
        ("MOVE", "b", 3): ["3 new b", "0 move_from b", "3 move_to b"],
        ("GET", "b"): ["0 keymiss b"],
        ("OBJECT", "ENCODING", "b"): [],
        ("EXPIRE", "b", 9): [],
    }
    for words, events in expected.items():
        room.call(*words)
        assert room.events() == events, words


def test_a_changed_type_is_reported(room: Room) -> None:
    room.add_stream(b"s")
    room.ctx.events = LETTERS
    room.call("SET", "s", "v")
    assert room.events() == ["0 overwritten s", "0 type_changed s", "0 set s"]


# ---------------------------------------------------------------- strings


def test_the_longest_string_is_that_of_a_request(room: Room) -> None:
    half = b"x" * 1024**2
    room.call("APPEND", "a", half)
    assert room.call("APPEND", "a", half) == 2 * 1024**2
    assert room.refusal("APPEND", "a", "x") == (
        "ERR string exceeds maximum allowed size (proto-max-bulk-len)"
    )
    assert room.call("STRLEN", "a") == 2 * 1024**2


def test_an_appended_string_leaves_the_database_as_plain_bytes(room: Room) -> None:
    room.call("SET", "a", "1")
    room.call("APPEND", "a", "2")
    for reply in (
        room.call("GET", "a"),
        room.call("MGET", "a")[0],
        room.call("GETEX", "a"),
        room.call("SET", "a", "3", "GET", "NX"),
        room.call("GETDEL", "a"),
    ):
        assert type(reply) is bytes
        assert reply == b"12"


# ---------------------------------------------------------------- looking at keys


def test_idle_time_counts_from_the_last_use_of_a_key(room: Room) -> None:
    room.add_stream(b"s")
    room.call("SET", "a", "v")
    room.be_at(NOW_MS + 100_000)
    for look in ("TTL", "TYPE", "EXISTS"):
        room.call(look, "a")
    assert room.call("OBJECT", "IDLETIME", "a") == 100
    assert room.call("OBJECT", "IDLETIME", "s") == 100
    room.call("GET", "a")
    room.call("TOUCH", "s")
    assert room.call("OBJECT", "IDLETIME", "a") == 0
    assert room.call("OBJECT", "IDLETIME", "s") == 0
    room.be_at(NOW_MS + 130_000)
    room.keyspace.touching = False  # CLIENT NO-TOUCH
    room.call("GET", "a")
    assert room.call("OBJECT", "IDLETIME", "a") == 30
    room.call("TOUCH", "a")
    assert room.call("OBJECT", "IDLETIME", "a") == 0


def test_reads_are_counted_as_hits_and_misses(room: Room) -> None:
    room.call("SET", "a", "v")
    hits, misses = room.keyspace.hits, room.keyspace.misses
    for words in (("GET", "a"), ("MGET", "a", "b"), ("TTL", "a"), ("TYPE", "b"), ("EXISTS", "a")):
        room.call(*words)
    assert (room.keyspace.hits - hits, room.keyspace.misses - misses) == (4, 2)
    for words in (("INCR", "n"), ("DEL", "b"), ("EXPIRE", "b", 1)):
        room.call(*words)
    assert (room.keyspace.hits - hits, room.keyspace.misses - misses) == (4, 2)
    room.call("OBJECT", "ENCODING", "a")
    assert room.keyspace.hits - hits == 5


def test_chance_reaches_every_key(room: Room) -> None:
    names = {b"k%d" % number for number in range(30)}
    for name in names:
        room.call("SET", name, "v")
    assert {room.call("RANDOMKEY") for _ in range(3000)} == names


# ---------------------------------------------------------------- flushing


def test_flushall_leaves_an_empty_snapshot_without_a_journal(room: Room) -> None:
    room.call("SET", "a", "v")
    assert room.call("FLUSHALL") == OK
    assert room.host.saves == 0
    room.host.save_points = "3600 1"
    room.host.appendonly = "yes"
    assert room.call("FLUSHALL") == OK
    assert room.host.saves == 0, "the journal has the keys"
    room.host.appendonly = "no"
    assert room.call("FLUSHALL") == OK
    assert room.host.saves == 1
    room.host.saving_fails = True
    assert room.call("FLUSHALL") == OK
    room.ctx.may_block = False  # inside a transaction, whose effects stay together
    assert room.call("FLUSHALL") == OK
    assert room.host.saves == 2


# ---------------------------------------------------------------- effects


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((b"EXPIRE", b"a", b"5"), "EXPIRE of a key that is not there: b'a'"),
        ((b"RENAME", b"a", b"0", b"b"), "RENAME of a key that is not there: b'a'"),
        ((b"COPY", b"a", b"0", b"b", b"0"), "COPY of a key that is not there: b'a'"),
        ((b"EXTEND", b"a", b"x"), "EXTEND of a key that has no string: b'a'"),
        ((b"PATCH", b"a", b"0", b"x"), "PATCH of a key that has no string: b'a'"),
    ],
)
def test_an_effect_on_a_missing_object_stops_the_start(
    words: tuple[bytes, ...], message: str
) -> None:
    effects = Effects()
    effects.record(0, *words)
    with pytest.raises(EffectError) as refused:
        apply_effects(Keyspace(), effects.take_payload())
    assert refused.value.message == message


def test_a_new_string_at_an_existing_key_stops_the_start() -> None:
    effects = Effects()
    effects.record(0, b"SET", b"a", b"x")
    effects.record(0, b"PADDED", b"a", b"0", b"x")
    with pytest.raises(EffectError) as refused:
        apply_effects(Keyspace(), effects.take_payload())
    assert refused.value.message == "PADDED of a key that is there: b'a'"


def test_a_source_deletes_its_expired_keys_itself(in_process: InProcessServer) -> None:
    """An expiry in the past is set, as a replica of Redis does."""
    source = in_process.player()
    source.call("SET kept v")
    in_process.keyspace.expiring = False
    payload = source.call("DUMP kept")
    for words in ("PEXPIREAT kept 5", "GETEX kept PXAT 6", "INCREX n BYINT 1 PXAT 7"):
        source.call(words)
    assert isinstance(payload, bytes)
    in_process.executor.feed(source, encode_command(["RESTORE", "r", "8", payload, "ABSTTL"]))
    in_process.settle()
    assert source.read() == Simple("OK")
    assert in_process.keyspace.databases[0].expiries == {b"kept": 6, b"n": 7, b"r": 8}
    assert source.call("PERSIST kept") == 1
    assert source.call("GET kept") == b"v"
    in_process.keyspace.expiring = True
    assert source.call("PEXPIREAT kept 5") == 1
    assert source.call("EXISTS kept n r") == 0
