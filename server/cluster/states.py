"""The messages between the supervisor and the nodes of one machine."""

from __future__ import annotations

from typing import NamedTuple

ONLINE, LOADING, FAILED = "online", "loading", "failed"


class NodeState(NamedTuple):
    """A node as the supervisor sees it: its health, the time of its last sign of life in
    milliseconds, and its last frame."""

    health: str
    pong_ms: int
    offset: int
