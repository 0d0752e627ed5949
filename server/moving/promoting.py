"""`millstream import URL --to URL --promote`: the cut-over from a Redis.

1. The link is up. Writes to the source are paused: clients wait.
2. The target has applied everything that the source has done, and has it on its disk.
3. Lengths and last IDs of streams are the same.
4. The source is fenced. A pause holds writers and does not refuse them: without a fence, the source
   would run what they sent, and confirm it.
5. The target becomes a primary, and the pause of the source ends.

If a step fails, the fence and the pause are taken back, and the target still follows. So no write
that the source has confirmed is lost, and none is confirmed by both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from millstream.cli_error import CliError
from millstream.errors import counted, printable, readable
from millstream.remote import info_fields, pairs
from millstream.server.moving.live_following import KINDS, Fields, Pair
from millstream.tools.tool_connection import ToolError, Unreachable, is_error

FENCE = "1000000"  # replicas that a source wants before it accepts a write
DAY_MS = 86_400_000
STREAMS_MAX = 10_000
_POLL_S = 0.003
_BATCH = 500
_OTHER_KEYS_MAX = 100_000
_NAMES_MAX = 5


class Failed(Exception):
    """A step that has failed. The text is a sentence."""


@dataclass
class Promoted:
    """The result: the source's offset, the streams that were compared, the length of the pause, and
    keys of other types that the source has: their number and the first names, by type."""

    offset: int = 0
    streams: int = 0
    pause_ms: float = 0.0
    fence: str = ""
    undo: str = ""
    others: dict[str, list[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def lines(self, source: str, target: str) -> Iterator[str]:
        yield f"{target} is the primary, with everything up to offset {self.offset} of {source}"
        yield f"compared: {counted(self.streams, 'stream')}"
        if self.pause_ms:
            yield f"writers waited {self.pause_ms:.0f} ms"
        if self.fence:
            yield f"{source} refuses writes ({self.fence}). To undo that: {self.undo}"
        for kind, names in self.others.items():
            more = "" if self.counts[kind] <= len(names) else ", ..."
            yield (
                f"{source} still has {self.counts[kind]} of the type {kind}:"
                f" {', '.join(names)}{more}"
            )


class Promotion:
    """One cut-over. `pauses`: writers of the source are not stopped already."""

    def __init__(self, pair: Pair, timeout_s: float, *, pauses: bool) -> None:
        self._pair = pair
        self._source, self._target = pair.source, pair.target
        self._timeout_s = timeout_s
        self._pauses = pauses
        self._undo: list[Callable[[], Any]] = []
        self._end_s = 0.0
        self._paused_s = 0.0
        self._result = Promoted()

    def run(self) -> Promoted:
        """CliError if a step fails; the target follows then as before."""
        self._require_link()
        self._end_s = time.monotonic() + self._timeout_s
        try:
            self._pause()
            self._wait_until_even()
            self._compare()
            self._fence()
            self._become_primary()
        except (Failed, ToolError) as problem:
            text = problem.message if isinstance(problem, ToolError) else str(problem)
            raise CliError(f"{text}; {self._take_back()}") from None
        except BaseException:
            self._take_back()
            raise
        self._unpause()
        self._name_others()
        return self._result

    # Before

    def _require_link(self) -> None:
        facts = self._pair.target_facts()
        if facts.get("role") == "master" and self._is_fenced():
            raise CliError(
                f"{self._target.name} is a primary, and {self._source.name} is fenced: the cut-over"
                " is done. CLIENT UNPAUSE there ends a pause that is left"
            )
        if not self._pair.is_followed(facts):
            raise CliError(
                f"{self._target.name} does not follow {self._source.name}: begin with --follow"
            )
        if facts.get("master_link_status") != "up" or facts.get("master_kind") not in KINDS:
            reason = facts.get("repl_last_error") or "a full sync may be under way"
            raise CliError(f"the link of {self._target.name} is not up: {reason}")
        if facts.get("source_spool_bytes") != "0":
            raise CliError(
                f"{self._target.name} still applies the commands of its full sync:"
                f" {facts.get('source_spool_bytes')} bytes. Try again when --follow shows none"
            )

    def _is_fenced(self) -> bool:
        (reply,) = self._source.pipeline([("CONFIG", "GET", "min-replicas-to-write")])
        return isinstance(reply, list) and reply[1:] == [FENCE.encode()]

    # Steps

    def _pause(self) -> None:
        if not self._pauses:
            return
        margin_s = 5.0  # the program ends the pause; a killed program does not hold writers long
        self._paused_s = time.monotonic()
        self._undo.append(lambda: self._source.call("CLIENT", "UNPAUSE"))
        self._source.call("CLIENT", "PAUSE", int((self._timeout_s + margin_s) * 1000), "WRITE")

    def _wait_until_even(self) -> None:
        """Wait until the target has applied everything, and has it on its disk."""
        theirs = info_fields(self._source.call("INFO", "replication"))
        offset = self._result.offset = int(theirs["master_repl_offset"])
        while True:
            ours = self._pair.target_facts()
            if ours.get("master_link_status") != "up":
                raise Failed(f"the link of {self._target.name} was lost")
            if int(ours["source_offset"]) >= offset and _is_durable(ours):
                return
            if time.monotonic() > self._end_s:
                raise Failed(
                    f"{self._target.name} has applied {ours['source_offset']} of {offset} bytes"
                    f" after {self._timeout_s:g} seconds"
                )
            time.sleep(_POLL_S)

    def _compare(self) -> None:
        """Compare the lengths and last IDs of streams."""
        for number in _databases(self._target.call("INFO", "keyspace")):
            for connection in (self._source, self._target):
                connection.call("SELECT", number)
            for keys in self._streams():
                requests = [("XINFO", "STREAM", key) for key in keys]
                answers = zip(
                    self._source.pipeline(requests), self._target.pipeline(requests), strict=True
                )
                for key, (theirs, ours) in zip(keys, answers, strict=True):
                    self._require_same(number, key, pairs(theirs), pairs(ours))
                if time.monotonic() > self._end_s:
                    raise Failed(f"the comparison took longer than {self._timeout_s:g} seconds")

    def _streams(self) -> Iterator[list[bytes]]:
        """The streams of the selected database, as many as are compared."""
        cursor: Any = 0
        while self._result.streams < STREAMS_MAX:
            cursor, keys = self._target.call("SCAN", cursor, "COUNT", _BATCH, "TYPE", "stream")
            self._result.streams += len(keys)
            if keys:
                yield keys
            if cursor == b"0":
                return

    def _require_same(self, number: int, key: bytes, theirs: Any, ours: Any) -> None:
        for name in ("length", "last-generated-id"):
            if theirs.get(name) != ours.get(name):
                raise Failed(
                    f'the stream "{printable(readable(key))}" of database {number} differs:'
                    f" {name} {_text(theirs.get(name))} at {self._source.name},"
                    f" {_text(ours.get(name))} at {self._target.name}"
                )

    def _fence(self) -> None:
        (reply,) = self._source.pipeline([("CONFIG", "GET", "min-replicas-to-write")])
        if isinstance(reply, list) and len(reply) == 2:
            before = reply[1].decode()
            words = ("CONFIG", "SET", "min-replicas-to-write")
            (done,) = self._source.pipeline([(*words, FENCE)])
            if not is_error(done):
                self._undo.append(lambda: self._source.call(*words, before))
                self._result.fence = f"min-replicas-to-write {FENCE}"
                self._result.undo = f"CONFIG SET min-replicas-to-write {before}"
                return
        # Where CONFIG is forbidden: the clients that wait are closed, and others wait.
        self._undo.append(lambda: self._source.call("CLIENT", "UNPAUSE"))
        self._source.call("CLIENT", "PAUSE", DAY_MS, "WRITE")
        self._source.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        self._pauses = False
        self._result.fence = "CONFIG is forbidden there: writers were closed, and wait for a day"
        self._result.undo = "CLIENT UNPAUSE"

    def _become_primary(self) -> None:
        try:
            self._target.call("REPLICAOF", "NO", "ONE")
        except Unreachable:
            self._target.reconnect()  # it may have done it
        if self._pair.target_facts().get("role") != "master":
            raise Failed(f"{self._target.name} did not become a primary")
        self._undo.clear()

    # After

    def _unpause(self) -> None:
        if self._pauses:
            self._source.call("CLIENT", "UNPAUSE")
        if self._paused_s:
            self._result.pause_ms = (time.monotonic() - self._paused_s) * 1000

    def _take_back(self) -> str:
        """Take back what was done to the source; says what is left."""
        try:
            for step in reversed(self._undo):
                step()
        except ToolError as problem:
            return (
                f"{self._source.name} may still be fenced or paused ({problem.message}): send it"
                f" CLIENT UNPAUSE{', ' if self._result.undo else ''}{self._result.undo}"
            )
        return f"{self._target.name} still follows {self._source.name}, which serves its writers"

    def _name_others(self) -> None:
        """The keys of other types that the source has, of its first keys."""
        left = _OTHER_KEYS_MAX
        for number in _databases(self._source.call("INFO", "keyspace")):
            self._source.call("SELECT", number)
            cursor: Any = 0
            while left > 0:
                cursor, keys = self._source.call("SCAN", cursor, "COUNT", _BATCH)
                left -= len(keys)
                kinds = self._source.pipeline([("TYPE", key) for key in keys])
                for key, kind in zip(keys, kinds, strict=True):
                    if kind not in (b"stream", b"string", b"none") and not is_error(kind):
                        self._note_other(kind.decode("utf-8", "replace"), key)
                if cursor == b"0":
                    break

    def _note_other(self, kind: str, key: bytes) -> None:
        self._result.counts[kind] = self._result.counts.get(kind, 0) + 1
        names = self._result.others.setdefault(kind, [])
        if len(names) < _NAMES_MAX:
            names.append(printable(readable(key)))


def _is_durable(ours: Fields) -> bool:
    return int(ours.get("repl_durable_frame", 0)) >= int(ours.get("repl_frame", 0))


def _databases(keyspace: object) -> list[int]:
    """The databases with keys, from INFO keyspace."""
    names = (name.removeprefix("db") for name in info_fields(keyspace))
    return [int(name) for name in names if name.isdecimal()]


def _text(value: object) -> str:
    if value is None:
        return "unknown"
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def promote(
    source_url: str, target_url: str, timeout_s: float, say: Callable[[str], Any], *, pauses: bool
) -> None:
    """Cut over, and say what was done."""
    pair = Pair(source_url, target_url, timeout_s)
    for line in (
        Promotion(pair, timeout_s, pauses=pauses).run().lines(pair.source.name, pair.target.name)
    ):
        say(line)
