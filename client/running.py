"""Carrying out the steps of the core."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from millstream.client.core.servers import ServerState
from millstream.client.core.steps import Ask, Call, Notify, Sleep, Step, Steps, Together, Wait
from millstream.client.errors import MillstreamError
from millstream.client.events import Event
from millstream.client.lanes import Lanes
from millstream.client.log import log_event, log_failed_handler

R = TypeVar("R")


class OneAtATime:
    """Refuses a second thread or task while one waits for the answers of the same object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise MillstreamError(
                "another thread or task waits for this object: a stream and a consumer are for one "
                "at a time, so make one for each"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class OwnProcess:
    """Refuses to work in a child process of the one that has made the object."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def check(self) -> None:
        if os.getpid() != self._process:
            raise MillstreamError(
                "this object was made before a fork, and its connections and numbers belong to the "
                "parent process: make it again in this one"
            )


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

    def _do(self, step: Step) -> Any:
        match step:
            case Wait(asks, seconds):
                with self._use:
                    return self.lanes.wait(asks, seconds)
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
