"""One random play on two servers, reply by reply, and the shortest part of it that differs.

`python -m tests.compat.compare --seeds N` starts both servers, plays many seeds and prints each
difference once. What legitimately differs is masked in `masked`, and only there.
"""

from __future__ import annotations

import argparse
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.compat.peer import Peer, Words
from tests.support.client import RawClient
from tests.support.resp import Error, Map, Null, Reply, Simple, encode_command, show
from tests.support.server import Server, redis_program

LENGTH = 60
# Blocks of three entries, by number only: what `~` drops is then the same.
DIRECTIVES = {"stream-node-max-entries": "3", "stream-node-max-bytes": "1000000",
              "appendfsync": "no"}  # fmt: skip
REDIS_DIRECTIVES = {**DIRECTIVES, "enable-debug-command": "yes"}

# Fields that Redis 7.0 does not have: 8.6's are in the recorded conversation.
LATER_FIELDS = {b"inactive", b"active-time", b"idmp-duration", b"idmp-maxsize", b"pids-tracked",
                b"iids-tracked", b"iids-added", b"iids-duplicates"}  # fmt: skip
OUR_FIELDS = {b"entries-missed"}  # of a group that has missed entries
# How long ago a consumer was seen, and figures of the implementation.
MASKED_FIELDS = {b"idle", b"seen-time", b"radix-tree-keys", b"radix-tree-nodes"}
# How far a group has read. Where something is missing from the stream, 7.4 and later compute it in
# another way than 7.0; the lag is then held against `lag_promised`.
COUNTER_FIELDS = {b"entries-read", b"lag"}
# Words that later versions changed: those of 7.0, and those of 8.6.
_UNBALANCED = (
    "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified."
)
LATER_WORDS = {
    ("XREAD", _UNBALANCED): "ERR Unbalanced 'xread' list of streams: for each stream key an ID, "
    "'+', or '$' must be specified.",
    ("XREADGROUP", _UNBALANCED): "ERR Unbalanced 'xreadgroup' list of streams: for each stream key "
    "an ID or '>' must be specified.",
}
AGES_MS = {"seconds": 600_000, "a day": 100 * 86_400_000}  # below; above is since 1970


@dataclass
class Difference:
    """The last request of `requests` is the one that is answered differently."""

    requests: list[Words]
    ours: str
    theirs: str

    @property
    def kind(self) -> str:
        words = self.requests[-1]
        name = " ".join(words[:2]) if words[0] in ("XINFO", "XGROUP") else words[0]
        return f"{name}: {self.ours[:12] if self.ours[:1] == '-' else ''}"

    def __str__(self) -> str:
        lines = "\n".join("  " + shlex.join(words) for words in self.requests)
        return f"{lines}\n    ours:  {self.ours}\n    redis: {self.theirs}"


class Comparison:
    """Two servers that are played the same."""

    def __init__(self, ours: Server, theirs: Server, protocol: int) -> None:
        self.ours, self.theirs = ours.client(protocol), theirs.client(protocol)

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()

    def difference(self, requests: list[Words]) -> Difference | None:
        """The first reply that differs; the rest of the play is then forgotten."""
        # The append-only file of 7.0 does not keep how often something was delivered, its RDB does.
        theirs = [["DEBUG", "RELOAD"] if "LOADAOF" in words else words for words in requests]
        played = [played_on(self.ours, requests), played_on(self.theirs, theirs)]
        masked = [masked_replies(requests, replies) for replies in played]
        for number, (ours, theirs) in enumerate(zip(*masked, strict=True)):
            if ours != theirs:
                return Difference(requests[: number + 1], *first_apart(ours, theirs))
            wrong = wrong_lag(requests[number], played[0][number])
            if wrong is not None:
                return Difference(requests[: number + 1], *wrong)
        return None


def played_on(client: RawClient, requests: list[Words]) -> list[Reply]:
    """The replies of a server that is emptied before, those to `made_before` left out."""
    sent = [["DISCARD"], ["UNWATCH"], ["FLUSHALL"]]
    asked = []
    for words in requests:
        sent += made_before(words)
        asked.append(len(sent))
        sent.append(words)
    client.send_raw(b"".join(map(encode_command, sent)))
    replies = [client.read() for _ in sent]
    assert replies[2] == Simple("OK")
    return [replies[number] for number in asked]


def made_before(words: Words) -> list[Words]:
    """Consumers that a request names. Since 7.2 a read or claim makes him in any case, in 7.0
    only when he gets something: so he is made before."""
    upper = [word.upper() for word in words]
    made = []
    if upper[0] in ("XCLAIM", "XAUTOCLAIM") and len(words) > 3:
        made = [words[1:4]]
    if upper[0] == "XREADGROUP" and "STREAMS" in upper and "GROUP" in upper[:-2]:
        at = upper.index("GROUP")
        made = [[key, *words[at + 1 : at + 3]] for key in words[upper.index("STREAMS") + 1 :]]
    return [["XGROUP", "CREATECONSUMER", *who] for who in made]


# ---------------------------------------------------------------------------------- what may differ


def masked_replies(requests: list[Words], replies: list[Reply]) -> Iterator[str]:
    """Each reply as text, without what may differ."""
    now_ms = int(time.time() * 1000)
    gaps = False
    queued: list[Words] = []
    for words, reply in zip(requests, replies, strict=True):
        if reply == Simple("QUEUED"):
            queued += [*made_before(words), words]
            yield "+QUEUED"
        elif words[0] == "EXEC" and isinstance(reply, list):
            parts = []
            for one, answer in zip(queued, reply, strict=True):
                gaps = gaps or leaves_gaps(one)
                parts.append(masked(one, answer, gaps, now_ms))
            yield "[" + ", ".join(parts) + "]"
        else:
            gaps = gaps or leaves_gaps(words)
            yield masked(words, reply, gaps, now_ms)
        if words[0] in ("EXEC", "DISCARD"):
            queued = []


def leaves_gaps(words: Words) -> bool:
    """True if IDs may be missing now, or the count of a group may be wrong."""
    options = {"MAXLEN", "MINID", "ENTRIESREAD"} & {word.upper() for word in words}
    return words[0] in ("XDEL", "XTRIM", "XSETID") or bool(options)


def masked(words: Words, reply: Reply, gaps: bool, now_ms: int) -> str:
    if isinstance(reply, Error):
        return "-" + LATER_WORDS.get((words[0], reply.text), reply.text)
    name = " ".join(word.upper() for word in (words[:2] if words[0] == "XINFO" else words[:1]))
    if name == "XPENDING" and isinstance(reply, list) and len(words) > 3:
        return show([[*row[:2], age(row[2]), *row[3:]] for row in map(as_list, reply)])
    if name in ("XINFO CONSUMERS", "XINFO GROUPS") and isinstance(reply, list):
        return "[" + "; ".join(fields(row, gaps, now_ms) for row in reply) + "]"
    if name == "XINFO STREAM":
        return fields(reply, gaps, now_ms)
    if name in ("TTL", "PTTL") and isinstance(reply, int):
        return "later" if reply > 0 else show(reply)
    return show(reply)


def fields(reply: Reply, gaps: bool, now_ms: int) -> str:
    """A map's fields as `name=value`."""
    shown = []
    for name, value in pairs(reply):
        if name in LATER_FIELDS or name in OUR_FIELDS:
            continue
        if name in MASKED_FIELDS or (gaps and name in COUNTER_FIELDS):
            shown.append(f"{name!r}=<any>")
        elif name in (b"groups", b"consumers") and isinstance(value, list):
            rows = "; ".join(fields(row, gaps, now_ms) for row in value)
            shown.append(f"{name!r}=[{rows}]")
        elif name in (b"pending", b"pel") and isinstance(value, list):
            shown.append(f"{name!r}={[pending_row(as_list(row), now_ms) for row in value]}")
        else:
            shown.append(f"{name!r}={show(value)}")
    return f"{type(reply).__name__}({', '.join(shown)})"


def pending_row(row: list[Reply], now_ms: int) -> str:
    """[id, consumer, delivery time, count], in a consumer's list without the consumer."""
    *before, time_ms, count = row
    assert isinstance(time_ms, int)
    return show([*before, age(now_ms - time_ms), count])


def age(idle_ms: Reply) -> bytes:
    assert isinstance(idle_ms, int)
    return next((name.encode() for name, ms in AGES_MS.items() if idle_ms < ms), b"1970")


def pairs(reply: Reply) -> list[tuple[Reply, Reply]]:
    if isinstance(reply, Map):
        return list(reply.pairs)
    flat = as_list(reply)
    return list(zip(flat[::2], flat[1::2], strict=True))


def as_list(reply: Reply) -> list[Reply]:
    assert isinstance(reply, list), reply
    return reply


def first_apart(ours: str, theirs: str) -> tuple[str, str]:
    """Both texts, long ones from shortly before the place where they part."""
    if max(len(ours), len(theirs)) < 300:
        return ours, theirs
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
    start = max(0, at - 120)
    return f"...{ours[start : at + 150]}", f"...{theirs[start : at + 150]}"


def wrong_lag(words: Words, reply: Reply) -> tuple[str, str] | None:
    """A group's lag that is not the promised one, with the latter."""
    if words[:2] != ["XINFO", "STREAM"] or "FULL" not in words or not isinstance(reply, list | Map):
        return None
    stream = dict(pairs(reply))
    for group in map(dict, map(pairs, as_list(stream[b"groups"]))):
        lag, promised = group[b"lag"], lag_promised(stream, group)
        if (None if isinstance(lag, Null) else lag) != promised:
            return f"lag {lag} of {group[b'name']!r}", f"8.6 says {promised}"
    return None


def lag_promised(stream: dict[Reply, Reply], group: dict[Reply, Reply]) -> int | None:
    """The number of entries before a group, as 8.6 computes it; None where it is unknown."""
    length, added = as_int(stream[b"length"]), as_int(stream[b"entries-added"])
    first, last, deleted = (
        id_of(stream[name])
        for name in (b"recorded-first-entry-id", b"last-generated-id", b"max-deleted-entry-id")
    )
    at, read = id_of(group[b"last-delivered-id"]), group[b"entries-read"]
    if not length:
        return 0
    whole = deleted < first  # nothing is missing after the first entry
    if at < first and whole:
        return length
    if isinstance(read, int) and (whole or at > deleted):
        return added - read
    if at == last:
        return 0
    return length - 1 if whole and at == first else None


def id_of(reply: Reply) -> tuple[int, int]:
    assert isinstance(reply, bytes)
    ms, seq = reply.split(b"-")
    return int(ms), int(seq)


def as_int(reply: Reply) -> int:
    assert isinstance(reply, int)
    return reply


# ---------------------------------------------------------------------------------- shortening


def shortest(
    found: Difference, difference: Callable[[list[Words]], Difference | None]
) -> Difference:
    """The same kind of difference in as few requests and words as can be found by leaving out."""

    def still(requests: list[Words]) -> Difference | None:
        again = difference(requests)
        return again if again is not None and again.kind == found.kind else None

    size = len(found.requests)
    while size:
        at = len(found.requests) - size
        while at >= 0:
            shorter = found.requests[:at] + found.requests[at + size :]
            again = still(shorter) if shorter else None
            if again is not None:
                found = again
            at = min(at, len(found.requests)) - size
        size //= 2
    return _fewer_words(found, still)


def _fewer_words(
    found: Difference, still: Callable[[list[Words]], Difference | None]
) -> Difference:
    for number in reversed(range(len(found.requests))):
        for width in (2, 1):
            at = 1
            while at < len(found.requests[number]) and number < len(found.requests):
                words = found.requests[number]
                fewer = words[:at] + words[at + width :]
                requests = [*found.requests[:number], fewer, *found.requests[number + 1 :]]
                again = still(requests)
                if again is not None and len(again.requests) == len(found.requests):
                    found = again
                else:
                    at += 1
    return found


# ---------------------------------------------------------------------------------- many seeds


def drawn(seed: int, length: int = LENGTH) -> tuple[int, list[Words]]:
    """A seed's protocol and requests."""
    chance = random.Random(seed)
    return chance.choice([2, 3]), Peer(chance, chance.random() < 0.7).play(length)


def new_servers(folder: Path) -> tuple[Server, Server]:
    ours = Server(folder / "ours", DIRECTIVES)
    theirs = Server(folder / "redis", REDIS_DIRECTIVES, redis_program())
    return ours.start(), theirs.start()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat.compare", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--each", type=int, default=1, help="differences of a kind to show")
    options = parser.parse_args()
    kinds: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = new_servers(Path(folder))
        compared = {protocol: Comparison(ours, theirs, protocol) for protocol in (2, 3)}
        for seed in range(options.first, options.first + options.seeds):
            protocol, requests = drawn(seed, options.length)
            found = compared[protocol].difference(requests)
            if found is None:
                continue
            kinds[found.kind] = kinds.get(found.kind, 0) + 1
            if kinds[found.kind] <= options.each:
                short = shortest(found, compared[protocol].difference)
                print(f"seed {seed}, RESP{protocol}, {short.kind}\n{short}\n", flush=True)
        for server in (ours, theirs):
            server.kill()
    print(f"{sum(kinds.values())} of {options.seeds} seeds differ: {kinds}")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
