"""TAPPENDONCE and TAPPENDMANY: what is sent again is not appended again, and nothing else is
refused."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.in_process import NOW_MS, InProcessClient, InProcessServer
from tests.support.resp import Error, Null, Reply, encode_command
from tests.support.storage_access import check_stream

from millstream.commands.runtime.effects import split_effects
from millstream.errors import CommandError
from millstream.storage.capture.capture import Capture
from millstream.storage.streams.stream_snapshot import dump_stream, load_stream

U64_MAX = 2**64 - 1


def producers_at(in_process: InProcessServer, key: bytes = b"s") -> list[tuple[bytes, int]]:
    stream = in_process.keyspace.databases[0].stream(key)
    assert stream is not None
    check_stream(stream)
    return [] if stream.producers is None else list(stream.producers.dump().items())


def is_replayed(in_process: InProcessServer) -> None:
    """The journal leads to the same streams, producers in the same order."""
    again = in_process.replayed().databases[0]
    for key in in_process.keyspace.databases[0].keys():  # noqa: SIM118 - a Database is no dict
        lived, replayed = in_process.keyspace.databases[0].stream(key), again.stream(key)
        assert lived is not None
        assert replayed is not None
        meta, expected = dump_stream(replayed)[0], dump_stream(lived)[0]
        assert meta == expected
        assert list(meta["producers"]) == list(expected["producers"])
        assert replayed.range() == lived.range()


def info(player: InProcessClient, key: str = "s") -> dict[bytes, Reply]:
    reply: Any = player.call(f"TINFO {key}")
    return dict(zip(reply[::2], reply[1::2], strict=True))


def test_a_number_is_appended_once(in_process: InProcessServer, player: InProcessClient) -> None:
    assert player.call("TAPPENDONCE s PRODUCER p 0 f a") == b"%d.0" % NOW_MS
    assert player.call("TAPPENDONCE s PRODUCER p 0 f a") == Null.BULK
    assert player.call("TAPPENDONCE s PRODUCER p 7 f b") == b"%d.1" % NOW_MS
    for seq in (0, 6, 7):
        assert player.call(f"TAPPENDONCE s PRODUCER p {seq} f c") == Null.BULK
    assert player.call("TAPPENDONCE s PRODUCER q 7 f d") == b"%d.2" % NOW_MS
    assert player.call(f"TAPPENDONCE s PRODUCER p {U64_MAX} f e") == b"%d.3" % NOW_MS
    assert player.call(f"TAPPENDONCE s PRODUCER p {U64_MAX} f e") == Null.BULK
    assert [row[2] for row in in_process.keyspace.databases[0].stream(b"s").range()] == [
        [b"f", b"a"], [b"f", b"b"], [b"f", b"d"], [b"f", b"e"]]  # fmt: skip
    assert producers_at(in_process) == [(b"q", 7), (b"p", U64_MAX)]
    assert info(player)[b"producers"] == 2
    is_replayed(in_process)


def test_an_id_is_appended_once(in_process: InProcessServer, player: InProcessClient) -> None:
    assert player.call("TAPPENDONCE s ID 5.3 f a") == b"5.3"
    for entry_id in ("5.3", "5-3", "5.2", "5", "4.99", "0.1"):
        assert player.call(f"TAPPENDONCE s ID {entry_id} f b") == Null.BULK
    assert player.call("TAPPENDONCE s ID 5-4 f c") == b"5.4"
    assert player.call("TAPPENDONCE s id 6 f d") == b"6.0"
    assert player.call("XRANGE s - +") == [
        [b"5-3", [b"f", b"a"]], [b"5-4", [b"f", b"c"]], [b"6-0", [b"f", b"d"]]]  # fmt: skip
    assert producers_at(in_process) == []
    is_replayed(in_process)


def test_evicted_and_deleted_entries_are_not_appended_again(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("TAPPENDONCE s ID 5.3 f a")
    player.call("TAPPENDONCE s PRODUCER p 1 f a")
    player.call("TAPPEV s COUNT 0")
    assert player.call("TAPPENDONCE s ID 5.3 f a") == Null.BULK
    assert player.call("TAPPENDONCE s PRODUCER p 1 f a") == Null.BULK
    assert player.call("XLEN s") == 0
    is_replayed(in_process)


def test_a_deleted_key_deletes_its_producers(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("TAPPENDONCE s PRODUCER p 9 f a")
    before = info(player)[b"incarnation"]
    player.call("DEL s")
    assert isinstance(player.call("TAPPENDONCE s PRODUCER p 1 f a"), bytes)
    assert producers_at(in_process) == [(b"p", 1)]
    assert info(player)[b"incarnation"] != before
    is_replayed(in_process)


def test_producers_follow_rename_and_copy_independently(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    for number in range(300):
        player.call(f"TAPPENDONCE s PRODUCER p{number} {number} f a")
    player.call("COPY s t")
    player.call("RENAME s u")
    for key in "tu":
        assert producers_at(in_process, key.encode()) == [(b"p%d" % n, n) for n in range(300)]
        assert player.call(f"TAPPENDONCE {key} PRODUCER p5 5 f a") == Null.BULK
    assert isinstance(player.call("TAPPENDONCE t PRODUCER p5 6 f a"), bytes)
    assert isinstance(player.call("TAPPENDONCE u PRODUCER p6 7 f a"), bytes)
    assert producers_at(in_process, b"t")[-1] == (b"p5", 6)
    assert producers_at(in_process, b"u")[-1] == (b"p6", 7)
    assert producers_at(in_process, b"u")[5] == (b"p5", 5)
    is_replayed(in_process)


def test_beyond_the_limit_the_most_silent_producer_is_forgotten(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    in_process.keyspace.producers_max = 3
    for name in "abc":
        player.call(f"TAPPENDONCE s PRODUCER {name} 1 f v")
    player.call("TAPPENDONCE s PRODUCER a 2 f v")
    player.call("TAPPENDONCE s PRODUCER b 1 f v")  # a repeat: b is not less silent for it
    player.call("TAPPENDONCE s PRODUCER d 1 f v")
    assert producers_at(in_process) == [(b"c", 1), (b"a", 2), (b"d", 1)]
    assert player.call("TAPPENDONCE s PRODUCER c 1 f v") == Null.BULK
    assert isinstance(player.call("TAPPENDONCE s PRODUCER b 1 f v"), bytes)
    assert producers_at(in_process) == [(b"a", 2), (b"d", 1), (b"b", 1)]
    is_replayed(in_process)


def test_a_lowered_limit_is_reached_by_and_by(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    for number in range(200):
        player.call(f"TAPPENDONCE s PRODUCER p{number} 1 f v")
    in_process.keyspace.producers_max = 2
    for left in (136, 72, 8, 2):
        player.call(f"TAPPENDONCE s PRODUCER p199 {300 - left} f v")
        assert len(producers_at(in_process)) == left
    assert producers_at(in_process) == [(b"p198", 1), (b"p199", 298)]
    in_process.keyspace.producers_max = 1
    player.call("TAPPENDONCE s PRODUCER p198 2 f v")  # the most silent is the one that speaks
    assert producers_at(in_process) == [(b"p198", 2)]
    is_replayed(in_process)


def test_a_repeat_is_answered_even_where_no_id_is_left(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("TAPPENDONCE s PRODUCER p 1 f v")
    assert player.call(f"TAPPENDONCE s ID {U64_MAX}.{U64_MAX} f v") == b"%d.%d" % (
        U64_MAX, U64_MAX)  # fmt: skip
    assert player.call("TAPPENDONCE s PRODUCER p 1 f v") == Null.BULK
    assert player.call(f"TAPPENDONCE s ID {U64_MAX} f v") == Null.BULK
    refused = player.call("TAPPENDONCE s PRODUCER p 2 f v")
    assert isinstance(refused, Error)
    assert "exhausted" in refused.text
    assert producers_at(in_process) == [(b"p", 1)]
    is_replayed(in_process)


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
    in_process: InProcessServer, player: InProcessClient, line: str, words: str
) -> None:
    player.call("SET k v")
    player.call("TAPPENDONCE s PRODUCER p 0 f v")
    before, effects = info(player), list(in_process.persistence.payloads)
    reply = player.call(line)
    assert isinstance(reply, Error)
    assert words in reply.text
    assert info(player) == before
    assert in_process.persistence.payloads == effects
    assert player.call("EXISTS new") == 0


def test_a_repeat_leaves_no_effect(in_process: InProcessServer, player: InProcessClient) -> None:
    player.call("TAPPENDONCE s PRODUCER p 1 f v")
    player.call("TAPPENDONCE s ID 9999999999999.0 f v")
    dirty, effects = in_process.keyspace.dirty, list(in_process.persistence.payloads)
    player.call("TAPPENDONCE s PRODUCER p 1 f v")
    player.call("TAPPENDONCE s ID 9999999999999.0 f v")
    assert (in_process.keyspace.dirty, in_process.persistence.payloads) == (dirty, effects)


def test_captured_data_does_not_change(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    for number in range(200):
        player.call(f"TAPPENDONCE s PRODUCER p{number} {number} f v")
    capture = Capture(in_process.keyspace)
    wanted = producers_at(in_process)
    player.call("TAPPENDONCE s PRODUCER p3 1000 f v")
    player.call("TAPPENDONCE s PRODUCER new 1 f v")
    taken = capture.step(10)
    capture.close()
    assert taken is not None
    [captured] = taken
    packed = msgpack.unpackb(b"".join(captured.meta["producers"].packed()))
    assert list(packed.items()) == wanted
    meta = {**captured.meta, "producers": packed}
    loaded = load_stream(meta, captured.blocks, NOW_MS)
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
@settings(max_examples=examples(80), deadline=None)
def test_any_play_is_answered_as_a_naive_server_would(play: list[Step]) -> None:
    """Against a list of entries, a last id and a dict of numbers."""
    in_process = InProcessServer()
    player = in_process.player()
    last, sent, limit = (0, 0), dict[bytes, int](), 100_000
    for kind, a, b in play:
        now_ms = in_process.wall_ms
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
            limit = in_process.keyspace.producers_max = a
        elif kind == "wait":
            in_process.wait_ms(a)
        else:
            player.call("DEL s")
            last, sent = (0, 0), {}
    if player.call("EXISTS s"):
        have = producers_at(in_process)
        # A limit that was lowered is reached with the next append by number.
        assert have[-len(sent) :] == list(sent.items()) if sent else len(have) >= 0
        is_replayed(in_process)


def test_a_pipeline_of_numbers_is_answered_in_order(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    requests = b"".join(
        encode_command(["TAPPENDONCE", "s", "PRODUCER", "p", str(seq), "f", "v"])
        for seq in (1, 2, 2, 1, 3)
    )
    in_process.executor.feed(player, requests)
    in_process.settle()
    made = [player.read() for _ in range(5)]
    assert [reply == Null.BULK for reply in made] == [False, False, True, True, False]


# ------------------------------------------------------------------------------ TAPPENDMANY

Entry = tuple[int, list[str]]


def many(how: str, **streams: list[Entry]) -> list[str]:
    """The words of a TAPPENDMANY; an entry is its number or id, and its fields."""
    words = ["TAPPENDMANY", str(len(streams)), *streams, *how.split()]
    for entries in streams.values():
        words.append(str(len(entries)))
        for number, fields in entries:
            words += [str(number), str(len(fields) // 2), *fields]
    return words


def ask(in_process: InProcessServer, player: InProcessClient, words: list[str]) -> Reply:
    in_process.executor.feed(player, encode_command(words))
    in_process.settle()
    return player.read()


def test_a_batch_is_recorded_as_appends_and_its_last_number(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    words = many("PRODUCER p", s=[(n, ["f", str(n)]) for n in range(3)], t=[(9, ["g", "x"])])
    assert ask(in_process, player, words) == 4
    assert ask(in_process, player, words) == 0
    payload = b"".join(in_process.persistence.payloads)
    names = [words[0] for _, words, _ in split_effects(payload)]
    assert [names.count(name) for name in (b"APPEND", b"APPENDONCE")] == [2, 2]
    assert producers_at(in_process) == [(b"p", 2)]
    assert producers_at(in_process, b"t") == [(b"p", 9)]
    is_replayed(in_process)


def test_of_a_repeat_the_part_that_is_missing_is_appended(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    entries = [(n, ["f", str(n)]) for n in range(10)]
    assert ask(in_process, player, many("PRODUCER p", s=entries[:4])) == 4
    assert ask(in_process, player, many("PRODUCER p", s=entries[2:8])) == 4
    assert ask(in_process, player, many("PRODUCER p", s=entries)) == 2
    assert [row[2][1] for row in in_process.keyspace.databases[0].stream(b"s").range()] == [
        b"%d" % n for n in range(10)
    ]
    is_replayed(in_process)


def test_a_stream_may_be_named_twice(in_process: InProcessServer, player: InProcessClient) -> None:
    line = "TAPPENDMANY 2 s s PRODUCER p 2 1 1 f a 3 1 f b 2 2 1 f x 4 1 f c"
    assert player.call(line) == 3
    assert producers_at(in_process) == [(b"p", 4)]
    is_replayed(in_process)


@pytest.mark.parametrize(
    "words",
    [
        many("PRODUCER p", s=[(1, ["f", "v"])], k=[(1, ["f", "v"])]),
        many("PRODUCER p", new=[(1, ["f", "v"])], k=[(1, ["f", "v"])]),
        many("ID", new=[(1, ["f", "v"])], k=[(1, ["f", "v"])]),
        many("PRODUCER p", new=[(1, ["f", "v"]), (1, ["f", "v"])]),
        many("ID", new=[(2, ["f", "v"]), (1, ["f", "v"])]),
        many("PRODUCER p", new=[(1, ["f", "v"])])[:-1],
        [*many("PRODUCER p", new=[(1, ["f", "v"])]), "more"],
        many("PRODUCER p", new=[(n, ["f", "v"]) for n in range(10_001)]),
        many(f"PRODUCER {'n' * 1025}", new=[(1, ["f", "v"])]),
        ["TAPPENDMANY", "9223372036854775807", "new", "ID", "1", "1-0", "1", "f", "v"],
        ["TAPPENDMANY", "1", "new", "ID", "9223372036854775807", "1-0", "1", "f", "v"],
        ["TAPPENDMANY", "1", "new", "ID", "1", "1-0", "9223372036854775807", "f", "v"],
        ["TAPPENDMANY", "1", "new", "ID", "1", "1-0", "-1", "f", "v"],
    ],
)
def test_many_refused_requests_change_nothing(
    in_process: InProcessServer, player: InProcessClient, words: list[str]
) -> None:
    player.call("SET k v")
    player.call("TAPPENDONCE s PRODUCER p 0 f v")
    before, effects = info(player), list(in_process.persistence.payloads)
    dirty = in_process.keyspace.dirty
    assert isinstance(ask(in_process, player, words), Error)
    assert info(player) == before
    assert (in_process.keyspace.dirty, in_process.persistence.payloads) == (dirty, effects)
    assert player.call("EXISTS new") == 0


def test_many_beyond_the_last_id_are_refused_and_a_repeat_is_not(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    entries = [(n, ["f", "v"]) for n in range(3)]
    assert ask(in_process, player, many("PRODUCER p", s=entries)) == 3
    player.call(f"TAPPENDONCE s ID {U64_MAX}.{U64_MAX - 2} f v")
    assert ask(in_process, player, many("PRODUCER p", s=entries)) == 0
    refused = ask(in_process, player, many("PRODUCER q", s=entries))
    assert isinstance(refused, Error)
    assert "exhausted" in refused.text
    assert ask(in_process, player, many("PRODUCER q", s=entries[:2])) == 2
    assert producers_at(in_process) == [(b"p", 2), (b"q", 1)]
    is_replayed(in_process)


def test_a_batch_reserves_journal_space_before_it_runs(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    """Each effect names the stream: a long key makes much of little."""
    asked = []

    def make_room(size: int) -> int:
        asked.append(size)
        if size > 1_000_000:
            raise CommandError("ERR no room")
        return 1_000_000

    effects = in_process.executor.effects
    effects.make_room = make_room
    effects.forget_room()
    key = "k" * 10_000
    words = many("PRODUCER p", **{key: [(n, ["f", "v"]) for n in range(1000)]})
    assert isinstance(ask(in_process, player, words), Error)
    assert player.call("EXISTS " + key) == 0
    effects.make_room = lambda size: 1 << 40
    assert ask(in_process, player, words) == 1000
    recorded = max(map(len, in_process.persistence.payloads))
    assert 10_000_000 < recorded <= max(asked) < 2 * recorded


mixed = st.lists(
    st.tuples(
        st.booleans(),
        st.integers(0, 2),
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=1, max_size=6),
    ),
    max_size=12,
)


@given(mixed)
@settings(max_examples=examples(80), deadline=None)
def test_many_are_as_many_single_ones(play: list[tuple[bool, int, list[tuple[int, int]]]]) -> None:
    """The same entries go to one server by TAPPENDMANY and to another by TAPPENDONCE."""
    one, other = InProcessServer(), InProcessServer()
    players = one.player(), other.player()
    for in_process in (one, other):
        in_process.keyspace.producers_max = 2
    for by_id, producer, places in play:
        streams: dict[str, list[Entry]] = {}
        for key, number in sorted(set(places)):
            streams.setdefault(f"s{key}", []).append((number + 1, ["f", str(number)]))
        how = "ID" if by_id else f"PRODUCER p{producer}"
        replies = [
            ask(other, players[1], ["TAPPENDONCE", key, *how.split(), str(number), *fields])
            for key, entries in streams.items()
            for number, fields in entries
        ]
        assert ask(one, players[0], many(how, **streams)) == sum(
            isinstance(reply, bytes) for reply in replies
        )
    for key in one.keyspace.databases[0].keys():  # noqa: SIM118 - a Database is no dict
        ours, theirs = (in_process.keyspace.databases[0].stream(key) for in_process in (one, other))
        assert ours is not None
        assert theirs is not None
        assert ours.range() == theirs.range()
        assert producers_at(one, key) == producers_at(other, key)
    is_replayed(one)
