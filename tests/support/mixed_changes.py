"""Random changes of streams, groups and keys, in both dialects, for tests of replicas."""

from __future__ import annotations

import random
import re
from collections import deque

Words = tuple[object, ...]

_ID = re.compile(rb"\d+[-.]\d+")
STREAMS = ("s", "t", "orders", "held")
STRINGS = ("a", "b", "count")
GROUPS = ("g", "h")
CONSUMERS = ("ann", "bob", "eve")


class Changes:
    """Draws requests. They name IDs that the server has given out (`learn`). `with_moves`: also
    those that rename, copy and remove whole keys."""

    def __init__(self, seed: int, *, with_moves: bool = True) -> None:
        self._chance = random.Random(seed)
        self._with_moves = with_moves
        self._known: deque[str] = deque(["1-1"], maxlen=60)
        self._reserved: list[str] = []
        self._number = 0

    def learn(self, words: Words, reply: object) -> None:
        """The reply to a request may have an ID, or those of reservations."""
        for one in reply if isinstance(reply, list) else [reply]:
            if isinstance(one, bytes) and _ID.fullmatch(one):
                if words[0] == "TRESERVE":
                    self._reserved.append(one.decode())
                else:
                    self._known.append(one.decode().replace(".", "-"))

    def draw(self, count: int) -> list[Words]:
        return [self._one() for _ in range(count)]

    def begin(self) -> list[Words]:
        """Groups of each kind."""
        made: list[Words] = []
        for stream in STREAMS:
            made += [("XGROUP", "CREATE", stream, group, "0", "MKSTREAM") for group in GROUPS]
        made.append(("TGROUP", "orders", "h", "TIMEOUT", 50, "MAXDELIVER", 3))
        made.append(("TGROUP", "t", "h", "ORDER", "ALL", "TIMEOUT", 1000))
        return made

    def _pick(self, *choices: object) -> object:
        return self._chance.choice(choices)

    def _id(self) -> str:
        """The ID of an entry that may exist."""
        return self._chance.choice(self._known)

    def _ids(self) -> list[str]:
        return [self._id() for _ in range(self._chance.randint(1, 4))]

    def _one(self) -> Words:
        ways = [self._append] * 6 + [self._read] * 4 + [self._settle] * 4
        ways += [self._remove, self._group, self._string, self._reserve, self._key]
        return self._chance.choice(ways)()

    def _append(self) -> Words:
        key, fields = self._pick(*STREAMS), (self._pick("n", "field"), self._chance.randrange(100))
        way = self._chance.randrange(8)
        if way == 0:
            return "XADD", key, "MAXLEN", self._pick("~", "="), 40, "*", *fields
        if way == 1:
            self._number += 1
            return "TAPPENDONCE", key, "PRODUCER", "p", self._number, *fields
        if way == 2:
            return "TAPPEND", key, *fields
        if way == 3:
            return "TSCHEDULE", key, "IN", self._pick(0, 5, 50), self._pick("", "name"), *fields
        return "XADD", key, "*", *fields

    def _read(self) -> Words:
        key, group, consumer = self._pick(*STREAMS), self._pick(*GROUPS), self._pick(*CONSUMERS)
        count = self._chance.randint(1, 6)
        way = self._chance.randrange(6)
        if way == 0:
            return "XREADGROUP", "GROUP", group, consumer, "COUNT", count, "STREAMS", key, 0
        if way == 1:
            return "XREADGROUP", "GROUP", group, consumer, "NOACK", "STREAMS", key, ">"
        if way == 2:
            return "TREAD", key, "0", count, "GROUP", group, 0, *self._pick((), ("RETRY", 5, 50))  # type: ignore[misc]
        return "XREADGROUP", "GROUP", group, consumer, "COUNT", count, "STREAMS", key, ">"

    def _settle(self) -> Words:
        key, group, consumer = self._pick(*STREAMS), self._pick(*GROUPS), self._pick(*CONSUMERS)
        way = self._chance.randrange(8)
        if way < 3:
            return "XACK", key, group, *self._ids()
        if way == 3:
            extra = self._pick((), ("FORCE",), ("JUSTID",), ("RETRYCOUNT", 7))
            assert isinstance(extra, tuple)
            return "XCLAIM", key, group, consumer, 0, *self._ids(), *extra
        if way == 4:
            return "XAUTOCLAIM", key, group, consumer, 0, "-", "COUNT", 3
        if way == 5:
            return "XNACK", key, group, self._pick("SILENT", "FAIL"), "IDS", 1, self._id()
        if way == 6:
            return "TNACK", key, group, consumer, "ALL"
        return "XACKDEL", key, group, "IDS", 1, self._id()

    def _remove(self) -> Words:
        key = self._pick(*STREAMS)
        way = self._chance.randrange(5)
        if way == 0:
            return "XTRIM", key, "MINID", self._id()
        if way == 1:
            return "TPOLICY", key, "MAXLEN", self._chance.randint(20, 60)
        if way == 2:
            return "XTRIM", key, "MAXLEN", "=", self._chance.randint(0, 40)
        return "XDEL", key, *self._ids()

    def _group(self) -> Words:
        key, group, consumer = self._pick(*STREAMS), self._pick(*GROUPS), self._pick(*CONSUMERS)
        way = self._chance.randrange(5)
        if way == 0:
            return "XGROUP", "DELCONSUMER", key, group, consumer
        if way == 1:
            return "XGROUP", "SETID", key, group, self._id()
        if way == 2:
            return "XGROUP", "CREATECONSUMER", key, group, consumer
        if way == 3 and self._with_moves:
            return "XGROUP", "DESTROY", key, group
        return "XGROUP", "CREATE", key, group, self._pick("0", "$", self._id())

    def _string(self) -> Words:
        key = self._pick(*STRINGS)
        return self._chance.choice(
            [
                ("SET", key, self._chance.randrange(100)),
                ("SET", key, "12", "KEEPTTL"),
                ("INCR", key),
                ("APPEND", key, "xyz"),
                ("SETRANGE", key, self._chance.randrange(5), "pq"),
                ("PEXPIRE", self._pick(*STRINGS, *STREAMS), 10_000_000),
                ("PERSIST", key),
                ("PEXPIRE", key, 20),
                ("DEL", key),
            ]
        )

    def _reserve(self) -> Words:
        way = self._chance.randrange(5)
        if way < 2:
            return "TRESERVE", "held", "w", 2
        if way < 4:
            return "TCOMPLETE", "held", "w", self._reservation(), "done", self._chance.randrange(9)
        return "TABORT", "held", "w", self._reservation()

    def _reservation(self) -> str:
        """The ID of a reservation that may still be open."""
        if not self._reserved:
            return "1.0"
        return self._reserved.pop(self._chance.randrange(len(self._reserved)))

    def _key(self) -> Words:
        if not self._with_moves or self._chance.random() < 0.5:
            return "SET", "a", "b"
        one, other = self._pick(*STREAMS, *STRINGS), self._pick(*STREAMS, *STRINGS)
        return self._chance.choice(
            [
                ("RENAME", one, other),
                ("COPY", one, other, "REPLACE"),
                ("COPY", one, other, "DB", 1, "REPLACE"),
                ("MOVE", one, 1),
                ("SWAPDB", 0, 1),
                ("DEL", one, other),
                ("FLUSHDB",),
            ]
        )
