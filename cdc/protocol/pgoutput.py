"""Decoding PostgreSQL's logical replication messages (plugin pgoutput, protocol version 1).

Bytes in, messages out. Values stay bytes: the text format of the source, in its encoding, which
the reader sets to UTF-8. The format is in PostgreSQL's manual, "Logical Replication Message
Formats".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

POSTGRES_EPOCH_US: Final = 946_684_800_000_000
"""2000-01-01, which PostgreSQL counts from, in microseconds since 1970."""


class DecodeError(Exception):
    """The bytes are not a message of this protocol."""


class Unchanged:
    """The value of a large column that the update did not change, so it was not sent."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
Value: TypeAlias = bytes | Unchanged | None
Row: TypeAlias = Sequence[Value]


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    type_modifier: int
    is_key: bool
    """True if the column is part of the replica identity."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction begins. Its commit is at `commit_lsn`."""

    commit_lsn: int
    committed_us: int
    transaction_id: int


@dataclass(frozen=True, slots=True)
class Commit:
    commit_lsn: int
    end_lsn: int
    committed_us: int


@dataclass(frozen=True, slots=True)
class Relation:
    """A table and its columns; sent before its first row, and after it has changed."""

    id: int
    schema: str
    name: str
    identity: str
    """The replica identity: d default, n nothing, f full, i index."""
    columns: tuple[RelationColumn, ...]


@dataclass(slots=True)  # a frozen one takes three times as long to make
class Insert:
    relation_id: int
    new: Row


@dataclass(slots=True)
class Update:
    """`old` is the old row with replica identity full; the old key if the key has changed."""

    relation_id: int
    old: Row | None
    old_is_key: bool
    new: Row


@dataclass(slots=True)
class Delete:
    """`old` is the old row with replica identity full, otherwise the old key."""

    relation_id: int
    old: Row
    old_is_key: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    relation_ids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Ignored:
    """A message that says nothing about rows: an origin, a type, a message of an extension."""

    kind: str


Message: TypeAlias = Begin | Commit | Relation | Insert | Update | Delete | Truncate | Ignored


def decode(data: bytes) -> Message:
    """One message. DecodeError if the bytes are not exactly one."""
    kind = data[:1]
    try:
        read = _READERS[kind]
    except KeyError:
        raise DecodeError(f"a message of the unknown kind {kind!r}") from None
    try:
        message, end = read(data)
    except (struct.error, IndexError):
        raise DecodeError(f"a message ends after {len(data)} bytes, too early") from None
    if end != len(data):
        raise DecodeError(f"a message of kind {kind!r} has {len(data)} bytes instead of {end}")
    return message


# The readers of changes are the hot path of the whole program. Each of them reads its fixed part
# with one call, and values are read without a call for each of them.
_BEGIN = struct.Struct("!QqI")
_COMMIT = struct.Struct("!BQQq")
_CHANGE = struct.Struct("!IcH")
"""The relation, the part that follows, and how many columns it has."""
_PART = struct.Struct("!cH")
_COLUMN = struct.Struct("!Ii")
_TRUNCATE = struct.Struct("!IB")
_length = struct.Struct("!I").unpack_from
_count = struct.Struct("!H").unpack_from
_TEXT, _NULL, _UNCHANGED = b"tnu"

Read: TypeAlias = tuple[Message, int]
"""A message, and where it ends: after the last byte if a length in it is wrong."""


def _row(data: bytes, at: int, count: int) -> tuple[Row, int]:
    """The values of a row, and where they end."""
    values: list[Value] = []
    for _ in range(count):
        kind = data[at]
        if kind == _TEXT:
            start = at + 5
            (size,) = _length(data, at + 1)
            at = start + size
            values.append(data[start:at])
        elif kind == _NULL:
            values.append(None)
            at += 1
        elif kind == _UNCHANGED:
            values.append(UNCHANGED)
            at += 1
        else:
            raise DecodeError(f"a value of the unknown kind {chr(kind)!r}")
    return values, at


def _begin(data: bytes) -> Read:
    lsn, committed_us, xid = _BEGIN.unpack_from(data, 1)
    return Begin(lsn, committed_us + POSTGRES_EPOCH_US, xid), 1 + _BEGIN.size


def _commit(data: bytes) -> Read:
    _flags, lsn, end_lsn, committed_us = _COMMIT.unpack_from(data, 1)
    return Commit(lsn, end_lsn, committed_us + POSTGRES_EPOCH_US), 1 + _COMMIT.size


def _insert(data: bytes) -> Read:
    relation_id, part, count = _CHANGE.unpack_from(data, 1)
    _expect(part, b"N")
    new, end = _row(data, 8, count)
    return Insert(relation_id, new), end


def _update(data: bytes) -> Read:
    relation_id, first, count = _CHANGE.unpack_from(data, 1)
    if first == b"N":
        new, end = _row(data, 8, count)
        return Update(relation_id, None, False, new), end
    _expect(first, b"KO")
    old, at = _row(data, 8, count)
    part, count = _PART.unpack_from(data, at)
    _expect(part, b"N")
    new, end = _row(data, at + 3, count)
    return Update(relation_id, old, first == b"K", new), end


def _delete(data: bytes) -> Read:
    relation_id, part, count = _CHANGE.unpack_from(data, 1)
    _expect(part, b"KO")
    old, end = _row(data, 8, count)
    return Delete(relation_id, old, part == b"K"), end


def _expect(part: bytes, wanted: bytes) -> None:
    if part not in wanted:
        raise DecodeError(f"a part of the unknown kind {part!r} in a change")


def _truncate(data: bytes) -> Read:
    count, options = _TRUNCATE.unpack_from(data, 1)
    end = 1 + _TRUNCATE.size + 4 * count
    if end > len(data):
        raise DecodeError(f"a TRUNCATE of {count} tables is longer than its message")
    ids = struct.unpack_from(f"!{count}I", data, 1 + _TRUNCATE.size)
    return Truncate(ids, bool(options & 1), bool(options & 2)), end


def _relation(data: bytes) -> Read:
    (relation_id,) = _length(data, 1)
    schema, at = _name(data, 5)
    name, at = _name(data, at)
    identity = chr(data[at])
    (count,) = _count(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        column, at = _column(data, at)
        columns.append(column)
    # An empty schema stands for pg_catalog.
    return Relation(relation_id, schema or "pg_catalog", name, identity, tuple(columns)), at


def _column(data: bytes, at: int) -> tuple[RelationColumn, int]:
    is_key = bool(data[at] & 1)
    name, at = _name(data, at + 1)
    type_oid, modifier = _COLUMN.unpack_from(data, at)
    return RelationColumn(name, type_oid, modifier, is_key), at + _COLUMN.size


def _name(data: bytes, at: int) -> tuple[str, int]:
    """A name, and where what follows begins."""
    end = data.find(b"\0", at)
    if end < 0:
        raise DecodeError("a name has no end")
    try:
        return data[at:end].decode(), end + 1
    except UnicodeDecodeError:
        raise DecodeError(f"the name {data[at:end]!r} is not UTF-8") from None


_READERS: dict[bytes, Callable[[bytes], Read]] = {
    b"B": _begin,
    b"C": _commit,
    b"R": _relation,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
    b"O": lambda data: (Ignored("origin"), len(data)),
    b"Y": lambda data: (Ignored("type"), len(data)),
    b"M": lambda data: (Ignored("message"), len(data)),
}
