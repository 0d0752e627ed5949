"""Repeating a request whose reply was lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from millstream.client.core.steps import Call, Clock, Command, Sleep, Steps

R = TypeVar("R")

FIRST_S = 0.01
MOST_S = 1.0


def lost(error: Exception) -> bool:
    """Whether an error leaves open if the server acted."""
    if isinstance(error, AuthenticationError):
        return False
    return isinstance(error, (RedisConnectionError, RedisTimeoutError, OSError))


class Repeater:
    """Repeats requests for `for_s` seconds, after longer and longer pauses."""

    def __init__(self, for_s: float, now: Clock) -> None:
        self.repeats = 0
        self._for_s = for_s
        self._now = now

    def call(self, command: Command[R]) -> Steps[R]:
        """A command that may be repeated, until it is answered."""

        def attempt() -> Steps[R]:
            reply: R = yield Call(command)
            return reply

        return self.until_answered(attempt)

    def until_answered(self, attempt: Callable[[], Steps[R]]) -> Steps[R]:
        """The attempt, until it does not end with a lost reply; the last error is raised."""
        until_s = self._now() + self._for_s
        pause_s = FIRST_S
        while True:
            try:
                return (yield from attempt())
            except Exception as error:
                if not lost(error) or self._now() >= until_s:
                    raise
            self.repeats += 1
            yield Sleep(pause_s)
            pause_s = min(pause_s * 2, MOST_S)
