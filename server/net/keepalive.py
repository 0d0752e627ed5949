"""TCP keepalive for transports of asyncio: the end of a peer that vanished is noticed."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress

KEEPALIVE_MAX_S = 32767  # the maximum of Linux
PROBES = 3


def keep_alive(transport: asyncio.Transport, idle_s: int) -> None:
    """As Redis does: the first probe after `idle_s`, three more at intervals of a third; 0: none.
    It fails without effect if the connection has just closed."""
    found = transport.get_extra_info("socket")
    if not idle_s or found is None or found.family == socket.AF_UNIX:
        return
    idle_s = min(idle_s, KEEPALIVE_MAX_S)
    # The socket of a transport of uvloop cannot set options; a duplicate of it can.
    with suppress(OSError), socket.socket(fileno=os.dup(found.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, idle_s // PROBES))
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
