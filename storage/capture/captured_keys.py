"""The parts of a capture: the keys of one database, and one key, at its beginning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.storage.blocks.block import Block
from millstream.storage.blocks.skiplist_pages import Blocks
from millstream.storage.capture.ordering_snapshot import ordering_meta
from millstream.storage.keyspace.key_slots import KeySlots
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import dump_stream


class CapturedKeys:
    """The keys of a database. FLUSHALL gives a database another table and does not change this one;
    keys that are added later are marked as captured."""

    def __init__(
        self,
        db: int,
        slots: KeySlots,
        table: dict[bytes, Any],
        expiries: dict[bytes, int],
    ) -> None:
        self.db = db
        self.slots = slots
        self.table = table
        self.expiries = expiries


class Captured:
    """One key at the beginning of the capture."""

    __slots__ = ("blocks", "db", "key", "kind", "meta")

    def __init__(
        self, db: int, key: bytes, kind: str, meta: dict[str, Any], blocks: Sequence[Block]
    ) -> None:
        self.db = db
        self.key = key
        self.kind = kind
        self.meta = meta
        self.blocks = blocks

    def free_step(self, most: int) -> bool:
        """Free about `most` of the blocks after use; False when none is left. Blocks that the
        stream has removed meanwhile have no other reference."""
        if isinstance(self.blocks, Blocks):
            return self.blocks.free_step(most)
        self.blocks = []
        return False


def captured_stream(db: int, key: bytes, stream: Stream, expiry_ms: int | None) -> Captured:
    """A stream now, with the time at which its key expires; its blocks are shared."""
    meta, blocks = dump_stream(stream, True)
    meta |= ordering_meta(stream)
    return Captured(db, key, "stream", with_expiry(meta, expiry_ms), blocks)


def with_expiry(meta: dict[str, Any], expiry_ms: int | None) -> dict[str, Any]:
    """The metadata of a key, with the time at which it expires, if it does."""
    if expiry_ms is not None:
        meta["expires_ms"] = expiry_ms
    return meta
