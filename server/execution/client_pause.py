"""CLIENT PAUSE: requests that are put off until a time, or until CLIENT UNPAUSE. The server itself
pauses writes for a failover and before it stops; CLIENT UNPAUSE does not end that.

The executor asks for each request while a pause is on. The client of one that is put off is
blocked; its request is the first that it runs when the pause is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millstream.commands.runtime.arguments import Args
from millstream.server.execution.lookup import Row
from millstream.server.execution.timers import Alarm
from millstream.server.protocol.outbox import Client


class Pause:
    """One pause: of the stricter kind and until the later time of those that were asked for.
    `reasons`: why the server pauses writes, "failover" or "shutdown"."""

    def __init__(self, reasons: Iterable[str] = ()) -> None:
        self.all = False
        self.reasons = set(reasons)
        self.until_ms = 0
        self.alarm: Alarm | None = None
        self.clients: dict[int, Client] = {}

    def extend(self, until_ms: int, writes_only: bool) -> None:
        self.until_ms = max(until_ms, self.until_ms)
        self.all = self.all or not writes_only

    def puts_off(self, row: Row, args: Args, queue: list[Any] | None) -> bool:
        """Whether a request has to wait; `queue` is what its client has queued since MULTI."""
        if row.name == "client|unpause":
            return False
        if self.all or _changes(row, args):
            return True
        return row.name == "exec" and any(_changes(one, words) for one, words, _ in queue or ())


def _changes(row: Row, args: Args) -> bool:
    """Whether a request may change data or tell others something."""
    return row.tells or row.will_write(args)
