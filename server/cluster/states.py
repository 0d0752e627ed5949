"""The states of nodes, in messages, metrics and tables."""

from __future__ import annotations

from typing import NamedTuple

from millstream.server.monitor.histogram import Histogram

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
    have failed; the requests that wait for slots that are being handed over; the bytes that it has
    sent and received of moving slots; the times for which slots that left were not served."""

    lease_ms: int
    confirming_members: int
    elections: int
    etcd_errors: int
    parked_requests: int
    move_bytes: int
    move_pauses: Histogram
