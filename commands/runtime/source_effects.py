"""The effects of a server that follows a Redis: its position in the stream of that server, and the
strings that it could not follow."""

from __future__ import annotations

from millstream.commands.runtime.effects import effect
from millstream.storage.keyspace.keyspace import Keyspace, Source

SOURCE = b"SOURCE"


@effect(SOURCE, keys=())
def apply_source(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """SOURCE replid offset database: the data is that of this position. An empty ID: it is none."""
    replid, offset, database = words
    keyspace.source = Source(replid.decode(), int(offset), int(database)) if replid else None


DROPPED = b"DROPPED"


@effect(DROPPED)
def apply_dropped(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """DROPPED key: the source has a string there whose value is not known here."""
    (key,) = words
    keyspace.dropped_strings.add((db_index, key))


KNOWN = b"KNOWN"


@effect(KNOWN, keys=())
def apply_known(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """KNOWN [key ...]: the opposite; without a key, for all of the database."""
    if not words:
        keyspace.dropped_strings = {
            place for place in keyspace.dropped_strings if place[0] != db_index
        }
    keyspace.dropped_strings.difference_update((db_index, key) for key in words)
