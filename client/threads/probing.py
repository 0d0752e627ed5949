"""Probes of a server that did not answer, without waiting for it.

redis-py connects while its caller waits: to a server that hangs, for as long as the timeout. A
stream of several shards would get nothing from the other servers in this time. So a separate
socket asks first: it connects and sends PING without waiting, and `poll` reports when data
arrives. Any reply is enough, even an error.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Any

from millstream.client import redis_py

PING = b"PING\r\n"


class Probe:
    """Connection attempts to the addresses of a server, one after another. `number` and `events`
    are for `poll`, `deadline_s` is when the attempt of now ends."""

    def __init__(self, client: Any, addresses: Sequence[tuple[int, Any]], encrypted: bool) -> None:
        """Of an encrypted connection, all that can be seen is that it can be made."""
        self.client = client
        self.number = -1
        self.events = select.POLLOUT
        self.deadline_s = 0.0
        self._addresses = iter(addresses)
        self._timeout_s = redis_py.timeout_s(client)
        self._encrypted = encrypted
        self._sock: socket.socket | None = None

    @classmethod
    def of(cls, client: Any) -> Probe | None:
        """A probe of a client's server; None if no address is known in advance, or none can be
        tried: redis-py says why."""
        addresses, encrypted = redis_py.socket_addresses(client)
        probe = cls(client, addresses, encrypted)
        return probe if probe.try_next() else None

    def try_next(self) -> bool:
        """Begin with the next address; False if none is left that can be tried."""
        self.close()
        for family, address in self._addresses:
            sock = connecting(family, address)
            if sock is not None:
                self.number = sock.fileno()
                self.events = select.POLLOUT
                self.deadline_s = time.monotonic() + self._timeout_s
                self._sock = sock
                return True
        return False

    def proceed(self) -> bool:
        """After an event: True once the server answers. OSError if no address can be reached."""
        assert self._sock is not None
        try:
            return self._proceed(self._sock)
        except OSError:
            if not self.try_next():
                raise
            return False

    def _proceed(self, sock: socket.socket) -> bool:
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        if self.events == select.POLLIN:
            if not sock.recv(1):
                raise ConnectionResetError(errno.ECONNRESET, "the server closed the connection")
            return True
        if not self._encrypted:
            sock.send(PING)
            self.events = select.POLLIN
        return self._encrypted

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def connecting(family: int, address: Any) -> socket.socket | None:
    """A socket that is connecting to an address, or has done so; None if that fails at once."""
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return None
    sock.setblocking(False)
    try:
        error = sock.connect_ex(address)
    except OSError as raised:  # a path that is too long
        error = raised.errno or errno.EINVAL
    if error in (0, errno.EINPROGRESS, errno.EAGAIN):
        return sock
    sock.close()
    return None
