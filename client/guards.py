"""Guards against use by two threads or tasks at once, and by a child process."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

from millstream.client.errors import MillstreamError


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
