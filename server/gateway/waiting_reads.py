"""A read of several slots that waits: XREAD, XREADGROUP and TMREAD with BLOCK.

First the nodes are asked without BLOCK. If none has anything, each is asked to wait, on a
connection of its own. After the first reply, the others are asked once more without BLOCK, and
their connections are closed, which ends their waits: these reads change nothing, so a reply may be
lost.

XREADGROUP delivers entries, so none of its replies may be lost. The gateway ends only its own
direction of the other connections. A node that has nothing then replies UNBLOCKED; one that has
delivered entries before sends them, and they are merged, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from millstream.commands.runtime.arguments import parse_integer
from millstream.commands.table.keyspecs import word_at
from millstream.commands.table.registry import Command
from millstream.server.gateway.expected_replies import Call
from millstream.server.gateway.merging import NULL, merged, split
from millstream.server.gateway.node_connection import NodeConnection
from millstream.server.gateway.reply_scanner import REFUSALS, elements_of

WAITS_MAX = 64  # connections of one read
ENTRIES_AT, ENDED_AT = 3, 4  # in a row of TMREAD
FROM_NOW = (b"", b"$")
UNBLOCKED = b"-UNBLOCKED "


class Asking(Protocol):
    """The client of the gateway."""

    def upstream(self, node: int) -> NodeConnection: ...
    def new_upstream(self, node: int) -> NodeConnection:
        """Another connection to a node."""


def may_wait(words: Sequence[bytes]) -> bool:
    """True if a read has BLOCK, with a time that a node accepts."""
    at = _block_at(words)
    timeout_ms = None if at is None else parse_integer(words[at + 1])
    return timeout_ms is not None and timeout_ms >= 0


def _block_at(words: Sequence[bytes]) -> int | None:
    try:
        found = word_at(words[:-1], 1, b"BLOCK")
        streams = word_at(words[:-1], 1, b"STREAMS")
    except (IndexError, ValueError):
        return None
    return None if found is None or (streams is not None and streams < found) else found


def without_block(words: Sequence[bytes]) -> list[bytes]:
    """The words of a read that has BLOCK, without it."""
    at = _block_at(words)
    assert at is not None
    return [*words[:at], *words[at + 2 :]]


class WaitingRead:
    """`finish` is called with this read and the reply."""

    def __init__(
        self,
        client: Asking,
        row: Command,
        words: list[bytes],
        node_of: Callable[[int], int],
        finish: Callable[[WaitingRead, bytes], object],
    ) -> None:
        self._client = client
        self._row = row
        self._finish = finish
        self._is_from_now = any(word in FROM_NOW for word in words[-(len(words) // 2) :])
        self._parts, self._merge = split(row, words, node_of)
        self._at_once = split(row, without_block(words), node_of)[0]
        self.nodes = [node_of(part.slot) for part in self._parts]
        self.waiting: list[NodeConnection] = []
        self._replies: list[bytes | None] = [None] * len(self.nodes)
        self._nothing = NULL[1]

    def begin(self) -> None:
        """Ask. A read of what comes from now on waits at once: an entry could come between."""
        if self._is_from_now:
            self._wait()
        else:
            self._ask(self._looked)

    def _ask(self, done: Callable[[list[bytes]], object]) -> None:
        """Ask the nodes of which there is no reply, without BLOCK."""
        for at, node in enumerate(self.nodes):
            if self._replies[at] is None:
                call = Call(partial(self._note, at, done))
                call.raw = self._at_once[at].request
                upstream = self._client.upstream(node)
                upstream.send(call.raw, call)
                upstream.flush()
        self._check(done)

    def _note(self, at: int, done: Callable[[list[bytes]], object], reply: bytes) -> None:
        self._replies[at] = reply
        self._check(done)

    def _check(self, done: Callable[[list[bytes]], object]) -> None:
        replies = [one for one in self._replies if one is not None]
        if len(replies) == len(self.nodes):
            done(replies)

    def _looked(self, replies: list[bytes]) -> None:
        if any(map(self._has_news, replies)):
            self._end(replies)
        else:
            self._replies = [None] * len(self.nodes)
            self._wait()

    def _has_news(self, reply: bytes) -> bool:
        if reply in NULL or reply.startswith(b"-") or self._row.name != "tmread":
            return reply not in NULL
        rows = map(elements_of, elements_of(reply))
        return any(row[ENTRIES_AT] != b"*0\r\n" or row[ENDED_AT] != b":0\r\n" for row in rows)

    def _wait(self) -> None:
        for at, node in enumerate(self.nodes):
            waiting = self._client.new_upstream(node)
            waiting.send(self._parts[at].request, Call(partial(self._woken, at)))
            self.waiting.append(waiting)

    def _woken(self, at: int, reply: bytes) -> None:
        if self.waiting and self._row.name == "xreadgroup":
            self._end_deliveries(at, reply)
        elif self.waiting:
            self.close()
            self._replies[at] = reply
            self._ask(self._end)

    def _end_deliveries(self, at: int, reply: bytes) -> None:
        """A node of a group has replied: the others end their waits, and send what they have
        delivered."""
        is_first = not any(self._replies)
        is_end = not is_first and reply.startswith(UNBLOCKED)
        self._replies[at] = self._nothing if is_end else reply
        if is_first:
            self._nothing = reply if reply in NULL else NULL[1]
            for other, upstream in enumerate(list(self.waiting)):
                if self._replies[other] is None:
                    upstream.end_when_done(partial(self._ended, other))
        self._check(self._end_all)

    def _ended(self, at: int) -> None:
        """A connection has ended, perhaps without a reply."""
        if self.waiting and self._replies[at] is None:
            self._replies[at] = self._nothing
            self._check(self._end_all)

    def _end_all(self, replies: list[bytes]) -> None:
        if self.waiting:
            self.close()
            self._end(replies)

    def _end(self, replies: list[bytes]) -> None:
        """A slot that its node did not serve has nothing, if others have something."""
        served = [reply for reply in replies if not reply.startswith(REFUSALS)]
        if any(map(self._has_news, served)):
            replies = [NULL[1] if reply.startswith(REFUSALS) else reply for reply in replies]
        self._finish(self, merged(self._merge, replies))

    def fail(self, error: bytes) -> None:
        """End with an error, without the replies of the nodes."""
        self.close()
        self._finish(self, error)

    @property
    def delivers(self) -> bool:
        """True if a reply that is lost matters."""
        return self._row.name == "xreadgroup"

    def close(self) -> None:
        """End the waits."""
        waiting, self.waiting = self.waiting, []
        for upstream in waiting:
            upstream.drop()
