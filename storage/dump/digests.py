"""Digests of a stream, which prove that two streams are equal: of its entries, and of its groups.

Both can also be computed from the replies to XRANGE and XINFO STREAM FULL. docs/tools.md describes
every byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

from millstream.storage.dump.node_codec import digest_form
from millstream.storage.groups.group import Group
from millstream.storage.streams.stream import Stream

DIGEST_BYTES = 16
NO_OWNER = 0xFFFFFFFF

_U32 = struct.Struct(">I")
_ID = struct.Struct(">QQ")
_COUNTS = struct.Struct(">qq")


class PendingRow(NamedTuple):
    """A pending entry; no owner: None."""

    ms: int
    seq: int
    owner: bytes | None
    delivered_ms: int
    deliveries: int


class GroupRow(NamedTuple):
    """The parts of a group that a digest covers. `entries_read` is -1 if it is not known."""

    name: bytes
    offset: tuple[int, int]
    entries_read: int
    consumers: list[bytes]
    pending: list[PendingRow]


def new_digest() -> Any:
    """An empty digest of entries; `update` it with their forms (`node_codec.digest_form`)."""
    return blake2b(digest_size=DIGEST_BYTES)


def entry_form(ms: int, seq: int, words: list[bytes]) -> bytes:
    """An entry as the digest has it."""
    parts = [_ID.pack(ms, seq), _U32.pack(len(words) // 2)]
    parts += [_U32.pack(len(word)) + word for word in words]
    return b"".join(parts)


def stream_digest(stream: Stream) -> str:
    """The digest of the entries of a stream."""
    digest = new_digest()
    for block in stream.blocks():
        if block.first_id >= stream.first_kept:
            digest.update(digest_form(block))
            continue
        for ms, seq, words in block.entries():
            if (ms, seq) >= stream.first_kept:
                digest.update(entry_form(ms, seq, words))
    return str(digest.hexdigest())


def group_row(group: Group) -> GroupRow:
    """A group of a stream."""
    pending = [
        PendingRow(ms, seq, owner or None, delivered_ms, deliveries)
        for ms, seq, owner, delivered_ms, deliveries, *_ in group.pending.rows()
    ]
    offset = group.offset_ms, group.offset_seq
    return GroupRow(
        group.name, offset, group.entries_read, sorted(group.pending.consumers), pending
    )


def groups_digest(groups: Iterable[GroupRow]) -> str:
    """The digest of a stream's groups."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for group in sorted(groups):
        digest.update(_U32.pack(len(group.name)) + group.name + _ID.pack(*group.offset))
        digest.update(struct.pack(">qI", group.entries_read, len(group.consumers)))
        for name in group.consumers:
            digest.update(_U32.pack(len(name)) + name)
        digest.update(struct.pack(">Q", len(group.pending)))
        for row in group.pending:
            owner = _U32.pack(NO_OWNER)
            if row.owner is not None:
                owner = _U32.pack(len(row.owner)) + row.owner
            times = _COUNTS.pack(row.delivered_ms, row.deliveries)
            digest.update(_ID.pack(row.ms, row.seq) + owner + times)
    return digest.hexdigest()
