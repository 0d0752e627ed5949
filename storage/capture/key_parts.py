"""A value in parts: effects of a limited size that make a key again, one after another.

After each part of a stream (effect KEYPART) there is a valid stream at the key, so a snapshot of
the copy may be taken at any time. The order is: the counters (HEAD), blocks, groups with their
pending entries and the keys of an order, scheduled entries, and everything else (END). The data of
a part that is too long is divided; all but the last piece of it are kept until that arrives (MORE).
Consumers and held entries have parts of their own if there are many (CONSUMERS, HELD).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]

from millstream.storage.blocks.block import Block
from millstream.storage.capture.captured_keys import Captured, packed_meta
from millstream.storage.capture.ordering_snapshot import restore_ordering
from millstream.storage.groups.group import Group
from millstream.storage.groups.group_snapshot import (
    PENDING_SIZE,
    load_group,
    load_more_consumers,
    load_more_keys,
    load_more_pending,
)
from millstream.storage.groups.key_order import SAVED_SIZE
from millstream.storage.groups.pending_chunks import SharedPending
from millstream.storage.groups.shared_groups import SharedGroups, SharedMembers
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.log.log_loading import add_blocks
from millstream.storage.reservations import held_snapshot
from millstream.storage.streams.schedule import Schedule
from millstream.storage.streams.schedule_snapshot import put_rows, restore_last_number
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import load_rest, load_stream, stream_has_rules

Part = tuple[bytes | int, ...]
"""The name and the words of an effect; empty: only work was done."""

PART_BYTES = 128 << 10
_KEYPART = b"KEYPART"
# The kinds of parts of a stream.
MORE, HEAD, BLOCKS, OPEN_BLOCKS, GROUPS, PENDING, ORDER, PARKED, SCHEDULED, END = range(10)
CONSUMERS, HELD = 10, 11
_RUN_BLOCKS = 64
# The pending entries of one part: about a third of a millisecond's work.
_PENDING_BYTES = PENDING_SIZE * 3500
_CHUNKS_AT_ONCE = 50  # with up to 64 pending entries each
_KEYS_BYTES = SAVED_SIZE * 5000
_GROUPS_AT_ONCE = 100
# A group with more consumers, or a stream that holds more, has parts of its own for them, with at
# most that many each.
_CONSUMERS_AT_ONCE = 500
_HELD_AT_ONCE = 500
_HELD_BLOCKS = 8  # of a run of held entries
_HEAVY_WEIGHT = 256  # such a part takes as much time as this number of small effects
# What a group has about single pending entries: rows that begin with an ID.
_ABOUT_ENTRIES = ("large_counts", "dead")
_ID = struct.Struct("<QQ")  # a record of a pending entry begins with that
_HEAD = (
    *("length", "last_id", "first_kept", "max_evicted", "max_deleted", "incarnation", "expires_ms"),
    *("entries_added", "entries_evicted", "entries_deleted"),
)
# The keys of an order, and those of entries that are parked.
_ORDERS = ((ORDER, "order_keys"), (PARKED, "parked"))
_OWN_PARTS = ("groups", "schedule", "open")


# ---------------------------------------------------------------- making parts


def string_parts(key: bytes, value: bytes, expiry_ms: int | None) -> Iterator[Part]:
    """The effects that make a string."""
    yield b"SET", key, bytes(value[:PART_BYTES])
    for at in range(PART_BYTES, len(value), PART_BYTES):
        yield b"EXTEND", key, bytes(value[at : at + PART_BYTES])
    if expiry_ms is not None:
        yield b"EXPIRE", key, expiry_ms


def stream_parts(captured: Captured) -> Iterator[Part]:
    """The effects that make a stream."""
    key, meta, blocks = captured.key, captured.meta, captured.blocks
    head = {name: meta[name] for name in _HEAD if name in meta}
    yield _KEYPART, key, HEAD, msgpack.packb(head)
    yield from _block_parts(key, blocks, meta["open"])
    for kind, data in _group_parts(meta["groups"]):
        yield from _divided(key, kind, data)
    rest = {name: value for name, value in meta.items() if name not in (*head, *_OWN_PARTS)}
    rest["length"] = meta["length"]
    if len(meta.get("held", ())) > _HELD_AT_ONCE:
        for data in rest.pop("held").parts(_HELD_AT_ONCE, _HELD_BLOCKS):
            yield from _divided(key, HELD, data)
    if "schedule" in meta:
        schedule = meta["schedule"]
        rest["last_number"] = schedule.last_number
        for rows in schedule.packed_rows(PART_BYTES):
            yield from _divided(key, SCHEDULED, rows)
    data = b""
    for part in packed_meta(rest):
        data += part
        while len(data) > PART_BYTES:
            yield _KEYPART, key, MORE, data[:PART_BYTES]
            data = data[PART_BYTES:]
        yield ()
    yield _KEYPART, key, END, data


def _divided(key: bytes, kind: int, data: bytes) -> Iterator[Part]:
    at = 0
    while len(data) - at > PART_BYTES:
        yield _KEYPART, key, MORE, data[at : at + PART_BYTES]
        at += PART_BYTES
    yield _KEYPART, key, kind, data[at:]


def _block_parts(key: bytes, blocks: Sequence[Any], is_open: bool) -> Iterator[Part]:
    at, count = 0, len(blocks)
    while at < count:
        following = blocks[at : at + _RUN_BLOCKS]
        data, taken, _, _ = following[0].pack(following, PART_BYTES, 2**62)
        at += taken
        kind = OPEN_BLOCKS if is_open and at == count else BLOCKS
        yield from _divided(key, kind, taken.to_bytes(4, "little") + data)


def _group_parts(groups: SharedGroups) -> Iterator[tuple[int, bytes]]:
    """The parts of the groups of a stream, each as its kind and its data."""
    several: list[bytes] = []
    size_bytes = 0
    for meta, pending, members in groups.without_pending(_CONSUMERS_AT_ONCE) if groups else ():
        rest: Iterable[tuple[int, bytes]] = ()
        if members is not None or _is_divided(meta, pending):
            keys = [(kind, meta.pop(name, b"")) for kind, name in _ORDERS]
            about = [sorted(meta.pop(name, ())) for name in _ABOUT_ENTRIES]
            meta["large_counts"] = ()
            rest = _group_rest(meta["name"], members, pending, about, keys)
        elif pending is not None:
            meta["pending"] = bytes(pending)
        several.append(msgpack.packb(meta, default=bytes))
        size_bytes += len(several[-1])
        if rest or size_bytes >= PART_BYTES // 4 or len(several) == _GROUPS_AT_ONCE:
            yield GROUPS, _array(several)
            several, size_bytes = [], 0
        yield from rest
    if several:
        yield GROUPS, _array(several)


def _is_divided(meta: dict[str, Any], pending: SharedPending | None) -> bool:
    """True if the pending entries of a group, or the keys of its order, are parts of their own."""
    records = 0 if pending is None else pending.records
    many_keys = any(len(meta.get(name, b"")) > _KEYS_BYTES for _, name in _ORDERS)
    return records * PENDING_SIZE > _PENDING_BYTES or many_keys


def _group_rest(
    name: bytes,
    members: SharedMembers | None,
    pending: SharedPending | None,
    about: Sequence[list[Any]],
    keys: list[tuple[int, bytes]],
) -> Iterator[tuple[int, bytes]]:
    """The consumers of a group, if they are many, its pending entries with what it has about single
    ones, then the keys of its order."""
    if members is not None:
        for start in range(1, len(members.names), _CONSUMERS_AT_ONCE):
            yield CONSUMERS, msgpack.packb([name, members.facts(start, _CONSUMERS_AT_ONCE)])
    begun = [0 for _ in about]
    for start in range(0, 0 if pending is None else pending.chunk_count, _CHUNKS_AT_ONCE):
        assert pending is not None
        for data in _pieces(pending.part(start, _CHUNKS_AT_ONCE), _PENDING_BYTES):
            last_id = [*_ID.unpack_from(data, len(data) - PENDING_SIZE)]
            ends = [bisect_left(rows, [last_id[0], last_id[1] + 1]) for rows in about]
            facts = [rows[at:end] for rows, at, end in zip(about, begun, ends, strict=True)]
            begun = ends
            yield PENDING, msgpack.packb([name, data, *facts] if any(facts) else [name, data])
    for kind, whole in keys:
        for data in _pieces(whole, _KEYS_BYTES):
            yield kind, msgpack.packb([name, data])


def _pieces(whole: bytes, size: int) -> Iterator[bytes]:
    return (whole[at : at + size] for at in range(0, len(whole), size))


def _array(packed: list[bytes]) -> bytes:
    head: bytes = msgpack.Packer().pack_array_header(len(packed))
    return head + b"".join(packed)


def weight_of(part: Part) -> int:
    """The work for a part, in small effects."""
    is_heavy = len(part) > 2 and part[0] == _KEYPART and part[2] in (CONSUMERS, HELD)
    return _HEAVY_WEIGHT if is_heavy else 1


# ---------------------------------------------------------------- restoring them


def restore_part(keyspace: Keyspace, key: bytes, kind: int, data: bytes) -> None:
    """Restore a part of a stream; ValueError when it is malformed or does not fit the others."""
    unfinished = keyspace.slot_states.unfinished
    if kind == MORE:
        unfinished.setdefault(key, bytearray()).extend(data)
        return
    if key in unfinished:
        data = bytes(unfinished.pop(key)) + data
    try:
        _restore(keyspace, key, kind, data)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _restore(keyspace: Keyspace, key: bytes, kind: int, data: bytes) -> None:
    db = keyspace.databases[0]
    if kind == HEAD:
        _begin(keyspace, key, msgpack.unpackb(data))
        return
    stream = db.writable_stream(key)
    if stream is None:
        raise ValueError(f"a part of {key!r} comes before its beginning")
    if kind in (BLOCKS, OPEN_BLOCKS):
        count = int.from_bytes(data[:4], "little")
        add_blocks(stream, Block.unpack(memoryview(data), 4, count)[0], kind == OPEN_BLOCKS)
        db.forget_cached()
    elif kind == GROUPS:
        for meta in msgpack.unpackb(data, strict_map_key=False):
            stream.load_group(load_group(meta, keyspace.steady_ms))
    elif kind == PENDING:
        name, *rest = msgpack.unpackb(data)
        load_more_pending(_group(stream, name), *rest)
    elif kind == CONSUMERS:
        name, rows = msgpack.unpackb(data)
        load_more_consumers(_group(stream, name), rows)
    elif kind == HELD:
        meta = msgpack.unpackb(data)
        db.reservations += held_snapshot.load_more(stream, meta, keyspace.steady_ms)
    elif kind in (ORDER, PARKED):
        name, keys = msgpack.unpackb(data)
        load_more_keys(_group(stream, name), keys, kind == PARKED)
    elif kind == SCHEDULED:
        _add_scheduled(db, stream, data)
    elif kind == END:
        _end(keyspace, key, stream, msgpack.unpackb(data, strict_map_key=False))
    else:
        raise ValueError(f"a part of kind {kind} is not known to this version")


def _group(stream: Stream, name: bytes) -> Group:
    group = stream.group(name)
    if group is None:
        raise ValueError(f"a part of group {name!r} comes before its beginning")
    return group


def _begin(keyspace: Keyspace, key: bytes, meta: dict[str, Any]) -> None:
    db = keyspace.databases[0]
    if key in db.table:
        raise ValueError(f"{key!r} is there already")
    db.before_change(key)
    empty = {**meta, "length": 0, "groups": (), "producers": {}}
    db.put(key, load_stream(empty, (), keyspace.steady_ms))
    keyspace.incarnation = max(keyspace.incarnation, meta["incarnation"])
    if "expires_ms" in meta:
        db.note_expiry(key, meta["expires_ms"])


def _add_scheduled(db: Any, stream: Stream, data: bytes) -> None:
    if stream.schedule is None:
        stream.schedule = Schedule()
    before = len(stream.schedule)
    put_rows(stream.schedule, data)
    db.scheduled += len(stream.schedule) - before


def _end(keyspace: Keyspace, key: bytes, stream: Stream, meta: dict[str, Any]) -> None:
    """Restore the rest of a stream, and schedule its timers."""
    db = keyspace.databases[0]
    if stream.length != meta["length"]:
        raise ValueError(f"it holds {stream.length} entries and says {meta['length']}")
    load_rest(stream, meta)
    if "last_number" in meta:
        if stream.schedule is None:
            stream.schedule = Schedule()
        restore_last_number(stream.schedule, meta["last_number"])
    restore_ordering(stream, meta, keyspace.steady_ms)
    if stream.held is not None and "held" in meta:
        db.reservations += stream.held.reservations
    ordering = stream.held is not None or stream.lineage is not None or stream.is_followed
    keyspace.has_ordering = keyspace.has_ordering or ordering
    keyspace.has_rules = keyspace.has_rules or stream_has_rules(stream)
    db.forget_cached()
    db.schedule_groups(key, stream)
