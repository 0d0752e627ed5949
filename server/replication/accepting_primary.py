"""The record in the data directory of the primary that has accepted this server: its address and
the newest line of history here.

A mark follows if this server was that one's primary before: it has handed over to it (FOLLOWED), or
refuses writes because that one lacks frames (SUPERSEDED). A restart must not make it a second
primary, also if its configuration does not name the new one.

A member of a shard also records the greatest term that it has promised.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine, post

FOLLOWED, SUPERSEDED = "promoted", "superseded"


class Acceptance:
    """Stores the record, and tries again once a second after a failure.

    A replica that restarts without it shows priority 0, so that Sentinel does not choose it. Its
    frames therefore count as synced only once the record is stored: otherwise a failover could miss
    what they have confirmed.
    """

    def __init__(
        self, machine: Machine, persistence: Persistence, on_stored: Callable[[], None]
    ) -> None:
        self._loop = machine.scheduler
        self._files = persistence.files
        self._snapshots = persistence.snapshots
        self._on_stored = on_stored
        self._is_storing = False

    @property
    def primary(self) -> str:
        """The address of the primary and the line of history, without a mark; "" for none."""
        return self._record.removesuffix(f" {FOLLOWED}")

    @property
    def _record(self) -> str:
        return self._files.primary

    def marked(self, mark: str) -> tuple[str, int] | None:
        """The address of the server in a record with this mark."""
        match self._record.split():
            case [host, port, _, found] if found == mark and port.isdigit():
                return host, int(port)
        return None

    @property
    def is_stored(self) -> bool:
        return self._files.is_primary_published

    @property
    def promised(self) -> int:
        """The greatest term that was promised; it may not be stored yet."""
        return self._files.promised

    def note_promise(self, term: int) -> None:
        """Remember this term, also after a restart."""
        if term > self._files.promised:
            self._files.note_promise(term)
            self._store()

    def note(self, primary: str, mark: str = "") -> None:
        """Remember this primary, also after a restart."""
        if mark:
            primary = f"{primary} {mark}"
        if self._record != primary:
            self._files.note_primary(primary)
            self._store()

    def tick_second(self) -> None:
        if not self.is_stored and not self._is_storing:
            self._store()

    def _store(self) -> None:
        self._is_storing = True
        self._snapshots.worker.submit(self._publish)

    def _publish(self) -> None:  # on the thread of snapshots
        try:
            self._files.publish_primary()
        finally:
            post(self._loop, self._end_storing)

    def _end_storing(self) -> None:
        self._is_storing = False
        if self.is_stored:
            self._on_stored()
