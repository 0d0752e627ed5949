"""The parts of a capture: the keys of one database, and one key, at its beginning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from millstream.storage.blocks.block import Block
from millstream.storage.blocks.skiplist_pages import Blocks
from millstream.storage.capture.ordering_snapshot import ordering_meta
from millstream.storage.groups.shared_groups import SharedGroups
from millstream.storage.keyspace.key_slots import KeySlots
from millstream.storage.reservations.held_snapshot import SharedHeld
from millstream.storage.streams.idempotence import SharedWindow
from millstream.storage.streams.producers import SharedProducers
from millstream.storage.streams.schedule_snapshot import SharedSchedule
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


_MAYBE_LARGE = ("groups", "held", "idempotence", "producers", "schedule")
_IN_PARTS = (
    SharedGroups,
    SharedHeld,
    SharedWindow,
    SharedProducers,
    SharedSchedule,
)  # packed by their own methods, in parts


def packed_meta(meta: dict[str, Any]) -> Iterator[bytes]:
    """A key's metadata as msgpack, with large values in parts."""
    import msgpack  # type: ignore[import-untyped]

    if not any(isinstance(meta.get(name), _IN_PARTS) for name in _MAYBE_LARGE):
        yield msgpack.packb(meta, default=bytes)
        return
    yield msgpack.Packer().pack_map_header(len(meta))
    for name, value in meta.items():
        yield msgpack.packb(name)
        if isinstance(value, _IN_PARTS):
            yield from value.packed()
        else:
            yield msgpack.packb(value, default=bytes)


def with_expiry(meta: dict[str, Any], expiry_ms: int | None) -> dict[str, Any]:
    """The metadata of a key, with the time at which it expires, if it does."""
    if expiry_ms is not None:
        meta["expires_ms"] = expiry_ms
    return meta
