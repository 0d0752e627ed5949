"""The ports of nodes in replies to clients.

A node replies with the ports for TLS if it is asked over TLS. The gateway may ask it in another way
than a client asks the gateway. Nodes are distinguished by their IDs, because those of different
machines may have the same port.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

TELL_PORTS = frozenset({"cluster|slots", "cluster|nodes", "cluster|replicas", "cluster|slaves"})
_HOST = rb"(?:\$\d+\r\n[^\r\n]*|\$-1|_)"
_IN_SLOTS = re.compile(rb"(%b\r\n:)\d+(\r\n\$40\r\n([0-9a-f]{40})\r\n)" % _HOST)
_TEXT = re.compile(rb"([$=])\d+\r\n((?:txt:)?(?:[0-9a-f]{40} [^\r\n]*\n?)+)\r\n")  # NODES, REPLICAS
_IN_LINE = re.compile(rb"(?m)^((?:txt:)?([0-9a-f]{40}) [^ ]*?):\d+@\d+")


def with_ports(reply: bytes, ports: Mapping[bytes, int]) -> bytes:
    """A reply with these ports, by the IDs of nodes. Other nodes keep theirs."""

    def row(found: re.Match[bytes]) -> bytes:
        port = ports.get(found[3])
        return found[0] if port is None else b"%b%d%b" % (found[1], port, found[2])

    def line(found: re.Match[bytes]) -> bytes:
        port = ports.get(found[2])
        return found[0] if port is None else b"%b:%d@%d" % (found[1], port, port)

    def text(found: re.Match[bytes]) -> bytes:
        changed = _IN_LINE.sub(line, found[2])
        return b"%b%d\r\n%b\r\n" % (found[1], len(changed), changed)

    if not ports:
        return reply
    if _TEXT.search(reply):
        return _TEXT.sub(text, reply)
    return _IN_SLOTS.sub(row, reply)
