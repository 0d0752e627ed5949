"""Carrying out the steps of the core, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from millstream.client.aio.concurrency import finished
from millstream.client.aio.lanes import Lanes
from millstream.client.core.servers import ServerState
from millstream.client.core.steps import (
    Answer,
    Ask,
    Call,
    GiveUp,
    Notify,
    Sleep,
    Step,
    Steps,
    Together,
    Wait,
)
from millstream.client.events import Event
from millstream.client.guards import OneAtATime, OwnProcess
from millstream.client.log import log_event, log_failed_handler

R = TypeVar("R")


class Runner:
    """Runs the core's generators. `client` is the connection that single commands are sent on."""

    def __init__(
        self,
        client: Any,
        on_event: Callable[[Event], Any] | None = None,
        *,
        writes: bool = False,
    ) -> None:
        """`writes`: it has no asks that wait, so it shares its connection with others."""
        self.lanes = Lanes.of_writer(client) if writes else Lanes()
        self.process = OwnProcess()
        self._use = OneAtATime()
        self._server = ServerState(client)
        self._on_event = on_event

    async def run(self, steps: Steps[R]) -> R:
        """Carry out every step; errors are raised inside the generator."""
        self.process.check()
        try:
            step = next(steps)
            while True:
                try:
                    result = await self._do(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            value: R = end.value
            return value
        finally:
            steps.close()

    async def _do(self, step: Step) -> Any:
        match step:
            case Wait(asks, seconds):
                return await self._wait(asks, seconds)
            case Together(asks):
                return await self.lanes.together(asks)
            case Call(command):
                [[reply]] = await self.lanes.together([Ask(self._server, [command])])
                return reply
            case GiveUp(asks):
                await self.lanes.give_up(asks)
            case Sleep(seconds):
                await asyncio.sleep(seconds)
            case Notify(event):
                log_event(event)
                if self._on_event is not None:
                    try:
                        await finished(self._on_event(event))
                    except Exception:
                        log_failed_handler(event)
        return None

    async def _wait(self, asks: Sequence[Ask], seconds: float | None) -> list[Answer]:
        ticket = object()
        try:
            try:
                self._use.begin(ticket)
                return await self.lanes.wait(asks, seconds)
            finally:
                self._use.end(ticket)
        finally:
            self._use.end(ticket)  # again: a signal handler may have raised in the line before
