from millstream.commands.effects import Effects
from millstream.commands.outside import Outside
from millstream.storage.keyspace import Database, Keyspace

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
    def __init__(
        self, id: int, address: str = "", local_address: str = "", now_ms: int = 0
    ) -> None: ...

class Context:
    session: Session
    keyspace: Keyspace
    db: Database
    effects: Effects
    now_ms: int
    server: Outside
    may_block: bool
    write_error: str | None
    shared: dict[object, bytes] | None
    remade: set[tuple[int, bytes, bytes]] | None
    def __init__(
        self, keyspace: Keyspace, effects: Effects, server: Outside | None = None
    ) -> None: ...
