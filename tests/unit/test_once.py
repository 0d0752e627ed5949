"""TAPPENDONCE: what is sent again is not appended again, and nothing else is refused."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.house import NOW_MS, House, Player
from tests.support.resp import Error, Null, Reply, encode_command

from millstream.storage.stream import Stream

U64_MAX = 2**64 - 1


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture
def player(house: House) -> Player:
    return house.player()


def producers_at(house: House, key: bytes = b"s") -> list[tuple[bytes, int]]:
    stream = house.keyspace.databases[0].stream(key)
    assert stream is not None
    stream.check()
    return [] if stream.producers is None else list(stream.producers.dump().items())


def is_replayed(house: House) -> None:
    """The journal leads to the same streams, producers in the same order."""
    again = house.replayed().databases[0]
    for key in house.keyspace.databases[0].keys():  # noqa: SIM118 - a Database is no dict
        lived, replayed = house.keyspace.databases[0].stream(key), again.stream(key)
        assert lived is not None
        assert replayed is not None
        assert replayed.dump()[0] == lived.dump()[0]
        assert list(replayed.dump()[0]["producers"]) == list(lived.dump()[0]["producers"])
        assert replayed.range() == lived.range()


def info(player: Player, key: str = "s") -> dict[bytes, Reply]:
    reply: Any = player.call(f"TINFO {key}")
    return dict(zip(reply[::2], reply[1::2], strict=True))


def test_a_number_is_appended_once(house: House, player: Player) -> None:
    assert player.call("TAPPENDONCE s PRODUCER p 0 f a") == b"%d.0" % NOW_MS
    assert player.call("TAPPENDONCE s PRODUCER p 0 f a") == Null.BULK
    assert player.call("TAPPENDONCE s PRODUCER p 7 f b") == b"%d.1" % NOW_MS
    for seq in (0, 6, 7):
        assert player.call(f"TAPPENDONCE s PRODUCER p {seq} f c") == Null.BULK
    assert player.call("TAPPENDONCE s PRODUCER q 7 f d") == b"%d.2" % NOW_MS
    assert player.call(f"TAPPENDONCE s PRODUCER p {U64_MAX} f e") == b"%d.3" % NOW_MS
    assert player.call(f"TAPPENDONCE s PRODUCER p {U64_MAX} f e") == Null.BULK
    assert [row[2] for row in house.keyspace.databases[0].stream(b"s").range()] == [
        [b"f", b"a"], [b"f", b"b"], [b"f", b"d"], [b"f", b"e"]]  # fmt: skip
    assert producers_at(house) == [(b"q", 7), (b"p", U64_MAX)]
    assert info(player)[b"producers"] == 2
    is_replayed(house)


def test_an_id_is_appended_once(house: House, player: Player) -> None:
    assert player.call("TAPPENDONCE s ID 5.3 f a") == b"5.3"
    for entry_id in ("5.3", "5-3", "5.2", "5", "4.99", "0.1"):
        assert player.call(f"TAPPENDONCE s ID {entry_id} f b") == Null.BULK
    assert player.call("TAPPENDONCE s ID 5-4 f c") == b"5.4"
    assert player.call("TAPPENDONCE s id 6 f d") == b"6.0"
    assert player.call("XRANGE s - +") == [
        [b"5-3", [b"f", b"a"]], [b"5-4", [b"f", b"c"]], [b"6-0", [b"f", b"d"]]]  # fmt: skip
    assert producers_at(house) == []
    is_replayed(house)


def test_what_was_evicted_or_deleted_is_not_appended_again(house: House, player: Player) -> None:
    player.call("TAPPENDONCE s ID 5.3 f a")
    player.call("TAPPENDONCE s PRODUCER p 1 f a")
    player.call("TAPPEV s COUNT 0")
    assert player.call("TAPPENDONCE s ID 5.3 f a") == Null.BULK
    assert player.call("TAPPENDONCE s PRODUCER p 1 f a") == Null.BULK
    assert player.call("XLEN s") == 0
    is_replayed(house)


def test_a_deleted_key_takes_its_producers_along(house: House, player: Player) -> None:
    player.call("TAPPENDONCE s PRODUCER p 9 f a")
    before = info(player)[b"incarnation"]
    player.call("DEL s")
    assert isinstance(player.call("TAPPENDONCE s PRODUCER p 1 f a"), bytes)
    assert producers_at(house) == [(b"p", 1)]
    assert info(player)[b"incarnation"] != before
    is_replayed(house)


def test_producers_go_with_rename_and_copy_and_then_part(house: House, player: Player) -> None:
    for number in range(300):
        player.call(f"TAPPENDONCE s PRODUCER p{number} {number} f a")
    player.call("COPY s t")
    player.call("RENAME s u")
    for key in "tu":
        assert producers_at(house, key.encode()) == [(b"p%d" % n, n) for n in range(300)]
        assert player.call(f"TAPPENDONCE {key} PRODUCER p5 5 f a") == Null.BULK
    assert isinstance(player.call("TAPPENDONCE t PRODUCER p5 6 f a"), bytes)
    assert isinstance(player.call("TAPPENDONCE u PRODUCER p6 7 f a"), bytes)
    assert producers_at(house, b"t")[-1] == (b"p5", 6)
    assert producers_at(house, b"u")[-1] == (b"p6", 7)
    assert producers_at(house, b"u")[5] == (b"p5", 5)
    is_replayed(house)


def test_beyond_the_limit_the_most_silent_producer_is_forgotten(
    house: House, player: Player
) -> None:
    house.keyspace.producers_max = 3
    for name in "abc":
        player.call(f"TAPPENDONCE s PRODUCER {name} 1 f v")
    player.call("TAPPENDONCE s PRODUCER a 2 f v")
    player.call("TAPPENDONCE s PRODUCER b 1 f v")  # a repeat: b is not less silent for it
    player.call("TAPPENDONCE s PRODUCER d 1 f v")
    assert producers_at(house) == [(b"c", 1), (b"a", 2), (b"d", 1)]
    assert player.call("TAPPENDONCE s PRODUCER c 1 f v") == Null.BULK
    assert isinstance(player.call("TAPPENDONCE s PRODUCER b 1 f v"), bytes)
    assert producers_at(house) == [(b"a", 2), (b"d", 1), (b"b", 1)]
    is_replayed(house)


def test_a_lowered_limit_is_reached_by_and_by(house: House, player: Player) -> None:
    for number in range(200):
        player.call(f"TAPPENDONCE s PRODUCER p{number} 1 f v")
    house.keyspace.producers_max = 2
    for left in (136, 72, 8, 2):
        player.call(f"TAPPENDONCE s PRODUCER p199 {300 - left} f v")
        assert len(producers_at(house)) == left
    assert producers_at(house) == [(b"p198", 1), (b"p199", 298)]
    house.keyspace.producers_max = 1
    player.call("TAPPENDONCE s PRODUCER p198 2 f v")  # the most silent is the one that speaks
    assert producers_at(house) == [(b"p198", 2)]
    is_replayed(house)


def test_a_repeat_is_answered_even_where_no_id_is_left(house: House, player: Player) -> None:
    player.call("TAPPENDONCE s PRODUCER p 1 f v")
    assert player.call(f"TAPPENDONCE s ID {U64_MAX}.{U64_MAX} f v") == b"%d.%d" % (
        U64_MAX, U64_MAX)  # fmt: skip
    assert player.call("TAPPENDONCE s PRODUCER p 1 f v") == Null.BULK
    assert player.call(f"TAPPENDONCE s ID {U64_MAX} f v") == Null.BULK
    refused = player.call("TAPPENDONCE s PRODUCER p 2 f v")
    assert isinstance(refused, Error)
    assert "exhausted" in refused.text
    assert producers_at(house) == [(b"p", 1)]
    is_replayed(house)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("TAPPENDONCE s ID 1.1 f", "wrong number of arguments for 'tappendonce' command"),
        ("TAPPENDONCE s ID 1.1 f v g", "wrong number of arguments"),
        ("TAPPENDONCE s PRODUCER p 1 f", "wrong number of arguments"),
        ("TAPPENDONCE s PRODUCER p 1 f v g", "wrong number of arguments"),
        ("TAPPENDONCE s OTHER p 1 f v", "syntax error"),
        ("TAPPENDONCE s ID x f v", "Invalid stream ID specified as stream command argument"),
        ("TAPPENDONCE s ID -1.1 f v", "Invalid stream ID"),
        ("TAPPENDONCE s ID * f v", "Invalid stream ID"),
        ("TAPPENDONCE s ID 18446744073709551616 f v", "Invalid stream ID"),
        ("TAPPENDONCE s ID 0.0 f v", "ID specified in TAPPENDONCE must be greater than 0.0"),
        ("TAPPENDONCE new ID 0 f v", "ID specified in TAPPENDONCE must be greater than 0.0"),
        ('TAPPENDONCE s PRODUCER "" 1 f v', "requires a non-empty producer name"),
        (f"TAPPENDONCE s PRODUCER {'n' * 1025} 1 f v", "may have at most 1024 bytes"),
        ("TAPPENDONCE s PRODUCER p -1 f v", "value is not an integer or out of range"),
        ("TAPPENDONCE s PRODUCER p x f v", "value is not an integer or out of range"),
        ("TAPPENDONCE s PRODUCER p 01 f v", "value is not an integer or out of range"),
        ('TAPPENDONCE s PRODUCER p "" f v', "value is not an integer or out of range"),
        (f"TAPPENDONCE s PRODUCER p {2**64} f v", "value is not an integer or out of range"),
        ("TAPPENDONCE k PRODUCER p 1 f v", "WRONGTYPE"),
        ("TAPPENDONCE k ID 1.1 f v", "WRONGTYPE"),
    ],
)
def test_a_refused_command_changes_nothing(
    house: House, player: Player, line: str, words: str
) -> None:
    player.call("SET k v")
    player.call("TAPPENDONCE s PRODUCER p 0 f v")
    before, effects = info(player), list(house.persistence.payloads)
    reply = player.call(line)
    assert isinstance(reply, Error)
    assert words in reply.text
    assert info(player) == before
    assert house.persistence.payloads == effects
    assert player.call("EXISTS new") == 0


def test_a_repeat_leaves_no_effect(house: House, player: Player) -> None:
    player.call("TAPPENDONCE s PRODUCER p 1 f v")
    player.call("TAPPENDONCE s ID 9999999999999.0 f v")
    dirty, effects = house.keyspace.dirty, list(house.persistence.payloads)
    player.call("TAPPENDONCE s PRODUCER p 1 f v")
    player.call("TAPPENDONCE s ID 9999999999999.0 f v")
    assert (house.keyspace.dirty, house.persistence.payloads) == (dirty, effects)


def test_what_a_snapshot_has_seen_stays_as_it_was(house: House, player: Player) -> None:
    for number in range(200):
        player.call(f"TAPPENDONCE s PRODUCER p{number} {number} f v")
    capture = house.keyspace.begin_capture()
    wanted = producers_at(house)
    player.call("TAPPENDONCE s PRODUCER p3 1000 f v")
    player.call("TAPPENDONCE s PRODUCER new 1 f v")
    taken = capture.step(10)
    capture.close()
    assert taken is not None
    [captured] = taken
    packed = msgpack.unpackb(b"".join(captured.meta["producers"].packed()))
    assert list(packed.items()) == wanted
    meta = {**captured.meta, "producers": packed}
    loaded = Stream.load(meta, captured.blocks, NOW_MS)
    assert loaded.producers is not None
    assert list(loaded.producers.dump().items()) == wanted


Step = tuple[str, int, int]
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["producer"]), st.integers(0, 3), st.integers(0, 6)),
        st.tuples(st.sampled_from(["id"]), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.sampled_from(["limit"]), st.integers(1, 3), st.just(0)),
        st.tuples(st.sampled_from(["wait"]), st.integers(1, 3), st.just(0)),
        st.tuples(st.sampled_from(["clear"]), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(steps)
@settings(max_examples=80, deadline=None)
def test_any_play_is_answered_as_a_naive_server_would(play: list[Step]) -> None:
    """Against a list of entries, a last id and a dict of numbers."""
    house = House()
    player = house.player()
    last, sent, limit = (0, 0), dict[bytes, int](), 100_000
    for kind, a, b in play:
        now_ms = house.wall_ms
        if kind == "producer":
            name = b"p%d" % a
            reply = player.call(f"TAPPENDONCE s PRODUCER p{a} {b} f v")
            if sent.get(name, -1) >= b:
                assert reply == Null.BULK
                continue
            last = (now_ms, 0) if now_ms > last[0] else (last[0], last[1] + 1)
            assert reply == b"%d.%d" % last
            sent.pop(name, None)
            sent[name] = b
            sent = dict(list(sent.items())[-limit:])
        elif kind == "id":
            entry_id = (now_ms + a, b)
            reply = player.call(f"TAPPENDONCE s ID {now_ms + a}.{b} f v")
            assert reply == (Null.BULK if entry_id <= last else b"%d.%d" % entry_id)
            last = max(last, entry_id)
        elif kind == "limit":
            limit = house.keyspace.producers_max = a
        elif kind == "wait":
            house.wait_ms(a)
        else:
            player.call("DEL s")
            last, sent = (0, 0), {}
    if player.call("EXISTS s"):
        have = producers_at(house)
        # A limit that was lowered is reached with the next append by number.
        assert have[-len(sent) :] == list(sent.items()) if sent else len(have) >= 0
        is_replayed(house)


def test_a_pipeline_of_numbers_is_answered_in_order(house: House, player: Player) -> None:
    requests = b"".join(
        encode_command(["TAPPENDONCE", "s", "PRODUCER", "p", str(seq), "f", "v"])
        for seq in (1, 2, 2, 1, 3)
    )
    house.executor.feed(player, requests)
    house.settle()
    made = [player.read() for _ in range(5)]
    assert [reply == Null.BULK for reply in made] == [False, False, True, True, False]
