"""Frequent commands have a short way for the frequent case. It does what the long way does, which
a server takes while it sends keyspace events."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Error, Null

KEYS = ("a", "b", "s", "new")
NUMBERS = ("0", "-1", "7", "1000", "9223372036854775807", "-9223372036854775808", "01", "x")


def make_player(*, events: bool) -> InProcessClient:
    server: Any = InProcessServer()
    if events:
        server.pubsub = SimpleNamespace(keyspace_event=lambda *event: None)
        server.executor.context.events = b"KEg$tmnx"
    player: InProcessClient = server.player()
    player.call("XADD s 1-1 f v")
    return player


def make_line(source: random.Random) -> str:
    key, number = source.choice(KEYS), source.choice(NUMBERS)
    return source.choice(
        (
            f"SET {key} {number}",
            f"SET {key} {number} EX 10",
            f"INCR {key}",
            f"DECR {key}",
            f"INCRBY {key} {number}",
            f"DECRBY {key} {number}",
            f"EXPIRE {key} {number}",
            f"PEXPIRE {key} {number}",
            f"EXPIREAT {key} {number}",
            f"PEXPIREAT {key} {number}",
            f"EXPIRE {key} 20 GT",
            f"DEL {key}",
            f"DEL {key} {source.choice(KEYS)}",
            f"EXISTS {key} {source.choice(KEYS)}",
            f"TYPE {key}",
            f"TTL {key}",
            f"PTTL {key}",
            f"EXPIRETIME {key}",
            f"GET {key}",
            f"APPEND {key} 5",
            f"WATCH {key}",
            "CLIENT NO-TOUCH ON",
            "CLIENT NO-TOUCH OFF",
            f"OBJECT IDLETIME {key}",
            f"OBJECT ENCODING {key}",
        )
    )


def state_of(player: InProcessClient) -> tuple[object, ...]:
    keyspace, journal = player.in_process.keyspace, player.in_process.persistence
    counts = (keyspace.dirty, keyspace.hits, keyspace.misses, keyspace.expired_count)
    return counts, journal.payloads


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_answer_and_record_the_same(seed: int) -> None:
    source = random.Random(seed)
    short, long = make_player(events=False), make_player(events=True)
    for _ in range(400):
        if source.random() < 0.1:
            span_ms = source.choice((1, 1500, 12_000))
            for player in (short, long):
                player.in_process.wait_ms(span_ms)
        line = make_line(source)
        assert short.call(line) == long.call(line), line
        assert state_of(short) == state_of(long), line


def test_a_watched_key_changes_by_the_short_way() -> None:
    player = make_player(events=False)
    other = player.in_process.player()
    for line in ("SET a 1", "INCR a", "EXPIRE a 10"):
        player.call("SET a 0")
        player.call("EXPIRE a 5")
        player.call("WATCH a")
        other.call(line)
        player.call("MULTI")
        player.call("PING")
        assert player.call("EXEC") is Null.ARRAY, line


@pytest.mark.parametrize(
    ("start", "line", "total"),
    [
        ("9223372036854775806", "INCR a", 9223372036854775807),
        ("-9223372036854775807", "DECR a", -9223372036854775808),
        ("-1", "INCR a", 0),
        ("-9223372036854775808", "INCRBY a 9223372036854775807", -1),
    ],
)
def test_sums_at_the_limits(start: str, line: str, total: int) -> None:
    player = make_player(events=False)
    player.call(f"SET a {start}")
    assert player.call(line) == total
    assert player.call("GET a") == str(total).encode()


@pytest.mark.parametrize(
    ("start", "line"), [("9223372036854775807", "INCR a"), ("-9223372036854775808", "DECR a")]
)
def test_a_sum_beyond_the_limits_is_refused(start: str, line: str) -> None:
    player = make_player(events=False)
    player.call(f"SET a {start}")
    assert isinstance(player.call(line), Error)
    assert player.call("GET a") == start.encode()
