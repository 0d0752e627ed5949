"""The order of a client's replies: what the client still has to get, and what can be sent now."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from millstream.server.gateway.expected_replies import (
    MERGED_MAX_BYTES,
    TOO_LARGE,
    Answer,
    Call,
    Kept,
    Run,
)
from millstream.server.gateway.merging import Merge, merged
from millstream.server.gateway.node_connection import NodeConnection
from millstream.server.gateway.spread_requests import Spread, SpreadPart


class Gathering:
    """The replies to the parts of one request."""

    def __init__(
        self,
        kept: Kept,
        count: int,
        merge: Merge,
        finish: Callable[[bytes], object],
        when_mixed: Callable[[], None] | None = None,
    ) -> None:
        """`finish` is called with the merged reply; `when_mixed` before, if only some of the
        replies are errors."""
        self._kept = kept
        self._finish = finish
        self._when_mixed = when_mixed
        self._merge = merge
        self._replies = [b""] * count
        self._missing = count
        self._bytes = 0

    def take(self, part: int, reply: bytes) -> None:
        if self._bytes + len(reply) > MERGED_MAX_BYTES:
            reply = TOO_LARGE
        self._bytes += len(reply)
        self._kept.size_bytes += len(reply)
        self._replies[part] = reply
        self._missing -= 1
        if not self._missing:
            replies = self._replies
            self._kept.size_bytes -= self._bytes
            is_mixed = len({one.startswith(b"-") for one in replies}) > 1
            if is_mixed and self._when_mixed is not None:
                self._when_mixed()
            self._finish(merged(self._merge, replies))


class ReplyOrder:
    """Runs of replies of one node, and answers of the gateway itself or made of several replies:
    `items`, those that wait."""

    def __init__(self) -> None:
        self.items: deque[Run | Spread | Answer] = deque()
        self._out: list[bytes] = []
        self._pushes: list[bytes] = []
        self.kept = Kept()
        self._is_inside = False  # a part of a reply was sent

    def append(self, item: Run | Spread | Answer) -> None:
        self.items.append(item)

    def complete(self, answer: Answer, data: bytes) -> None:
        """An answer that the order has is complete."""
        answer.data = data
        self.kept.size_bytes += len(data)
        self._advance()

    def waits_for(self, item: Run | SpreadPart | Call) -> bool:
        """True if the next reply is made of this one."""
        if not self.items or (isinstance(item, Call) and item.answer is None):
            return True
        if isinstance(item, SpreadPart):
            return self.items[0] is item.spread and item.is_next
        return self.items[0] is (item.answer if isinstance(item, Call) else item)

    def continued(self, upstream: NodeConnection) -> Run | None:
        """The last run, if it is one of this node that more requests may join."""
        last = self.items[-1] if self.items else None
        if isinstance(last, Run) and last.upstream is upstream and upstream.expected:
            return last if upstream.expected[-1] is last and last.is_open else None
        return None

    def replace(self, answer: Answer, item: Run) -> None:
        """The reply comes from a node."""
        self.items[self.items.index(answer)] = item

    def drop(self, run: Run) -> None:
        """No reply of this run has arrived, and none is wanted."""
        self.items.remove(run)

    def put_before(self, run: Run, answer: Answer) -> None:
        """The next reply of a run, none of which has arrived, comes from elsewhere. The caller
        takes it from the run."""
        at = self.items.index(run)
        if run.missing == 1:
            del self.items[at]
        self.items.insert(at, answer)
        if run.data:
            self.items.insert(at, Answer(bytes(run.data)))
            run.data.clear()

    def pass_on(self, run: Run, piece: bytes) -> None:
        """A piece of a run has arrived."""
        if self.items and self.items[0] is run:
            self._out.append(piece)
            self._is_inside = run.upstream.is_inside
            if run.missing == 0:
                self.items.popleft()
                self._advance()
        else:
            run.data += piece
            self.kept.size_bytes += len(piece)

    def pass_on_part(self, part: SpreadPart) -> None:
        """A part of a spread has taken replies."""
        spread = part.spread
        self.kept.size_bytes += part.taken
        if self.items and self.items[0] is spread:
            self._pass_on_spread(spread)
            if spread.is_done:
                self.items.popleft()
                self._advance()

    def _pass_on_spread(self, spread: Spread) -> None:
        data = spread.drain()
        if data:
            self.kept.size_bytes -= len(data)
            self._out.append(data)
        self._is_inside = spread.is_inside

    def divide(self, spread: Spread, runs: list[Run]) -> None:
        """Replace a spread with these runs."""
        at = self.items.index(spread)
        del self.items[at]
        for run in reversed(runs):
            self.items.insert(at, run)

    def _advance(self) -> None:
        """Send what is complete at the beginning of the order."""
        while self.items:
            head = self.items[0]
            if isinstance(head, Answer):
                if head.data is None:
                    return
                self.kept.size_bytes -= len(head.data)
                self._out.append(head.data)
            elif isinstance(head, Spread):
                self._pass_on_spread(head)
                if not head.is_done:
                    return
            else:
                if head.data:
                    self.kept.size_bytes -= len(head.data)
                    self._out.append(bytes(head.data))
                    head.data.clear()
                if head.missing:
                    self._is_inside = head.upstream.is_inside
                    return
            self.items.popleft()

    def push(self, message: bytes) -> None:
        """A message, which is sent between two replies."""
        (self._pushes if self._is_inside else self._out).append(message)

    def take_out(self) -> bytes:
        """The replies that can be sent now."""
        if not (self._out or self._pushes):
            return b""
        if self._pushes and not self._is_inside:
            self._out += self._pushes
            self._pushes = []
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)

    def clear(self) -> None:
        for item in self.items:
            if isinstance(item, Spread):
                item.end()
        self.items.clear()
