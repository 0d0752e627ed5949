# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The writers that a stream knows: by name, and what is known about those that were forgotten."""

from libc.stdint cimport uint64_t

cimport cython

from millstream.entry_id cimport EntryId, id_less
from millstream.storage.reservations.held_segments cimport Slot, Writer

from collections import OrderedDict

cdef enum:
    # The number of writers to check when a new one exceeds the limit.
    FORGET_LOOKS = 64


@cython.no_gc
cdef class Writers:
    """The writers of one stream."""

    def __cinit__(self):
        self.by_name = OrderedDict()

    cdef Writer use(self, bytes name, uint64_t writers_max):
        """The writer with this name, created if necessary; it becomes the one used last. Above
        writers_max, the least recently used writers without reservations are forgotten."""
        cdef Writer writer = self.recent
        if writer is not None and writer.name == name:
            return writer
        writer = self.by_name.get(name)
        if writer is None:
            writer = Writer.__new__(Writer)
            writer.name = name
            self.forget(writers_max)
            self.by_name[name] = writer
        else:
            self.by_name.move_to_end(name)
        self.recent = writer
        return writer

    def forget(self, uint64_t writers_max) -> None:
        """Forget the least recently used writers until there are fewer than writers_max, checking
        at most FORGET_LOOKS. Writers with reservations stay."""
        cdef Writer writer
        cdef Py_ssize_t looks = min(len(self.by_name), FORGET_LOOKS)
        while looks and <uint64_t>len(self.by_name) >= writers_max:
            looks -= 1
            name = next(iter(self.by_name))
            writer = self.by_name[name]
            if writer.reservations:
                self.by_name.move_to_end(name)
                continue
            del self.by_name[name]
            self.has_forgotten = True
            if writer is self.recent:
                self.recent = None

    cdef bint may_have_reserved(self, bytes name, const EntryId* at) except -1:
        """True if a writer can have reserved an ID at some time: False if it certainly has not.
        The IDs of settled reservations are not remembered, only the bounds of each writer's."""
        cdef Writer writer
        cdef EntryId greatest
        if id_less(at.ms, at.seq, self.first_reserved.ms, self.first_reserved.seq):
            return False
        writer = self.by_name.get(name)
        if writer is None:
            return self.has_forgotten
        greatest = writer.greatest()
        return not id_less(greatest.ms, greatest.seq, at.ms, at.seq)

    def rows(self) -> list:
        """For each writer: (name, oldest reservation or None, the ID before it or None, the
        greatest ID settled below it or None, number of reservations)."""
        cdef Writer writer
        cdef Slot oldest
        rows = []
        for writer in self.by_name.values():
            last = (writer.last.ms, writer.last.seq) if writer.last.ms or writer.last.seq else None
            if writer.oldest == NULL:
                rows.append((writer.name, None, None, last, 0))
            else:
                oldest = <Slot>writer.oldest
                rows.append((writer.name, (oldest.id.ms, oldest.id.seq),
                             (oldest.before.ms, oldest.before.seq), last, writer.reservations))
        return rows

    def position(self, bytes name not None) -> tuple[int, int] | None:
        """The last ID handed out before the oldest reservation of a writer; None without one."""
        cdef Writer writer = self.by_name.get(name)
        cdef Slot oldest
        if writer is None or writer.oldest == NULL:
            return None
        oldest = <Slot>writer.oldest
        return oldest.before.ms, oldest.before.seq

    cdef uint64_t memory_bytes(self) except? 0:
        """An estimate of the memory used."""
        cdef uint64_t total = 0
        for name in self.by_name:
            total += 200 + <uint64_t>len(name)
        return total
