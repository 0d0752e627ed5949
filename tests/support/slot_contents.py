"""All that is known of the keys of some cluster slots."""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped]
from tests.support.storage_access import check_stream

from millstream.storage.capture.captured_keys import Captured, captured_stream, packed_meta
from millstream.storage.groups.key_order import SAVED_SIZE
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.keyspace.slot_keys import keys_of_slots
from millstream.storage.streams.stream import Stream


def packed(one: Captured) -> tuple[dict[str, Any], list[bytes]]:
    """The metadata and the blocks of a captured stream, as a snapshot has them."""
    blocks = [block.to_bytes() for block in one.blocks]
    return msgpack.unpackb(b"".join(packed_meta(one.meta)), strict_map_key=False), blocks


def shown(one: Captured) -> Any:
    """A captured stream in full. The keys of an order are in the order of a hash table."""
    meta, blocks = packed(one)
    for group in meta.get("groups", ()):
        for name in ("order_keys", "parked"):
            if name in group:
                group[name] = sorted(zip(*[iter(group[name])] * SAVED_SIZE, strict=True))
    return one.kind, meta, blocks


def state_of(keyspace: Keyspace, slots: list[int]) -> dict[bytes, Any]:
    """All that is known of the keys of these slots. How entries are divided into blocks, and the
    first ID that is kept if no entry is below it, may be others after effects were applied."""
    found = snapshot_of(keyspace, slots)
    for key, (kind, *facts) in found.items():
        if kind == "stream":
            stream = keyspace.databases[0].table[key]
            meta = {**facts[0], "first_kept": None, "open": None}
            found[key] = meta, [list(map(bytes_of, one)) for one in stream.range()]
    return found


def bytes_of(part: Any) -> Any:
    return [bytes(one) for one in part] if isinstance(part, list | tuple) else part


def snapshot_of(keyspace: Keyspace, slots: list[int]) -> dict[bytes, Any]:
    """All that a snapshot would have of the keys of these slots."""
    db = keyspace.databases[0]
    db.settle_all()
    found: dict[bytes, Any] = {}
    for key in keys_of_slots(db, slots):
        value, expiry_ms = db.table[key], db.expiries.get(key)
        if isinstance(value, Stream):
            check_stream(value)
            found[key] = shown(captured_stream(0, key, value, expiry_ms))
        else:
            found[key] = bytes(value), expiry_ms
    return found
