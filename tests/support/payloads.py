"""Payloads of Redis, built from the specification of the format, independently of the server's
code.

They cover every type of stream that Redis has had, and every listpack form of numbers and texts,
including forms that no available server writes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Id = tuple[int, int]
VERSIONS = {0: 9, 15: 9, 19: 10, 21: 11, 26: 13, 27: 14}


def crc64(data: bytes) -> int:
    """CRC-64 of Jones, bit by bit."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
    return crc


def sealed(body: bytes, version: int | None = None) -> bytes:
    """A payload: the body followed by version and checksum."""
    body += struct.pack("<H", VERSIONS[body[0]] if version is None else version)
    return body + struct.pack("<Q", crc64(body))


def length(number: int) -> bytes:
    if number < 64:
        return bytes((number,))
    if number < 16384:
        return bytes((0x40 | number >> 8, number & 255))
    return (
        struct.pack(">BI", 0x80, number) if number < 1 << 32 else struct.pack(">BQ", 0x81, number)
    )


def text(data: bytes) -> bytes:
    return length(len(data)) + data


def compressed(packed: bytes, size: int) -> bytes:
    return b"\xc3" + length(len(packed)) + length(size) + packed


def ids(entry_id: Id) -> bytes:
    return length(entry_id[0]) + length(entry_id[1])


def raw_id(entry_id: Id) -> bytes:
    return struct.pack(">QQ", *entry_id)


# ---------------------------------------------------------------- listpacks


# The largest elements whose length Redis writes in one, two, three and four bytes: all but the
# first are one below the maximum of seven bits per byte.
BACK_LENGTH_MOST = (127, 16_382, 2_097_150, 268_435_454)


def _with_back_length(element: bytes) -> bytes:
    size = len(element)
    width = 1 + sum(size > most for most in BACK_LENGTH_MOST)
    groups = [size >> 7 * i & 127 for i in reversed(range(width))]
    return element + bytes([groups[0], *(group | 128 for group in groups[1:])])


def number(value: int, form: int = 0) -> bytes:
    """A number; `form` selects one of the possible forms, the shortest first."""
    forms = []
    if 0 <= value < 128:
        forms.append(bytes((value,)))
    if -4096 <= value < 4096:
        forms.append(struct.pack(">H", 0xC000 | value & 0x1FFF))
    for bits, head in ((16, 0xF1), (24, 0xF2), (32, 0xF3), (64, 0xF4)):
        if -(1 << bits - 1) <= value < 1 << bits - 1:
            forms.append(bytes((head,)) + (value & (1 << bits) - 1).to_bytes(bits // 8, "little"))
    return _with_back_length(forms[min(form, len(forms) - 1)])


def string(data: bytes, form: int = 0) -> bytes:
    forms = []
    if len(data) < 64:
        forms.append(bytes((0x80 | len(data),)))
    if len(data) < 4096:
        forms.append(struct.pack(">H", 0xE000 | len(data)))
    forms.append(struct.pack("<BI", 0xF0, len(data)))
    return _with_back_length(forms[min(form, len(forms) - 1)] + data)


def listpack(elements: Sequence[bytes], count: int | None = None) -> bytes:
    body = b"".join(elements)
    stored_count = len(elements) if count is None else count
    return struct.pack("<IH", 7 + len(body), min(stored_count, 0xFFFF)) + body + b"\xff"


@dataclass
class Entry:
    id: Id
    words: list[bytes]
    deleted: bool = False


def node(entries: Sequence[Entry], form: int = 0) -> tuple[Id, bytes]:
    """A node's key and listpack; the first entry's names are its names."""
    key, names = entries[0].id, entries[0].words[::2]
    gone = sum(entry.deleted for entry in entries)
    elements = [number(len(entries) - gone, form), number(gone, form), number(len(names), form)]
    elements += [string(name, form) for name in names] + [number(0, form)]
    for entry in entries:
        same = entry.words[::2] == names
        row = [number(2 * same + entry.deleted, form)]
        row += [
            number((mine - first + (1 << 63)) % (1 << 64) - (1 << 63), form)
            for mine, first in zip(entry.id, key, strict=True)
        ]
        if not same:
            row.append(number(len(entry.words) // 2, form))
        row += [string(word, form) for word in entry.words[1 if same else 0 :: 2 if same else 1]]
        elements += [*row, number(len(row), form)]
    return key, listpack(elements)


# ---------------------------------------------------------------- streams


@dataclass
class Consumer:
    name: bytes
    pending: list[Id]
    seen_ms: int = 1_700_000_000_000
    active_ms: int = 1_700_000_000_001


@dataclass
class Group:
    name: bytes
    last_id: Id = (0, 0)
    entries_read: int = 0
    pending: list[tuple[Id, int, int]] = field(default_factory=list)  # id, time, deliveries
    consumers: list[Consumer] = field(default_factory=list)
    released: list[Id] = field(default_factory=list)


@dataclass
class Stream:
    nodes: list[list[Entry]]
    last_id: Id = (0, 0)
    max_deleted: Id = (0, 0)
    entries_added: int | None = None
    groups: list[Group] = field(default_factory=list)
    duration_s: int = 100
    maxsize: int = 100
    producers: list[tuple[bytes, list[tuple[bytes, Id]]]] = field(default_factory=list)
    iids_added: int = 0
    iids_duplicates: int = 0

    @property
    def live(self) -> list[Entry]:
        return [entry for entries in self.nodes for entry in entries if not entry.deleted]

    def body(self, kind: int, form: int = 0) -> bytes:
        """The value with its type byte before it."""
        parts = [bytes((kind,)), length(len(self.nodes))]
        for entries in self.nodes:
            key, packed = node(entries, form)
            parts += [text(raw_id(key)), text(packed)]
        live = self.live
        last = max([self.last_id, *(entry.id for entry in live)])
        parts += [length(len(live)), ids(last)]
        if kind >= 19:
            added = len(live) if self.entries_added is None else self.entries_added
            parts += [ids(live[0].id if live else (0, 0)), ids(self.max_deleted), length(added)]
        parts.append(length(len(self.groups)))
        parts += [_group(group, kind) for group in self.groups]
        if kind >= 26:
            parts += [length(self.duration_s), length(self.maxsize), _producers(self.producers)]
            parts += [length(self.iids_added), length(self.iids_duplicates)]
        return b"".join(parts)


def _group(group: Group, kind: int) -> bytes:
    parts = [text(group.name), ids(group.last_id)]
    if kind >= 19:
        parts.append(length(group.entries_read % (1 << 64)))
    parts.append(length(len(group.pending)))
    for entry_id, at_ms, deliveries in group.pending:
        parts += [raw_id(entry_id), struct.pack("<q", at_ms), length(deliveries)]
    parts.append(length(len(group.consumers)))
    for consumer in group.consumers:
        parts += [text(consumer.name), struct.pack("<q", consumer.seen_ms)]
        if kind >= 21:
            parts.append(struct.pack("<q", consumer.active_ms))
        parts += [length(len(consumer.pending)), *map(raw_id, consumer.pending)]
    if kind >= 27:
        parts += [length(len(group.released)), *map(raw_id, group.released)]
    return b"".join(parts)


def _producers(producers: Iterable[tuple[bytes, list[tuple[bytes, Id]]]]) -> bytes:
    rows = list(producers)
    parts = [length(len(rows))]
    for name, messages in rows:
        parts += [text(name), length(len(messages))]
        for iid, entry_id in messages:
            parts += [text(iid), ids(entry_id)]
    return b"".join(parts)
