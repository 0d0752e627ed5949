"""The commands of millstream as methods of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from millstream.client.commands import StreamCommands

if TYPE_CHECKING:
    from millstream.client.core.steps import Command

P = ParamSpec("P")
Queue = TypeVar("Queue", bound="QueuedCommands")


def queued(method: Callable[Concatenate[Any, P], Any]) -> Callable[Concatenate[Queue, P], Queue]:
    """The same method, for a pipeline: it queues the command and returns the pipeline."""
    return cast("Callable[Concatenate[Queue, P], Queue]", method)


class QueuedCommands:
    """The methods of StreamCommands, for a pipeline: they only make the commands."""

    def _ask(self, command: Command[Any]) -> Any:
        raise NotImplementedError

    tabort = queued(StreamCommands.tabort)
    tack = queued(StreamCommands.tack)
    tappend = queued(StreamCommands.tappend)
    tappendonce = queued(StreamCommands.tappendonce)
    tappev = queued(StreamCommands.tappev)
    tcomplete = queued(StreamCommands.tcomplete)
    tcreate = queued(StreamCommands.tcreate)
    tinfo = queued(StreamCommands.tinfo)
    tmread = queued(StreamCommands.tmread)
    tpeek = queued(StreamCommands.tpeek)
    tpolicy = queued(StreamCommands.tpolicy)
    tposition = queued(StreamCommands.tposition)
    tpositions = queued(StreamCommands.tpositions)
    trange = queued(StreamCommands.trange)
    tread = queued(StreamCommands.tread)
    trenew = queued(StreamCommands.trenew)
    treserve = queued(StreamCommands.treserve)
    tseal = queued(StreamCommands.tseal)
    tseek = queued(StreamCommands.tseek)
