"""The dashboard's listening sockets, bound before anything else begins."""

from __future__ import annotations

import socket

from millstream.listening import ABSENT, bound_socket, why_not


class ListenError(Exception):
    """The address cannot be used. The text is one sentence."""


def bind_sockets(address: str, port: int) -> list[socket.socket]:
    """A bound socket for each address that a name stands for and this machine has. ListenError if
    one cannot be used, or there is none."""
    sockets: list[socket.socket] = []
    refused: OSError | UnicodeError | None = None
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in found:
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
