"""Waiting for a replica that has not received yet what a query has read or planned.

A query that moves to another server may be ahead of it. A replica catches up, so the query waits,
at most for the time of the option `replicaLagTimeout`. A primary does not catch up: the entries are
lost there, which is reported at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

from millstream.pipeline.options import Options
from millstream.pipeline.positions import Positions, key_text
from millstream.pipeline.server import Server
from millstream.pipeline.stream_counters import Info

log = logging.getLogger(__name__)

TIMEOUT_MS = 60_000
PAUSE_S = 0.05
PAUSE_S_MAX = 1.0


class ReplicaLag:
    """How long a query waits for a replica: the option `replicaLagTimeout`."""

    def __init__(
        self,
        options: Options,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeout_s = options.duration_ms("replicaLagTimeout", TIMEOUT_MS) / 1000
        self._clock = clock
        self._sleep = sleep

    def wait(self, server: Server, lagging: Callable[[], Collection[bytes]]) -> None:
        """Wait while `lagging`, which asks the server, returns keys of streams and the server is a
        replica. Returns after the timeout, too; the caller reports what is missing."""
        keys = lagging()
        if not keys or not is_replica(server):
            return
        log.warning(
            "the replica %s has not received all that was read of %r%s; waiting for up to %g s",
            server.address,
            key_text(min(keys)),
            f" and {len(keys) - 1} more streams" if len(keys) > 1 else "",
            self._timeout_s,
        )
        end_s, pause_s = self._clock() + self._timeout_s, PAUSE_S
        while lagging() and is_replica(server):
            if self._clock() + pause_s > end_s:
                return
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)


def is_replica(server: Server) -> bool:
    """Whether the server follows another one. Every user may send HELLO."""
    reply = server.call("HELLO")
    facts = dict(zip(reply[::2], reply[1::2], strict=True))
    return bool(facts[b"role"] != b"master")


def not_reached(positions: Positions, infos: Mapping[bytes, Info]) -> list[bytes]:
    """The streams that do not have the entries up to their positions. A stream that was deleted and
    created again is not among them, because it never reaches the position."""
    return [
        key
        for key, at in positions.items()
        if (info := infos.get(key)) is None
        or (info.incarnation == at.incarnation and at.is_ahead_of(info.entries_added))
    ]
