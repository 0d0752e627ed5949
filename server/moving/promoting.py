"""`millstream import URL --to URL --promote`: the cut-over from a Redis.

1. The link is up, and the source is a primary. Its writes are paused: clients wait.
2. The target has applied everything that the source has done, and has it on its disk.
3. Lengths and last IDs of streams are the same.
4. The source is fenced. A pause holds writers and does not refuse them: without a fence, the source
   would run what they sent, and confirm it. The target applies what was written before the fence.
5. The target becomes a primary, and the pause of the source ends.

If a step fails, the fence and the pause are taken back, and the target still follows. So no write
that the source has confirmed is lost, and none is confirmed by both: once the target has been told
to become a primary, the fence stays until the target is known to be a replica.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from millstream.cli_error import CliError
from millstream.errors import counted, printable, readable
from millstream.remote import info_fields, pairs
from millstream.server.moving.fencing import Fence
from millstream.server.moving.live_following import KINDS, Fields, Pair, is_of_ours
from millstream.storage.dump.base_making import LeftOut, first_names
from millstream.tools.tool_connection import ToolError, Unreachable, is_error

STREAMS_MAX = 10_000
_SCANNED_MAX = 500_000  # keys of a server in which streams are looked for
_POLL_S = 0.003
_BATCH = 500
_OTHER_KEYS_MAX = 100_000


class Failed(Exception):
    """A step that has failed. The text is a sentence."""


@dataclass
class Promoted:
    """The result: the source's offset, the streams that were compared, the length of the pause, and
    keys of other types that the source has: their number and the first names, by type. `problems`:
    what has failed after the promotion."""

    offset: int = 0
    streams: int = 0
    pause_ms: float = 0.0
    others: dict[str, LeftOut] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def lines(self, source: str, fence: Fence) -> Iterator[str]:
        yield f"compared: {counted(self.streams, 'stream')}"
        if self.pause_ms:
            yield f"writers waited {self.pause_ms:.0f} ms"
        yield f"{source} refuses writes ({fence.text}). To undo that: {fence.undo}"
        for kind, others in self.others.items():
            names = first_names(others.names, others.keys)
            yield f"{source} still has {others.keys} of the type {kind}: {names}"
        for problem in self.problems:
            yield f"note: {problem}"


class Promotion:
    """One cut-over. `pauses`: writers of the source are not stopped already."""

    def __init__(self, pair: Pair, timeout_s: float, *, pauses: bool) -> None:
        self._pair = pair
        self._source, self._target = pair.source, pair.target
        self._timeout_s = timeout_s
        self._pauses = pauses
        self._fence = Fence(pair.source)
        self._is_paused = False
        self._is_ordered = False  # the target may be a primary
        self._end_s = 0.0
        self._paused_s = 0.0
        self._result = Promoted()

    def run(self) -> str:
        """Make the target a primary; returns the sentence that says so. CliError if a step fails;
        the target follows then as before, unless the error says that this is not known."""
        self._require_link()
        self._end_s = time.monotonic() + self._timeout_s
        try:
            self._pause()
            self._wait_until_even()
            self._compare()
            self._fence.put_up()
            self._wait_until_even()  # with writes that came before the fence
            self._become_primary()
        except (Failed, ToolError) as problem:
            text = problem.message if isinstance(problem, ToolError) else str(problem)
            raise CliError(f"{text}; {self._advice()}") from None
        except BaseException as problem:
            advice = self._advice()
            if self._is_ordered:
                raise CliError(f"interrupted; {advice}") from problem
            raise
        return (
            f"{self._target.name} is the primary, with everything up to offset"
            f" {self._result.offset} of {self._source.name}"
        )

    def finish(self) -> Iterator[str]:
        """End the pause, and describe the rest of the result. Nothing here undoes the promotion."""
        for step, name in (
            (self._unpause, "the pause of the source may not have ended (CLIENT UNPAUSE ends it)"),
            (self._name_others, "keys of other types are not known"),
        ):
            try:
                step()
            except ToolError as problem:
                self._result.problems.append(f"{name}: {problem.message}")
        yield from self._result.lines(self._source.name, self._fence)

    # Before

    def _require_link(self) -> None:
        facts = self._pair.target_facts()
        if facts.get("role") == "master" and self._fence.is_up():
            raise CliError(
                f"{self._target.name} is a primary, and {self._source.name} is fenced: the cut-over"
                " is done. CLIENT UNPAUSE there ends a pause that is left"
            )
        try:
            self._source_offset()
        except Failed as problem:
            raise CliError(str(problem)) from None
        if not self._pair.is_followed(facts):
            raise CliError(
                f"{self._target.name} does not follow {self._source.name}: begin with --follow"
            )
        if is_of_ours(facts):
            raise CliError(
                f"{self._source.name} is a millstream server, which hands over: send"
                f" REPLICAOF NO ONE to {self._target.name}"
            )
        if facts.get("master_link_status") != "up" or facts.get("master_kind") not in KINDS:
            reason = facts.get("repl_last_error") or "a full sync may be under way"
            raise CliError(f"the link of {self._target.name} is not up: {reason}")
        if facts.get("source_spool_bytes") != "0":
            raise CliError(
                f"{self._target.name} still applies the commands of its full sync:"
                f" {facts.get('source_spool_bytes')} bytes. Try again when --follow shows none"
            )

    def _source_offset(self) -> int:
        """The offset of the source, which is a primary."""
        facts = info_fields(self._source.call("INFO", "replication"))
        if facts.get("role") != "master":
            raise Failed(
                f"{self._source.name} is a replica of {facts.get('master_host')}:"
                f"{facts.get('master_port')}, whose writers this program cannot stop: let"
                f" {self._target.name} follow that primary, or promote {self._source.name} first"
            )
        return int(facts["master_repl_offset"])

    # Steps

    def _pause(self) -> None:
        if not self._pauses:
            return
        margin_s = 5.0  # the program ends the pause; a killed program does not hold writers long
        self._paused_s = time.monotonic()
        self._is_paused = True
        self._source.call("CLIENT", "PAUSE", int((self._timeout_s + margin_s) * 1000), "WRITE")

    def _wait_until_even(self) -> None:
        """Wait until the target has applied everything, and has it on its disk."""
        offset = self._result.offset = self._source_offset()
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
        """Compare the lengths and last IDs of the streams of both servers."""
        numbers = {
            number
            for server in (self._source, self._target)
            for number in _databases(server.call("INFO", "keyspace"))
        }
        for number in sorted(numbers):
            for server in (self._source, self._target):
                server.call("SELECT", number)
            compared: set[bytes] = set()
            for keys in self._streams(compared):
                requests = [("XINFO", "STREAM", key) for key in keys]
                answers = zip(
                    self._source.pipeline(requests), self._target.pipeline(requests), strict=True
                )
                for key, (theirs, ours) in zip(keys, answers, strict=True):
                    self._require_same(number, key, theirs, ours)
                if time.monotonic() > self._end_s:
                    raise Failed(f"the comparison took longer than {self._timeout_s:g} seconds")

    def _streams(self, compared: set[bytes]) -> Iterator[list[bytes]]:
        """The streams that one of the servers has in the selected database, as many as are
        compared."""
        for server in (self._source, self._target):
            cursor: Any = 0
            left = _SCANNED_MAX
            while left > 0 and self._result.streams < STREAMS_MAX:
                left -= _BATCH
                cursor, found = server.call("SCAN", cursor, "COUNT", _BATCH, "TYPE", "stream")
                keys = [key for key in dict.fromkeys(found) if key not in compared]
                compared.update(keys)
                self._result.streams += len(keys)
                yield keys
                if cursor == b"0":
                    break

    def _require_same(self, number: int, key: bytes, theirs: Any, ours: Any) -> None:
        name = f'the stream "{printable(readable(key))}" of database {number}'
        sides = (self._source, theirs), (self._target, ours)
        for server, reply in sides:
            if is_error(reply) and "no such key" not in str(reply):
                raise Failed(f"{server.name}: {reply}")
        has = [server.name for server, reply in sides if not is_error(reply)]
        if len(has) == 1:
            raise Failed(f"{name} differs: only {has[0]} has it")
        mine, other = pairs(ours), pairs(theirs)
        for fact in ("length", "last-generated-id"):
            if other.get(fact) != mine.get(fact):
                raise Failed(
                    f"{name} differs: {fact} {_text(other.get(fact))} at {self._source.name},"
                    f" {_text(mine.get(fact))} at {self._target.name}"
                )

    def _become_primary(self) -> None:
        """The target may become a primary at any time after the request was sent: only an answer
        that comes after the request has ended says that it did not."""
        number = self._target.call("CLIENT", "ID")
        self._is_ordered = True
        is_taken = False
        try:
            self._target.call("REPLICAOF", "NO", "ONE")
            is_taken = True
            reason = "it is still a replica"
        except Unreachable as problem:
            reason = problem.message
            self._target.reconnect(self._timeout_s)
            self._target.call("CLIENT", "KILL", "ID", number)  # with its request
        except ToolError as problem:
            reason = problem.message
        if self._role() != "master":
            self._is_ordered = is_taken
            raise Failed(f"{self._target.name} did not become a primary: {reason}")

    def _role(self) -> str:
        """The role of the target, over a new connection if the present one has broken."""
        try:
            return self._pair.target_facts().get("role", "")
        except Unreachable:
            self._target.reconnect(self._timeout_s)
            return self._pair.target_facts().get("role", "")

    def _advice(self) -> str:
        """Take everything back, unless the target may be a primary; says what is left to do."""
        if not self._is_ordered:
            return self._take_back()
        return (
            f"it is not known if {self._target.name} is a primary, and {self._source.name} stays"
            f" fenced. Send INFO replication to {self._target.name}. With role:master, the cut-over"
            f" is done: send CLIENT UNPAUSE to {self._source.name}. With role:slave, send"
            f" {self._undo_text()} to {self._source.name}, and begin again"
        )

    def _undo_text(self) -> str:
        """The requests that take everything back."""
        return ", ".join(dict.fromkeys(filter(None, (self._fence.undo, "CLIENT UNPAUSE"))))

    def _take_back(self) -> str:
        """Take back what was done to the source; says what is left."""
        try:
            try:
                self._take_down()
            except Unreachable:
                self._source.reconnect(self._timeout_s)
                self._take_down()
        except ToolError as problem:
            return (
                f"{self._source.name} may still be fenced or paused ({problem.message}): send it"
                f" {self._undo_text()}"
            )
        return f"{self._target.name} still follows {self._source.name}, which serves its writers"

    def _take_down(self) -> None:
        self._fence.take_down()
        if self._is_paused:
            self._source.call("CLIENT", "UNPAUSE")
            self._is_paused = False

    # After

    def _unpause(self) -> None:
        if self._is_paused and not self._fence.holds_writers:
            self._source.call("CLIENT", "UNPAUSE")
        if self._paused_s:
            self._result.pause_ms = (time.monotonic() - self._paused_s) * 1000

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
                        name = kind.decode("utf-8", "replace")
                        others = self._result.others.setdefault(name, LeftOut())
                        others.add(printable(readable(key)))
                if cursor == b"0":
                    break


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
    promotion = Promotion(Pair(source_url, target_url, timeout_s), timeout_s, pauses=pauses)
    say(promotion.run())
    for line in promotion.finish():
        say(line)
