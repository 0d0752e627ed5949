"""Waiting for a replica that has not received yet what a query has read or planned.

A query that moves to another server may be ahead of it. A replica catches up, so the query waits,
at most for the time of the option `replicaLagTimeout`. Then it fails, also if `failOnDataLoss` is
false: the entries are not lost, and a query that continued from the end of the replica would read
them again when the replica has caught up. A primary does not catch up: the entries are lost there,
which is reported at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from millstream.backoff import Backoff
from millstream.pipeline.positions import Positions, key_text
from millstream.pipeline.server_connection import ServerConnection, ServerError
from millstream.pipeline.source_options import SourceOptions
from millstream.pipeline.stream_counters import StreamCounters
from millstream.remote import pairs

log = logging.getLogger(__name__)

TIMEOUT_MS = 60_000
PAUSE_S = 0.05
PAUSE_S_MAX = 1.0


class ReplicaLagError(ServerError):
    """A replica did not receive in time what a query has read or planned."""


class Lagging(NamedTuple):
    """The keys of streams that a server does not have as far as a query needs them. `late`: it
    has their first entries, or an older stream at the key. `missing`: it has no stream at the key,
    which may also have been deleted."""

    late: list[bytes]
    missing: list[bytes]

    @property
    def keys(self) -> list[bytes]:
        return self.late + self.missing


class ReplicaWait:
    """The wait of a query for a replica: the option `replicaLagTimeout`."""

    def __init__(
        self,
        options: SourceOptions,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeout_s = options.duration_ms("replicaLagTimeout", TIMEOUT_MS) / 1000
        self._clock = clock
        self._sleep = sleep

    def wait(self, server: ServerConnection, lagging: Callable[[], Lagging]) -> None:
        """Wait while `lagging`, which asks the server, finds streams and the server is a replica.
        After the timeout, ReplicaLagError if a stream lags. Streams that are only missing may
        have been deleted: the caller reports them."""
        keys = lagging().keys
        if not keys or not is_replica(server):
            return
        log.warning(
            "the replica %s has not received all entries read of %s; waiting for up to %g s",
            server.address,
            _names(keys),
            self._timeout_s,
        )
        end_s, backoff = self._clock() + self._timeout_s, Backoff(PAUSE_S, PAUSE_S_MAX)
        while (found := lagging()).keys and is_replica(server):
            pause_s = backoff.next_s()
            if self._clock() + pause_s > end_s:
                self._check_lag(server, found)
                return
            self._sleep(pause_s)

    def _check_lag(self, server: ServerConnection, found: Lagging) -> None:
        if found.late:
            raise ReplicaLagError(
                f"the replica {server.address} has not received all entries that were read of"
                f" {_names(found.late)} within {self._timeout_s:g} s: start the query again when"
                " the replica has caught up, or set the option 'server' to its primary"
            )


def _names(keys: list[bytes]) -> str:
    more = f" and {len(keys) - 1} more streams" if len(keys) > 1 else ""
    return f"{key_text(min(keys))!r}{more}"


def is_replica(server: ServerConnection) -> bool:
    """True if the server follows another one. Every user may send HELLO."""
    reply = server.call("HELLO")
    facts = pairs(reply)
    return bool(facts["role"] != b"master")


def not_reached(positions: Positions, infos: Mapping[bytes, StreamCounters]) -> Lagging:
    """The streams that do not have the entries up to their positions. A stream that was deleted and
    created again since then has a higher incarnation, and is not among them."""
    late = [
        key
        for key, at in positions.items()
        if (info := infos.get(key)) is not None
        and (
            info.incarnation < at.incarnation
            or (info.incarnation == at.incarnation and at.is_ahead_of(info.entries_added))
        )
    ]
    return Lagging(late, [key for key in positions if key not in infos])
