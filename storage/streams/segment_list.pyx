# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The segments of `held` in a list in the order of IDs: how one is found, and how the list stays short.

IDs only rise, so new segments come last and a segment is found by bisection. Held entries that follow
each other without a reservation between them are put together into runs from time to time, and
reservations that were given up are forgotten (`compact`): when one in 16 segments of the list was
settled since the last time and is still there, so each settlement pays for a few segments only.
"""

from libc.stdint cimport uint64_t

cimport cython

from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.layout cimport Entry, View
from millstream.storage.streams.entry_log cimport EntryLog
from millstream.storage.streams.segments cimport Run, Slot

cdef enum:
    # Settled segments in a row that become a run, and settlements after which that is tried.
    RUN_MIN = 16
    # The list is shortened after this number of dropped segments.
    DROP_MIN = 64
    # Settled segments that are worth it; fewer are often released soon.
    COMPACT_MIN = 4096
    # The list is compacted when this part of it was settled and is still there.
    COMPACT_PART = 16
    # The memory of a run without its blocks, about.
    RUN_BYTES = 264


@cython.no_gc
cdef class SegmentList:
    """Segments; those before `first` are dropped."""

    cdef Slot oldest(self):
        """The oldest open reservation; None when there is none."""
        cdef Py_ssize_t at
        if self.reservations:
            # The first one, unless a release failed.
            for at in range(self.first, len(self.segments)):
                if (<Slot>self.segments[at]).is_open:
                    return <Slot>self.segments[at]
        return None

    cdef bint has_settled_first(self) noexcept:
        """Whether nothing waits for the first segment any more: a release ran out of memory."""
        return self.first < len(self.segments) and not (<Slot>self.segments[self.first]).is_open

    cdef Py_ssize_t index_of(self, const EntryId* at) noexcept:
        """The last segment that begins at or below an ID; the one before the first, if none does."""
        cdef Py_ssize_t low = self.first
        cdef Py_ssize_t high = len(self.segments)
        cdef Py_ssize_t middle
        cdef Slot segment
        while low < high:
            middle = (low + high) >> 1
            segment = <Slot>self.segments[middle]
            if id_less(at.ms, at.seq, segment.id.ms, segment.id.seq):
                high = middle
            else:
                low = middle + 1
        return low - 1

    cdef Slot find_open(self, const EntryId* at, Py_ssize_t* index):
        """The open reservation with this ID, and where it stands; None when there is none."""
        cdef Slot slot
        if self.reservations == 0:
            return None
        index[0] = self.probable_index(at)
        slot = <Slot>self.segments[index[0]]
        if slot.id.ms != at.ms or slot.id.seq != at.seq:
            index[0] = self.index_of(at)
            if index[0] < self.first:
                return None
            slot = <Slot>self.segments[index[0]]
        self.found = index[0]
        return slot if slot.is_open and slot.id.ms == at.ms and slot.id.seq == at.seq else None

    cdef Py_ssize_t probable_index(self, const EntryId* at) noexcept:
        """Where an ID stands if it is next to the one found before, or was reserved together with it;
        otherwise the first."""
        cdef Py_ssize_t index = self.found
        cdef Py_ssize_t count = len(self.segments)
        cdef Slot slot
        if not self.first <= index < count:
            return self.first
        slot = <Slot>self.segments[index]
        if slot.id.ms == at.ms:
            index += <Py_ssize_t>(at.seq - slot.id.seq)
        elif slot.id.ms < at.ms:
            index += 1
        else:
            index -= 1
        return index if self.first <= index < count else self.first

    cdef bint has_entry(self, const EntryId* at) except -1:
        """Whether a held entry has this ID."""
        cdef Py_ssize_t index = self.index_of(at)
        cdef Slot slot
        cdef View view
        cdef Entry entry
        if index < self.first:
            return False
        slot = <Slot>self.segments[index]
        if type(slot) is Run:
            return (<Run>slot).entries.find(at.ms, at.seq, &view, &entry)
        return slot.words is not None and slot.id.ms == at.ms and slot.id.seq == at.seq

    # ------------------------------------------------------------ keeping it short

    cdef int drop_first(self) except -1:
        """Remove the dropped segments from the list, if there are many."""
        cdef Py_ssize_t count = len(self.segments)
        if self.first == count:
            self.segments.clear()
            self.first = 0
            self.settled_since = 0
        elif self.first >= DROP_MIN and self.first * 2 >= count:
            del self.segments[:self.first]
            self.first = 0
        return 0

    cpdef int tidy(self) except -1:
        """Compact what is held, if there is enough to gain. Call it after the effect of a settlement or
        an append was recorded: it may need memory."""
        if self.settled_since >= COMPACT_MIN and (
                self.settled_since * COMPACT_PART >= len(self.segments) - self.first):
            self.compact()
        return 0

    cdef int compact(self) except -1:
        """Put held entries that follow each other into runs; forget reservations given up. Without
        memory it stops on its way: each entry is in one place at any time."""
        cdef list segments = self.segments
        cdef Py_ssize_t count = len(segments)
        cdef Py_ssize_t at = self.first
        cdef Py_ssize_t to = 0
        cdef Py_ssize_t gone
        cdef Slot slot
        cdef Run run = None  # that takes what comes next
        cdef bint merges = False
        self.settled_since = 0
        try:
            while at < count:
                slot = <Slot>segments[at]
                if slot.is_open:
                    run = None
                    merges = False
                    segments[to] = slot
                    to += 1
                elif run is None and not merges and not self.is_worth_a_run(at):
                    # All up to the next reservation stay as they are.
                    while at < count and not (<Slot>segments[at]).is_open:
                        slot = <Slot>segments[at]
                        if type(slot) is Run or slot.words is not None:
                            segments[to] = slot
                            to += 1
                        at += 1
                    continue
                elif type(slot) is not Run and slot.words is None:
                    merges = True
                elif run is None:
                    merges = True
                    run = <Run>slot if type(slot) is Run else self.run_of(slot)
                    segments[to] = run
                    to += 1
                elif type(slot) is Run:
                    run.absorb(<Run>slot, self.node_entries, self.node_bytes)
                else:
                    run.append(slot.id, slot.words, slot.writer, self.node_entries,
                               self.node_bytes)
                at += 1
        finally:
            while at < count:
                segments[to] = segments[at]
                to += 1
                at += 1
            # Now they go to the end of the list. A shorter list could fail, this cannot.
            gone = count - to
            for at in range(to - 1, -1, -1):
                segments[at + gone] = segments[at]
            for at in range(gone):
                segments[at] = None
            self.first = gone
        return self.drop_first()

    cdef bint is_worth_a_run(self, Py_ssize_t at) except -1:
        """Whether what is settled from a segment up to the next reservation becomes one run."""
        cdef Slot slot
        cdef Py_ssize_t entries = 0
        cdef bint has_run = False
        for at in range(at, len(self.segments)):
            slot = <Slot>self.segments[at]
            if slot.is_open:
                break
            if type(slot) is Run:
                has_run = True
                entries += 1
            elif slot.words is not None:
                entries += 1
            if entries >= RUN_MIN or (has_run and entries > 1):
                return True
        return False

    cdef Run run_of(self, Slot slot):
        """A run of one entry."""
        cdef Run run = Run.__new__(Run)
        run.id = slot.id
        run.entries = EntryLog.__new__(EntryLog)
        run.append(slot.id, slot.words, slot.writer, self.node_entries, self.node_bytes)
        return run

    cdef uint64_t segment_bytes(self) noexcept:
        """An estimate of the memory that the segments take."""
        cdef Slot segment
        cdef uint64_t total = 8 * <uint64_t>len(self.segments)
        cdef Py_ssize_t i
        for i in range(self.first, len(self.segments)):
            segment = <Slot>self.segments[i]
            if type(segment) is Run:
                total += RUN_BYTES + (<Run>segment).entries.data_memory_bytes()
                if (<Run>segment).writers is not None:
                    total += 8 * (<Run>segment).entries.length
            else:
                total += 128
                if segment.words is not None:
                    total += 33 + <uint64_t>len(segment.words)
        return total
