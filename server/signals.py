"""The signals of a server's process: SIGTERM and SIGINT stop it, SIGHUP reads its files again,
SIGUSR2 stops it slowly, and SIGUSR1 does nothing. The others that end a process end it with a line
in the log.

A thread waits for the signals from the start on, so that they depend neither on memory for the
event loop nor on a loop that waits for a slow disk. The thread is the only receiver: the signals
are blocked in all threads. If it cannot be started, the event loop receives the signals.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, Protocol

from millstream.memory_reserve import RESERVE
from millstream.server.monitor.log import LOGGER

ENDING = (signal.SIGTERM, signal.SIGINT)
# Signals of other programs, which end a process by default. Those of a crash (SIGSEGV, SIGABRT ...)
# are not here: server/crash_report has them.
FOREIGN = (
    signal.SIGQUIT, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU, signal.SIGIO,
    signal.SIGPWR, signal.SIGSTKFLT, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)  # fmt: skip
HANDLED = (*ENDING, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
IGNORED_LINE = (
    "received %s, which does nothing; SIGHUP reopens the log file, and rereads the settings and the"
    " certificates"
)
_AGAIN_S = 0.01
# timeout(1) signals a program and its group: a repetition so soon is not another signal.
_SAME_S = 0.005


if TYPE_CHECKING:

    class Stop(Protocol):
        def stop_by_signal(self, name: str) -> None:
            """Stop as SHUTDOWN does."""

    class SlowStop(Protocol):
        def begin(self) -> None:
            """Disconnect all clients slowly, then stop."""

    class Signalled(Protocol):
        """The server that the signals are for."""

        stopping: asyncio.Event
        has_stopped: bool

        @property
        def shutdown(self) -> Stop: ...
        @property
        def lame_duck(self) -> SlowStop: ...

        def reload_files(self) -> None:
            """Open the log file again, and read the settings and the certificates again."""

        def give_up(self, by: str) -> None:
            """Log which data is not on the disk; `by` is the signal that ends the process."""


class Signals:
    """The signals of one server. A second signal to stop ends the process immediately."""

    def __init__(self, server: Signalled, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._has_thread = False
        # A signal that the parent process ignores, as a shell does for programs in the background,
        # stays ignored.
        foreign = [one for one in FOREIGN if signal.getsignal(one) == signal.SIG_DFL]
        self._handled = (*HANDLED, *foreign)
        self._first_s: float | None = None  # when the first signal to stop came

    def start(self) -> None:
        """Receive signals from now on. Threads that are started later inherit the mask."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self._handled)
        try:
            threading.Thread(target=self._wait, name="millstream-signals", daemon=True).start()
        except (RuntimeError, MemoryError) as error:
            LOGGER.warning(
                "the thread for signals cannot be started: %s. The event loop receives them",
                str(error) or "no memory",
            )
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._handled)
            for number in self._handled:
                self._loop.add_signal_handler(number, self._in_loop, number)
        else:
            self._has_thread = True

    def begin_stop(self) -> None:
        """The stop has begun, and the loop may wait for the disk: another signal must end the
        process nevertheless."""
        if not self._has_thread:
            for number in ENDING:
                self._loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)

    def end(self) -> None:
        """Everything is done: further signals change nothing."""
        for number in ENDING:  # without a thread; Python restores the default at its end
            signal.signal(number, signal.SIG_IGN)

    def _wait(self) -> None:
        while True:
            try:
                number = signal.sigwait(self._handled)
            except MemoryError:
                RESERVE.give_back()
                continue
            if number in ENDING:
                RESERVE.give_back_all()
                if self._is_repeated():
                    continue
                if self._server.stopping.is_set():
                    self._give_up()
            elif number in FOREIGN:
                self._end_by(number)
            self._post(self._in_loop, number)

    def _is_repeated(self) -> bool:
        now_s = time.monotonic()
        first_s, self._first_s = self._first_s, self._first_s or now_s
        return first_s is not None and now_s - first_s < _SAME_S

    def _post(self, callback: Callable[[int], None], number: int) -> None:
        while True:
            try:
                self._loop.call_soon_threadsafe(callback, number)
            except MemoryError:
                RESERVE.give_back()
                time.sleep(_AGAIN_S)
            except RuntimeError:  # the loop is closed: the process is about to end
                return
            else:
                return

    def _in_loop(self, number: int) -> None:
        server = self._server
        if number == signal.SIGHUP:
            server.reload_files()
        elif number == signal.SIGUSR2 and not server.stopping.is_set():
            server.lame_duck.begin()
        elif number == signal.SIGUSR1:
            LOGGER.warning(IGNORED_LINE, _name(number))
        elif number in FOREIGN:
            signal.signal(number, signal.SIG_DFL)
            self._end_by(number)
        elif server.stopping.is_set():
            self._give_up()
        else:
            server.shutdown.stop_by_signal(signal.Signals(number).name)

    def _end_by(self, number: int) -> NoReturn:
        """End the process by this signal, as it would end without a handler."""
        RESERVE.give_back_all()
        try:
            self._server.give_up(f"{_name(number)}, which has no meaning here (SIGTERM stops)")
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
            signal.raise_signal(number)
            os._exit(1)

    def _give_up(self) -> None:
        if not self._server.has_stopped:
            give_up(self._server)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def give_up(server: Signalled) -> NoReturn:
    """End the process immediately."""
    try:
        server.give_up("a second signal")
    finally:
        os._exit(1)
