"""Interruptions, cancellations, and several threads or tasks with one object."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.client.conftest import url_of
from tests.support.server import Server

from millstream.client import connect


class Interrupted(Exception):
    """Raised by a signal handler."""


@pytest.fixture
def interrupt() -> Iterator[Callable[[float], None]]:
    """A function that lets a signal handler raise Interrupted after some seconds."""

    def handler(*_: object) -> None:
        raise Interrupted

    def later(after_s: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, after_s)

    before = signal.signal(signal.SIGALRM, handler)
    yield later
    later(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("command", ["tread", "xread"])
def test_an_interrupted_wait_leaves_no_reply_for_the_next_command(
    server: Server, interrupt: Callable[[float], None], command: str
) -> None:
    with connect(url_of(server)) as ms:
        ms.set("k", "v")
        waits: dict[str, Callable[[], Any]] = {
            "tread": lambda: ms.tread("s", "$", 1, block=500),
            "xread": lambda: ms.xread({"s": "$"}, block=500),
        }
        interrupt(0.05)
        with pytest.raises(Interrupted):
            waits[command]()
        assert [ms.get("k"), ms.echo("next")] == ["v", "next"]
