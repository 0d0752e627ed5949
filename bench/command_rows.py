"""Rows of one command each: what clients send for each message or poll, and next to it.

A command is sent by redis-benchmark, 16 in a pipeline on 50 connections or one at a time on one
connection. Both servers get the same words, except where `ours` names our own command for the
same work.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.datasets import KEY
from bench.figures import Lanes
from bench.harness import Harness, Side
from bench.load import CONNECTIONS, Load

Words = tuple[str, ...]

FUTURE_ID = "99999999999999-0"
GROUP = "g"
KEPT = "1000"
PENDING = "10"
ENTRY = ("f", "v")
FILL: tuple[Words, ...] = tuple(("XADD", KEY, f"{number}-1", *ENTRY) for number in range(1, 101))
WITH_GROUP: tuple[Words, ...] = (*FILL, ("XGROUP", "CREATE", KEY, GROUP, "$"))
WITH_PENDING: tuple[Words, ...] = (
    *FILL,
    ("XGROUP", "CREATE", KEY, GROUP, "0"),
    ("XREADGROUP", "GROUP", GROUP, "c", "COUNT", PENDING, "STREAMS", KEY, ">"),
)
MANY = 1000  # pending entries that a fruitless XAUTOCLAIM examines
WITH_MANY_PENDING: tuple[Words, ...] = (
    *(("XADD", KEY, f"{number}-1", *ENTRY) for number in range(1, MANY + 1)),
    ("XGROUP", "CREATE", KEY, GROUP, "0"),
    ("XREADGROUP", "GROUP", GROUP, "c", "COUNT", str(MANY), "STREAMS", KEY, ">"),
)
DELETED = 20_000  # requests, and entries; about a third of the requests find none any more
WITH_MANY_ENTRIES: tuple[Words, ...] = tuple(
    ("XADD", KEY, f"{number}-1", *ENTRY) for number in range(1, DELETED + 1)
)
HOUR_MS = "3600000"
TEN_KEYS = tuple(f"{KEY}:{number}" for number in range(10))
TEN_STREAMS: tuple[Words, ...] = tuple(("XADD", key, "1-1", *ENTRY) for key in TEN_KEYS)
STRING: tuple[Words, ...] = (("SET", "string", "value"),)


@dataclass(frozen=True)
class CommandRow:
    """A command, what prepares an empty server for it, and the lowest acceptable ratio."""

    name: str
    title: str
    words: Words
    ratio: float
    prepare: tuple[Words, ...] = ()
    ours: Words | None = None
    pipeline: int = 16
    connections: int = CONNECTIONS
    full: int = 800_000
    quick: int = 80_000
    random_below: int | None = None  # the limit of `__rand_int__` in the words

    def measure(self, harness: Harness) -> Lanes:
        """Readings of both sides; every round begins with an empty server."""
        request = Load(
            harness.plan.size(self.full, self.quick),
            self.pipeline,
            self.random_below,
            self.connections,
        )
        return harness.command(request, self._prepare, self._words_for)

    def _prepare(self, side: Side) -> None:
        side.empty()
        for words in self.prepare:
            side.call(*words)

    def _words_for(self, side: Side) -> Words:
        return self.ours if self.ours is not None and side.dialect == "T" else self.words


def xadd(*options: str) -> Words:
    return ("XADD", KEY, *options, "*", *ENTRY)


MESSAGES = (
    CommandRow("xadd-plain", "XADD s * f v", xadd(), 2.4),
    CommandRow("xadd-maxlen-about", "XADD s MAXLEN ~ 1000", xadd("MAXLEN", "~", KEPT), 2.0),
    CommandRow("xadd-minid-about", "XADD s MINID ~ id", xadd("MINID", "~", "1-1"), 2.0),
    CommandRow("xadd-maxlen", "XADD s MAXLEN 1000", xadd("MAXLEN", KEPT), 3.5),
    CommandRow("tappev-count", "TAPPEV s COUNT 1000", xadd("MAXLEN", KEPT), 3.5,
               ours=("TAPPEV", KEY, "COUNT", KEPT, *ENTRY)),
    CommandRow("xtrim-nothing", "XTRIM MAXLEN ~, nothing to trim",
               ("XTRIM", KEY, "MAXLEN", "~", KEPT), 1.0, FILL),
    CommandRow("xread-nothing", "XREAD, nothing new",
               ("XREAD", "COUNT", "10", "STREAMS", KEY, FUTURE_ID), 1.0, FILL),
    CommandRow("tread-nothing", "TREAD, nothing new",
               ("XREAD", "COUNT", "10", "STREAMS", KEY, FUTURE_ID), 1.0, FILL,
               ours=("TREAD", KEY, FUTURE_ID, "10")),
    CommandRow("xread-10-nothing", "XREAD of 10 streams, nothing new",
               ("XREAD", "COUNT", "10", "STREAMS", *TEN_KEYS, *[FUTURE_ID] * 10), 1.0, TEN_STREAMS,
               full=400_000),
    CommandRow("xreadgroup-nothing", "XREADGROUP >, nothing new",
               ("XREADGROUP", "GROUP", GROUP, "c", "COUNT", "10", "STREAMS", KEY, ">"), 1.0,
               WITH_GROUP),
    CommandRow("xreadgroup-history", "XREADGROUP 0, empty history",
               ("XREADGROUP", "GROUP", GROUP, "c", "COUNT", "10", "STREAMS", KEY, "0"), 1.0,
               WITH_GROUP),
    CommandRow("xpending-summary", "XPENDING s g", ("XPENDING", KEY, GROUP), 1.0, WITH_PENDING),
    CommandRow("xpending-range", "XPENDING s g - + 10",
               ("XPENDING", KEY, GROUP, "-", "+", "10"), 1.0, WITH_PENDING),
    CommandRow("xreadgroup-own", "XREADGROUP 0, ten own entries",
               ("XREADGROUP", "GROUP", GROUP, "c", "COUNT", "10", "STREAMS", KEY, "0"), 1.0,
               WITH_PENDING),
    CommandRow("xclaim", "XCLAIM of one of 1,000",
               ("XCLAIM", KEY, GROUP, "d", "0", "__rand_int__-1"), 3.0, WITH_MANY_PENDING,
               random_below=MANY),
    CommandRow("xclaim-justid", "XCLAIM JUSTID of one of 1,000",
               ("XCLAIM", KEY, GROUP, "d", "0", "__rand_int__-1", "JUSTID"), 1.0,
               WITH_MANY_PENDING, random_below=MANY),
    CommandRow("xautoclaim", "XAUTOCLAIM of one idle entry",
               ("XAUTOCLAIM", KEY, GROUP, "d", "0", "0", "COUNT", "1"), 1.0, WITH_PENDING),
    CommandRow("xautoclaim-nothing", "XAUTOCLAIM, none of 1,000 idle",
               ("XAUTOCLAIM", KEY, GROUP, "d", HOUR_MS, "0"), 30.0, WITH_MANY_PENDING,
               full=4_000, quick=1_600),
    CommandRow("xdel", "XDEL of one of 20,000", ("XDEL", KEY, "__rand_int__-1"), 1.3,
               WITH_MANY_ENTRIES, random_below=DELETED, full=DELETED, quick=DELETED),
    CommandRow("xdel-nothing", "XDEL, no such entry", ("XDEL", KEY, "5-2"), 1.0, FILL),
    CommandRow("expire", "EXPIRE", ("EXPIRE", KEY, "1000"), 0.8, FILL),
    CommandRow("xinfo-stream", "XINFO STREAM", ("XINFO", "STREAM", KEY), 0.5, WITH_PENDING,
               full=160_000),
    CommandRow("xinfo-groups", "XINFO GROUPS", ("XINFO", "GROUPS", KEY), 0.5, WITH_PENDING,
               full=160_000),
    CommandRow("xinfo-consumers", "XINFO CONSUMERS", ("XINFO", "CONSUMERS", KEY, GROUP), 0.5,
               WITH_PENDING, full=160_000),
)  # fmt: skip

OTHERS = (
    CommandRow("ping", "PING", ("PING",), 0.5),
    CommandRow("exists", "EXISTS", ("EXISTS", KEY), 0.5, FILL),
    CommandRow("type", "TYPE", ("TYPE", KEY), 0.5, FILL),
    CommandRow("ttl", "TTL", ("TTL", KEY), 0.5, FILL),
    CommandRow("set", "SET", ("SET", "string", "value"), 1.0),
    CommandRow("set-ex", "SET EX", ("SET", "string", "value", "EX", "1000"), 0.5),
    CommandRow("incr", "INCR", ("INCR", "number"), 0.5),
    CommandRow("del", "DEL", ("DEL", "string"), 0.5, STRING),
    CommandRow("setname", "CLIENT SETNAME", ("CLIENT", "SETNAME", "name"), 0.5),
    CommandRow("scan", "SCAN", ("SCAN", "0"), 0.5, FILL),
    CommandRow("time", "TIME", ("TIME",), 0.5),
    CommandRow("info", "INFO", ("INFO",), 1.0, FILL, full=32_000, quick=8_000),
    CommandRow("config-get", "CONFIG GET of one directive", ("CONFIG", "GET", "maxmemory"), 0.8,
               full=32_000, quick=8_000),
)  # fmt: skip


def alone(name: str, title: str, words: Words, ratio: float, *prepare: Words) -> CommandRow:
    """One request at a time on one connection."""
    return CommandRow(
        name, title, words, ratio, prepare, pipeline=1, connections=1, full=40_000, quick=10_000
    )


ALONE = (
    alone("ping-alone", "PING", ("PING",), 1.1),
    alone("xadd-alone", "XADD", xadd(), 1.1),
    alone("xread-alone", "XREAD, nothing new",
          ("XREAD", "COUNT", "10", "STREAMS", KEY, FUTURE_ID), 1.1, *FILL),
    alone("xreadgroup-alone", "XREADGROUP, nothing new",
          ("XREADGROUP", "GROUP", GROUP, "c", "COUNT", "1", "STREAMS", KEY, ">"), 1.1,
          *WITH_GROUP),
    alone("xack-alone", "XACK", ("XACK", KEY, GROUP, "1-1"), 1.1, *WITH_PENDING),
)  # fmt: skip
