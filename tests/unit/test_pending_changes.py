"""Changes of the store that clients wait for: each wait ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.sim.store_model import StoreModel
from tests.support.virtual_time import run_at_once

from millstream.errors import CommandError
from millstream.server.cluster.cluster_view import view_of
from millstream.server.cluster.pending_changes import PendingChanges

REFUSED, UNREACHABLE = "ERR nothing can be changed", "ERR there is no etcd"
CLIENT = 7


def reply_to(work: Callable[[], Coroutine[Any, Any, object]]) -> object:
    """The reply to a change, once the wait of its client has ended."""

    async def run() -> object:
        ended: list[int] = []
        changes = PendingChanges(REFUSED, UNREACHABLE, 5.0, ended.append)
        pending = changes.begin(CLIENT, work)
        pending.is_waited = True
        [task] = changes._tasks
        await task
        assert ended == [CLIENT]
        return pending.reply

    return run_at_once(run())


def test_a_store_without_a_cluster_ends_the_wait() -> None:
    async def look() -> object:
        return view_of(await StoreModel(random.Random(1)).of_node("a").read())

    reply = reply_to(look)
    assert isinstance(reply, CommandError)
    assert reply.message.startswith(f"{REFUSED}: etcd has no cluster with this name")


def test_an_unexpected_error_ends_the_wait(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> object:
        raise ZeroDivisionError

    reply = reply_to(fail)
    assert isinstance(reply, CommandError)
    assert reply.message == f"{REFUSED}: internal error, see the server's log"
    assert "ZeroDivisionError" in caplog.text
