"""Stopping the server: SHUTDOWN and signals, and the wait for replicas before the stop.

Writes are postponed until all replicas have applied everything, or shutdown-timeout is over. Then
the data is saved if there is no other copy, and the server stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millstream.commands.admin.saving import SHUTDOWN_FAILED
from millstream.errors import CommandError
from millstream.memory_reserve import RESERVE
from millstream.server.monitor.log import LOGGER

if TYPE_CHECKING:
    from millstream.server.app import Server

_PAUSE = "shutdown"


def attempt(step: Callable[[], object]) -> None:
    """Run a step of a stop. Its failure, for example without memory, must not prevent the steps
    after it: one of them is the last sync."""
    try:
        step()
    except Exception as error:
        LOGGER.error("the stop continues, although a step of it has failed", exc_info=error)


class Shutdown:
    """`tries_base`: whether to try to write a last base if the journal has failed."""

    def __init__(self, server: Server) -> None:
        self.tries_base = True
        self._server = server
        self._timer: asyncio.TimerHandle | None = None  # while replicas are waited for
        self._save_choice: bool | None = None
        self._is_forced = False
        self._signal = ""
        self._clients: set[int] = set()  # of SHUTDOWN
        self._last_signal_failed = False

    # SHUTDOWN

    def wait_for_replicas(self, save: bool | None, is_forced: bool, client_id: int) -> bool:
        """Wait for replicas; False if there is nothing to wait for."""
        if not self._begin_waiting():
            return False
        self._save_choice, self._is_forced = save, is_forced
        self._clients.add(client_id)
        return True

    def save_and_stop(self, save: bool | None, is_forced: bool) -> None:
        """Save, and stop the server. `save`: SAVE or NOSAVE; None saves only if there is no other
        copy of the data. CommandError when that fails, unless `is_forced`."""
        RESERVE.give_back_all()
        try:
            self._save(save)
        except CommandError:
            if not is_forced:
                raise CommandError(SHUTDOWN_FAILED) from None
        self.tries_base = False  # a new base was tried, or is not wanted
        self._server.request_stop("a client sent SHUTDOWN")

    def abort(self) -> None:
        """SHUTDOWN ABORT. CommandError if no shutdown is in progress."""
        if self._timer is None:
            raise CommandError("ERR No shutdown in progress.")
        LOGGER.warning("the shutdown was aborted")
        self._cancel()

    # Signals

    def stop_by_signal(self, name: str) -> None:
        """Stop as SHUTDOWN does. If the last snapshot would be the only copy and cannot be written,
        the server continues, as Redis does; a second signal ends it anyway. A second signal also
        ends the wait for replicas."""
        self._signal = name
        if self._timer is not None:
            self._finish()
        elif not self._begin_waiting():
            self._end_by_signal(name)

    def _end_by_signal(self, name: str) -> None:
        RESERVE.give_back_all()
        server = self._server
        loading = server.persistence.loading
        if self._saves_at_end() and not loading and not self._last_signal_failed:
            try:
                server.save_anyway()
            except CommandError as problem:
                self._last_signal_failed = True
                LOGGER.error("received %s, but the data cannot be saved: %s", name, problem)
                self._cancel()
                return
        server.request_stop(f"received {name}")

    # Waiting for replicas

    def check_replicas(self) -> None:
        """Check the replicas again: one has acknowledged something, or has disconnected."""
        if self._timer is not None and not self._server.replication.lagging():
            self._finish()

    def _begin_waiting(self) -> bool:
        if self._timer is not None:
            return True
        server = self._server
        timeout_s = server.config.shutdown_timeout
        if server.persistence.loading or server.stopping.is_set() or not timeout_s:
            return False
        server.persistence.flush_tick()
        count = server.replication.lagging()
        if not count:
            return False
        LOGGER.warning(
            "stopping: waiting up to %d seconds for replicas that lack the last changes: %d",
            timeout_s, count,
        )  # fmt: skip
        server.executor.pauses.pause_writes(_PAUSE)
        self._timer = server.loop.call_later(timeout_s, self._time_out)
        return True

    def _time_out(self) -> None:
        LOGGER.warning(
            "stopping although replicas lack the last changes: %d",
            self._server.replication.lagging(),
        )
        self._finish()

    def _finish(self) -> None:
        """End the wait and stop."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if not self._clients:
            self._end_by_signal(self._signal)
            return
        try:
            self.save_and_stop(self._save_choice, self._is_forced)
        except CommandError:
            self._cancel()

    def _cancel(self) -> None:
        """Cancel the stop: resume writes and release the waiting clients."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        server = self._server
        for number in self._clients:
            client: Any = server.clients.get(number)
            if client is not None:
                server.executor.end_wait(client, SHUTDOWN_FAILED)
        self._clients.clear()
        server.executor.pauses.resume_writes(_PAUSE)

    # Saving

    def _save(self, save: bool | None) -> None:
        server = self._server
        wanted = self._saves_at_end() if save is None else save
        if wanted and not server.persistence.loading:  # loaded data is on the disk
            server.save_anyway()
        elif save is None and server.persistence.lacks_base:
            server.persistence.write_base()

    def _saves_at_end(self) -> bool:
        config = self._server.config
        return not config.appendonly and bool(config.shown("save"))
