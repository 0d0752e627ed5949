"""The interface of the server for commands.

Handlers touch no socket, file or clock. Commands about the process itself (CLIENT LIST, CONFIG SET,
SAVE, SHUTDOWN) use this protocol. The server implements it; tests implement the parts that they
need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from millstream.commands.access.denial_log import DenialLog
    from millstream.commands.access.users import User, Users


class Client(Protocol):
    """One connected client for CLIENT LIST and CLIENT KILL: a Session and its buffers."""

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
    feed: Any  # not None: the client is a replica

    @property
    def file_number(self) -> int:
        """The descriptor of its socket; -1 when it is closed."""

    @property
    def query_buffer_bytes(self) -> int: ...
    @property
    def query_buffer_free_bytes(self) -> int: ...
    @property
    def output_bytes(self) -> int: ...

    def close(self, after_reply: bool) -> None:
        """Closes the connection, at once or after the output was sent."""


class Exchange(Protocol):
    """Channels, patterns and their subscribers."""

    @property
    def pattern_count(self) -> int: ...

    def subscribe(self, client: Any, channel: bytes) -> None: ...
    def unsubscribe(self, client: Any, channel: bytes) -> None: ...
    def subscribe_pattern(self, client: Any, pattern: bytes) -> None: ...
    def unsubscribe_pattern(self, client: Any, pattern: bytes) -> None: ...
    def subscribe_shard(self, client: Any, channel: bytes) -> None: ...
    def unsubscribe_shard(self, client: Any, channel: bytes) -> None: ...

    def forget(self, client: Any) -> None:
        """Ends all of a client's subscriptions without a message."""

    def publish(self, channel: bytes, message: bytes) -> int:
        """Sends a message; returns how often it was sent."""

    def publish_shard(self, channel: bytes, message: bytes) -> int:
        """Sends a message to the subscribers of a shard channel; returns their number."""

    def channels(self) -> list[bytes]: ...
    def listeners_of(self, channel: bytes) -> int: ...
    def shard_channels(self) -> list[bytes]: ...
    def shard_listeners_of(self, channel: bytes) -> int: ...


class SlowlogEntries(Protocol):
    """The slow log for SLOWLOG."""

    def entries(self, count: int) -> Sequence[Iterable[object]]:
        """The newest entries, newest first, -1 for all: number, unix time in seconds, microseconds,
        words, address, name."""

    def clear(self) -> None: ...
    def __len__(self) -> int: ...


class LatencySeries(Protocol):
    """Latency spikes by event for LATENCY."""

    threshold_ms: int

    def latest(self) -> list[tuple[str, int, int, int]]:
        """(event, unix time in seconds and milliseconds of the last spike, greatest ever)."""

    def history(self, event: str) -> list[list[int]]:
        """[unix time in seconds, milliseconds], oldest first."""

    def reset(self, events: list[str]) -> int:
        """Forgets these events, or all when none is named; returns their number."""


class UserStore(Protocol):
    """The file of users."""

    def load(self) -> None:
        """Reads the file again; an error changes nothing."""

    def save(self) -> None:
        """Replaces the file."""


class Access(Protocol):
    """Users, the users of connected clients, and the log of refusals."""

    users: Users
    log: DenialLog

    def log_in_default(self, client: Any) -> None:
        """Makes the client `default` again, logged in only if that user needs no password."""

    def log_in(self, client: Any, user: User) -> None: ...

    def refuse_login(self, client: Any, name: bytes, word: bytes) -> None:
        """Records a wrong password; `word` is the command that had it."""

    def set_user(self, user: User) -> None:
        """Adds this user, or gives the one with this name these rules."""

    def remove(self, name: bytes) -> bool:
        """Removes a user and disconnects its clients; false if there is none of this name."""

    def check_script(self, client: Any, words: list[bytes]) -> None:
        """Refuses a command that a script runs, if the client's user may not run it."""


class PositionWait(Protocol):
    """A client that waits until a frame is on the disk, or on replicas."""

    client_id: int

    def is_over(self, server: Any) -> bool: ...


class Failover(Protocol):
    """Changing roles with a replica."""

    def begin(self, target: tuple[str, int] | None, forced: bool, timeout_ms: int) -> None:
        """Begins a failover; CommandError when that is impossible. `timeout_ms` 0: no limit."""

    def abort(self) -> None:
        """Cancels the failover; CommandError when there is none."""


class Shutdown(Protocol):
    """Stopping the server."""

    def wait_for_replicas(self, save: bool | None, is_forced: bool, client_id: int) -> bool:
        """Waits for replicas that lack the last changes, then stops; false if there are none.
        `save`: SAVE or NOSAVE."""

    def save_and_stop(self, save: bool | None, is_forced: bool) -> None:
        """Stops the server after this tick. `save` None writes a snapshot only if there is no other
        copy of the data (journal off, save points set)."""

    def abort(self) -> None:
        """Ends the wait for replicas without stopping. CommandError if there is none."""


class Takeover(NamedTuple):
    """What a primary says that asks its replica to take over: its newest history, and whether the
    replica shall do so even if it lacks frames."""

    history: bytes
    is_forced: bool


class Role(Protocol):
    """This server as a primary or a replica (server/replication)."""

    @property
    def is_replica(self) -> bool: ...

    def follow(self, host: str, port: int) -> str:
        """Becomes a replica of the server at this address; Redis' reply."""

    def no_primary(self, is_independent: bool) -> None:
        """Becomes a primary, at once or when the last frames of its primary have arrived;
        `is_independent`: at once, and the primary remains one."""

    @property
    def is_promoting(self) -> bool:
        """Whether this server becomes a primary as soon as the last frames of its primary have
        arrived."""

    @property
    def failover(self) -> Failover: ...

    def primary_clients(self) -> list[Client]:
        """The link to the primary, as a client."""

    def role_reply(self) -> list[Any]:
        """The reply to ROLE."""

    def introduce(self, client: Any, pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
        """Stores the properties that a replica reports, and returns the answer; CommandError for
        unknown ones."""

    def acknowledge(self, client: Any, applied: int, synced: int, frame_bytes: int) -> None:
        """Stores the frames that a replica has. No effect if the client is not a replica."""

    def psync(self, client: Any, next_seq: int, takeover: Takeover | None) -> None:
        """Begins to send frames to a replica, from this number on; with `takeover`, it asks this
        server to become the primary."""

    def publish(self, channel: bytes, message: bytes, *, is_shard: bool = False) -> None:
        """Passes a message to the subscribers at replicas."""

    def applied_on(self, seq: int) -> int:
        """The number of replicas that have applied this frame."""

    def synced_on(self, seq: int) -> int:
        """The number of replicas that have this frame on their disks."""


class Host(Protocol):
    """The functions of the server for commands. Refusals are CommandErrors with Redis' texts."""

    slowlog: SlowlogEntries
    latency: LatencySeries
    waits: dict[int, PositionWait]
    """The waits of WAIT and WAITAOF by client ID."""

    @property
    def replication(self) -> Role: ...

    @property
    def clients(self) -> Mapping[int, Client]:
        """Connected clients by id."""

    @property
    def is_loading(self) -> bool:
        """Whether the data is being read from the disk."""

    def now_us(self) -> int:
        """Microseconds since the epoch, read at each call."""

    @property
    def last_save_s(self) -> int:
        """Unix time of the last snapshot that succeeded."""

    @property
    def pubsub(self) -> Exchange: ...

    def push(self, client: Any, message: object) -> None:
        """Sends a client a separate message, after the reply of the running command."""

    def add_monitor(self, client: Any) -> None:
        """Shows the client every command from now on (MONITOR)."""

    def remove_monitor(self, client: Any) -> None: ...

    def pause_clients(self, until_ms: int, writes_only: bool) -> None:
        """Postpones commands, or only writes, until a time of the steady clock."""

    def unpause_clients(self) -> None: ...

    def unblock_client(self, client: Client, error: bool) -> bool:
        """Ends a client's wait as its timeout would, or with an error; false if it does not
        wait."""

    @property
    def access(self) -> Access: ...

    @property
    def user_store(self) -> UserStore: ...

    def kill_client(self, client: Client) -> None:
        """Closes another client's connection."""

    def random_number(self) -> int:
        """64 random bits."""

    def config_get(self, patterns: Sequence[bytes]) -> dict[str, str]:
        """Directives whose names match one of the globs, in the order of the table."""

    @property
    def longest_string_bytes(self) -> int:
        """The value of proto-max-bulk-len. config_get would be too slow for every APPEND."""

    def config_set(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """Sets all of these directives or, with a CommandError, none."""

    def config_rewrite(self) -> None:
        """Updates the configuration file."""

    def reset_stats(self) -> None: ...

    def latency_counts(self) -> dict[str, list[int]]:
        """For each command that was called, the number of calls that took up to 1, 2, 4 ...
        microseconds; empty while latency-tracking is off."""

    def memory_facts(self) -> dict[str, object]:
        """The figures of MEMORY STATS, with its names."""

    def give_back_memory(self) -> None:
        """Asks the C library to give unused memory back to the machine."""

    def info(self, sections: Sequence[str]) -> str:
        """The text of INFO for these sections (lower case; none: the default ones)."""

    def save(self) -> None:
        """Writes a snapshot before it returns."""

    def bgsave(self, schedule: bool) -> str:
        """Starts or schedules a snapshot in the background; returns Redis' reply."""

    def rewrite(self) -> str:
        """Starts or schedules a rewrite of the journal in the background; returns Redis' reply."""

    @property
    def keeps_journal(self) -> bool:
        """Whether appendonly is on."""

    def write_position(self) -> int:
        """The frame with the last change by the client of the running command."""

    @property
    def journal_synced(self) -> int:
        """The last frame that is on the disk, or will be before any reply is sent."""

    def sync_soon(self) -> None:
        """Forces the journal to disk soon."""

    def stand_still(self, seconds: float) -> None:
        """Stops the whole server for this time."""

    def log(self, message: str) -> None: ...

    def reload(self, *, save: bool, flush: bool) -> None:
        """Loads the data on the disk into the running server: after a snapshot (save), into emptied
        databases (flush) or over the existing data."""

    @property
    def shutdown(self) -> Shutdown: ...
