"""Changes of the store that clients order: they wait for the replies, which are made in tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from millstream.errors import CommandError
from millstream.server.cluster.store.records import RecordError
from millstream.server.cluster.store.store import Refused, Unreachable

log = logging.getLogger("millstream.cluster")

Work = Callable[[], Coroutine[Any, Any, object]]
"""Makes a change; the result is its reply. It may raise CommandError."""


class PendingChange:
    """A change of a client, and its reply as soon as there is one."""

    def __init__(self) -> None:
        self.reply: object = None
        self.is_waited = False


class PendingChanges:
    """`refused` begins the errors of changes that are refused. `unreachable` is the error while the
    store cannot be reached, and after `limit_s`. `end_wait(client_id)` ends the wait of a client
    whose reply is there."""

    def __init__(
        self, refused: str, unreachable: str, limit_s: float, end_wait: Callable[[int], object]
    ) -> None:
        self._refused = refused
        self._unreachable = unreachable
        self._limit_s = limit_s
        self._end_wait = end_wait
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, client_id: int, work: Work) -> PendingChange:
        """Begin a change for a client."""
        pending = PendingChange()
        task = asyncio.ensure_future(self._carry_out(client_id, pending, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return pending

    def stop(self) -> None:
        """The server stops."""
        for task in self._tasks:
            task.cancel()

    async def _carry_out(self, client_id: int, pending: PendingChange, work: Work) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                reply = await work()
        except CommandError as problem:
            reply = problem
        except (Refused, RecordError) as problem:
            reply = CommandError(f"{self._refused}: {problem}")
        except (Unreachable, TimeoutError):
            reply = CommandError(self._unreachable)
        except Exception:  # the client waits without a limit
            log.exception("a change of the cluster has failed")
            reply = CommandError(f"{self._refused}: internal error, see the server's log")
        pending.reply = reply
        if pending.is_waited:
            self._end_wait(client_id)
