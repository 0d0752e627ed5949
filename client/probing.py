"""Whether a server that did not answer is there again, found out without waiting for it.

redis-py connects while its caller waits: to a server that hangs, for as long as the timeout. A
stream of several shards would get nothing from the other servers in this time. So a socket of its
own asks first: it connects and sends PING without waiting, and `poll` tells when something comes.
Any answer will do, an error too.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from typing import Any

from millstream.client import redis_py

PING = b"PING\r\n"


class Probe:
    """A connection attempt on its way. `number` and `events` are for `poll`."""

    def __init__(self, sock: socket.socket, timeout_s: float, speaks: bool) -> None:
        """`speaks` is False if a connection is all that can be seen, because it is encrypted."""
        self.deadline_s = time.monotonic() + timeout_s
        self.events = select.POLLOUT
        self.number = sock.fileno()
        self._sock = sock
        self._speaks = speaks

    @classmethod
    def of(cls, client: Any) -> Probe | None:
        """A probe of a client's server; None if its address is not known in advance."""
        found = redis_py.socket_address(client)
        if found is None:
            return None
        family, address, encrypted = found
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            return None  # redis-py reports it
        sock.setblocking(False)
        try:
            error = sock.connect_ex(address)
        except OSError as raised:  # a path that is too long
            error = raised.errno or errno.EINVAL
        if error not in (0, errno.EINPROGRESS, errno.EAGAIN):
            sock.close()
            return None
        return cls(sock, redis_py.timeout_s(client), not encrypted)

    def proceed(self) -> bool:
        """After an event: True once the server is there. Raises OSError if it is not."""
        error = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        if self.events == select.POLLIN:
            if not self._sock.recv(1):
                raise ConnectionResetError(errno.ECONNRESET, "the server closed the connection")
            return True
        if self._speaks:
            self._sock.send(PING)
            self.events = select.POLLIN
        return not self._speaks

    def close(self) -> None:
        self._sock.close()
