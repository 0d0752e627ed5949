"""A transaction of a client of the gateway: all its keys are in one slot.

The first key, also of WATCH, determines the node. Until then, the gateway answers for the node, and
sends what it has kept when the node is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.commands.admin import transactions
from millstream.server.execution import slot_check
from millstream.server.gateway.node_connection import NodeConnection


def encode_error(message: str) -> bytes:
    return b"-%s\r\n" % message.encode("latin-1", "replace")


MULTI = b"*1\r\n$5\r\nMULTI\r\n"
DISCARD = b"*1\r\n$7\r\nDISCARD\r\n"
OK, QUEUED = b"+OK\r\n", b"+QUEUED\r\n"
NESTED = encode_error(transactions.NESTED)
WATCH_INSIDE = encode_error(transactions.WATCH_INSIDE)
CROSSSLOT = encode_error(slot_check.CROSSSLOT)
EXECABORT = encode_error(transactions.EXECABORT)
KEPT_MAX_BYTES = 1 << 20


@dataclass(slots=True)
class Transaction:
    """The state between WATCH or MULTI, and EXEC or DISCARD."""

    slot: int | None = None  # of its keys
    upstream: NodeConnection | None = None
    watches: int = 0  # requests that are not refused
    is_open: bool = False  # MULTI was sent
    has_failed: bool = False  # EXEC is refused
    kept: list[bytes] = field(default_factory=list)  # requests without keys, before the first key
    kept_bytes: int = 0

    @property
    def is_void(self) -> bool:
        """True if all that was to be watched was refused."""
        return not (self.is_open or self.watches)

    def keep(self, request: bytes) -> bool:
        """Keep a request until the node is known; False if there are too many."""
        self.kept_bytes += len(request)
        if self.kept_bytes > KEPT_MAX_BYTES:
            return False
        self.kept.append(request)
        return True
