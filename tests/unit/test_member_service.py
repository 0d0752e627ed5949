"""A member of a shard in a server: its log about the store, and the pause of a planned failover."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from tests.support.virtual_time import run_at_once

from millstream.server.cluster.cluster_secret import ClusterSecret
from millstream.server.cluster.member_actions import Purpose, Write
from millstream.server.cluster.member_handover import FORGOTTEN_S, PAUSE, MemberHandover
from millstream.server.cluster.member_node import MemberNode
from millstream.server.cluster.member_service import MemberService, MemberSettings
from millstream.server.cluster.store.records import NodeRecord, RecordError
from millstream.server.cluster.store.store import Unreachable
from millstream.server.config.directives import Config


def service_of(store: Any = None) -> MemberService:
    unused: Any = None
    terms: Any = SimpleNamespace(
        steady_ms=lambda: 0, require_lease=lambda is_required: None, is_leading=False
    )
    settings = MemberSettings(NodeRecord("h", 1, 0, "", "", "", ""), "s1", 10, 5000, uses_tls=False)
    handover: Any = SimpleNamespace(look=lambda: None)
    return MemberService(
        "a" * 40, terms, store, unused, handover, settings, lambda: None,
        secret=ClusterSecret(Config()), seen=unused,
    )  # fmt: skip


def test_each_reason_for_a_lost_store_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    service = service_of()
    for reason in ("etcd is down", "etcd is down", "etcd is slow", "etcd is slow"):
        service._lose(Unreachable(reason))
    service._lose(RecordError("map is missing in etcd"))
    assert [record.message for record in caplog.records] == [
        "etcd is down",
        "etcd is slow",
        "etcd cannot be used: map is missing in etcd",
    ]
    assert service.etcd_errors == 5


class Failing:
    """A store whose first calls end with an unexpected error."""

    def __init__(self) -> None:
        self.calls = 0

    async def _fail(self, *args: object) -> NoReturn:
        self.calls += 1
        raise MemoryError if self.calls < 3 else Unreachable("it is down")

    read = commit = _fail


def test_a_node_continues_after_an_unexpected_error(caplog: pytest.LogCaptureFixture) -> None:
    store, beats = Failing(), 0

    def beat() -> None:
        nonlocal beats
        beats += 1
        raise MemoryError

    async def run() -> None:
        service = service_of(store)
        service.terms.beat = beat  # type: ignore[method-assign]
        service._spawn(service._follower.run())
        service._spawn(service._keep_looking())
        while store.calls < 4 or beats < 3:
            await asyncio.sleep(0.1)
        service.stop()

    run_at_once(run())
    found = {record.message for record in caplog.records if record.levelname == "CRITICAL"}
    assert found == {
        "the contents of etcd cannot be used",
        "a look at the state of the shard has failed",
    }


def test_a_transaction_with_an_unexpected_error_has_ended() -> None:
    async def run() -> None:
        service = service_of(Failing())
        service.member.writing = Purpose.STAND
        await service._write(Write(Purpose.STAND, [], []))
        assert service.member.writing is None
        service.stop()

    run_at_once(run())


@pytest.mark.parametrize(
    ("reachable", "old", "state"),
    [(True, False, "ok"), (True, True, "behind"), (False, True, "unreachable")],
)
def test_the_state_of_etcd(reachable: bool, old: bool, state: str) -> None:
    unused: Any = None
    node = MemberNode("a" * 40, Config(), unused, lambda: False, lambda: 0)
    assert node.etcd == "unreachable"
    member: Any = SimpleNamespace(is_reachable=reachable, is_store_old=old)
    service: Any = SimpleNamespace(member=member)
    node.service = service
    assert node.etcd == state


class Primary:
    """The parts of a primary that hands over. `paused` are the reasons to postpone writes."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.paused: set[str] = set()
        self.timers: list[tuple[float, Any]] = []
        self.terms: Any = SimpleNamespace(
            is_leading=True, primary="", acknowledged_frame=lambda node: 6
        )
        commits = SimpleNamespace(last_seq=7, flush_tick=lambda: None)
        pauses = SimpleNamespace(pause_writes=self.paused.add, resume_writes=self.paused.discard)
        persistence: Any = SimpleNamespace(commits=commits)
        executor: Any = SimpleNamespace(pauses=pauses)
        self.handover = MemberHandover(
            self.terms,
            persistence,
            executor,
            lambda seconds, action: self.timers.append((seconds, action)),
            lambda: self.now_ms,
        )


def test_postponed_writes_go_to_the_new_primary_at_once() -> None:
    primary = Primary()
    assert primary.handover.is_waiting("b")
    assert primary.paused == {PAUSE}
    primary.terms.is_leading = False  # it has promised
    primary.handover.look()
    assert primary.paused == {PAUSE}
    primary.terms.primary = "b" * 40
    primary.handover.look()
    assert primary.paused == set()

    primary.terms.is_leading, primary.terms.primary = True, ""
    primary.now_ms = 300
    assert primary.handover.is_waiting("c")
    [(seconds, earlier), (_, later)] = primary.timers
    assert seconds == FORGOTTEN_S
    earlier()
    assert primary.paused == {PAUSE}
    later()
    assert primary.paused == set()
