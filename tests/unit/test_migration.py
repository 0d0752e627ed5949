"""DUMP and RESTORE as commands: turns, journal, events, and what a refusal leaves."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from tests.support import payloads
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Error, Simple, encode_command
from tests.unit.test_executor import HOUR_MS, TwoClocks
from tests.unit.test_keys import LETTERS, Room, contents

from millstream.clock_offset import shifted_ms
from millstream.commands.later import stream_state
from millstream.commands.later.dumped_values import RestoreJob
from millstream.commands.runtime.effects import apply_effects
from millstream.errors import CommandError
from millstream.storage.dump.rdb_bytes import compress
from millstream.storage.dump.stream_reading import STREAM, STREAM_2, STREAM_5
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import dump_stream

TEXT = payloads.sealed(b"\0\5plain")


def call_words(player: InProcessClient, *words: bytes | str | int) -> Any:
    player.in_process.executor.feed(player, encode_command(words))
    player.in_process.settle()
    return player.read()


def long_stream(in_process: InProcessServer, entries: int = 5000) -> bytes:
    """The dump of a long stream with a group, at the key s."""
    player = in_process.player()
    for i in range(entries):
        player.call(f"XADD s {i + 1}-0 field {i}")
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g ann COUNT 1000 STREAMS s >")
    dumped = call_words(player, "DUMP", "s")
    assert isinstance(dumped, bytes)
    return dumped


@pytest.fixture
def room() -> Room:
    return Room()


def test_a_long_stream_is_dumped_and_restored_in_turns() -> None:
    in_process = InProcessServer()
    payload = long_stream(in_process)
    player, other = in_process.player(), in_process.player()
    in_process.executor.feed(player, encode_command(["RESTORE", "t", "0", payload]))
    assert player.unread == b""
    in_process.executor.feed(other, encode_command(["EXISTS", "t"]))
    in_process.executor.end_tick()
    assert other.read() == 0  # it had its turn, and saw no unfinished change
    in_process.settle()
    assert player.read() == Simple("OK")
    assert call_words(player, "DUMP", "t") == payload
    assert player.call("XLEN t") == 5000


def test_requests_after_a_long_restore_wait_for_it() -> None:
    in_process = InProcessServer()
    payload = long_stream(in_process)
    player = in_process.player()
    in_process.executor.feed(
        player,
        encode_command(["RESTORE", "t", "0", payload]) + encode_command(["XLEN", "t"])
        + encode_command(["DUMP", "t"]) + encode_command(["PING"]),
    )  # fmt: skip
    in_process.settle()
    assert [player.read() for _ in range(4)] == [Simple("OK"), 5000, payload, Simple("PONG")]


def test_a_key_created_during_a_long_restore_is_not_overwritten() -> None:
    in_process = InProcessServer()
    payload = long_stream(in_process)
    player, other = in_process.player(), in_process.player()
    in_process.executor.feed(player, encode_command(["RESTORE", "t", "0", payload]))
    in_process.executor.feed(other, encode_command(["SET", "t", "mine"]))
    in_process.settle()
    assert player.read() == Error("BUSYKEY Target key name already exists.")
    assert other.call("GET t") is not None
    assert other.read() == b"mine"


def test_a_pause_during_a_long_restore_puts_it_off() -> None:
    in_process = InProcessServer()
    payload = long_stream(in_process)
    player = in_process.player()
    in_process.executor.feed(player, encode_command(["RESTORE", "t", "0", payload]))
    in_process.executor.pauses.start(in_process.wall_ms + 1000, True)
    in_process.settle()
    assert player.unread == b""
    in_process.executor.pauses.end()
    in_process.settle()
    assert player.read() == Simple("OK")
    assert call_words(player, "DUMP", "t") == payload


def test_a_client_that_leaves_during_a_restore_leaves_nothing() -> None:
    in_process = InProcessServer()
    payload = long_stream(in_process)
    player = in_process.player()
    in_process.executor.feed(player, encode_command(["RESTORE", "t", "0", payload]))
    in_process.executor.detach(player)
    in_process.settle()
    assert in_process.player().call("EXISTS t") == 0


def test_a_transaction_restores_and_dumps_at_once() -> None:
    in_process = InProcessServer()
    payload = long_stream(in_process)
    player = in_process.player()
    for words in (["MULTI"], ["RESTORE", "t", 0, payload], ["DUMP", "t"], ["XLEN", "t"]):
        call_words(player, *words)
    assert call_words(player, "EXEC") == [Simple("OK"), payload, 5000]


def test_a_long_restore_counts_as_one_call() -> None:
    in_process = InProcessServer()
    payload = long_stream(in_process)
    player = in_process.player()
    before = player.total_commands
    call_words(player, "RESTORE", "t", "0", payload)
    assert player.total_commands == before + 1


def test_replies_that_a_client_skips_stay_in_step() -> None:
    in_process = InProcessServer()
    payload = long_stream(in_process)
    player = in_process.player()
    request = encode_command(["CLIENT", "REPLY", "SKIP"])
    request += encode_command(["RESTORE", "t", "0", payload]) + encode_command(["XLEN", "t"])
    in_process.executor.feed(player, request)
    in_process.settle()
    assert player.read() == 5000
    assert player.unread == b""


@pytest.mark.parametrize("size", [0, 262_143, 2**20 + 1, 2**20 + 262_144 - 7, 3 * 2**20])
def test_a_long_string_is_dumped_while_it_is_sent(size: int) -> None:
    in_process = InProcessServer()
    player = in_process.player()
    call_words(player, "SET", "s", b"x" * size)
    payload = call_words(player, "DUMP", "s")
    assert call_words(player, "RESTORE", "t", 0, payload) == Simple("OK")
    assert call_words(player, "GET", "t") == b"x" * size


def test_a_string_that_was_appended_to_is_dumped(room: Room) -> None:
    room.call("APPEND", "a", "12")
    room.call("APPEND", "a", "3")
    assert _dump(room, b"a") == payloads.sealed(b"\0\xc0\x7b")


def test_the_journal_alone_restores_the_same(room: Room) -> None:
    room.add_stream(b"s")
    room.call("XGROUP", "CREATE", "s", "g", "0")
    room.call("RESTORE", "t", 5000, TEXT)
    room.call("RESTORE", "u", 0, _dump(room, b"s"))
    room.call("RESTORE", "t", 5000, _dump(room, b"s"), "REPLACE")
    room.call("RESTORE", "s", 1, TEXT, "ABSTTL", "REPLACE")
    assert contents(room.replayed()) == contents(room.keyspace)
    assert contents(room.keyspace)[0, b"t"][1] != 0
    assert (0, b"s") not in contents(room.keyspace)


def _dump(room: Room, key: bytes) -> bytes:
    dumped = room.call("DUMP", key)
    assert isinstance(dumped, bytes)
    return dumped


@pytest.fixture(params=[-HOUR_MS, 0, 24 * HOUR_MS])
def jumped(request: pytest.FixtureRequest) -> TwoClocks:
    """A server whose wall clock has jumped, with an entry delivered 10 s ago."""
    in_process = TwoClocks()
    in_process.wall_ms += request.param
    player = in_process.player()
    player.call("XADD s 1-0 n v")
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g ann STREAMS s >")
    in_process.pass_ms(10_000)
    return in_process


def times_shown(player: InProcessClient, key: str) -> list[Any]:
    """The times of the entry's deliveries and of the consumer in XINFO STREAM FULL."""
    player.send(f"XINFO STREAM {key} FULL")
    reply: Any = player.read()
    [group] = dict(zip(reply[::2], reply[1::2], strict=True))[b"groups"]
    shown = dict(zip(group[::2], group[1::2], strict=True))
    [consumer] = shown[b"consumers"]
    own = dict(zip(consumer[::2], consumer[1::2], strict=True))
    return [shown[b"pending"][0][2], own[b"pending"][0][1], own[b"seen-time"], own[b"active-time"]]


def idle_ms(player: InProcessClient, key: str) -> int:
    player.send(f"XPENDING {key} g - + 1")
    [[_, _, idle, _]] = player.read()  # type: ignore[misc]
    assert isinstance(idle, int)
    return idle


def test_times_are_shown_as_times_of_day(jumped: TwoClocks) -> None:
    assert times_shown(jumped.player(), "s") == [jumped.wall_ms - 10_000] * 4


def test_a_dump_carries_times_of_day(jumped: TwoClocks) -> None:
    player = jumped.player()
    payload = call_words(player, "DUMP", "s")
    other = TwoClocks()
    other.wall_ms = jumped.wall_ms
    other.steady += 5
    assert call_words(other.player(), "RESTORE", "s", 0, payload) == Simple("OK")
    assert times_shown(other.player(), "s") == [jumped.wall_ms - 10_000] * 4
    assert idle_ms(other.player(), "s") == 10_000
    assert call_words(other.player(), "DUMP", "s") == payload


def test_a_restore_keeps_idle_times_through_a_replay(jumped: TwoClocks) -> None:
    player = jumped.player()
    payload = call_words(player, "DUMP", "s")
    jumped.wall_ms += HOUR_MS  # between DUMP and RESTORE an hour seems to pass
    assert call_words(player, "RESTORE", "t", 0, payload) == Simple("OK")
    assert idle_ms(player, "t") == 10_000 + HOUR_MS
    again = jumped.replayed().databases[0].stream(b"t")
    assert again is not None
    assert dump_stream(again)[0] == dump_stream(jumped.stream(b"t"))[0]


def test_an_effect_without_clocks_is_applied(jumped: TwoClocks) -> None:
    payload = call_words(jumped.player(), "DUMP", "s")
    again = Keyspace()
    apply_effects(again, encode_command(["RESTORE", "t", "7", payload]))
    stream = again.databases[0].stream(b"t")
    assert stream is not None
    [pending] = stream.groups[b"g"].pending.rows()
    assert pending[3] == jumped.wall_ms - 10_000


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, 24 * HOUR_MS])
def test_streams_are_numbered_by_one_clock_however_they_are_made(jump_ms: int) -> None:
    """Not by one that jumps: a day ahead would be kept for ever."""
    in_process = TwoClocks()
    in_process.wall_ms += jump_ms
    player = in_process.player()
    player.call("XADD s 1-0 n v")
    assert call_words(player, "RESTORE", "t", 0, call_words(player, "DUMP", "s")) == Simple("OK")
    player.call("COPY s u")
    made = [in_process.stream(key).incarnation for key in (b"s", b"t", b"u")]
    first = in_process.steady << 10
    assert made == [first, first + 1, first + 2]


@pytest.mark.parametrize("apart_ms", [-1, 1])
def test_two_clock_readings_do_not_move_the_times_shown(apart_ms: int) -> None:
    in_process = TwoClocks()
    player = in_process.player()
    player.call("XADD s 1-0 n v")
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g ann STREAMS s >")
    shown, payload = times_shown(player, "s"), call_words(player, "DUMP", "s")
    in_process.wall_ms += apart_ms
    assert times_shown(player, "s") == shown
    assert call_words(player, "DUMP", "s") == payload


def test_a_time_that_is_none_stays_none() -> None:
    assert [shifted_ms(moment_ms, -HOUR_MS) for moment_ms in (-1, 0, 1, HOUR_MS + 5)] == [
        -1, 0, 1, 5,
    ]  # fmt: skip


def test_a_restored_stream_is_another_one(room: Room) -> None:
    first = room.add_stream(b"s").incarnation
    room.call("RESTORE", "s", 0, _dump(room, b"s"), "REPLACE")
    stream = room.keyspace.databases[0].get(b"s")
    assert isinstance(stream, Stream)
    assert stream.incarnation > first
    copy = Keyspace()
    apply_effects(copy, room.effects.take_payload() or b"")
    assert copy.incarnation >= stream.incarnation


def compressed_zeros(size: int) -> bytes:
    """The dump of a string of zeros, which is far shorter than the string."""
    packed = compress(bytes(size))
    assert packed is not None
    return payloads.sealed(b"\0" + payloads.compressed(packed, size))


def limit_room(room: Room, most_bytes: int) -> None:
    """A journal that takes frames of up to this size."""

    def make_room(payload_bytes: int) -> int:
        if payload_bytes > most_bytes:
            raise CommandError("ERR too large for a frame")
        return most_bytes

    room.effects.make_room = make_room
    room.effects.forget_room()


def test_a_restore_needs_journal_space_for_the_unpacked_string(room: Room) -> None:
    payload = compressed_zeros(100_000)
    assert len(payload) < 2000
    room.call("SET", "t", "old")
    recorded = len(room.effects)
    limit_room(room, 100_000)
    assert room.refusal("RESTORE", "t", 0, payload, "REPLACE") == "ERR too large for a frame"
    assert room.call("GET", "t") == b"old"
    assert len(room.effects) == recorded
    limit_room(room, 110_000)
    room.call("RESTORE", "t", 0, payload, "REPLACE")
    assert recorded + 100_000 < len(room.effects) <= 110_000
    assert room.refusal("RESTORE", "u", 0, payload) == "ERR too large for a frame"
    assert room.call("GET", "u") is None


def test_a_restore_of_several_turns_needs_space_for_its_payload() -> None:
    in_process = InProcessServer()
    payload = long_stream(in_process)
    player = in_process.player()
    most = []
    in_process.executor.effects.make_room = lambda size: most.append(size) or size  # type: ignore[func-returns-value]
    in_process.executor.feed(player, encode_command(["RESTORE", "t", "0", payload]))
    assert player.unread == b""
    most.clear()
    in_process.executor.effects.forget_room()
    in_process.settle()
    assert player.read() == Simple("OK")
    assert max(most) > len(payload)


def test_events_are_in_order(room: Room) -> None:
    room.add_stream(b"s")
    payload = _dump(room, b"s")
    room.ctx.events = LETTERS
    for words, events in (
        (("RESTORE", "t", 0, payload), ["0 new t", "0 restore t"]),
        (("RESTORE", "t", 0, payload, "REPLACE"), ["0 new t", "0 restore t", "0 overwritten t"]),
        (
            ("RESTORE", "t", 9, TEXT, "REPLACE"),
            ["0 new t", "0 restore t", "0 overwritten t", "0 type_changed t"],
        ),
        (("RESTORE", "t", 1, TEXT, "REPLACE", "ABSTTL"), ["0 del t"]),
        (("RESTORE", "t", 1, TEXT, "REPLACE", "ABSTTL"), []),
        (("DUMP", "t"), ["0 keymiss t"]),
    ):
        room.call(*words)
        assert room.events() == events, words


def test_dump_counts_as_a_use_of_the_key(room: Room) -> None:
    room.call("SET", "a", "v")
    room.call("DUMP", "a")
    assert room.call("DUMP", "b") is None
    assert (room.keyspace.hits, room.keyspace.misses) == (1, 1)


@pytest.mark.parametrize("replace", [[], ["REPLACE"]])
def test_a_refused_payload_changes_nothing(room: Room, replace: list[str]) -> None:
    if replace:
        room.call("SET", "t", "v")
    stream = payloads.Stream([[payloads.Entry((1, 1), [b"f", b"v"])]], (0, 0))
    body = stream.body(STREAM_2)
    before, recorded = contents(room.keyspace), len(room.effects)
    for bad in (b"\x63\0", body[:-1], body + b"\0", body.replace(b"\x81v", b"\x82v")):
        message = room.refusal("RESTORE", "t", 0, payloads.sealed(bad, 9), *replace)
        assert message == "ERR Bad data format"
    assert room.refusal("RESTORE", "t", 0, payloads.sealed(body, 99), *replace) == (
        "ERR DUMP payload version or checksum are wrong"
    )
    assert contents(room.keyspace) == before
    assert len(room.effects) == recorded


def test_values_missing_from_an_old_payload_are_computed(room: Room) -> None:
    entries = [payloads.Entry((i, 0), [b"f", b"v"]) for i in range(1, 5)]
    stream = payloads.Stream([entries])
    stream.groups = [payloads.Group(b"g", (1, 0)), payloads.Group(b"h", (4, 0))]
    stream.groups.append(payloads.Group(b"i", (2, 0)))
    room.call("RESTORE", "s", 0, payloads.sealed(stream.body(STREAM)))
    made = room.keyspace.databases[0].get(b"s")
    assert isinstance(made, Stream)
    assert {name: group.entries_read for name, group in made.groups.items()} == {
        b"g": 1, b"h": 4, b"i": -1,
    }  # fmt: skip
    assert contents(room.replayed()) == contents(room.keyspace)


def test_the_configured_window_is_that_of_a_payload_without_one(room: Room) -> None:
    stream = payloads.Stream([[payloads.Entry((1, 1), [b"f", b"v"])]])
    room.keyspace.idmp_duration_s = 7
    room.call("RESTORE", "s", 0, payloads.sealed(stream.body(STREAM_2)))
    room.call("RESTORE", "t", 0, payloads.sealed(stream.body(STREAM_5)))
    made = [room.keyspace.databases[0].get(key) for key in (b"s", b"t")]
    assert [value.idempotence and value.idempotence.duration_s for value in made] == [7, None]
    assert contents(room.replayed()) == contents(room.keyspace)


def test_pending_entries_of_tread_move_without_an_owner(room: Room) -> None:
    in_process = InProcessServer()
    player = in_process.player()
    player.call("TAPPEND s f v")
    player.call("TREAD s 0 1 GROUP g 0 RETRY 1000 0")
    payload = call_words(player, "DUMP", "s")
    assert payload[0] == STREAM_5
    assert call_words(player, "RESTORE", "t", 0, payload) == Simple("OK")
    assert player.call("XPENDING t g") == player.call("XPENDING s g")


@pytest.mark.parametrize("added", [2**63 - 1, 2**63, 2**63 + 5])
def test_a_count_of_added_entries_that_wraps_is_restored(added: int) -> None:
    player = InProcessServer().player()
    stream = payloads.Stream([[payloads.Entry((1, 0), [b"f", b"v"])]], entries_added=added)
    payload = payloads.sealed(stream.body(STREAM_2))
    assert call_words(player, "RESTORE", "s", 0, payload) == Simple("OK")
    assert call_words(player, "XADD", "s", "2-0", "f", "v") == b"2-0"
    player.call("XGROUP CREATE s g 0")
    shown = added + 1 - 2**64 if added >= 2**63 - 1 else added + 1
    for line in ("XINFO STREAM s", "XINFO STREAM s FULL", "TINFO s"):
        reply = player.call(line)
        pairs = dict(zip(reply[::2], map(repr, reply[1::2]), strict=True))
        assert pairs[b"entries-added"] == repr(shown), line
    assert call_words(player, "RESTORE", "t", 0, call_words(player, "DUMP", "s")) == Simple("OK")
    assert player.call("XLEN t") == 2


def test_steps_of_a_job_are_bounded() -> None:
    in_process = InProcessServer()
    payload = long_stream(in_process)
    job = RestoreJob(payload, 1, 1)
    turns = 0
    while job.run(16) is None:
        turns += 1
    assert turns > 2


def state_of_a_long_group(in_process: InProcessServer, entries: int = 5000) -> bytes:
    """The state of a stream, at the key s, whose entries are all pending."""
    player = in_process.player()
    for i in range(1, entries + 1):
        player.call(f"XADD s {i}-0 f v")
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g ann STREAMS s >")
    meta, _ = dump_stream(in_process.keyspace.databases[0].get(b"s"))
    return bytes(msgpack.packb(meta))


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_state, "TURN_STEPS", 1)


@pytest.mark.usefixtures("short_turns")
def test_the_groups_of_a_backup_are_loaded_in_turns() -> None:
    in_process = InProcessServer()
    state = state_of_a_long_group(in_process)
    player, other = in_process.player(), in_process.player()
    pending = player.call("XPENDING s g")
    for is_kept in (False, True):
        player.call("COPY s source REPLACE")
        player.call("XGROUP DESTROY source g")
        in_process.executor.feed(player, encode_command(["TRESTORE", "source", "t", state]))
        assert player.unread == b""
        # The key is made meanwhile, and so not replaced.
        line = ["SET", "t", "word"] if is_kept else ["EXISTS", "t"]
        in_process.executor.feed(other, encode_command(line))
        in_process.executor.end_tick()
        assert other.read() == (Simple("OK") if is_kept else 0)
        in_process.settle()
        reply = player.read()
        if is_kept:
            assert isinstance(reply, Error)
            assert reply.text.startswith("BUSYKEY")
            assert other.call("EXISTS source") == 1
        else:
            assert reply == Simple("OK")
            assert other.call("XPENDING t g") == pending
            assert other.call("DEL t") == 1
    other.call("DEL t")
    assert player.call("MULTI") == Simple("OK")
    call_words(player, "TRESTORE", "source", "t", state)
    assert player.call("EXEC") == [Simple("OK")]
    assert other.call("XPENDING t g") == pending


@pytest.mark.usefixtures("short_turns")
def test_entries_that_change_during_a_restore_do_not_fit() -> None:
    in_process = InProcessServer()
    state = state_of_a_long_group(in_process)
    player, other = in_process.player(), in_process.player()
    in_process.executor.feed(player, encode_command(["TRESTORE", "s", "t", state]))
    in_process.executor.feed(other, encode_command(["XDEL", "s", "5-0"]))
    in_process.executor.end_tick()
    assert other.read() == 1
    in_process.settle()
    reply = player.read()
    assert isinstance(reply, Error)
    assert "does not belong to the entries" in reply.text
    assert other.call("EXISTS s t") == 1
