"""Connecting to a primary: the one place where replication meets sockets."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from millstream.errors import StartError
from millstream.server.replication.node import LinkProtocol

_CONNECT_S = 10.0
_tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps no reference


MakeContext = Callable[[], ssl.SSLContext | None]


def connect_link(
    loop: asyncio.AbstractEventLoop,
    host: str,
    port: int,
    protocol: LinkProtocol,
    make_context: MakeContext,
) -> None:
    """Begin to connect. When that fails, `protocol.connection_lost` gets the reason.
    `make_context` reads the certificates as they are now; None is a link without TLS."""
    task = loop.create_task(_connect(loop, host, port, protocol, make_context))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _connect(
    loop: asyncio.AbstractEventLoop,
    host: str,
    port: int,
    protocol: LinkProtocol,
    make_context: MakeContext,
) -> None:
    factory = lambda: cast(asyncio.BaseProtocol, protocol)  # noqa: E731
    try:
        async with asyncio.timeout(_CONNECT_S):
            await loop.create_connection(factory, host, port, ssl=make_context())
    except (OSError, TimeoutError, StartError) as error:
        protocol.connection_lost(error)
