"""Reads with WHERE: searches in slices, replies that show one moment, waits that remember."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Error, Map, Null, Reply, Simple, encode_command

from millstream.storage.streams.stream import Stream

LONG = 60_000  # entries that no search looks at in one turn, unless EQ allows it to pass over most
SEVENTH = "WHERE 1 kind IN 2 k7 k-7"
ALL = "WHERE 1 n BETWEEN -inf +inf"
NONE = "WHERE 2 kind IN 2 k7 k-7 n BETWEEN 8 8"


@pytest.fixture
def in_process() -> InProcessServer:
    """With a long stream, s, and a short one, few."""
    made = InProcessServer()
    player = made.player()
    for key in ("s", "few"):
        player.call(f"XADD {key} 1-0 n 1 kind k1")
    fill(made.stream(), 2, LONG)
    fill(made.stream(b"few"), 2, 9)
    return made


def fill(stream: Stream, first: int, last: int) -> None:
    for number in range(first, last + 1):
        stream.append_entry(number, 0, [b"n", b"%d" % number, b"kind", b"k%d" % (number % 100)])


def nested(number: int) -> Reply:
    return [b"%d-0" % number, [b"n", b"%d" % number, b"kind", b"k%d" % (number % 100)]]


def flat(number: int) -> Reply:
    return [b"%d.0" % number, b"n", b"%d" % number, b"kind", b"k%d" % (number % 100)]


def is_seventh(number: int) -> bool:
    return number % 100 == 7


FILTERS: list[tuple[str, Callable[[int], bool]]] = [
    (SEVENTH, is_seventh),
    ("WHERE 1 kind EQ k7", is_seventh),
    (ALL, lambda number: True),
    (NONE, lambda number: False),
    ("WHERE 1 kind IN 2 k1 k2 COUNT 3", lambda number: number % 100 in {1, 2}),
]


def read_while_changing(server: InProcessServer, line: str, resp: int = 2) -> Reply:
    """The reply to a read during whose search the streams change."""
    reader, other = server.player(resp), server.player()
    server.executor.feed(reader, encode_command(line.split()))
    for change in ("XDEL s 7-0", "XTRIM s MAXLEN 5", "XADD s * kind k7 n 5", "DEL few"):
        server.executor.feed(other, encode_command(change.split()))
    server.settle()
    assert [other.read() for _ in range(4)][2] is not None
    reply = reader.read()
    assert reader.unread == b""
    return reply


@pytest.mark.parametrize(("where", "holds"), FILTERS)
@pytest.mark.parametrize("resp", [2, 3])
def test_filtered_ranges_show_the_moment_of_the_request(
    in_process: InProcessServer, where: str, holds: Callable[[int], bool], resp: int
) -> None:
    limit = 3 if "COUNT" in where else LONG
    found = [number for number in range(1, LONG + 1) if holds(number)]
    reply = read_while_changing(in_process, f"XRANGE s - + {where}", resp)
    assert reply == [nested(number) for number in found[:limit]]


@pytest.mark.parametrize(("where", "holds"), FILTERS)
def test_filtered_reverse_ranges_show_the_moment_of_the_request(
    in_process: InProcessServer, where: str, holds: Callable[[int], bool]
) -> None:
    limit = 3 if "COUNT" in where else LONG
    found = [number for number in range(LONG - 50, 10, -1) if holds(number)]
    reply = read_while_changing(in_process, f"XREVRANGE s {LONG - 50} 11 {where}")
    assert reply == [nested(number) for number in found[:limit]]


@pytest.mark.parametrize(("where", "holds"), FILTERS[:4])
@pytest.mark.parametrize("resp", [2, 3])
def test_filtered_xreads_show_the_moment_of_the_request(
    in_process: InProcessServer, where: str, holds: Callable[[int], bool], resp: int
) -> None:
    line = f"XREAD COUNT 900 {where} STREAMS few s none s 0 5 0 {LONG - 200}"
    reply = read_while_changing(in_process, line, resp)
    wanted = []
    for key, first, last in (
        (b"few", 1, 9), (b"s", 6, LONG), (b"s", LONG - 199, LONG)
    ):  # fmt: skip
        found = [nested(number) for number in range(first, last + 1) if holds(number)][:900]
        if found:
            wanted.append((key, found))
    if not wanted:
        assert reply == (Null.RESP3 if resp == 3 else Null.ARRAY)
    elif resp == 3:
        assert isinstance(reply, Map)
        assert reply.pairs == wanted
    else:
        assert reply == [list(pair) for pair in wanted]


@pytest.mark.parametrize(("where", "holds"), FILTERS[:4])
def test_filtered_treads_show_the_moment_of_the_request(
    in_process: InProcessServer, where: str, holds: Callable[[int], bool]
) -> None:
    found = [flat(number) for number in range(6, LONG + 1) if holds(number)][:700]
    reply = read_while_changing(in_process, f"TREAD s 5 700 WITHINFO {where}")
    assert reply == [[b"1.0", b"%d.0" % LONG], *found]


@pytest.mark.parametrize("count", [0, 1, 599, 600, 601])
def test_filtered_follows_say_how_far_they_have_looked(
    in_process: InProcessServer, count: int
) -> None:
    found = [number for number in range(1, LONG + 1) if is_seventh(number)][:count]
    few = [7][:count]
    reply = read_while_changing(in_process, f"TMREAD {count} {SEVENTH} STREAMS s few none 0 0 3.0")
    assert isinstance(reply, list)
    last = found[-1] if found else 0
    after = LONG if count > 600 else last
    rows = [row[:5] for row in reply if isinstance(row, list)]
    assert rows == [
        [b"s", b"0.0", b"%d.0" % after, [flat(number) for number in found], 0],
        [b"few", b"0.0", b"%d.0" % (9 if count > 1 else few[0] if few else 0),
         [flat(number) for number in few], 0],
        [b"none", b"3.0", b"3.0", [], 0],
    ]  # fmt: skip


def test_a_follow_that_found_all_at_the_end_is_settled(in_process: InProcessServer) -> None:
    player = in_process.player()
    player.call("XADD s 60001-5 kind k7")
    reply = player.call(f"TMREAD 1 {SEVENTH} STREAMS s 60000.0")
    assert isinstance(reply, list)
    assert reply[0][2:4] == [b"60001.5", [[b"60001.5", b"kind", b"k7"]]]  # type: ignore[index]


@pytest.mark.parametrize("size", [1, 50, 51, 52, 53, 54, 90, 500, 100_000])
def test_maxsize_counts_as_without_a_filter(in_process: InProcessServer, size: int) -> None:
    player = in_process.player()
    plain = player.call(f"XREAD MAXSIZE {size} STREAMS few s few 0 59990 0")
    assert player.call(f"XREAD MAXSIZE {size} {ALL} STREAMS few s few 0 59990 0") == plain


@pytest.mark.parametrize("most", [1, 9, 10, 11, 18, 19])
def test_maxcount_counts_matches(in_process: InProcessServer, most: int) -> None:
    player = in_process.player()
    plain = player.call(f"XREAD MAXCOUNT {most} STREAMS few s few 0 59999 0")
    filtered = player.call(f"XREAD MAXCOUNT {most} {ALL} STREAMS few s few 0 59999 0")
    assert filtered == plain


def test_a_search_lets_other_clients_run(in_process: InProcessServer) -> None:
    reader, other = in_process.player(), in_process.player()
    in_process.executor.feed(reader, encode_command(f"XRANGE s - + COUNT 1 {NONE}".split()))
    in_process.executor.feed(other, encode_command(["PING"]))
    in_process.executor.end_tick()
    assert other.read() == Simple("PONG")
    assert reader.unread == b""
    in_process.settle()
    assert reader.read() == []


def test_searches_of_many_streams_let_other_clients_run(in_process: InProcessServer) -> None:
    """The searches of all streams have one share of a turn."""
    reader, other = in_process.player(), in_process.player()
    keys = [f"s{number}" for number in range(60)]
    for key in keys:
        other.call(f"XADD {key} 1-0 n 1 kind k1")
        fill(in_process.stream(key.encode()), 2, 1000)
    line = f"TMREAD 5 {NONE} STREAMS {' '.join(keys)}" + " 0" * len(keys)
    in_process.executor.feed(reader, encode_command(line.split()))
    in_process.executor.feed(other, encode_command(["PING"]))
    in_process.executor.end_tick()
    assert other.read() == Simple("PONG")
    assert reader.unread.count(b"*6\r\n") < len(keys)
    in_process.settle()
    reply = reader.read()
    assert isinstance(reply, list)
    rows = [row[:5] for row in reply if isinstance(row, list)]
    assert rows == [[key.encode(), b"0.0", b"1000.0", [], 0] for key in keys]


def test_a_client_that_leaves_ends_its_searches(in_process: InProcessServer) -> None:
    for line in (f"XRANGE s - + {NONE}", f"XREAD BLOCK 0 {NONE} STREAMS s 0"):
        reader = in_process.player()
        in_process.executor.feed(reader, encode_command(line.split()))
        in_process.executor.detach(reader)
    in_process.settle()
    assert in_process.executor.serving.waiting.count == 0


def test_requests_after_a_search_wait_for_its_reply(in_process: InProcessServer) -> None:
    player = in_process.player()
    player.send(f"XRANGE s - + COUNT 1 WHERE 1 n IN 2 {LONG} x")
    lines = [f"XRANGE s - + {NONE}", "PING", f"XREAD {NONE} STREAMS s 0", "PING"]
    in_process.executor.feed(player, b"".join(encode_command(line.split()) for line in lines))
    in_process.settle()
    replies = [player.read() for _ in range(5)]
    assert replies == [[nested(LONG)], [], Simple("PONG"), Null.ARRAY, Simple("PONG")]


def test_searches_run_within_a_transaction(in_process: InProcessServer) -> None:
    player = in_process.player()
    lines = [
        "MULTI", f"XRANGE s - + COUNT 1 {SEVENTH}", f"XREAD BLOCK 0 {NONE} STREAMS s 0",
        f"XREAD BLOCK 0 COUNT 1 {SEVENTH} STREAMS s 50000", f"TREAD s 0 1 BLOCK 0 {NONE}",
        f"TMREAD 1 BLOCK 0 {NONE} STREAMS s 0", "EXEC",
    ]  # fmt: skip
    for line in lines[:-1]:
        player.call(line)
    reply = player.call("EXEC")
    assert isinstance(reply, list)
    assert reply[:4] == [
        [nested(7)], Null.ARRAY, [[b"s", [nested(50007)]]], [],
    ]  # fmt: skip
    assert reply[4][0][:5] == [b"s", b"0.0", b"60000.0", [], 0]  # type: ignore[index]


# ---------------------------------------------------------------- waits

READS = [
    f"XREAD BLOCK 0 {SEVENTH} STREAMS w $",
    f"TREAD w $ 10 BLOCK 0 {SEVENTH}",
    f"TMREAD 10 BLOCK 0 {SEVENTH} STREAMS w $",
]


def waiting(server: InProcessServer, line: str) -> InProcessClient:
    reader = server.player()
    reader.send(line)
    assert reader.unread == b""
    return reader


@pytest.mark.parametrize("line", READS)
def test_a_wait_ends_with_the_first_match(in_process: InProcessServer, line: str) -> None:
    player = in_process.player()
    player.call("XADD w 1-0 kind k7")
    reader = waiting(in_process, line)
    for number in range(2, 50):
        player.call(f"XADD w {number}-0 kind k1")
    player.call("XADD w 50-0 n 1")
    assert reader.unread == b""
    player.call("XADD w 51-0 kind k7")
    reply = reader.read()
    assert b"51" in repr(reply).encode()
    assert b"50" not in repr(reply).encode()


@pytest.mark.parametrize("line", READS)
def test_many_waits_are_retried_in_several_turns(in_process: InProcessServer, line: str) -> None:
    readers = [waiting(in_process, line) for _ in range(1000)]
    other = in_process.player()
    in_process.executor.feed(other, encode_command(["XADD", "w", "1-0", "kind", "k7"]))
    in_process.executor.end_tick()
    served = [reader.unread != b"" for reader in readers]
    assert served == sorted(served, reverse=True)
    assert 0 < sum(served) < 1000
    in_process.settle()
    assert all(reader.unread for reader in readers)


@pytest.mark.parametrize("line", READS)
def test_a_wait_searches_a_stream_that_appears(in_process: InProcessServer, line: str) -> None:
    reader = waiting(in_process, line)
    player = in_process.player()
    player.call("XADD x 1-0 kind k1")
    fill(in_process.stream(b"x"), 2, 6)
    player.call("RENAME x w")
    assert reader.unread == b""
    player.call("DEL w")
    player.call("XADD w 3-0 kind k7")
    assert b"3" in repr(reader.read()).encode()


@pytest.mark.parametrize("line", READS)
def test_a_wait_searches_a_long_stream_in_slices(in_process: InProcessServer, line: str) -> None:
    last = f"WHERE 8 n IN 2 {LONG} x" + f" n BETWEEN {LONG} 1e9" * 7
    reader = waiting(in_process, line.replace(SEVENTH, last))
    other = in_process.player()
    in_process.executor.feed(other, encode_command(["RENAME", "s", "w"]))
    in_process.executor.feed(other, encode_command(["PING"]))
    in_process.executor.end_tick()
    assert other.unread.endswith(b"PONG\r\n")
    assert reader.unread == b""
    in_process.settle()
    assert b"60000" in repr(reader.read()).encode()


def test_a_search_continues_after_the_deadline_of_a_wait(in_process: InProcessServer) -> None:
    readers = [in_process.player() for _ in range(4)]
    lines = [
        f"XREAD BLOCK 1 WHERE 1 n IN 2 {LONG} x STREAMS s 0",
        f"TREAD s 0 1 BLOCK 1 WHERE 1 n IN 2 {LONG} x",
        f"XREAD BLOCK 1 {NONE} STREAMS s 0", f"TREAD s 0 1 BLOCK 1 WITHINFO {NONE}",
    ]  # fmt: skip
    for reader, line in zip(readers, lines, strict=True):
        in_process.executor.feed(reader, encode_command(line.split()))
    in_process.wall_ms += 5
    in_process.executor.due.run_due()
    in_process.settle()
    assert [reader.read() for reader in readers] == [
        [[b"s", [nested(LONG)]]],
        [flat(LONG)],
        Null.ARRAY,
        [[b"1.0", b"60000.0"]],
    ]


@pytest.mark.parametrize("where", [SEVENTH, NONE])
def test_a_deadline_stays_while_nothing_matches(in_process: InProcessServer, where: str) -> None:
    player = in_process.player()
    reader = waiting(in_process, f"XREAD BLOCK 100 {where} STREAMS few $")
    for _ in range(9):
        in_process.wait_ms(10)
        player.call("XADD few * kind k1")
        assert reader.unread == b""
    in_process.wait_ms(10)
    assert reader.read() == Null.ARRAY


def test_a_wait_remembers_how_far_it_looked(in_process: InProcessServer) -> None:
    player = in_process.player()
    reader = waiting(in_process, f"TMREAD 5 BLOCK 100 {SEVENTH} STREAMS few 7.0")
    player.call("XADD few 20-0 kind k1")
    in_process.wait_ms(100)
    reply = reader.read()
    assert isinstance(reply, list)
    assert reply[0][1:4] == [b"7.0", b"20.0", []]  # type: ignore[index]


def test_what_was_evicted_without_a_match_is_no_gap(in_process: InProcessServer) -> None:
    player = in_process.player()
    reader = waiting(in_process, f"TREAD few 7 5 BLOCK 0 {SEVENTH}")
    follower = waiting(in_process, f"TMREAD 5 BLOCK 0 {SEVENTH} STREAMS few 7.0")
    for number in range(20, 24):
        player.call(f"XADD few MAXLEN 1 {number}-0 kind k1")
    player.call("XADD few 30-0 kind k7")
    assert reader.read() == [[b"30.0", b"kind", b"k7"]]
    reply = follower.read()
    assert isinstance(reply, list)
    assert reply[0][1:3] == [b"7.0", b"30.0"]  # type: ignore[index]


def test_a_gap_is_shown_whether_anything_matches(in_process: InProcessServer) -> None:
    player = in_process.player()
    player.call("XTRIM few MINID 6")
    assert player.call(f"TREAD few 2 5 {SEVENTH}") == [Null.BULK, flat(7)]
    assert player.call(f"TREAD few 2 5 {NONE}") == [Null.BULK]


def waiting_readers(in_process: InProcessServer, after: int) -> list[InProcessClient]:
    lines = (
        f"TREAD few {after} 5 BLOCK 0 {SEVENTH}",
        f"TMREAD 5 BLOCK 0 {SEVENTH} STREAMS few {after}",
    )
    return [waiting(in_process, line) for line in lines]


@pytest.mark.parametrize("after", [2, 0])
def test_a_wait_shows_what_was_evicted_before_the_request(
    in_process: InProcessServer, after: int
) -> None:
    player = in_process.player()
    player.call("XTRIM few MAXLEN 0")
    player.call("XADD few 20-0 kind k1")
    reader, follower = waiting_readers(in_process, after)
    player.call("XADD few 21-0 kind k7")
    found = [b"21.0", b"kind", b"k7"]
    # A reader that begins at 0 has no gap.
    assert reader.read() == ([Null.BULK, found] if after else [found])
    reply = follower.read()
    assert isinstance(reply, list)
    assert reply[0][1:4] == [b"9.0", b"21.0", [found]]  # type: ignore[index]


def test_a_wait_shows_what_was_evicted_before_it_was_searched(in_process: InProcessServer) -> None:
    player = in_process.player()
    reader, follower = waiting_readers(in_process, 9)
    for line in ("MULTI", "XADD few 20-0 kind k7", "XTRIM few MAXLEN 0", "XADD few 21-0 kind k7"):
        player.call(line)
    player.call("EXEC")
    found = [b"21.0", b"kind", b"k7"]
    assert reader.read() == [Null.BULK, found]
    reply = follower.read()
    assert isinstance(reply, list)
    assert reply[0][1:4] == [b"20.0", b"21.0", [found]]  # type: ignore[index]


def test_the_last_entry_is_read_if_it_matches(in_process: InProcessServer) -> None:
    player = in_process.player()
    assert player.call(f"XREAD {SEVENTH} STREAMS few +") == Null.ARRAY
    assert player.call("XREAD WHERE 1 n EQ 9 STREAMS few +") == [[b"few", [nested(9)]]]
    reader = waiting(in_process, f"XREAD BLOCK 0 {SEVENTH} STREAMS few +")
    player.call("XADD few 10-0 kind k1")
    assert reader.unread == b""
    player.call("XADD few 11-0 kind k7")
    assert reader.read() == [[b"few", [[b"11-0", [b"kind", b"k7"]]]]]


def test_a_key_of_another_type_ends_a_search(in_process: InProcessServer) -> None:
    player = in_process.player()
    reader = waiting(in_process, f"XREAD BLOCK 0 {SEVENTH} STREAMS few $")
    player.call("SET few text")
    assert reader.unread == b""
    player.call("DEL few")
    player.call("XADD few * kind k7")
    assert reader.unread
    searching = in_process.player()
    line = "XREAD BLOCK 0 WHERE 8" + f" n BETWEEN {LONG + 1} 1e9" * 8 + " STREAMS s 0"
    in_process.executor.feed(searching, encode_command(line.split()))
    in_process.executor.feed(player, encode_command(["SET", "s", "text"]))
    in_process.settle()
    error = searching.read()
    assert isinstance(error, Error)
    assert error.text.startswith("WRONGTYPE")


def test_a_group_has_its_own_filter(in_process: InProcessServer) -> None:
    error = in_process.player().call(f"TREAD few 0 1 GROUP g 0 {SEVENTH}")
    assert error == Error("ERR WHERE cannot be used with GROUP: TGROUP sets the filter of a group")
