"""A member of a shard in a server: its log about the store, and the pause of a planned failover."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.server.cluster.cluster_secret import ClusterSecret
from millstream.server.cluster.member_handover import FORGOTTEN_S, PAUSE, MemberHandover
from millstream.server.cluster.member_node import MemberNode
from millstream.server.cluster.member_service import MemberService, MemberSettings
from millstream.server.cluster.store.records import NodeRecord
from millstream.server.cluster.store.store import Unreachable
from millstream.server.config.directives import Config


def test_each_reason_for_a_lost_store_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    unused: Any = None
    terms: Any = SimpleNamespace(
        steady_ms=lambda: 0, require_lease=lambda is_required: None, is_leading=False
    )
    settings = MemberSettings(NodeRecord("h", 1, 0, "", "", "", ""), "s1", 10, 5000, uses_tls=False)
    handover: Any = SimpleNamespace(look=lambda: None)
    service = MemberService(
        "a" * 40, terms, unused, unused, handover, settings, lambda: None,
        secret=ClusterSecret(Config()), seen=unused,
    )  # fmt: skip
    for reason in ("it is down", "it is down", "it is slow", "it is slow"):
        service._lose(Unreachable(reason))
    assert [record.message for record in caplog.records] == [
        "etcd cannot be used: it is down",
        "etcd cannot be used: it is slow",
    ]
    assert service.etcd_errors == 4


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
