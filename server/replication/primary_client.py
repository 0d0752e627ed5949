"""The link to the primary as CLIENT LIST and CLIENT KILL see it: a client with the flag M."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.commands.runtime.context import Session

if TYPE_CHECKING:
    from millstream.server.replication.attempt import Attempt


class PrimaryClient(Session):
    """`id` is one of the server's client IDs. It has no buffers of its own."""

    is_primary = True
    file_number = -1
    closed = False
    query_buffer_bytes = query_buffer_free_bytes = 0
    output_bytes = queued_bytes = 0
    total_commands = 0

    def __init__(self, number: int, address: str, now_ms: int, attempt: Attempt) -> None:
        super().__init__(number, address=address, now_ms=now_ms)
        self._attempt = attempt

    @property
    def total_bytes_in(self) -> int:
        return self._attempt.received_bytes

    @property
    def total_bytes_out(self) -> int:
        return self._attempt.sent_bytes

    def close(self, after_reply: bool) -> None:
        """CLIENT KILL: the server connects again."""
        self._attempt.drop("CLIENT KILL")
