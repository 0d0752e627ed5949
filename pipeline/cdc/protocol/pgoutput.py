"""Decoding PostgreSQL's logical replication messages (plugin pgoutput, protocol version 1).

Bytes in, messages out. Values stay bytes: the text format of the source, in its encoding, which
the reader sets to UTF-8. The format is in PostgreSQL's manual, "Logical Replication Message
Formats".
"""

from __future__ import annotations

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
class Column:
    name: str
    type_oid: int
    type_modifier: int
    is_key: bool
    """Whether the column is part of the replica identity."""


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
    columns: tuple[Column, ...]


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
    cursor = _Cursor(data)
    kind = cursor.letter()
    try:
        read = _READERS[kind]
    except KeyError:
        raise DecodeError(f"a message of the unknown kind {kind!r}") from None
    message = read(cursor)
    if cursor.at != len(data) and not isinstance(message, Ignored):
        raise DecodeError(f"{len(data) - cursor.at} bytes too many in a message of kind {kind!r}")
    return message


_TEXT, _NULL, _UNCHANGED = b"tnu"


class _Cursor:
    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, size: int, signed: bool = False) -> int:
        """An integer of `size` bytes."""
        end = self.at + size
        if end > len(self.data):
            raise DecodeError(f"a message ends after {len(self.data)} bytes, too early")
        value = int.from_bytes(self.data[self.at : end], signed=signed)
        self.at = end
        return value

    def text(self) -> str:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise DecodeError("a name has no end")
        try:
            value = self.data[self.at : end].decode()
        except UnicodeDecodeError:
            raise DecodeError(f"the name {self.data[self.at : end]!r} is not UTF-8") from None
        self.at = end + 1
        return value

    def letter(self) -> str:
        at = self.at
        if at >= len(self.data):
            raise DecodeError(f"a message ends after {at} bytes, too early")
        self.at = at + 1
        return chr(self.data[at])

    def row(self) -> Row:
        """The hot path of a reader: without a call for each value."""
        data, values, size = self.data, list[Value](), len(self.data)
        count, at = self.number(2), self.at
        for _ in range(count):
            kind = data[at] if at < size else 0
            if kind == _TEXT:
                start = at + 5
                at = start + int.from_bytes(data[at + 1 : start])
                if at > size or start > size:
                    raise DecodeError(f"a value is longer than its message of {size} bytes")
                values.append(data[start:at])
            elif kind == _NULL:
                values.append(None)
                at += 1
            elif kind == _UNCHANGED:
                values.append(UNCHANGED)
                at += 1
            elif at >= size:
                raise DecodeError(f"a message ends after {size} bytes, too early")
            else:
                raise DecodeError(f"a value of the unknown kind {chr(kind)!r}")
        self.at = at
        return values


def _begin(cursor: _Cursor) -> Begin:
    lsn, committed_us, xid = (cursor.number(8), cursor.number(8, signed=True), cursor.number(4))
    return Begin(lsn, committed_us + POSTGRES_EPOCH_US, xid)


def _commit(cursor: _Cursor) -> Commit:
    cursor.number(1)  # flags, unused
    lsn, end_lsn, committed_us = (cursor.number(8), cursor.number(8), cursor.number(8, signed=True))
    return Commit(lsn, end_lsn, committed_us + POSTGRES_EPOCH_US)


def _relation(cursor: _Cursor) -> Relation:
    relation_id = cursor.number(4)
    # An empty schema stands for pg_catalog.
    schema, name, identity = cursor.text() or "pg_catalog", cursor.text(), cursor.letter()
    return Relation(
        relation_id,
        schema,
        name,
        identity,
        tuple(_column(cursor) for _ in range(cursor.number(2))),
    )


def _column(cursor: _Cursor) -> Column:
    is_key = cursor.number(1) & 1
    name = cursor.text()
    return Column(name, cursor.number(4), cursor.number(4, signed=True), bool(is_key))


def _insert(cursor: _Cursor) -> Insert:
    relation_id = cursor.number(4)
    _expect(cursor, "N")
    return Insert(relation_id, cursor.row())


def _update(cursor: _Cursor) -> Update:
    relation_id = cursor.number(4)
    kind, old = cursor.letter(), None
    if kind in "KO":
        old = cursor.row()
        _expect(cursor, "N")
    elif kind != "N":
        raise DecodeError(f"an update with a part of the unknown kind {kind!r}")
    return Update(relation_id, old, kind == "K", cursor.row())


def _delete(cursor: _Cursor) -> Delete:
    relation_id = cursor.number(4)
    kind = cursor.letter()
    if kind not in "KO":
        raise DecodeError(f"a delete with a part of the unknown kind {kind!r}")
    return Delete(relation_id, cursor.row(), kind == "K")


def _truncate(cursor: _Cursor) -> Truncate:
    count, options = cursor.number(4), cursor.number(1)
    if count * 4 > len(cursor.data):
        raise DecodeError(f"a TRUNCATE of {count} tables is longer than its message")
    ids = tuple(cursor.number(4) for _ in range(count))
    return Truncate(ids, bool(options & 1), bool(options & 2))


def _expect(cursor: _Cursor, letter: str) -> None:
    found = cursor.letter()
    if found != letter:
        raise DecodeError(f"a part of the kind {found!r} where {letter!r} was expected")


_READERS: dict[str, Callable[[_Cursor], Message]] = {
    "B": _begin,
    "C": _commit,
    "R": _relation,
    "I": _insert,
    "U": _update,
    "D": _delete,
    "T": _truncate,
    "O": lambda cursor: Ignored("origin"),
    "Y": lambda cursor: Ignored("type"),
    "M": lambda cursor: Ignored("message"),
}
