"""Keys of a snapshot, restored to a keyspace."""

from __future__ import annotations

from typing import Any

from millstream.storage.blocks.block import Block
from millstream.storage.capture.ordering_snapshot import restore_ordering
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import load_stream, stream_has_rules


def restore(
    keyspace: Keyspace, db: int, key: bytes, kind: str, meta: dict[str, Any], blocks: list[Block]
) -> None:
    """Restore a captured key; ValueError when its parts are inconsistent."""
    if not 0 <= db < len(keyspace.databases):
        raise ValueError(f"it belongs to database {db}; there are {len(keyspace.databases)}")
    database = keyspace.databases[db]
    value = _value_of(kind, meta, blocks, keyspace.steady_ms)
    database.put(key, value)
    if "expires_ms" in meta:
        database.note_expiry(key, meta["expires_ms"])
    if isinstance(value, Stream):
        keyspace.has_rules = keyspace.has_rules or stream_has_rules(value)
        database.schedule_groups(key, value)


def _value_of(
    kind: str, meta: dict[str, Any], blocks: list[Block], steady_ms: int
) -> bytes | Stream:
    if kind == "stream":
        try:
            stream = load_stream(meta, blocks, steady_ms)
            restore_ordering(stream, meta, steady_ms)
            return stream
        except (OverflowError, IndexError) as error:
            raise ValueError(f"a number is out of range: {error}") from error
    if kind == "string":
        value: bytes = meta["value"]
        return value
    raise ValueError(f"values of kind {kind!r} are not known to this version")
