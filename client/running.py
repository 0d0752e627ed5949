"""Carrying out the steps of the core."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from millstream.client.core.servers import ServerState
from millstream.client.core.steps import (
    Answer,
    Ask,
    Call,
    Notify,
    Sleep,
    Step,
    Steps,
    Together,
    Wait,
)
from millstream.client.errors import MillstreamError
from millstream.client.events import Event
from millstream.client.lanes import Lanes
from millstream.client.log import log_event, log_failed_handler

R = TypeVar("R")


class OneAtATime:
    """Refuses a second thread or task while one waits for the answers of the same object.

    A call has a ticket, which it makes before it begins. So it can end its use at any time, even
    if a signal handler has raised and it does not know whether it had begun.
    """

    def __init__(self) -> None:
        self._tickets: dict[None, object] = {}  # one at most

    def begin(self, ticket: object) -> None:
        if self._tickets.setdefault(None, ticket) is not ticket:
            raise MillstreamError(
                "another thread or task waits for this object: a stream and a consumer are for one "
                "at a time, so make one for each"
            )

    def end(self, ticket: object) -> None:
        if self._tickets.get(None) is ticket:
            self._tickets.pop(None, None)


def is_owned(lock: Any) -> bool:
    """Whether this thread holds an RLock."""
    return bool(lock._is_owned())


def let_go(lock: Any) -> None:
    """Release an RLock if this thread holds it."""
    while is_owned(lock):
        lock.release()


class OwnProcess:
    """Refuses to work in a child process of the one that has made the object."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._forgets: list[Callable[[], None]] = []
        _objects.add(self)

    def check(self) -> None:
        if os.getpid() != self._process:
            raise MillstreamError(
                "this object was made before a fork, and its connections and numbers belong to the "
                "parent process: make it again in this one"
            )

    def in_child(self, forget: Callable[[], None]) -> None:
        """Call a function in each child process: it forgets what needs no `check` to be used."""
        self._forgets.append(forget)

    def forked(self) -> None:
        for forget in self._forgets:
            forget()


_objects: weakref.WeakSet[OwnProcess] = weakref.WeakSet()


def _forked() -> None:
    for process in list(_objects):
        process.forked()


os.register_at_fork(after_in_child=_forked)


class Runner:
    """Runs the core's generators. `client` is the connection that single commands are sent on."""

    def __init__(self, client: Any, on_event: Callable[[Event], Any] | None = None) -> None:
        self.lanes = Lanes()
        self.process = OwnProcess()
        self._use = OneAtATime()
        self._server = ServerState(client)
        self._on_event = on_event

    def run(self, steps: Steps[R]) -> R:
        """Carry out every step; errors are raised inside the generator."""
        self.process.check()
        try:
            step = next(steps)
            while True:
                try:
                    result = self._do(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            value: R = end.value
            return value
        finally:
            steps.close()

    def _do(self, step: Step) -> Any:
        match step:
            case Wait(asks, seconds):
                return self._wait(asks, seconds)
            case Together(asks):
                return self.lanes.together(asks)
            case Call(command):
                [[reply]] = self.lanes.together([Ask(self._server, [command])])
                return reply
            case Sleep(seconds):
                time.sleep(seconds)
            case Notify(event):
                log_event(event)
                if self._on_event is not None:
                    try:
                        self._on_event(event)
                    except Exception:
                        log_failed_handler(event)
        return None

    def _wait(self, asks: Sequence[Ask], seconds: float | None) -> list[Answer]:
        ticket = object()
        try:
            try:
                self._use.begin(ticket)
                return self.lanes.wait(asks, seconds)
            finally:
                self._use.end(ticket)
        finally:
            self._use.end(ticket)  # again: a signal handler may have raised in the line before
