"""CLIENT PAUSE: requests that are postponed until a time, or until CLIENT UNPAUSE. The server
itself pauses writes for a failover and before it stops; CLIENT UNPAUSE does not end such a pause.

During a pause, the executor calls `postpones` for each request. The client of a postponed request
is blocked; that request is the first that it runs when the pause is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from millstream.commands.runtime.arguments import Args
from millstream.server.execution.blocking import Serving
from millstream.server.execution.lookup import Row
from millstream.server.execution.timers import Alarm, Timers
from millstream.server.protocol.outbox import Client


class Pause:
    """One pause. If several were requested, it has the stricter kind and the later end. `reasons`:
    why the server itself pauses writes, "failover" or "shutdown"."""

    def __init__(self, reasons: Iterable[str] = ()) -> None:
        self.all = False
        self.reasons = set(reasons)
        self.until_ms = 0
        self.alarm: Alarm | None = None
        self.clients: dict[int, Client] = {}

    def extend(self, until_ms: int, writes_only: bool) -> None:
        self.until_ms = max(until_ms, self.until_ms)
        self.all = self.all or not writes_only

    def postpones(self, row: Row, args: Args, queue: list[Any] | None) -> bool:
        """True if a request has to wait; `queue` is what its client has queued since MULTI."""
        if row.name == "client|unpause":
            return False
        if self.all or _changes(row, args):
            return True
        return row.name == "exec" and any(_changes(one, words) for one, words, _ in queue or ())


if TYPE_CHECKING:

    class Runner(Protocol):
        pause: Pause | None

    class PausedExecutor(Protocol):
        """The runner of postponed requests: the executor."""

        serving: Serving
        timers: Timers

        @property
        def runner(self) -> Runner: ...

        def run_postponed(self, clients: Iterable[Client]) -> None: ...
        def recheck_limits(self) -> None: ...


class Pauses:
    """Begins and ends pauses; there is at most one `Pause` at a time."""

    def __init__(self, executor: PausedExecutor) -> None:
        self._executor = executor

    @property
    def current(self) -> Pause | None:
        """The current pause; None without one."""
        return self._executor.runner.pause

    @property
    def postponed_count(self) -> int:
        """The number of clients with a postponed request."""
        return 0 if self.current is None else len(self.current.clients)

    def start(self, until_ms: int, writes_only: bool) -> None:
        """Postpone the requests of all clients, or their writes, until a time of the steady clock
        (CLIENT PAUSE). Of two pauses, the stricter kind and the later time apply."""
        pause, timers = self._begin(), self._executor.timers
        if pause.alarm is not None:
            timers.cancel(pause.alarm)
        pause.extend(until_ms, writes_only)
        pause.alarm = timers.at(pause.until_ms, self.end)

    def end(self) -> None:
        """End the pause and run the postponed requests."""
        pause = self.current
        if pause is None:
            return
        if pause.alarm is not None:
            self._executor.timers.cancel(pause.alarm)
        self._executor.runner.pause = Pause(pause.reasons) if pause.reasons else None
        self._executor.run_postponed(pause.clients.values())

    def pause_writes(self, reason: str) -> None:
        """Postpone writes until `resume_writes`; `reason` is a reason of the server itself."""
        self._begin().reasons.add(reason)
        self._executor.recheck_limits()

    def resume_writes(self, reason: str) -> None:
        """End what `pause_writes` began; other pauses continue."""
        pause = self.current
        if pause is None or reason not in pause.reasons:
            return
        pause.reasons.discard(reason)
        if not pause.reasons and not pause.until_ms:
            self.end()

    def forget(self, client: Client) -> None:
        """Forget a disconnected client."""
        if self.current is not None:
            self.current.clients.pop(client.id, None)

    def _begin(self) -> Pause:
        pause = self.current
        if pause is None:
            pause = self._executor.runner.pause = Pause()
        self._executor.serving.timer_stale = True
        return pause


def _changes(row: Row, args: Args) -> bool:
    """True if a request may change data or send messages to other clients."""
    return row.tells or row.will_write(args)
