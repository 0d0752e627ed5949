from collections.abc import Callable

from millstream.commands.runtime.replies import Encodable, Sliced
from millstream.storage.streams.key_walk import KeyWalk
from millstream.storage.streams.keyspace import Database

class FoundKeys(Encodable):
    def __init__(self, database: Database, matches: Callable[[bytes], object] | None) -> None: ...

class SlicedKeys(Sliced):
    def __init__(self, walk: KeyWalk, matches: Callable[[bytes], object] | None) -> None: ...
