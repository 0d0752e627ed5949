"""Random stream commands that Redis 7.0 and we must answer alike.

Few keys, groups, consumers and ids, so that commands meet. Nothing depends on the moment at which
it runs: ids are given (`5-*` at most), an age is either next to nothing or hours. A part of the
requests is spoilt on purpose, as the words of an error are a promise too.

What 7.0 does not have, or later versions answer in another way, is not sent: see `is_known`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

Words = list[str]

KEYS = ["s", "s", "s", "t", "t", "str", "no"]
GROUPS = ["g", "g", "g", "h", "none"]
CONSUMERS = ["alice", "alice", "bob", "carol"]
FIELDS = ["a", "temperature", "", "a", "b"]
NUMBERS = ["0", "1", "2", "3", "5", "10", "-1", "x", "", "9223372036854775807",
           "9223372036854775808", "1.5", "01"]  # fmt: skip
ODD_WORDS = [
    *NUMBERS, "~", "=", "-", "+", "$", "(1", "(1-1", "1-1", "2", "3-", "-3", "x-1", "1-x", "1-1-1",
    "0-0", "(-", "18446744073709551616", "18446744073709551615-18446744073709551615", "str", "s",
    "t", "no", "g", "alice", "COUNT", "STREAMS", "GROUP", "NOACK", "MAXLEN", "MINID", "LIMIT",
    "NOMKSTREAM", "MKSTREAM", "ENTRIESREAD", "IDLE", "TIME", "RETRYCOUNT", "FORCE", "JUSTID",
    "LASTID", "FULL", "ENTRIESADDED", "MAXDELETEDID", "REPLACE", "DB",
]  # fmt: skip
DAY_MS = "86400000"  # older than anything here becomes
HALF_DAY_MS = "43200000"
FAR_S = 4_000_000_000  # a moment to expire at, in the year 2096


class Peer:
    """One player: its next request depends on `chance` and on its earlier ones."""

    def __init__(self, chance: random.Random, gaps: bool = True) -> None:
        """Without `gaps` nothing is deleted from inside a stream, which is where versions count a
        group's lag differently."""
        self.chance = chance
        self.next_ms = 1
        self.spoilt = chance.choice([0, 0.05, 0.3])
        self.longer = chance.random() < 0.5  # streams of many blocks
        self.in_transaction = False
        commands = {**COMMANDS, **(GAPS if gaps else {})}
        self.gaps = gaps
        # `~` drops whole nodes. Theirs and ours end at the same entries until entries are deleted
        # from inside, or the stream is copied: the copy's next entry begins a node of ours.
        self.nodes = chance.random() < 0.4
        if self.nodes:
            commands = {name: draw for name, draw in commands.items() if name not in MIXING}
        self.draws = [draw for draw, _ in commands.values()]
        self.weights = [weight * chance.choice([0.3, 1, 1, 3]) for _, weight in commands.values()]

    def play(self, length: int) -> list[Words]:
        """Some requests, with a look at everything now and then and at the end."""
        requests = self.beginning() if self.chance.random() < 0.7 else []
        spoken = 0
        while spoken < length:
            for _ in range(self.chance.randint(5, 25)):
                words = self.draw()
                requests += words
                spoken += len(words)
            if self.in_transaction:
                requests += self.transaction()
            requests += self.look()
        return requests

    def beginning(self) -> list[Words]:
        """Something that most commands find something in."""
        self.next_ms = 4
        return [["XADD", "s", "1-1", "a", "1"], ["XADD", "s", "1-2", "a", "2"],
                ["XADD", "s", "3-1", "a", "3"], ["XGROUP", "CREATE", "s", "g", "0"],
                ["XADD", "t", "2-1", "a", "1"], ["XGROUP", "CREATE", "t", "g", "0"],
                ["XREADGROUP", "GROUP", "g", "alice", "COUNT", "2", "STREAMS", "s", "t", ">", ">"],
                ["SET", "str", "x"]]  # fmt: skip

    def draw(self) -> list[Words]:
        [draw] = self.chance.choices(self.draws, self.weights)
        requests = list(draw(self))
        if requests and self.chance.random() < self.spoilt:
            requests[-1] = self.spoil(requests[-1])
        return requests

    def look(self) -> list[Words]:
        """Everything that can be seen."""
        requests: list[Words] = []
        for key in ("s", "t", "str", "no"):
            requests += [["TYPE", key], ["XLEN", key], ["XRANGE", key, "-", "+"],
                         ["XREVRANGE", key, "+", "-", "COUNT", "3"], ["XINFO", "STREAM", key],
                         ["XINFO", "STREAM", key, "FULL", "COUNT", "0"],
                         ["XINFO", "GROUPS", key], ["TTL", key], ["EXPIRETIME", key]]  # fmt: skip
            for group in ("g", "h"):
                requests += [["XINFO", "CONSUMERS", key, group], ["XPENDING", key, group],
                             ["XPENDING", key, group, "-", "+", "1000"]]  # fmt: skip
        return requests

    def spoil(self, words: Words) -> Words:
        """Leave out, double, exchange or replace a word."""
        for _ in range(20):
            spoilt = list(words)
            at = self.chance.randrange(1, len(words)) if len(words) > 1 else 0
            roll = self.chance.random()
            if roll < 0.3:
                del spoilt[at]
            elif roll < 0.45:
                spoilt.insert(at, spoilt[at])
            elif roll < 0.6:
                other = self.chance.randrange(1, len(words)) if len(words) > 1 else 0
                spoilt[at], spoilt[other] = spoilt[other], spoilt[at]
            elif roll < 0.7:
                del spoilt[at:]
            elif roll < 0.8:
                spoilt.append(self.pick(ODD_WORDS))
            else:
                spoilt[at] = self.pick(ODD_WORDS)
            if spoilt and self.is_known(spoilt):
                return spoilt
        return words

    def is_known(self, words: Words) -> bool:
        """True if both servers must send the same reply to this, and at once."""
        upper = [word.upper() for word in words]
        if upper[0] not in {draw.split()[0] for draw in {**COMMANDS, **GAPS}}:
            return False
        if "*" in words or (">" in words and upper[0] != "XREADGROUP"):
            return False
        if upper[0] in ("XREADGROUP", "XCLAIM", "XAUTOCLAIM", "XGROUP") and "" in words:
            return False  # no consumer of ours has the empty name: it stands for no owner
        if "BLOCK" in upper[:-1] and upper[upper.index("BLOCK") + 1] not in ("1", "-1", "x"):
            return False
        if upper[0] in ("XREAD", "XREADGROUP") and "+" in words:
            return False  # the id `+` came with 7.4
        if upper[0] in ("XCLAIM", "XAUTOCLAIM", "XPENDING"):
            # A spoilt age would be compared with one that depends on the moment.
            ages = [*words[4:5], *(b for a, b in pairwise(words) if a.upper() in ("IDLE", "TIME"))]
            return not any(word.strip(" +").isdigit() and 0 < int(word) < 10**6 for word in ages)
        if upper[0] in ("XTRIM", "XADD", "XDEL", "XSETID") and not self.gaps:
            return False
        if "~" in words and not self.nodes:
            return False
        if self.nodes and any(word.startswith("18446") for word in words):
            return False  # an entry so far from the one before begins a node of ours
        return upper[0] not in ("EXPIRE", "COPY", "MULTI", "EXEC", "DISCARD")

    # Words

    def pick(self, words: Sequence[str]) -> str:
        return self.chance.choice(words)

    def maybe(self, likely: float, *words: str) -> Words:
        return list(words) if self.chance.random() < likely else []

    def cased(self, word: str) -> str:
        return word if self.chance.random() < 0.9 else word.lower()

    def key(self) -> str:
        return self.pick(KEYS)

    def id(self) -> str:
        """An id that may be there."""
        ms = self.chance.randint(0, self.next_ms)
        if self.chance.random() < 0.2:
            return str(ms)
        return f"{ms}-{self.pick(['0', '1', '1', '1', '2', '3'])}"

    def ids(self) -> Words:
        return [self.id() for _ in range(self.chance.choice([1, 1, 2, 4]))]

    def bound(self, end: str) -> str:
        roll = self.chance.random()
        if roll < 0.3:
            return end
        return ("(" if roll < 0.5 else "") + self.id()

    def count(self) -> str:
        return self.pick(["1", "1", "2", "3", "10", "100"])

    def trim(self) -> Words:
        """Options of a trim."""
        how = self.pick(["", "", "=", *(["~", "~"] if self.nodes else [])])
        if self.chance.random() < 0.6:
            what = ["MAXLEN", *filter(None, [how]), self.pick(["0", "1", "2", "3", "7", "20"])]
        else:
            what = ["MINID", *filter(None, [how]), self.id()]
        return what + (
            ["LIMIT", self.pick(["0", "1", "2", "3", "10"])]
            if how == "~" and self.chance.random() < 0.3
            else []
        )

    # Commands: each is some requests, the last of which may be spoilt

    def xadd(self) -> list[Words]:
        key = self.key()
        options: Words = self.maybe(0.1, self.cased("NOMKSTREAM"))
        if self.gaps:
            options += self.trim() if self.chance.random() < 0.15 else []
        if self.chance.random() < 0.1:
            text = self.pick([self.id(), "0-0", "0-*", f"{self.next_ms}-*", "(1-1", "x", "-", "$"])
        else:
            self.next_ms += self.chance.choice([0, 0, 1, 1, 2])
            text = f"{self.next_ms}-{self.pick(['*', '*', '*', '1', '2', '3'])}"
            if self.chance.random() < 0.1:
                text = str(self.next_ms)
        fields: Words = []
        for _ in range(self.chance.choice([1, 1, 1, 2, 4])):
            fields += [self.pick(FIELDS), "v" * self.chance.choice([0, 1, 1, 5, 70])]
        requests = []
        if self.longer or self.nodes:
            for _ in range(self.chance.randint(0, 6)):
                requests.append(["XADD", key, f"{self.next_ms}-*", "a", str(self.next_ms)])
                self.next_ms += self.chance.choice([0, 1])
        return [*requests, ["XADD", key, *options, text, *fields]]

    def xtrim(self) -> list[Words]:
        return [["XTRIM", self.key(), *self.trim()]]

    def xdel(self) -> list[Words]:
        return [["XDEL", self.key(), *self.ids()]]

    def xsetid(self) -> list[Words]:
        options = self.maybe(0.5, "ENTRIESADDED", self.pick(["0", "5", "100", "-1"]))
        options += self.maybe(0.5, "MAXDELETEDID", self.id())
        self.next_ms += 1
        return [["XSETID", self.key(), f"{self.next_ms}-1", *options]]

    def xlen(self) -> list[Words]:
        return [["XLEN", self.key()]]

    def xrange(self) -> list[Words]:
        limit = self.maybe(0.5, self.cased("COUNT"), self.count())
        if self.chance.random() < 0.5:
            return [["XRANGE", self.key(), self.bound("-"), self.bound("+"), *limit]]
        return [["XREVRANGE", self.key(), self.bound("+"), self.bound("-"), *limit]]

    def xread(self) -> list[Words]:
        keys = [self.key() for _ in range(self.chance.choice([1, 1, 2, 3]))]
        ids = [self.pick([self.id(), self.id(), "0", "$"]) for _ in keys]
        options = self.maybe(0.5, self.cased("COUNT"), self.count())
        options += self.maybe(0.05, "BLOCK", "1")
        return [["XREAD", *options, self.cased("STREAMS"), *keys, *ids]]

    def xreadgroup(self) -> list[Words]:
        keys = [self.key() for _ in range(self.chance.choice([1, 1, 1, 2]))]
        ids = [self.pick([">", ">", ">", "0", self.id(), "$"]) for _ in keys]
        options = self.maybe(0.5, self.cased("COUNT"), self.count())
        options += self.maybe(0.15, "NOACK") + self.maybe(0.05, "BLOCK", "1")
        who = ["GROUP", self.pick(GROUPS), self.pick(CONSUMERS)]
        return [["XREADGROUP", *who, *options, self.cased("STREAMS"), *keys, *ids]]

    def xack(self) -> list[Words]:
        return [["XACK", self.key(), self.pick(GROUPS), *self.ids()]]

    def claimer(self) -> Words:
        return [self.key(), self.pick(GROUPS), self.pick(CONSUMERS)]

    def min_idle(self) -> str:
        return self.pick(["0", "0", "0", HALF_DAY_MS, "-1"])

    def xclaim(self) -> list[Words]:
        who = self.claimer()
        options = self.maybe(0.2, "FORCE") + self.maybe(0.3, "JUSTID")
        options += self.maybe(0.2, "IDLE", self.pick(["0", DAY_MS]))
        options += self.maybe(0.2, "TIME", self.pick(["1000", "99999999999999", "0"]))
        options += self.maybe(0.2, "RETRYCOUNT", self.pick(["0", "4", "77"]))
        options += self.maybe(0.1, "LASTID", self.id())
        return [["XCLAIM", *who, self.min_idle(), *self.ids(), *options]]

    def xautoclaim(self) -> list[Words]:
        who = self.claimer()
        start = self.pick(["0", "-", self.id(), "(" + self.id()])
        options = self.maybe(0.5, "COUNT", self.count()) + self.maybe(0.3, "JUSTID")
        return [["XAUTOCLAIM", *who, self.min_idle(), start, *options]]

    def xpending(self) -> list[Words]:
        words = ["XPENDING", self.key(), self.pick(GROUPS)]
        if self.chance.random() < 0.3:
            return [words]
        words += self.maybe(0.3, "IDLE", self.pick(["0", HALF_DAY_MS]))
        words += [self.bound("-"), self.bound("+"), self.count()]
        return [words + self.maybe(0.3, self.pick(CONSUMERS))]

    def xgroup_create(self) -> list[Words]:
        options = self.maybe(0.5, "MKSTREAM")
        options += self.maybe(0.2, "ENTRIESREAD", self.pick(["0", "1", "5", "-1"]))
        start = self.pick(["0", "0", "$", self.id(), "-", "+"])
        return [["XGROUP", "CREATE", self.key(), self.pick(GROUPS[:4]), start, *options]]

    def xgroup_setid(self) -> list[Words]:
        options = self.maybe(0.3, "ENTRIESREAD", self.pick(["0", "1", "5", "-1"]))
        start = self.pick(["0", "$", self.id(), "-", "+"])
        return [["XGROUP", "SETID", self.key(), self.pick(GROUPS), start, *options]]

    def xgroup_destroy(self) -> list[Words]:
        return [["XGROUP", "DESTROY", self.key(), self.pick(GROUPS)]]

    def xgroup_consumer(self) -> list[Words]:
        how = self.pick(["CREATECONSUMER", "DELCONSUMER"])
        return [["XGROUP", how, self.key(), self.pick(GROUPS), self.pick(CONSUMERS)]]

    def xinfo(self) -> list[Words]:
        key = self.key()
        return [
            self.chance.choice([
                ["XINFO", "STREAM", key],
                ["XINFO", "STREAM", key, "FULL"],
                ["XINFO", "STREAM", key, "full", "COUNT", self.pick(["1", "2", "0", "-1"])],
                ["XINFO", "GROUPS", key],
                ["XINFO", "CONSUMERS", key, self.pick(GROUPS)],
            ])
        ]  # fmt: skip

    def set_string(self) -> list[Words]:
        return [["SET", self.pick(["str", "str", "str", "s"]), "no stream"]]

    def delete(self) -> list[Words]:
        return [[self.pick(["DEL", "DEL", "UNLINK"]), self.key(), *self.maybe(0.2, self.key())]]

    def exists(self) -> list[Words]:
        return [[self.pick(["EXISTS", "TYPE"]), self.key()]]

    def rename(self) -> list[Words]:
        return [[self.pick(["RENAME", "RENAMENX"]), self.key(), self.key()]]

    def copy(self) -> list[Words]:
        return [["COPY", self.key(), self.key(), *self.maybe(0.5, "REPLACE")]]

    def expire(self) -> list[Words]:
        key = self.key()
        if self.chance.random() < 0.3:
            return [["PERSIST", key]]
        return [["EXPIREAT", key, str(FAR_S + self.chance.randrange(5)),
                 *self.maybe(0.4, self.pick(["NX", "XX", "GT", "LT"]))]]  # fmt: skip

    def touch(self) -> list[Words]:
        return [["TOUCH", self.key(), self.key()]]

    def transaction(self) -> list[Words]:
        if not self.in_transaction:
            self.in_transaction = True
            return [["MULTI"]]
        self.in_transaction = False
        return [[self.pick(["EXEC", "EXEC", "EXEC", "DISCARD"])]]

    def watch(self) -> list[Words]:
        if self.in_transaction:
            return self.transaction()
        changed = self.draw() if self.chance.random() < 0.3 else []
        if self.in_transaction:  # a MULTI was just sent
            return changed
        self.in_transaction = True
        # What a reload brings back may count as changed with us, and XSETID does not with Redis.
        changed = [words for words in changed if words[0] not in ("DEBUG", "XSETID")]
        return [["WATCH", self.key()], *changed, ["MULTI"]]

    def reload(self) -> list[Words]:
        """Nothing may change by it."""
        return [["DEBUG", self.pick(["RELOAD", "LOADAOF"])]] if not self.in_transaction else []


Say = Callable[[Peer], list[Words]]

# Requests by the name of the command that the server must have, with their weights.
COMMANDS: dict[str, tuple[Say, float]] = {
    "XADD": (Peer.xadd, 20),
    "XLEN": (Peer.xlen, 1),
    "XRANGE": (Peer.xrange, 6),
    "XREAD": (Peer.xread, 4),
    "XREADGROUP": (Peer.xreadgroup, 15),
    "XACK": (Peer.xack, 5),
    "XCLAIM": (Peer.xclaim, 5),
    "XAUTOCLAIM": (Peer.xautoclaim, 4),
    "XPENDING": (Peer.xpending, 3),
    "XGROUP CREATE": (Peer.xgroup_create, 7),
    "XGROUP SETID": (Peer.xgroup_setid, 2),
    "XGROUP DESTROY": (Peer.xgroup_destroy, 0.5),
    "XGROUP DELCONSUMER": (Peer.xgroup_consumer, 1),
    "XINFO STREAM": (Peer.xinfo, 2),
    "SET": (Peer.set_string, 0.7),
    "DEL": (Peer.delete, 0.7),
    "UNLINK": (Peer.delete, 0.1),
    "EXISTS": (Peer.exists, 0.3),
    "RENAME": (Peer.rename, 0.7),
    "COPY": (Peer.copy, 0.7),
    "EXPIREAT": (Peer.expire, 1),
    "TOUCH": (Peer.touch, 0.3),
    "MULTI": (Peer.transaction, 3),
    "WATCH": (Peer.watch, 2),
    "DEBUG RELOAD": (Peer.reload, 0.5),
}
# What leaves holes in a stream, or moves its counters.
GAPS: dict[str, tuple[Say, float]] = {
    "XDEL": (Peer.xdel, 3),
    "XTRIM": (Peer.xtrim, 3),
    "XSETID": (Peer.xsetid, 1),
}
MIXING = ("XDEL", "COPY", "DEBUG RELOAD")  # after which nodes end elsewhere
