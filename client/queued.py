"""The common base class of the pipelines of both APIs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from redis.exceptions import ResponseError

from millstream.client import redis_py
from millstream.client.core.reads_and_waits import block_s, sent_words
from millstream.client.core.steps import Command
from millstream.client.errors import refusal
from millstream.client.threads.commands import StreamCommands
from millstream.client.threads.letters import redrive as redrive_entries
from millstream.client.threads.schedules import cancel as cancel_scheduled
from millstream.client.threads.schedules import schedule as schedule_entry
from millstream.client.threads.schedules import scheduled as scheduled_entries

P = ParamSpec("P")
Queue = TypeVar("Queue", bound="QueuedCommands")

QUEUED_NOTE = """

        The command is queued and the pipeline returned; the reply is in the list of `execute()`.
        """


def queued(method: Callable[Concatenate[Any, P], Any]) -> Callable[Concatenate[Queue, P], Queue]:
    """The same method, for a pipeline: it queues the command and returns the pipeline. Its
    docstring has the title of the method, without the example of a reply."""
    code: Any = method
    own = FunctionType(
        code.__code__, code.__globals__, code.__name__, code.__defaults__, code.__closure__
    )
    own.__kwdefaults__ = code.__kwdefaults__
    own.__annotations__ = {**code.__annotations__, "return": "Self"}
    own.__module__ = __name__
    own.__qualname__ = f"QueuedCommands.{code.__name__}"
    if code.__doc__:  # not with `python -OO`
        own.__doc__ = code.__doc__.rstrip().partition("\n\n")[0] + QUEUED_NOTE
    return cast("Callable[Concatenate[Queue, P], Queue]", own)


class QueuedCommands:
    """The common part of the pipelines of both APIs: the methods of StreamCommands, which only
    queue the commands, and the errors of the replies."""

    _refused: Sequence[Any] = ()
    """The words of the first command that a transaction refuses."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Queue one command as words, and return the pipeline. After WATCH the command is sent at
        once, and its reply is returned."""
        if not redis_py.waits_for_exec(self) and (wait_s := block_s(args)):
            options["wait_s"] = wait_s
        return super().execute_command(*args, **options)  # type: ignore[misc]

    def _ask(self, command: Command[Any]) -> Any:
        options = {"wait_s": command.wait_s} if command.wait_s else {}
        return self.execute_command(*command.words, read=command.read, **options)

    # ------------------------------------------------------------ errors

    def _begin(self) -> list[Any]:
        """Before the commands are sent: the words of each."""
        self._refused = ()
        pipeline: Any = self
        return [args for args, _ in pipeline.command_stack]

    def _replies(self, queued: list[Any], replies: list[Any]) -> list[Any]:
        return [
            self._named(reply, words) if isinstance(reply, ResponseError) else reply
            for words, reply in zip(queued, replies, strict=True)
        ]

    def _refusal(self, error: ResponseError) -> ResponseError:
        return self._named(error, self._refused) if self._refused else error

    def _named(self, error: ResponseError, words: Sequence[Any]) -> ResponseError:
        return refusal(error, sent_words(words), redis_py.address(self))

    def annotate_exception(self, exception: Any, number: int, command: Any) -> None:
        # redis-py raises the error of the first command that a transaction refuses.
        self._refused = self._refused or command
        super().annotate_exception(exception, number, command)  # type: ignore[misc]

    def raise_first_error(self, commands: Any, response: Any) -> None:
        for number, (command, reply) in enumerate(zip(commands, response, strict=True), 1):
            if isinstance(reply, ResponseError):
                error = self._named(reply, command[0])
                self.annotate_exception(error, number, command[0])
                raise error

    tschedule = queued(schedule_entry)
    schedule = queued(schedule_entry)
    tscheduled = queued(scheduled_entries)
    scheduled = queued(scheduled_entries)
    tcancel = queued(cancel_scheduled)
    cancel = queued(cancel_scheduled)
    tredrive = queued(redrive_entries)
    redrive = queued(redrive_entries)

    # Written by scripts/client_for_threads.py: one line for each method of StreamCommands.
    tabort = queued(StreamCommands.tabort)
    tack = queued(StreamCommands.tack)
    tappend = queued(StreamCommands.tappend)
    tappendmany = queued(StreamCommands.tappendmany)
    tappendonce = queued(StreamCommands.tappendonce)
    tappev = queued(StreamCommands.tappev)
    tblocks = queued(StreamCommands.tblocks)
    tcomplete = queued(StreamCommands.tcomplete)
    tcreate = queued(StreamCommands.tcreate)
    textend = queued(StreamCommands.textend)
    tgroup = queued(StreamCommands.tgroup)
    tinfo = queued(StreamCommands.tinfo)
    tmread = queued(StreamCommands.tmread)
    tnack = queued(StreamCommands.tnack)
    tnack_all = queued(StreamCommands.tnack_all)
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
