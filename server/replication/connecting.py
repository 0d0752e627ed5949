"""Connecting to a primary: the one place where replication meets sockets."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

from millstream.errors import StartError
from millstream.server.replication.name_lookup import look_up
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
            addresses = await look_up(host, port)
            context = make_context()
            options: dict[str, Any] = {}
            if context is not None:
                options = {"ssl": context, "server_hostname": host}
            await _connect_to_one(loop, factory, addresses, port, options)
    except (OSError, TimeoutError, StartError) as error:
        protocol.connection_lost(error)


async def _connect_to_one(
    loop: asyncio.AbstractEventLoop,
    factory: Callable[[], asyncio.BaseProtocol],
    addresses: list[str],
    port: int,
    options: dict[str, Any],
) -> None:
    """Connect to the first address that accepts a connection. OSError of the last one."""
    for number, address in enumerate(addresses, 1):
        try:
            await loop.create_connection(factory, address, port, **options)
        except ssl.SSLError:
            raise
        except OSError:
            if number == len(addresses):
                raise
        else:
            return
