"""Repeating a request whose reply was lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from redis.exceptions import (
    AuthenticationError,
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from millstream.backoff import Backoff
from millstream.client.core import requests
from millstream.client.core.steps import Answer, Ask, Call, Clock, Command, Sleep, Steps, Together
from millstream.client.core.words import check_length, is_long
from millstream.remote import NOT_SERVED

R = TypeVar("R")

FIRST_S = 0.01
MOST_S = 1.0
READ_REPEATS = 3
REFUSED_S = 5.0
REFUSED_PAUSE_S = 0.2
LIMIT_TRIES = 2
"""The first one may use the connection that the server is about to close."""
READ_FIRST_S = 0.02
TEMPORARY = ("MISCONF", "STALLED", "NOREPLICAS", "BUSY ")
"""Codes of errors that may end."""
TEMPORARY_CLASSES = (*NOT_SERVED, MasterDownError, OutOfMemoryError, ReadOnlyError)
"""Others, whose codes redis-py leaves out."""


def lost(error: BaseException) -> bool:
    """True if an error leaves open if the server acted, and another try may be answered.

    Errors of sockets arrive as those of redis-py. A TimeoutError of Python is the time limit of a
    signal handler, and ends the call."""
    if isinstance(error, AuthenticationError):
        return False
    return isinstance(error, (RedisConnectionError, RedisTimeoutError))


def not_served(answer: Answer) -> Exception | None:
    """The error of a node of a cluster that does not serve the keys of an ask: another one does,
    now or soon."""
    return next((reply for reply in answer.replies if isinstance(reply, NOT_SERVED)), None)


def is_temporary(error: BaseException) -> bool:
    """True if a server has refused a request that it may accept later."""
    return isinstance(error, TEMPORARY_CLASSES) or (
        isinstance(error, ResponseError) and str(error).startswith(TEMPORARY)
    )


class ReadRepeats:
    """The few repeats of a request that changes nothing, after broken connections only: a server
    that did not answer in time has used up the time of the call."""

    def __init__(self, repeatable: bool = True) -> None:
        times = READ_REPEATS if repeatable else 0
        self._pauses: Iterator[float] = (READ_FIRST_S * 2**n for n in range(times))

    def pause_s(self, error: Exception) -> float | None:
        """The delay before the next attempt; None if there is none."""
        if not isinstance(error, RedisConnectionError) or not lost(error):
            return None
        return next(self._pauses, None)


class RefusedRepeats:
    """The repeats of a request that nodes of a cluster have refused without running it, until it is
    served elsewhere: for as long as the client waits for a reply, at most REFUSED_S."""

    def __init__(self, timeout_s: float, now: Clock) -> None:
        """At the first refusal."""
        self._now = now
        self._until_s = now() + min(timeout_s, REFUSED_S)
        self._backoff = Backoff(FIRST_S, REFUSED_PAUSE_S)

    def pause_s(self) -> float | None:
        """The delay before the next attempt; None if there is none."""
        left_s = self._until_s - self._now()
        return min(self._backoff.next_s(), left_s) if left_s > 0 else None


def repeated(asks: Sequence[Ask]) -> Steps[list[list[Any]]]:
    """`Together` for asks that change nothing the second time."""
    repeats = ReadRepeats()
    while True:
        try:
            replies: list[list[Any]] = yield Together(asks)
            return replies
        except Exception as error:
            pause_s = repeats.pause_s(error)
            if pause_s is None:
                raise
        yield Sleep(pause_s)


def sent(command: Command[R]) -> Steps[R]:
    """A reply. Raises InvalidFields for a command that is lost because of a word's length."""
    try:
        reply: R = yield Call(command)
    except RedisError as error:
        if is_too_long(error, command.words):
            yield from check_lengths(command)
        raise
    return reply


def is_too_long(error: Exception, words: Sequence[Any]) -> bool:
    """True if a word may be above the server's limit: the server says so if the client reads the
    reply, and else the connection is lost while the word is sent."""
    return is_long(words) and (lost(error) or str(error).startswith("Protocol error"))


def check_lengths(command: Command[Any]) -> Steps[None]:
    """After a lost reply. A user that may not read the limit, or a server that is away, leaves the
    question open."""
    limits = yield from known_limits()
    if limits is not None:
        check_length(command.words, limits)


def known_limits() -> Steps[dict[str, Any] | None]:
    """The server's limit of a word; None if it is away or does not tell it."""
    for _ in range(LIMIT_TRIES):
        try:
            limits: dict[str, Any] = yield Call(requests.length_limit())
        except RedisError:
            continue
        return limits
    return None


class Repeater:
    """Repeats requests for `for_s` seconds, after longer and longer pauses."""

    def __init__(self, for_s: float, now: Clock) -> None:
        self.repeats = 0
        self._for_s = for_s
        self._now = now

    def call(self, command: Command[R]) -> Steps[R]:
        """A command that may be repeated, until it is answered."""

        def attempt() -> Steps[R]:
            return (yield from sent(command))

        return self.until_answered(attempt)

    def until_answered(
        self,
        attempt: Callable[[], Steps[R]],
        may_repeat: Callable[[float], Steps[bool]] | None = None,
    ) -> Steps[R]:
        """The attempt, until it does not end with a lost reply, or with the error of a node of a
        cluster that does not serve the keys; the last error is raised. No attempt begins after the
        time for repeats, except for the time that `may_repeat` takes, or if it is false. It is
        given the time of the first attempt."""
        begun_s = self._now()
        until_s = begun_s + self._for_s
        pause_s = FIRST_S
        failed: Exception | None = None
        while True:
            try:
                if failed is None or may_repeat is None:
                    return (yield from attempt())
                allowed = yield from may_repeat(begun_s)
                if allowed:
                    return (yield from attempt())
            except Exception as error:
                may_end = lost(error) or isinstance(error, NOT_SERVED)
                if not may_end or self._now() >= until_s:
                    raise
                failed = error
            else:
                raise failed
            self.repeats += 1
            yield Sleep(min(pause_s, max(0.0, until_s - self._now())))
            pause_s = min(pause_s * 2, MOST_S)
