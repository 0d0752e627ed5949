"""A line of CLIENT LIST, and the types of clients.

The line has Redis' fields in Redis' order, because tools split it by position as well as by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from millstream.commands.access.users import DEFAULT_USER, User
from millstream.commands.admin.transactions import has_changed_watches
from millstream.commands.runtime.context import Session

CLIENT_BYTES = 2400  # an idle connection, measured with 10,000 of them


if TYPE_CHECKING:

    class ClientFeed(Protocol):
        """Data that is sent to a client without requests: the frames for a replica, or a backup."""

        @property
        def is_replica(self) -> bool: ...


class Client(Protocol):
    """One connected client for CLIENT LIST and CLIENT KILL: a Session and its buffers."""

    id: int
    db_index: int
    resp: int
    authenticated: bool
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
    queue: list[Any] | None
    watches: dict[tuple[int, bytes], Any]
    channels: dict[bytes, None]
    shard_channels: dict[bytes, None]
    patterns: dict[bytes, None]

    @property
    def subscribed(self) -> bool: ...

    monitoring: bool
    user: User | None
    closed: bool
    queued_bytes: int
    held_bytes: int  # replies that wait for the disk or for replicas
    total_bytes_in: int
    total_bytes_out: int
    total_commands: int
    feed: ClientFeed | None

    @property
    def file_number(self) -> int:
        """The descriptor of its socket; -1 when it is closed."""

    @property
    def has_long_reply(self) -> bool: ...
    @property
    def query_buffer_bytes(self) -> int: ...
    @property
    def query_buffer_free_bytes(self) -> int: ...
    @property
    def output_bytes(self) -> int: ...

    def close(self, after_reply: bool) -> None:
        """Closes the connection, at once or after the output was sent."""


def _flags(client: Client) -> str:
    """Redis' letters in Redis' order; N when there is none."""
    letters = (
        (client.monitoring, "O"),
        (is_replica(client), "S"),
        (_is_primary(client), "M"),
        (is_subscribed(client), "P"),
        (client.queue is not None, "x"),
        (client.blocked, "b"),
        (has_changed_watches(client.watches), "d"),
        (client.close_after_reply, "c"),
        (client.no_evict, "e"),
        (client.no_touch, "T"),
    )
    return "".join(letter for held, letter in letters if held) or "N"


def is_subscribed(client: Client) -> bool:
    return client.subscribed


def _request_bytes(words: list[bytes]) -> int:
    """The size in bytes of a request with these words in RESP."""
    bulks = sum(len(b"$%d\r\n" % len(word)) + len(word) + 2 for word in words)
    return len(b"*%d\r\n" % len(words)) + bulks


def user_name(client: Client | Session) -> bytes:
    return DEFAULT_USER if client.user is None else client.user.name


def memory_of(client: Client, input_bytes: int, output_bytes: int) -> int:
    """The memory of a connection in bytes: its objects, its input (`query_buffer_bytes`) and its
    output (`output_bytes`)."""
    free_bytes, queued_bytes = client.query_buffer_free_bytes, client.queued_bytes
    return CLIENT_BYTES + input_bytes + free_bytes + output_bytes + queued_bytes


def client_line(client: Client, now_ms: int, running: list[bytes] | None = None) -> str:
    """One line of CLIENT LIST, without its line end; `running` are the words of the client's
    running command. Output is not copied into a buffer of the client, so the fields of such a
    buffer (rbs, rbp, obl) are 0."""
    words = running or []
    argument_bytes = sum(map(len, words))
    query = client.query_buffer_bytes + (_request_bytes(words) if words else 0)
    output = client.output_bytes
    fields = (
        ("id", client.id),
        ("addr", client.address),
        ("laddr", client.local_address),
        ("fd", client.file_number),
        ("name", client.name.decode("ascii", "replace")),
        ("age", max(0, now_ms - client.created_ms) // 1000),
        ("idle", max(0, now_ms - client.last_active_ms) // 1000),
        ("flags", _flags(client)),
        ("db", client.db_index),
        ("sub", len(client.channels)),
        ("psub", len(client.patterns)),
        ("ssub", len(client.shard_channels)),
        ("multi", -1 if client.queue is None else len(client.queue)),
        ("watch", len(client.watches)),
        ("qbuf", query),
        ("qbuf-free", client.query_buffer_free_bytes),
        ("argv-mem", argument_bytes),
        ("multi-mem", client.queued_bytes),
        ("rbs", 0),
        ("rbp", 0),
        ("obl", 0),
        ("oll", 1 if output else 0),
        ("omem", output),
        ("tot-mem", memory_of(client, client.query_buffer_bytes, output) + argument_bytes),
        ("events", "rw" if output else "r"),
        ("cmd", client.last_command or "NULL"),
        ("user", user_name(client).decode("utf-8", "surrogateescape")),
        ("redir", -1),
        ("resp", client.resp),
        ("lib-name", client.lib_name.decode("ascii", "replace")),
        ("lib-ver", client.lib_version.decode("ascii", "replace")),
        ("io-thread", 0),
        ("tot-net-in", client.total_bytes_in),
        ("tot-net-out", client.total_bytes_out),
        ("tot-cmds", client.total_commands),
    )
    return " ".join(f"{name}={value}" for name, value in fields)


Filter = Callable[["Client"], bool]


def _is_normal(client: Client) -> bool:
    return not (is_subscribed(client) or _is_primary(client) or is_replica(client))


def _is_primary(client: Client) -> bool:
    return bool(getattr(client, "is_primary", False))


def is_replica(client: Client) -> bool:
    return client.feed is not None and client.feed.is_replica


TYPES: dict[bytes, Filter] = {
    b"normal": _is_normal,
    b"pubsub": is_subscribed,
    b"master": _is_primary,
    b"replica": is_replica,
    b"slave": is_replica,
}
