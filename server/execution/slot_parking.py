"""Requests for slots that are being handed over to another shard: they wait until it is known who
serves the slots.

A slot is *leaving* from the moment at which this node stops to serve it until the map names the
other shard, or this node serves it again. Then the requests run again, and are served or get MOVED.
A request that waits longer than cluster-handover-timeout, counted from the beginning of the
hand-over, gets TRYAGAIN.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from millstream.errors import CommandError
from millstream.server.execution.timers import Alarm, Timers

if TYPE_CHECKING:
    from millstream.server.protocol.outbox import Client

    class StaleTimer(Protocol):
        timer_stale: bool

    class ParkingExecutor(Protocol):
        """The runner of postponed requests: the executor."""

        timers: Timers

        @property
        def serving(self) -> StaleTimer: ...
        def read_clocks(self) -> tuple[int, int]: ...
        def run_postponed(self, clients: Iterable[Client]) -> None: ...


PARKED_BYTES_MAX = 64 << 20  # of all requests that wait


def being_handed_over(slot: int) -> str:
    return f"TRYAGAIN slot {slot} is being handed over"


class SlotParking:
    """`clients` are those whose request waits, by ID; `timeout_ms()` is
    cluster-handover-timeout."""

    def __init__(self, executor: ParkingExecutor, timeout_ms: Callable[[], int]) -> None:
        self.clients: dict[int, Client] = {}
        self._executor = executor
        self._timeout_ms = timeout_ms
        self._until_ms: dict[int, int] = {}  # by leaving slot
        self._alarm: Alarm | None = None
        self._sizes: dict[int, int] = {}  # of the requests, by client
        self._parked_bytes = 0  # their sum

    @property
    def slots(self) -> Collection[int]:
        """The leaving slots."""
        return self._until_ms.keys()

    def set_slots(self, slots: Collection[int]) -> None:
        """These slots are leaving now, and no others."""
        if self._until_ms.keys() == set(slots):
            return
        has_ended = bool(self._until_ms.keys() - set(slots))
        until_ms = self._now_ms() + self._timeout_ms()
        self._until_ms = {slot: self._until_ms.get(slot, until_ms) for slot in slots}
        self._set_alarm()
        if has_ended:
            self.release()

    def must_wait(self, client_id: int, slot: int, size_bytes: int) -> bool:
        """True if a request has to wait because its slot is leaving. CommandError if it has waited
        for too long, or too much waits already."""
        until_ms = self._until_ms.get(slot)
        if until_ms is None:
            return False
        others_bytes = self._parked_bytes - self._sizes.get(client_id, 0)
        if self._now_ms() >= until_ms or others_bytes + size_bytes > PARKED_BYTES_MAX:
            raise CommandError(being_handed_over(slot))
        self._sizes[client_id] = size_bytes
        self._parked_bytes = others_bytes + size_bytes
        return True

    def release(self) -> None:
        """Run the requests again: they are checked as new ones."""
        clients, self.clients = self.clients, {}
        self._sizes.clear()
        self._parked_bytes = 0
        if clients:
            self._executor.run_postponed(clients.values())

    def forget(self, client: Client) -> None:
        """A client has disconnected."""
        self.clients.pop(client.id, None)
        self._parked_bytes -= self._sizes.pop(client.id, 0)

    def _now_ms(self) -> int:
        return self._executor.read_clocks()[1]

    def _set_alarm(self) -> None:
        timers = self._executor.timers
        if self._alarm is not None:
            timers.cancel(self._alarm)
            self._alarm = None
        left = [at for at in self._until_ms.values() if at > self._now_ms()]
        if left:
            self._alarm = timers.at(min(left), self._time_out)
        self._executor.serving.timer_stale = True

    def _time_out(self) -> None:
        self._alarm = None
        self.release()
        self._set_alarm()
