"""A naive model of streams with reservations: every ID ever handed out is in a list.

It follows the definitions of `docs/writers.md` word for word, without an index and without any
thought for speed, and knows no leases that end.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

EntryId = tuple[int, int]
ZERO: EntryId = (0, 0)
SEQ_MAX = 2**64 - 1


def text_of(entry_id: EntryId) -> bytes:
    return b"%d.%d" % entry_id


def below(entry_id: EntryId) -> EntryId:
    """The ID just below."""
    ms, seq = entry_id
    return (ms, seq - 1) if seq else (ms - 1, SEQ_MAX)


@dataclass
class NaiveStream:
    """One stream."""

    handed: list[EntryId] = field(default_factory=lambda: [ZERO])  # ascending
    entries: dict[EntryId, bytes] = field(default_factory=dict)
    open: dict[EntryId, bytes] = field(default_factory=dict)  # ID to writer
    writer_of: dict[EntryId, bytes] = field(default_factory=dict)
    settled: dict[bytes, set[EntryId]] = field(default_factory=dict)
    evicted: set[EntryId] = field(default_factory=set)
    given_up: set[EntryId] = field(default_factory=set)
    deleted: set[EntryId] = field(default_factory=set)
    max_evicted: EntryId = ZERO
    used: bool = False
    sealed: bool = False
    children: list[bytes] = field(default_factory=list)
    parents: list[bytes] = field(default_factory=list)

    @property
    def last(self) -> EntryId:
        return self.handed[-1]

    @property
    def position(self) -> EntryId:
        return self._before(min(self.open)) if self.open else self.last

    @property
    def watermark(self) -> EntryId:
        return below(min(self.open)) if self.open else self.last

    def visible(self) -> list[EntryId]:
        return [i for i in sorted(self.entries) if i <= self.position]

    def peekable(self) -> list[EntryId]:
        """The entries that TPEEK may return: nothing of the same writer is open below them."""
        oldest: dict[bytes, EntryId] = {}
        for entry_id, writer in self.open.items():
            oldest[writer] = min(oldest.get(writer, entry_id), entry_id)
        return [
            i
            for i in sorted(self.entries)
            if i not in self.writer_of or oldest.get(self.writer_of[i], i) >= i
        ]

    def writers(self) -> list[list[bytes | int | None]]:
        """The rows of TPOSITION WRITERS."""
        rows: list[list[bytes | int | None]] = []
        for writer in sorted(set(self.settled) | set(self.open.values())):
            mine = sorted(i for i, owner in self.open.items() if owner == writer)
            done = [i for i in self.settled.get(writer, ()) if not mine or i < mine[0]]
            position = self._before(mine[0]) if mine else self.last
            oldest = text_of(mine[0]) if mine else None
            last = text_of(max(done, default=ZERO))
            rows.append([writer, text_of(position), last, len(mine), oldest])
        return rows

    def hand_out(self, entry_id: EntryId) -> None:
        assert entry_id > self.last, f"{entry_id} was handed out after {self.last}"
        self.handed.append(entry_id)
        self.used = True

    def append(self, entry_id: EntryId, value: bytes) -> None:
        self.hand_out(entry_id)
        self.entries[entry_id] = value

    def reserve(self, entry_id: EntryId, writer: bytes) -> None:
        self.hand_out(entry_id)
        self.open[entry_id] = writer

    def settle(self, entry_id: EntryId, value: bytes | None) -> None:
        """Complete a reservation, or give it up without a value."""
        writer = self.open.pop(entry_id)
        self.settled.setdefault(writer, set()).add(entry_id)
        if value is None:
            self.given_up.add(entry_id)
        else:
            self.entries[entry_id] = value
            self.writer_of[entry_id] = writer

    def refusal(self, entry_id: EntryId, writer: bytes, value: bytes) -> str:
        """The error of a writer that completes an ID that it has not reserved."""
        reserved = [*self.open, *(i for ids in self.settled.values() for i in ids)]
        own = [i for i, owner in self.open.items() if owner == writer]
        own += self.settled.get(writer, ())
        if entry_id in self.open or not reserved or not min(reserved) <= entry_id:
            return "NORESERVATION"
        if entry_id > max(own, default=ZERO):
            return "NORESERVATION"
        if entry_id not in self.entries:
            return "FACTLOST"
        is_owner = self.writer_of.get(entry_id) == writer or entry_id <= self.position
        return "FACTDONE" if self.entries[entry_id] == value and is_owner else "NORESERVATION"

    def trim(self, length: int) -> int:
        surplus = max(0, len(self.visible()) - length)
        for entry_id in self.visible()[:surplus]:
            del self.entries[entry_id]
            self.evicted.add(entry_id)
            self.max_evicted = max(self.max_evicted, entry_id)
        return surplus

    def delete(self, entry_id: EntryId) -> bool:
        if entry_id not in self.visible():
            return False
        del self.entries[entry_id]
        self.deleted.add(entry_id)
        return True

    def copy(self) -> NaiveStream:
        """Like COPY: the visible entries, without reservations, writers and lineage."""
        return NaiveStream(
            handed=[i for i in self.handed if i <= self.position],
            entries={i: self.entries[i] for i in self.visible()},
            evicted=set(self.evicted),
            deleted=set(self.deleted),
            max_evicted=self.max_evicted,
            used=bool(self.visible() or self.evicted or self.deleted),
        )

    def raise_to(self, floor: EntryId, parent: bytes) -> None:
        """Become the child of a sealed stream."""
        self.handed = [max(self.last, floor)]
        self.parents.append(parent)

    def _before(self, entry_id: EntryId) -> EntryId:
        return self.handed[bisect.bisect_left(self.handed, entry_id) - 1]
