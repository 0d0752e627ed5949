"""Random requests, drawn from the command table.

The syntax line of a command gives the shape of its requests: optional arguments are there or not,
in any order, one of several alternatives is taken, and values are drawn by the argument's name.
So a command that is added to the table is fuzzed without a change here. There are few keys,
groups, consumers and IDs, so that requests meet. Some requests are damaged on purpose.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS, Command
from millstream.commands.table.syntax import Argument, parse_syntax

Words = list[str]
Tokens = Mapping[str, frozenset[str]]

KEYS = ("s", "s", "s", "t", "t", "k", "none")
NUMBERS = ("0", "1", "1", "2", "3", "5", "10")
ODD_NUMBERS = (
    "", "x", "-1", "1.5", " 1", "01", "+5", "-0", "1e3", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "18446744073709551616",
)  # fmt: skip
ODD_IDS = (
    "-", "+", "$", ">", "*", "5-*", "x", "", "1-", "-1", "1-1-1", "(1-1", "(2", "(-", "01-1",
    "18446744073709551615", "18446744073709551615-18446744073709551615", "18446744073709551616-0",
)  # fmt: skip
ODD_WORDS = (*ODD_NUMBERS, *ODD_IDS, "COUNT", "STREAMS", "BLOCK", "IDS", "FOO", "g", "s")
VALUES = ("v", "5", "10", "1.5", "", "two words", "-3", "9223372036854775807", " 7", "1" * 30)

# What an argument's value can be, by its name; other names are numbers.
WORDS: dict[str, Sequence[str]] = {
    "group": ("g", "g", "g", "h", "none"),
    "consumer": ("alice", "alice", "bob"),
    "field": ("a", "b", ""),
    "value": VALUES,
    "ifeq-value": VALUES,
    "ifne-value": VALUES,
    "ifdeq-digest": ("1234567890abcdef", "12"),
    "ifdne-digest": ("1234567890abcdef", "12"),
    "threshold": ("0", "1", "2", "3", "5", "3-1"),
    "min-idle-time": ("0", "0", "1000000000"),
    "producer-id": ("p", "q", ""),
    "idempotent-id": ("i", "j", ""),
    "pattern": ("*", "[st]", "x*"),
    "db": ("0", "1", "99"),
    "destination-db": ("0", "1", "99"),
    "seconds": ("1000", "100000", "0", "-1"),
    "milliseconds": ("1000000", "0", "-1"),
    "ms": ("0", "100000"),
    "unix-time-seconds": ("99999999999", "1"),
    "unix-time-milliseconds": ("99999999999999", "1"),
    "offset": ("0", "3", "20", "536870912"),
}
ID_NAMES = frozenset(
    ("id", "start", "end", "last-id", "lastid", "max-deleted-id")
)  # fmt: skip
BLOCK_MS = ("0", "0", "100000", "-1", "x")

GROUPS = frozenset(("stream", "string", "generic"))
# Replies without a promise, cursors, payloads, and waiting for replicas.
EXCLUDED = frozenset(
    ("randomkey", "scan", "dump", "restore", "wait", "waitaof", "object|freq", "object|idletime",
     "object|help", "xgroup|help", "xinfo|help")
)  # fmt: skip
WEIGHTS = {"xadd": 24, "xreadgroup": 14, "xread": 6, "xgroup|create": 6, "xtrim": 5, "xack": 5,
           "xdel": 5, "xclaim": 5, "xautoclaim": 5, "xpending": 5, "set": 4,
           "xinfo|stream": 4}  # fmt: skip
DAMAGED = 0.04


@dataclass(frozen=True)
class Step:
    """One request of one client."""

    client: int
    words: Words


@dataclass(frozen=True)
class Play:
    """The protocol of each client (RESP2 or RESP3), and their requests in turn."""

    protocols: list[int]
    steps: list[Step]


def rows() -> dict[str, Command]:
    """The commands that can be drawn, by full name."""
    load_table()
    found = {}
    for command in COMMANDS.values():
        for row in command.subcommands.values() or [command]:
            if command.group in GROUPS and row.name not in EXCLUDED:
                found[row.name] = row
    return found


class Drawer:
    """Draws the requests of one seed, with the tokens that the other server knows."""

    def __init__(self, chance: random.Random, tokens: Tokens) -> None:
        """`tokens` has the fixed words of each command of the other server, by full name."""
        self.chance = chance
        self.rows = [row for name, row in rows().items() if name in tokens]
        self.weights = [WEIGHTS.get(row.name, 1) for row in self.rows]
        self.tokens = tokens
        self.row = self.rows[0]
        self.next_ms = 1

    def play(self) -> Play:
        chance = self.chance
        clients = chance.randint(1, 3)
        steps = [Step(0, ["XGROUP", "CREATE", "s", "g", "0", "MKSTREAM"])]
        for _ in range(chance.randint(20, 50)):
            client = chance.randrange(clients)
            if chance.random() < 0.04:
                steps += [Step(client, words) for words in self.transaction()]
            else:
                steps.append(Step(client, self.request()))
        return Play([chance.choice((2, 3)) for _ in range(clients)], steps)

    def transaction(self) -> list[Words]:
        watch = [["WATCH", self.key()]] if self.chance.random() < 0.3 else []
        queued = [self.request() for _ in range(self.chance.randint(0, 4))]
        return [*watch, ["MULTI"], *queued, [self.chance.choice(("EXEC", "EXEC", "DISCARD"))]]

    def request(self) -> Words:
        if self.chance.random() < 0.03:
            return self.chance.choice((["SELECT", "1"], ["SELECT", "0"], ["UNWATCH"], ["EXEC"]))
        [self.row] = self.chance.choices(self.rows, self.weights)
        words = self.row.name.upper().split("|") + self.arguments(parse_syntax(self.row.syntax))
        return self.damaged(words) if self.chance.random() < DAMAGED else words

    def damaged(self, words: Words) -> Words:
        """One word less, more, or another one; mostly the name of the command is kept."""
        at = self.chance.randrange(1, len(words)) if len(words) > 1 else 0
        ways: list[Callable[[], Words]] = [
            lambda: words[:at] or words,
            lambda: (words[:at] + words[at + 1 :]) or words,
            lambda: [*words[:at], words[at], *words[at:]],
            lambda: [*words[:at], self.chance.choice(ODD_WORDS), *words[at + 1 :]],
            lambda: [*words, self.chance.choice(ODD_WORDS)],
        ]
        return self.chance.choice(ways)()

    # ------------------------------------------------------------ arguments

    def arguments(self, arguments: Sequence[Argument]) -> Words:
        """The words of arguments in order; those that may be left out next to each other come in
        any order."""
        drawn: Words = []
        at = 0
        while at < len(arguments):
            run = self.optional_run(arguments, at)
            if run:
                at += len(run)
                self.chance.shuffle(run)
                for argument in run:
                    if self.chance.random() < 0.3:
                        drawn += self.argument(argument)
            elif arguments[at].name in ("numids", "numkeys"):
                times, counted = self.repeated(arguments[at + 1])
                drawn += [self.odd(str(times), ODD_NUMBERS), *counted]
                at += 2
            else:
                drawn += self.argument(arguments[at])
                at += 1
        return drawn

    def optional_run(self, arguments: Sequence[Argument], at: int) -> list[Argument]:
        end = at
        while end < len(arguments) and arguments[end].optional:
            end += 1
        return list(arguments[at:end])

    def is_known(self, argument: Argument) -> bool:
        """True if the other server has this argument, too."""
        if argument.token:
            return argument.token in self.tokens[self.row.name]
        return argument.kind != "oneof" or any(map(self.is_known, argument.parts))

    def argument(self, argument: Argument) -> Words:
        if not self.is_known(argument):
            return []
        if argument.name == "streams":
            count = self.chance.choice((1, 1, 1, 2, 3))
            keys = [self.key() for _ in range(count)]
            return ["STREAMS", *keys, *(self.read_id() for _ in range(count))]
        token = [argument.token] if argument.token else []
        if argument.kind == "pure-token":
            return token
        if token == ["BLOCK"]:
            return ["BLOCK", self.chance.choice(BLOCK_MS)]
        return token + self.repeated(argument)[1]

    def repeated(self, argument: Argument) -> tuple[int, Words]:
        """The number of repetitions of an argument, and its words."""
        times = self.chance.choice((1, 1, 2, 3)) if argument.multiple else 1
        return times, [word for _ in range(times) for word in self.once(argument)]

    def once(self, argument: Argument) -> Words:
        if argument.kind == "oneof":
            known = [part for part in argument.parts if self.is_known(part)]
            return self.argument(self.chance.choice(known)) if known else []
        if argument.kind == "block":
            return self.arguments(argument.parts)
        return [self.value(argument)]

    # ------------------------------------------------------------ values

    def odd(self, word: str, odd: Sequence[str]) -> str:
        """This word, now and then an odd one."""
        return self.chance.choice(odd) if self.chance.random() < 0.05 else word

    def key(self) -> str:
        return self.chance.choice(KEYS)

    def value(self, argument: Argument) -> str:
        if argument.kind == "key":
            return self.key()
        if argument.name in ID_NAMES and argument.kind == "string":
            return self.new_id() if self.row.name == "xadd" else self.odd(self.some_id(), ODD_IDS)
        if argument.name in WORDS:
            return self.chance.choice(WORDS[argument.name])
        return self.odd(self.chance.choice(NUMBERS), ODD_NUMBERS)

    def some_id(self) -> str:
        return f"{self.chance.randint(0, self.next_ms)}-{self.chance.randint(0, 2)}"

    def new_id(self) -> str:
        self.next_ms += self.chance.randint(0, 2)
        given = f"{self.next_ms}-{self.chance.choice(('1', '2', '*'))}"
        return self.chance.choice((given, given, given, self.some_id()))

    def read_id(self) -> str:
        newest = (">", ">", ">", "0") if self.row.name == "xreadgroup" else ("$", "0", "0-0")
        return self.odd(self.chance.choice((*newest, self.some_id())), ODD_IDS)


def drawn(seed: int, tokens: Tokens) -> Play:
    """The play of a seed."""
    return Drawer(random.Random(seed), tokens).play()
