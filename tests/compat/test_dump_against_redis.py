"""DUMP and RESTORE between millstream and a real redis-server 7.0, in both directions.

The same random stream is made on both servers. Each dump is restored on both, and all of them must
then describe their streams like the originals. The time at which a consumer was last active is left
out, because dumps of 7.0 do not have it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.client import RawClient
from tests.support.resp import Error, Map, Simple
from tests.support.server import Server, redis_program

ROUNDS = 40
SEEDS = (1, 2, 3)
DIRECTIVES = {"stream-node-max-entries": "7", "appendfsync": "no"}
REDIS_DIRECTIVES = {"sanitize-dump-payload": "yes"}  # it looks into every node
OK, WRONG_CHECKSUM = Simple("OK"), Error("ERR DUMP payload version or checksum are wrong")
# Figures of the implementation, or of later versions, and what 7.0 computes in another way.
LEFT_OUT = {b"radix-tree-nodes", b"radix-tree-keys", b"active-time", b"lag", b"idmp-duration",
            b"idmp-maxsize", b"pids-tracked", b"iids-tracked", b"iids-added",
            b"iids-duplicates", b"entries-missed"}  # fmt: skip

VALUES = ("", "1", "-1", "127", "128", "-4096", "4096", "-8388608", "2147483647", "2147483648",
          "-9223372036854775808", "9223372036854775808", "007", "x" * 63, "x" * 64, "y" * 127,
          "y" * 4095, "y" * 4096, "ab" * 10_000)  # fmt: skip

Words = list[str]


def random_play(rng: random.Random) -> list[Words]:
    """Requests that make the stream s."""
    top, ids, play = 0, [], [["XGROUP", "CREATE", "s", "all", "0", "MKSTREAM"]]
    for _ in range(rng.randint(0, 60)):
        top += rng.choice((1, 1, 5, 1000))
        ids.append(f"{top}-{rng.choice((0, 1, 2**63))}")
        names = rng.choice((["a"], ["a", "b"], ["", "a", "b", "c"], ["1"]))
        play.append(["XADD", "s", ids[-1]])
        play[-1] += [word for name in names for word in (name, rng.choice(VALUES))]
    for number in range(rng.randint(0, 3)):
        name = f"g{number}"
        play.append(["XGROUP", "CREATE", "s", name, rng.choice(["0", "$", *ids[:1]])])
        for _ in range(rng.randint(0, 4)):
            consumer, count = f"c{rng.randint(0, 2)}", str(rng.randint(1, 20))
            play.append(
                ["XREADGROUP", "GROUP", name, consumer, "COUNT", count, "STREAMS", "s", ">"]
            )
        if ids:
            play.append(["XACK", "s", name, *rng.sample(ids, min(len(ids), 5))])
            play.append(["XCLAIM", "s", name, "late", "0", rng.choice(ids), "RETRYCOUNT", "300"])
    play += [["XDEL", "s", entry_id] for entry_id in ids if rng.random() < 0.15]
    if rng.random() < 0.4:
        play.append(["XTRIM", "s", "MAXLEN", rng.choice("=~"), str(rng.randint(0, 60))])
    if rng.random() < 0.3:
        play.append(["XSETID", "s", f"{top + 5}-0", "ENTRIESADDED", "1000", "MAXDELETEDID", "1-0"])
    return play


def without_figures(reply: Any) -> Any:
    if isinstance(reply, Map):
        kept = [(name, value) for name, value in reply.pairs if name not in LEFT_OUT]
        return [(name, without_figures(value)) for name, value in kept]
    return [without_figures(part) for part in reply] if isinstance(reply, list) else reply


def stream_of(client: RawClient, key: str) -> Any:
    return without_figures(client.call("XINFO", "STREAM", key, "FULL", "COUNT", "0"))


@pytest.fixture
def both(new_server: Callable[..., Server]) -> Iterator[tuple[RawClient, RawClient]]:
    """Connections to a millstream and a redis-server, with nodes of a few entries."""
    ours = new_server("ours", DIRECTIVES).start()
    theirs = new_server("theirs", {**DIRECTIVES, **REDIS_DIRECTIVES}, redis_program()).start()
    with ours.client(3) as one, theirs.client(3) as other:
        yield one, other


@pytest.mark.parametrize("seed", SEEDS)
def test_streams_move_in_both_directions(both: tuple[RawClient, RawClient], seed: int) -> None:
    ours, theirs = both
    rng = random.Random(seed)
    for _ in range(ROUNDS):
        play = random_play(rng)
        for client in both:
            client.call("FLUSHALL")
            for words in play:
                client.call(*words)
        for source, key in ((ours, "from-ours"), (theirs, "from-theirs")):
            dumped = source.call("DUMP", "s")
            assert [client.call("RESTORE", key, "0", dumped) for client in both] == [OK, OK], play
            wanted = stream_of(source, "s")
            assert [stream_of(client, key) for client in both] == [wanted, wanted], play
            again = [client.call("DUMP", key) for client in both]
            assert [theirs.call("RESTORE", "again", "0", one, "REPLACE") for one in again] == [
                OK, OK,
            ]  # fmt: skip


def test_lengths_around_a_limit_move_in_both_directions(
    both: tuple[RawClient, RawClient],
) -> None:
    """Redis writes the length after an element in more bytes than it must at some lengths."""
    for most, head in ((127, 2), (16_382, 5), (2_097_150, 5)):
        for size in range(most - 1, most + 3):
            for client in both:
                client.call("DEL", "s", "t")
                client.call("XADD", "s", "1-1", "n", "v" * (size - head))
            for source in both:
                dumped = source.call("DUMP", "s")
                for client in both:
                    assert client.call("RESTORE", "t", "0", dumped, "REPLACE") == OK, size
                    assert client.call("XRANGE", "t", "-", "+") == source.call(
                        "XRANGE", "s", "-", "+"
                    ), size


def test_strings_move_in_both_directions(both: tuple[RawClient, RawClient]) -> None:
    for value in (*VALUES, "x", "12345678901", "\0" * 100_000, "yz" * 700_000):
        for client in both:
            client.call("SET", "s", value)
        for source in both:
            dumped = source.call("DUMP", "s")
            for client in both:
                assert client.call("RESTORE", "t", "0", dumped, "REPLACE") == OK
                assert client.call("GET", "t") == value.encode(), value[:30]


def test_a_damaged_payload_is_refused_by_both(both: tuple[RawClient, RawClient]) -> None:
    for client in both:
        for words in random_play(random.Random(7)):
            client.call(*words)
    for source in both:
        dumped = source.call("DUMP", "s")
        assert isinstance(dumped, bytes)
        for at in range(0, len(dumped), 7):
            damaged = dumped[:at] + bytes((dumped[at] ^ 1,)) + dumped[at + 1 :]
            replies = [client.call("RESTORE", "t", "0", damaged) for client in both]
            assert replies == [WRONG_CHECKSUM, WRONG_CHECKSUM]
