"""The outside as commands may see it: what handlers ask of the process they run in.

Handlers touch no socket, file or clock. The few that are about the process itself (CLIENT LIST,
CONFIG SET, SAVE, SHUTDOWN) ask through this protocol, which the server implements and a test
implements with a few lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Client(Protocol):
    """One connected client, as CLIENT LIST and CLIENT KILL see it: a Session and its buffers."""

    id: int
    db_index: int
    resp: int
    close_after_reply: bool
    blocked: bool
    name: bytes
    lib_name: bytes
    lib_version: bytes
    address: str
    local_address: str
    created_ms: int
    last_active_ms: int
    last_command: str | None
    no_evict: bool
    no_touch: bool

    @property
    def query_buffer_bytes(self) -> int: ...
    @property
    def output_bytes(self) -> int: ...

    def close(self, after_reply: bool) -> None:
        """Closes the connection, at once or when what is written has been sent."""


class Outside(Protocol):
    """What the server does for commands. Refusals are CommandErrors in Redis' words."""

    @property
    def clients(self) -> Mapping[int, Client]:
        """Connected clients by id."""

    @property
    def last_save_s(self) -> int:
        """Unix time of the last snapshot that succeeded."""

    def password_required(self) -> bool: ...

    def password_matches(self, password: bytes) -> bool:
        """Compares in constant time; true for any password when none is required."""

    def kill_client(self, client: Client) -> None:
        """Closes another client's connection."""

    def config_get(self, patterns: Sequence[bytes]) -> dict[str, str]:
        """Directives whose names match one of the globs, in the order of the table."""

    def config_set(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """Changes all of them or, with a CommandError, none."""

    def reset_stats(self) -> None: ...

    def info(self, sections: Sequence[str]) -> str:
        """The text of INFO for these sections (lower case; none: the default ones)."""

    def save(self) -> None:
        """Writes a snapshot before it returns."""

    def bgsave(self, schedule: bool) -> str:
        """Starts a snapshot in the background, or notes that one is wanted; says which."""

    def rewrite(self) -> str:
        """Starts to rewrite the journal in the background, or notes it; says which."""

    def shutdown(self, save: bool | None) -> None:
        """Stops the server once this tick is done. save: None writes a snapshot only where nothing
        else keeps the data (journal off, save points set)."""
