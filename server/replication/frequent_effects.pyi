from collections.abc import Collection

from millstream.storage.keyspace.keyspace import Keyspace

class FrequentEffects:
    database: int
    def __init__(self, keyspace: Keyspace, left_out: Collection[bytes], ids_max: int) -> None: ...
    def commands(self, payload: bytes, wall_ahead_ms: int, database: int) -> bytes | None: ...
