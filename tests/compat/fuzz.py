"""Random requests of several clients on two servers: every reply, event and counter compared.

`python -m tests.compat.fuzz --first N --count M --peer PATH` plays the seeds N to N + M - 1 on
millstream and on another server, and prints each kind of difference once, in its shortest form.
PATH is a redis-server, by default the installed one. docs/compatibility.md lists the differences
on purpose; only `without_known` and `fields` leave them out. A server older than Redis 8 lacks
fields and counts differently, so its groups' positions and its statistics are not compared.

`tests.compat.compare` plays one client's longer conversations, written for Redis 7.0.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.compat.compare import (
    COUNTER_FIELDS,
    LATER_FIELDS,
    LATER_WORDS,
    OUR_FIELDS,
    made_before,
)
from tests.compat.fuzz_words import Play, Step, Tokens, Words, drawn, rows
from tests.support.client import ConnectionClosed, RawClient
from tests.support.resp import Error, Map, Reply, Set, Simple, show
from tests.support.server import Server, redis_program
from tests.support.waiting import DEADLINE_S, wait_until

DIRECTIVES = {"appendfsync": "no", "enable-debug-command": "yes"}
NEAR_MS = 5000
A_TIME_MS = 10**12  # greater numbers are times of day
TIME_FIELDS = frozenset((b"idle", b"inactive", b"seen-time", b"active-time"))
VALUE_CONDITIONS = frozenset(("IFEQ", "IFNE", "IFDEQ", "IFDNE"))
SHRINK_PLAYS = 150
KEYS = ("s", "t", "k", "none")
# Errors that have other words since Redis 7.0, old and new.
CHANGED_WORDS = {*LATER_WORDS.values(), *(text for _, text in LATER_WORDS)}

_AUTO_ID = re.compile(rb"\b1[5-9]\d{11}-\d+")
_NUMBER = re.compile(r"\d+")
_TEXT = re.compile(r'"[^"]*"')


@dataclass(frozen=True)
class Difference:
    """The replies of both servers to step `at` of a play, with these words."""

    at: int
    words: Words
    ours: str
    theirs: str

    @property
    def kind(self) -> str:
        texts = (_NUMBER.sub("N", _TEXT.sub('""', text))[:150] for text in (self.ours, self.theirs))
        return " | ".join((self.words[0].upper(), *texts))


# ---------------------------------------------------------------- one server


class Side:
    """One of the two servers: its clients, those that wait, and its reports."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.control, self.listener = server.client(), server.client()
        self.clients: list[RawClient] = []
        self.waiting: set[int] = set()
        self.control.call("DEBUG", "SET-ACTIVE-EXPIRE", "0")
        self.control.call("CONFIG", "SET", "notify-keyspace-events", "KA")
        self.listener.call("PSUBSCRIBE", "__key*__:*")

    @property
    def is_current(self) -> bool:
        """True if the server has the replies and counters of Redis 8."""
        return int(self.control.info("server")["redis_version"].split(".")[0]) >= 8

    def tokens(self) -> Tokens:
        """The fixed words of each of its commands, by full name."""
        return {name: frozenset(known) for name, known in self._documented()}

    def _documented(self) -> Iterator[tuple[str, set[str]]]:
        for name in rows():
            [*found] = pairs(self.control.call("COMMAND", "DOCS", name.split("|")[0]))
            for _, facts in found:
                documented = dict(pairs(facts))
                if "|" in name:
                    documented = dict(pairs(documented.get(b"subcommands", [])))
                    documented = dict(pairs(documented.get(name.encode(), [])))
                if documented:
                    yield name, set(tokens_in(documented.get(b"arguments", [])))

    def begin(self, protocols: list[int]) -> None:
        """Forget the last play."""
        for client in self.clients:
            client.close()
        self.server.reset()
        self.settle()
        self.events()
        self.clients = [self.server.client(protocol) for protocol in protocols]
        self.waiting = set()
        self.control.call("CONFIG", "RESETSTAT")

    def settle(self) -> None:
        """Wait until earlier requests are done and blocked clients had their turn."""
        for _ in range(2):
            self.control.call("PING")

    def say(self, number: int, words: Words) -> Reply | None:
        """The reply; None when the client waits now."""
        client = self.clients[number]
        client.send(*words)
        if "BLOCK" in (word.upper() for word in words) and not self._answers(client):
            self.waiting.add(number)
            return None
        try:
            return client.read()
        except ConnectionClosed:
            return Error("the connection was closed")

    def _answers(self, client: RawClient) -> bool:
        """True if there is a reply, or the server waits for one client more."""
        self.settle()
        blocked = len(self.waiting)
        wait_until(
            lambda: (
                client.has_input() or int(self.control.info("clients")["blocked_clients"]) > blocked
            ),
            what="a reply or a wait",
        )
        return client.has_input()

    def events(self) -> list[str]:
        """Keyspace events since the last call, without expiries, whose times differ."""
        found = []
        while self.listener.has_input():
            _, _, channel, event = as_list(self.listener.read())
            if event != b"expired":
                found.append(show([channel, event]))
        return found

    def statistics(self) -> list[str]:
        """Counters of commands, errors and look-ups."""
        kept = []
        for section in ("commandstats", "errorstats", "stats"):
            for name, value in self.control.info(section).items():
                if name.startswith(("cmdstat_x", "errorstat_", "keyspace_", "total_error")):
                    kept.append(f"{name}: {re.sub('usec.*?,rej', 'rej', value)}")
        return sorted(kept)


def tokens_in(arguments: Reply) -> Iterator[str]:
    for argument in as_list(arguments):
        facts = dict(pairs(argument))
        if isinstance(token := facts.get(b"token"), bytes):
            yield token.decode()
        yield from tokens_in(facts.get(b"arguments", []))


# ---------------------------------------------------------------- comparing


def alike(ours: Reply | None, theirs: Reply | None, loose: bool = False) -> bool:
    """True if replies are equal except for times; `loose`: numbers are times."""
    if isinstance(ours, int) and isinstance(theirs, int):
        times = loose or min(ours, theirs) > A_TIME_MS
        return ours == theirs or (times and min(ours, theirs) >= 0 and abs(ours - theirs) < NEAR_MS)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(
            alike(one, other, loose or is_age(ours, at))
            for at, (one, other) in enumerate(zip(ours, theirs, strict=True))
        )
    return ours == theirs


def is_age(row: list[Reply], at: int) -> bool:
    """True if an element is how long ago something was: the last but one number of a pending
    entry's row, or what follows the name of such a field."""
    if at and isinstance(name := row[at - 1], bytes) and name in TIME_FIELDS:
        return True
    return (
        len(row) in (3, 4) and at == len(row) - 2
        and isinstance(row[0], bytes) and isinstance(row[-1], int)
    )  # fmt: skip


def comparable(words: Words, reply: Reply | None, is_current: bool) -> Reply | None:
    """A reply without what nothing promises: IDs made from the time, orders, and for old servers
    the fields of later versions."""
    if words[0].upper() == "KEYS" and isinstance(reply, list):
        reply = sorted(reply, key=repr)
    if words[0].upper() == "EXEC":
        reply = in_order(reply)
    return without_auto_ids(reply, is_current)


def without_auto_ids(reply: Reply | None, is_current: bool) -> Reply | None:
    if isinstance(reply, bytes):
        return _AUTO_ID.sub(b"<id>", reply)
    if isinstance(reply, Error):
        text = _AUTO_ID.sub(b"<id>", reply.text.encode()).decode()
        return Error(text if is_current or text not in CHANGED_WORDS else "changed since 7.0")
    if isinstance(reply, Map):
        reply = [part for pair in reply.pairs for part in pair]
    if isinstance(reply, Set):
        reply = sorted(reply.items, key=repr)
    if not isinstance(reply, list):
        return reply
    parts: list[Reply] = []
    for name, value in fields(reply, is_current):
        parts += [part for part in (name, value) if part is not None]
    return parts


def fields(reply: list[Reply], is_current: bool) -> Iterator[tuple[Reply | None, Reply | None]]:
    """A list's parts, two at a time where it is a map's; without fields that are left out."""
    is_map = len(reply) % 2 == 0 and reply[:1] in ([b"length"], [b"name"])
    left_out = OUR_FIELDS if is_current else OUR_FIELDS | LATER_FIELDS | COUNTER_FIELDS
    if not is_map:
        for part in reply:
            yield without_auto_ids(part, is_current), None
        return
    for name, value in zip(reply[::2], reply[1::2], strict=True):
        if name not in left_out and name not in (b"radix-tree-nodes", b"radix-tree-keys"):
            yield name, without_auto_ids(value, is_current)


def in_order(reply: Reply | None) -> Reply | None:
    """The replies of a transaction; lists of key names have no order."""
    if not isinstance(reply, list):
        return reply
    if all(isinstance(part, bytes) and part.decode(errors="replace") in KEYS for part in reply):
        return sorted(reply, key=repr)
    return [in_order(part) for part in reply]  # type: ignore[misc]


def without_known(play: Play, is_current: bool) -> Play:
    """Without requests whose replies differ on purpose (docs/compatibility.md), or since 7.0."""
    names = {step.words[0] for step in play.steps}
    kept = [step for step in play.steps if not is_known(step.words, names)]
    if not is_current:
        kept = [step for step in kept if not is_changed(step.words)]
    return Play(play.protocols, kept)


def is_changed(words: Words) -> bool:
    """True if Redis 7.0 answers in another way than 8: how a wait for a group ends, shared
    integers, the last entry of XREAD."""
    upper = [word.upper() for word in words]
    return (
        (upper[0] == "XREADGROUP" and "BLOCK" in upper)
        or (upper[0] == "XREAD" and "+" in upper)
        or upper[:2] == ["OBJECT", "REFCOUNT"]
    )


def is_known(words: Words, names: set[str]) -> bool:
    """`names` are those of all commands in the play."""
    upper = [word.upper() for word in words]
    if upper[0] == "SET":
        conditions = VALUE_CONDITIONS & set(upper[3:])
        return bool(conditions) and bool({"NX", "XX", "GET"} & set(upper[3:]))
    if upper[0] in ("XREADGROUP", "XCLAIM", "XAUTOCLAIM"):
        # Empty names of consumers; look-ups of a waiting CLAIM.
        return "" in words or {"BLOCK", "CLAIM"} <= set(upper)
    if upper[:2] == ["OBJECT", "REFCOUNT"]:
        return "MULTI" in names
    return upper[0] == "XSETID" and "WATCH" in names


def pairs(reply: Reply) -> list[tuple[Reply, Reply]]:
    if isinstance(reply, Map):
        return reply.pairs
    flat = as_list(reply)
    return list(zip(flat[::2], flat[1::2], strict=True))


def as_list(reply: Reply) -> list[Reply]:
    assert isinstance(reply, list), reply
    return reply


# ---------------------------------------------------------------- two servers


class Fuzz:
    """Two servers and the plays on them."""

    def __init__(self, ours: Server, theirs: Server) -> None:
        self.ours, self.theirs = Side(ours), Side(theirs)
        self.sides = (self.ours, self.theirs)
        self.is_current = self.theirs.is_current
        self.tokens = self.theirs.tokens()

    def drawn(self, seed: int) -> Play:
        return without_known(drawn(seed, self.tokens), self.is_current)

    def difference(self, play: Play) -> Difference | None:
        """The first difference of a play; the rest is not played."""
        for side in self.sides:
            side.begin(play.protocols)
        for at, step in enumerate(play.steps):
            if self.ours.waiting and step.client in self.ours.waiting:
                continue
            found = self._say(at, step) or self._wake(at, step)
            if found is not None:
                return found
        return self._look_around(len(play.steps))

    def shortest(self, play: Play, found: Difference) -> tuple[Play, Difference]:
        """The same kind of difference in fewer steps."""
        steps = play.steps[: found.at + 1]
        size, plays = max(1, len(steps) // 2), 0
        while size:
            at = 0
            while at < len(steps) and plays < SHRINK_PLAYS:
                plays += 1
                shorter = Play(play.protocols, steps[:at] + steps[at + size :])
                again = self.difference(shorter)
                if again is not None and again.kind == found.kind:
                    steps, found = shorter.steps[: again.at + 1], again
                else:
                    at += size
            size //= 2
        return Play(play.protocols, steps), found

    def _say(self, at: int, step: Step) -> Difference | None:
        made = [] if self.is_current else made_before(step.words)
        for words in [*made, step.words]:
            replies = [side.say(step.client, words) for side in self.sides]
            if words is step.words:
                return self._apart(at, words, replies)
        return None

    def _apart(self, at: int, words: Words, replies: list[Reply | None]) -> Difference | None:
        loose = words[0].upper() in ("TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME")
        shown = [comparable(words, reply, self.is_current) for reply in replies]
        if alike(shown[0], shown[1], loose):
            return None
        texts = ["it waits" if reply is None else show(reply) for reply in shown]
        return Difference(at, words, *texts)

    def _wake(self, at: int, step: Step) -> Difference | None:
        """The replies of clients that waited and have one now."""
        for number in sorted(self.ours.waiting):
            for side in self.sides:
                side.settle()
            clients = [side.clients[number] for side in self.sides]
            if not any(client.has_input() for client in clients):
                continue
            words = ["after", *step.words]
            if not self._both_answer(clients):
                answers = ["an answer" if c.has_input() else "it waits" for c in clients]
                return Difference(at, words, *answers)
            for side in self.sides:
                side.waiting.discard(number)
            found = self._apart(at, words, [client.read() for client in clients])
            if found is not None:
                return found
        return None

    def _both_answer(self, clients: list[RawClient]) -> bool:
        try:
            wait_until(
                lambda: all(client.has_input() for client in clients),
                what="the answer of both",
                deadline_s=min(2.0, DEADLINE_S),
            )
        except AssertionError:
            return False
        return True

    def _look_around(self, at: int) -> Difference | None:
        """Differences that no reply has shown."""
        for side in self.sides:
            side.settle()
        ours, theirs = (side.events() for side in self.sides)
        if ours != theirs:
            both = enumerate(zip(ours, theirs, strict=False))
            apart = next((at for at, (one, other) in both if one != other), 0)
            return Difference(at, ["events"], str(ours[apart:][:3]), str(theirs[apart:][:3]))
        if self.is_current:
            mine, other = (side.statistics() for side in self.sides)
            if mine != other:
                apart_lines = [sorted(set(a) - set(b)) for a, b in ((mine, other), (other, mine))]
                return Difference(at, ["statistics"], *map(str, apart_lines))
        for number in ("0", "1"):
            found = self._look_at_database(at, number)
            if found is not None:
                return found
        return None

    def _look_at_database(self, at: int, number: str) -> Difference | None:
        for side in self.sides:
            side.control.call("SELECT", number)
        try:
            for words in self._questions():
                replies: list[Reply | None] = [side.control.call(*words) for side in self.sides]
                found = self._apart(at, words, replies)
                if found is not None:
                    return found
            return None
        finally:
            for side in self.sides:
                side.control.call("SELECT", "0")

    def _questions(self) -> Iterator[Words]:
        for key in KEYS:
            yield ["TYPE", key]
            yield ["PTTL", key]
            kind = self.ours.control.call("TYPE", key)
            if kind == Simple("string"):
                yield ["GET", key]
            if kind == Simple("stream"):
                yield ["XINFO", "STREAM", key, "FULL", "COUNT", "0"]


def new_fuzz(folder: Path, peer: list[str]) -> Fuzz:
    ours = Server(folder / "ours", DIRECTIVES).start()
    return Fuzz(ours, Server(folder / "peer", {**DIRECTIVES, "save": ""}, peer).start())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat.fuzz", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000, help="how many seeds")
    parser.add_argument("--peer", help="the program of the other server")
    options = parser.parse_args()
    kinds: dict[str, int] = {}
    requests = 0
    with tempfile.TemporaryDirectory() as folder:
        fuzz = new_fuzz(Path(folder), [options.peer] if options.peer else redis_program())
        for seed in range(options.first, options.first + options.count):
            play = fuzz.drawn(seed)
            requests += len(play.steps)
            found = fuzz.difference(play)
            if found is None:
                continue
            kinds[found.kind] = kinds.get(found.kind, 0) + 1
            if kinds[found.kind] == 1:
                print(f"seed {seed}:\n{described(*fuzz.shortest(play, found))}\n", flush=True)
        for side in fuzz.sides:
            side.server.kill()
    print(f"{requests} requests; {sum(kinds.values())} of {options.count} seeds differ")
    for kind, times in sorted(kinds.items()):
        print(f"{times} times {kind}")
    return 1 if kinds else 0


def described(play: Play, found: Difference) -> str:
    lines = [f"  {step.client}: {' '.join(map(repr, step.words))}" for step in play.steps]
    return "\n".join([*lines, f"  {found.words}", f"    ours:   {found.ours}",
                      f"    theirs: {found.theirs}"])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
