"""The ports of nodes in replies to clients.

A node replies with the ports for TLS if it is asked over TLS. The gateway may ask it in another way
than a client asks the gateway.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

TELL_PORTS = frozenset({"cluster|slots", "cluster|nodes", "cluster|replicas", "cluster|slaves"})
_AFTER_HOST = re.compile(rb"((?:\$\d+\r\n[^\r\n]*|\$-1|_)\r\n:)(\d+)(?=\r\n)")  # SLOTS
_TEXT = re.compile(rb"([$=])\d+\r\n((?:txt:)?(?:[0-9a-f]{40} [^\r\n]*\n?)+)\r\n")  # NODES, REPLICAS
_IN_LINE = re.compile(rb"(?m)^((?:txt:)?[0-9a-f]{40} [^ ]*?):(\d+)@(\d+)")


def with_ports(reply: bytes, ports: Mapping[int, int]) -> bytes:
    """A reply with other ports in place of those that have one."""

    def port(digits: bytes) -> bytes:
        return b"%d" % ports.get(int(digits), int(digits))

    def line(found: re.Match[bytes]) -> bytes:
        return b"%b:%b@%b" % (found[1], port(found[2]), port(found[3]))

    def text(found: re.Match[bytes]) -> bytes:
        changed = _IN_LINE.sub(line, found[2])
        return b"%b%d\r\n%b\r\n" % (found[1], len(changed), changed)

    if not ports:
        return reply
    if _TEXT.search(reply):
        return _TEXT.sub(text, reply)
    return _AFTER_HOST.sub(lambda found: found[1] + port(found[2]), reply)
