"""Looking up the addresses of a host without blocking the event loop, and connecting to it.

The loop's own look-ups use a pool of threads in the C library of the loop, which aborts the process
if a thread cannot be started.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

Connected = TypeVar("Connected")

_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


def _addresses(host: str, port: int, flags: int = 0) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def look_up(host: str, port: int) -> list[str]:
    """The IP addresses of a host, in the order in which they should be tried. OSError when there
    are none, and when no thread can be started."""
    with suppress(OSError):
        return _addresses(host, port, _NUMERIC)
    loop = asyncio.get_running_loop()
    result: asyncio.Future[list[str]] = loop.create_future()

    def finish(found: list[str] | OSError) -> None:
        if result.done():  # the connection was given up
            return
        if isinstance(found, OSError):
            result.set_exception(found)
        else:
            result.set_result(found)

    def run() -> None:
        found: list[str] | OSError
        try:
            found = _addresses(host, port)
        except OSError as error:
            found = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish, found)

    try:
        threading.Thread(target=run, name="millstream-names", daemon=True).start()
    except (RuntimeError, MemoryError) as error:
        reason = str(error) or "no memory"
        raise OSError(f"{host} cannot be looked up: {reason}") from None
    return await result


async def connect_to_host(
    host: str, port: int, connect: Callable[..., Awaitable[Connected]], tls: ssl.SSLContext | None
) -> Connected:
    """The result of `connect`, such as `asyncio.open_connection`, for the first address of a host
    that accepts a connection. OSError of the last one, or if there is none. With TLS, the
    certificate has to have the name of the host."""
    options = {} if tls is None else {"ssl": tls, "server_hostname": host}
    *others, last = await look_up(host, port)
    for address in others:
        try:
            return await connect(address, port, **options)
        except ssl.SSLError:
            raise
        except OSError:
            continue
    return await connect(last, port, **options)
