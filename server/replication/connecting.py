"""Connecting to a primary: the one place where replication meets sockets."""

from __future__ import annotations

import asyncio
from typing import cast

from millstream.server.replication.node import LinkProtocol

_CONNECT_S = 10.0
_tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps no reference


def connect_link(
    loop: asyncio.AbstractEventLoop, host: str, port: int, protocol: LinkProtocol
) -> None:
    """Begin to connect. When that fails, `protocol.connection_lost` gets the reason."""
    task = loop.create_task(_connect(loop, host, port, protocol))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _connect(
    loop: asyncio.AbstractEventLoop, host: str, port: int, protocol: LinkProtocol
) -> None:
    factory = lambda: cast(asyncio.BaseProtocol, protocol)  # noqa: E731
    try:
        async with asyncio.timeout(_CONNECT_S):
            await loop.create_connection(factory, host, port)
    except (OSError, TimeoutError) as error:
        protocol.connection_lost(error)
