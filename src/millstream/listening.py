"""Binding sockets to listen on, and why that is impossible, for the server and the dashboard."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""The errors of an address that this machine does not have."""


class ListenError(Exception):
    """The address cannot be used. The text is one sentence."""


def looked_up(address: str, port: int) -> list[tuple[Any, ...]]:
    """The results of `getaddrinfo` for a socket to listen on. OSError or UnicodeError."""
    # Text would import the codec for names that are not ASCII: 6 million instructions of a start.
    name = address.encode() if address.isascii() else address
    return socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)


def bound_socket(
    family: int, kind: int, protocol: int, address: Any, *, is_shared: bool = False
) -> socket.socket:
    """A socket bound to an address, as `getaddrinfo` describes it; one of IPv6 is not for IPv4 as
    well. Sockets that are shared may have the same address: the kernel gives each connection to one
    of them. OSError."""
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def why_not(problem: OSError | UnicodeError, where: str, option: str) -> str:
    """The reason why a port cannot be listened on. `option` sets the port on the command line; a
    UnicodeError is that of a name that cannot be looked up."""
    if isinstance(problem, (socket.gaierror, UnicodeError)):
        return f"cannot listen on {where}: no such address"
    if problem.errno == errno.EADDRINUSE:
        return f"{where} is in use by another program; choose another one with --{option}"
    reason = os.strerror(problem.errno) if problem.errno else str(problem)
    return f"cannot listen on {where}: {reason}"


def bind_host(address: str, port: int) -> list[socket.socket]:
    """A bound socket for each address that a name stands for and this machine has. ListenError if
    one cannot be used, or there is none."""
    sockets: list[socket.socket] = []
    refused: OSError | UnicodeError | None = None
    try:
        for family, kind, protocol, _, place in looked_up(address, port):
            try:
                sockets.append(bound_socket(family, kind, protocol, place))
            except OSError as problem:
                refused = problem
                if problem.errno not in ABSENT:
                    raise
        if sockets or refused is None:
            return sockets
    except (OSError, UnicodeError) as problem:  # the latter: not a name to look up
        refused = problem
    for bound in sockets:
        bound.close()
    raise ListenError(why_not(refused, f"port {port} on {address}", "port"))
