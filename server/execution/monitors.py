"""MONITOR: its clients see each request of every client. Passwords are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.replies import Simple
from millstream.quoted_words import quoted
from millstream.server.monitor.secrets import without_secrets
from millstream.server.protocol.outbox import Client
from millstream.server.protocol.resp import encode_reply


class Monitors:
    """`clients` run MONITOR, by id. `push(client, bytes)` sends them a message."""

    def __init__(self, server: Any, push: Callable[[Client, bytes], object]) -> None:
        self.clients: dict[int, Client] = {}
        self._server = server
        self._push = push

    def show(self, client: Client, args: Args) -> None:
        """Send this request of a client to all clients in MONITOR."""
        request = " ".join(map(quoted, without_secrets(args.all())))
        seconds, rest_us = divmod(self._server.now_us(), 1000000)
        line = Simple(
            f"{seconds}.{rest_us:06d} [{client.db_index} {client.address}] {request}".encode()
        )
        forms: dict[int, bytes] = {}
        for monitor in list(self.clients.values()):
            if monitor.resp not in forms:
                forms[monitor.resp] = encode_reply(line, monitor.resp)
            self._push(monitor, forms[monitor.resp])
