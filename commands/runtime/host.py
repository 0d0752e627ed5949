"""The outside as commands may see it: what handlers ask of the process they run in.

Handlers touch no socket, file or clock. The few that are about the process itself (CLIENT LIST,
CONFIG SET, SAVE, SHUTDOWN) ask through this protocol, which the server implements and a test
implements with a few lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from millstream.commands.access.denials import DenialLog
    from millstream.commands.access.users import User, Users


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
    queue: list[Any] | None
    watches: dict[tuple[int, bytes], Any]
    channels: dict[bytes, None]
    patterns: dict[bytes, None]
    monitoring: bool
    user: User | None
    closed: bool
    queued_bytes: int
    total_bytes_in: int
    total_bytes_out: int
    total_commands: int
    feed: Any  # not None: the client is a replica

    @property
    def file_number(self) -> int:
        """The descriptor of its socket; -1 when it has none any more."""

    @property
    def query_buffer_bytes(self) -> int: ...
    @property
    def query_buffer_free_bytes(self) -> int: ...
    @property
    def output_bytes(self) -> int: ...

    def close(self, after_reply: bool) -> None:
        """Closes the connection, at once or when what is written has been sent."""


class Exchange(Protocol):
    """Channels, patterns and who listens to them."""

    @property
    def pattern_count(self) -> int: ...

    def subscribe(self, client: Any, channel: bytes) -> None: ...
    def unsubscribe(self, client: Any, channel: bytes) -> None: ...
    def subscribe_pattern(self, client: Any, pattern: bytes) -> None: ...
    def unsubscribe_pattern(self, client: Any, pattern: bytes) -> None: ...

    def forget(self, client: Any) -> None:
        """Ends all of a client's subscriptions without telling it."""

    def publish(self, channel: bytes, message: bytes) -> int:
        """Sends a message; answers how often it was sent."""

    def channels(self) -> list[bytes]: ...
    def listeners_of(self, channel: bytes) -> int: ...


class SlowlogEntries(Protocol):
    """The slow log, as SLOWLOG sees it."""

    def entries(self, count: int) -> Sequence[Iterable[object]]:
        """The newest, newest first, -1 for all: number, unix time in seconds, microseconds, words,
        address, name."""

    def clear(self) -> None: ...
    def __len__(self) -> int: ...


class LatencySeries(Protocol):
    """Latency spikes by event, as LATENCY sees them."""

    threshold_ms: int

    def latest(self) -> list[tuple[str, int, int, int]]:
        """(event, unix time in seconds and milliseconds of the last spike, greatest ever)."""

    def history(self, event: str) -> list[list[int]]:
        """[unix time in seconds, milliseconds], oldest first."""

    def reset(self, events: list[str]) -> int:
        """Forgets these events, all when none is named; how many there were."""


class UserStore(Protocol):
    """The file of users."""

    def load(self) -> None:
        """Reads it again; an error changes nothing."""

    def save(self) -> None:
        """Replaces it."""


class Access(Protocol):
    """Users, who of the connected clients is which, and who was refused."""

    users: Users
    log: DenialLog

    def begin(self, client: Any) -> None:
        """The client is `default` again, logged in only if that needs no password."""

    def log_in(self, client: Any, user: User) -> None: ...

    def refuse_login(self, client: Any, name: bytes, word: bytes) -> None:
        """Notes that a password was wrong; `word` is the command that had it."""

    def put(self, user: User) -> None:
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
        """Begins; a CommandError when that is impossible. `timeout_ms` 0: no limit."""

    def abort(self) -> None:
        """Gives up; a CommandError when there is none."""


class Ending(Protocol):
    """Stopping the server."""

    def begin(self, wish: bool | None, is_forced: bool, client_id: int) -> bool:
        """Waits for replicas that lack the last changes, then stops; false: there are none.
        `wish`: SAVE or NOSAVE."""

    def end(self, wish: bool | None, is_forced: bool) -> None:
        """Stops the server once this tick is done. `wish` None writes a snapshot only where nothing
        else keeps the data (journal off, save points set)."""

    def abort(self) -> None:
        """Ends the wait for replicas: the server goes on. A CommandError if there is none."""


class Role(Protocol):
    """This server as a primary or a replica (server/replication)."""

    @property
    def is_replica(self) -> bool: ...

    def follow(self, host: str, port: int) -> str:
        """Becomes a replica of the server at this address; Redis' reply."""

    def no_primary(self) -> None:
        """Becomes a primary."""

    @property
    def failover(self) -> Failover: ...

    def primary_clients(self) -> list[Client]:
        """The link to the primary, as a client."""

    def role_reply(self) -> list[Any]:
        """The reply to ROLE."""

    def introduce(self, client: Any, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """Takes what a replica says about itself; CommandError for what is not understood."""

    def acknowledge(self, client: Any, applied: int, synced: int, frame_bytes: int) -> None:
        """Notes what a replica has. Nothing happens if the client is no replica."""

    def psync(
        self, client: Any, next_seq: int, *, name: bytes = b"", is_failover: bool = False
    ) -> None:
        """Begins to send frames to a replica, from this number on. `name`: its newest history;
        `is_failover`: it asks this server to become the primary."""

    def publish(self, channel: bytes, message: bytes) -> None:
        """Passes a message to the subscribers at replicas."""

    def applied_on(self, seq: int) -> int:
        """The number of replicas that have applied this frame."""

    def synced_on(self, seq: int) -> int:
        """The number of replicas that have this frame on their disks."""


class Outside(Protocol):
    """What the server does for commands. Refusals are CommandErrors in Redis' words."""

    slowlog: SlowlogEntries
    latency: LatencySeries
    waits: dict[int, PositionWait]
    """The clients of WAIT and WAITAOF by id, and what each waits for."""

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
        """Sends a client a message of its own, after the reply of the command that runs."""

    def add_monitor(self, client: Any) -> None:
        """From now on the client is shown every command (MONITOR)."""

    def remove_monitor(self, client: Any) -> None: ...

    def pause_clients(self, until_ms: int, writes_only: bool) -> None:
        """Puts off commands, or those that write, until a moment of the steady clock."""

    def unpause_clients(self) -> None: ...

    def unblock_client(self, client: Client, error: bool) -> bool:
        """Ends a client's wait as its timeout would, or with an error; false if it waits not."""

    @property
    def access(self) -> Access: ...

    @property
    def user_store(self) -> UserStore: ...

    def kill_client(self, client: Client) -> None:
        """Closes another client's connection."""

    def random_number(self) -> int:
        """64 random bits, for commands that choose by chance."""

    def config_get(self, patterns: Sequence[bytes]) -> dict[str, str]:
        """Directives whose names match one of the globs, in the order of the table."""

    @property
    def longest_string_bytes(self) -> int:
        """proto-max-bulk-len, which config_get would take long to find for every APPEND."""

    def config_set(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """Changes all of them or, with a CommandError, none."""

    def config_rewrite(self) -> None:
        """Brings the configuration file up to date."""

    def reset_stats(self) -> None: ...

    def latency_counts(self) -> dict[str, list[int]]:
        """By command that was called, how many calls took up to 1, 2, 4 ... microseconds; empty
        while latency-tracking is off."""

    def memory_facts(self) -> dict[str, object]:
        """The figures of MEMORY STATS, with its names."""

    def give_back_memory(self) -> None:
        """Asks the C library to give unused memory back to the machine."""

    def info(self, sections: Sequence[str]) -> str:
        """The text of INFO for these sections (lower case; none: the default ones)."""

    def save(self) -> None:
        """Writes a snapshot before it returns."""

    def bgsave(self, schedule: bool) -> str:
        """Starts a snapshot in the background, or notes that one is wanted; says which."""

    def rewrite(self) -> str:
        """Starts to rewrite the journal in the background, or notes it; says which."""

    @property
    def keeps_journal(self) -> bool:
        """Whether appendonly is on."""

    def write_position(self) -> int:
        """The frame with the last change that the client of the running command has made."""

    @property
    def journal_synced(self) -> int:
        """How far the journal is on the disk, or will be before any reply leaves."""

    def sync_soon(self) -> None:
        """Forces the journal to disk soon."""

    def stand_still(self, seconds: float) -> None:
        """Stops the whole server for so long."""

    def log(self, message: str) -> None: ...

    def reload(self, *, save: bool, flush: bool) -> None:
        """Loads what the disk has into the running server: after a snapshot (save), into emptied
        databases (flush) or over what is there."""

    @property
    def ending(self) -> Ending: ...
