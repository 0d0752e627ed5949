from collections.abc import Callable

from millstream.commands.runtime.replies import Encodable, Sliced
from millstream.storage.streams.key_walk import KeyIterator
from millstream.storage.streams.keyspace import Database

class FoundKeys(Encodable):
    def __init__(self, database: Database, matches: Callable[[bytes], object] | None) -> None: ...

class SlicedKeys(Sliced):
    def __init__(self, walk: KeyIterator, matches: Callable[[bytes], object] | None) -> None: ...
