from typing import Any, Generic

from typing_extensions import TypeVar

from millstream.commands.access.permission import Permission
from millstream.commands.access.users import User
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.effects import Effects
from millstream.storage.keyspace.database import Database
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

HostT = TypeVar("HostT", default=Any)

class Session:
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
    queue_failed: bool
    queued_bytes: int
    watches: dict[tuple[int, bytes], tuple[Database, tuple[Any, ...]]]
    channels: dict[bytes, None]
    patterns: dict[bytes, None]
    shard_channels: dict[bytes, None]
    @property
    def subscribed(self) -> bool: ...
    reply_mode: str
    monitoring: bool
    wrote_seq: int
    feed: Any
    user: User | None
    permission: Permission | None
    def leave_transaction(self) -> None: ...
    def forget_watches(self) -> None: ...
    def __init__(
        self, id: int, address: str = "", local_address: str = "", now_ms: int = 0
    ) -> None: ...

class Context(Generic[HostT]):
    """`HostT` is a protocol with what a command needs of its server."""

    session: Session
    keyspace: Keyspace
    db: Database
    effects: Effects
    now_ms: int
    steady_ms: int
    wall_ahead_ms: int
    server: HostT
    may_block: bool
    write_error: str | None
    memory_error: str | None
    shared: dict[object, bytes] | None
    remade: set[tuple[int, bytes, bytes]] | None
    events: bytes
    scripts: set[bytes]
    def read_stream(self, key: bytes) -> Stream | None: ...
    def read_for_update(self, key: bytes) -> Stream | None: ...
    def write_stream(self, key: bytes) -> Stream | None: ...
    def open_stream(self, key: bytes) -> Stream: ...
    def count_look_up(self, key: bytes, found: bool, *, reports_miss: bool = True) -> None: ...
    def take_value(self, args: Args) -> bytes | Stream | None: ...
    def count_existing(self, args: Args) -> int: ...
    def take_expiry_ms(self, args: Args) -> int: ...
    def take_present(self, args: Args) -> list[bytes]: ...
    def changed(self, *effect: bytes | int, event: bytes | None, count: int = 1) -> None: ...
    def changed_databases(self, *effect: bytes | int, count: int, db_index: int = -1) -> None: ...
    def notify(self, event: bytes, key: bytes, db_index: int | None = None) -> None: ...
    def __init__(
        self, keyspace: Keyspace, effects: Effects, server: HostT | None = None
    ) -> None: ...
