"""A node of a cluster as a client sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class NodeRow(NamedTuple):
    """A node as a client sees it.

    `endpoint` is the address that the client is to use, with `client_port`; None: the one to which
    it has connected. `port` and `tls_port` are 0 where the node has none. `health` is online,
    failed or loading, `pong_ms` the time of its last sign of life (0: the node itself, or not
    known), `offset` the number of its last frame (0: not known). `primary`: the ID of the primary
    of a replica, "" of a primary. `zone`: the one that the node names; "": none.
    """

    id: str
    shard_id: str
    ranges: Sequence[tuple[int, int]]
    ip: str
    hostname: str
    endpoint: str | None
    client_port: int
    port: int
    tls_port: int
    is_self: bool
    health: str
    pong_ms: int
    offset: int
    primary: str = ""
    zone: str = ""
