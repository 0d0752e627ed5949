"""Rests between the pieces of a backup, so that clients hardly notice one under full load.

The worker that reads a piece and the event loop that sends it hold the interpreter's lock in turn
with the requests. While the server is busy, a rest of many times the work follows each piece, so
that all backups together get about 1.5 % of its time; otherwise a backup is as fast as it can be. A
rest has an upper bound: the backups of a busy server get at least 1 MB/s together.
"""

from __future__ import annotations

from collections.abc import Callable

# Either makes a server busy.
_COMMANDS_PER_MS = 10
_LOOP_SHARE = 0.5  # of the event loop's time, for everything but backups
_WINDOW_MS = 10  # the shortest time in which the two are measured
_TIMES = 64  # the rest, in comparison with the work
_REST_MAX_S = 0.25
# The kernel and the client, which may be on the same machine, work for each byte too.
_BYTE_S = 1e-9


class Rests:
    """The rests of all backups of a server. `commands()` counts all commands so far, `steady_ms()`
    is the steady clock, and `thread_s()` the CPU time of the thread that calls it."""

    def __init__(
        self,
        commands: Callable[[], int],
        steady_ms: Callable[[], int],
        thread_s: Callable[[], float],
    ) -> None:
        self.thread_s = thread_s
        self._commands = commands
        self._steady_ms = steady_ms
        self._is_busy = True
        self._sending_s = 0.0  # the event loop's time for backups, in this window
        self._begin_window()

    def begin_backup(self) -> None:
        """Until there are figures, the server counts as busy."""
        self._is_busy = True
        self._begin_window()

    def _begin_window(self) -> None:
        self._counted = self._commands()
        self._counted_ms = self._steady_ms()
        self._loop_s = self.thread_s()
        self._sending_s = 0.0

    def next_s(self, read_s: float, sent_s: float, size_bytes: int, backups: int) -> float:
        """The rest after a piece of this size, which the worker has read and the event loop has
        sent in these times; 0 if the server is not busy. `backups` is the number of backups that
        are being sent. On the event loop."""
        self._sending_s += sent_s
        self._judge()
        if not self._is_busy:
            return 0.0
        work_s = read_s + sent_s + size_bytes * _BYTE_S
        return min(work_s * _TIMES, _REST_MAX_S) * backups

    def _judge(self) -> None:
        passed_ms = self._steady_ms() - self._counted_ms
        if passed_ms < _WINDOW_MS:
            return
        commands = self._commands() - self._counted
        others_s = self.thread_s() - self._loop_s - self._sending_s
        self._is_busy = (
            commands > _COMMANDS_PER_MS * passed_ms or others_s > _LOOP_SHARE * passed_ms / 1000
        )
        self._begin_window()
