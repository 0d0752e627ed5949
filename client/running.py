"""Carrying out the steps of the core."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from millstream.client.core.servers import ServerState
from millstream.client.core.steps import Ask, Call, Notify, Sleep, Step, Steps, Together, Wait
from millstream.client.errors import MillstreamError
from millstream.client.events import (
    Disconnected,
    Event,
    Gap,
    Reconnected,
    ShardEnded,
    ShardOpened,
)
from millstream.client.lanes import Lanes

R = TypeVar("R")

log = logging.getLogger("millstream.client")


class Runner:
    """Runs the core's generators. `client` is the connection that single commands are sent on."""

    def __init__(self, client: Any, on_event: Callable[[Event], Any] | None = None) -> None:
        self.lanes = Lanes()
        self._process = os.getpid()
        self._server = ServerState(client)
        self._on_event = on_event

    def run(self, steps: Steps[R]) -> R:
        """Carry out every step; errors are raised inside the generator."""
        if os.getpid() != self._process:
            raise MillstreamError(
                "this object was made before a fork, and its connections and numbers belong to the "
                "parent process: make it again in this one"
            )
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
                    self._on_event(event)
        return None


def log_event(event: Event) -> None:
    match event:
        case ShardOpened(shard):
            log.info("shard %r: opened", shard)
        case ShardEnded(shard, children):
            log.info("shard %r: read to its end; continues in %s", shard, list(children))
        case Gap(shard, after, resumed):
            log.warning(
                "shard %r: entries after %s were removed before they were read; resumed at %s",
                shard,
                after,
                resumed,
            )
        case Disconnected(shards, cause):
            log.warning("shards %s: not available: %s", list(shards), cause)
        case Reconnected(shards):
            log.info("shards %s: available again", list(shards))
