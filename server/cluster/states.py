"""The states of nodes, as they are told and shown."""

from __future__ import annotations

from typing import NamedTuple

ONLINE, LOADING, FAILED = "online", "loading", "failed"


class NodeState(NamedTuple):
    """A node as the supervisor sees it: its health, the time of its last sign of life in
    milliseconds, and its last frame."""

    health: str
    pong_ms: int
    offset: int


class MemberFigures(NamedTuple):
    """Figures of a node of many machines, for the metrics: the time for which its lease lasts; the
    members that acknowledge its frames; the elections that it has asked for; the calls of etcd that
    have failed."""

    lease_ms: int
    confirming_members: int
    elections: int
    etcd_errors: int
