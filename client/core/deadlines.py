"""The wait of a call for records, and its earlier ends."""

from __future__ import annotations

from millstream.client.core.argument_checks import number
from millstream.client.core.steps import Clock

WAIT_MAX_S = 1.0
"""A waiting call checks at least this often whether it was stopped."""


class Patience:
    """The time that a call may still wait. With a timeout of 0 a call asks once, and does not wait
    for records."""

    def __init__(self, timeout_s: float | None, now: Clock) -> None:
        waits_s = float("inf") if timeout_s is None else number("timeout", timeout_s)
        self._now = now
        self._at_once = waits_s <= 0
        self._until_s = now() + max(0.0, waits_s)

    def left_s(self) -> float:
        return self._until_s - self._now()

    def is_over(self, left_s: float) -> bool:
        """True if the call ends without another attempt."""
        return left_s <= 0 and not self._at_once


def block_ms(patience_s: float) -> int:
    """The time that a server is requested to wait."""
    return max(1, int(min(patience_s, WAIT_MAX_S) * 1000))


def check_block(block_s: float) -> float:
    """The `block` of a follow. With 0 it would ask again and again without a pause."""
    if not number("block", block_s) > 0:
        raise ValueError(f"block must be a number of seconds above 0, not {block_s!r}")
    return block_s


class Stops:
    """The calls of `stop`, and which of them has ended something.

    A call ends every `follow` that runs. If none runs, it ends the `read` that waits or, if none
    waits, the next `read` or `follow`. Any thread and any signal handler may call `stop`.
    """

    def __init__(self) -> None:
        self.count = 0
        """The number of calls of `stop`."""
        self._handled = 0
        self._following: dict[object, int] = {}
        """For the ticket of each follow that runs: what it compares with."""

    def stop(self) -> None:
        self.count += 1
        if self._following:
            self._handled = self.count

    def begin(self) -> int:
        """For `since`: what a call that begins now has seen."""
        return self._handled

    def since(self, begun: int) -> bool:
        return self.count != begun

    def handle(self) -> None:
        """A call has ended because of a stop."""
        self._handled = self.count

    def begin_follow(self, ticket: object) -> int:
        """A follow begins; returns what it compares with. The ticket belongs to it alone, so that
        it can end even if a signal handler has raised here."""
        begun = self._following[ticket] = self.begin()
        return begun

    def end_follow(self, ticket: object) -> None:
        """Nothing happens if the follow does not run."""
        begun = self._following.pop(ticket, None)
        if begun is not None and self.since(begun):
            self.handle()
