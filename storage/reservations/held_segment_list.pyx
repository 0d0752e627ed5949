# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The segments of `held` in a list in the order of IDs: finding one, and keeping the list short.

IDs only ascend, so new segments are appended and a segment is found by bisection. `compact` joins
consecutive held entries without a reservation between them into runs, and removes reservations that
were given up. It runs when one in 16 segments of the list was settled since the last time and is
still there, so its cost per settlement is a few segments.
"""

from libc.stdint cimport uint64_t

cimport cython

from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.layout cimport Entry, View
from millstream.storage.log.entry_log cimport EntryLog
from millstream.storage.reservations.held_segments cimport Run, Slot

from millstream.storage.blocks.lazyfree import discard_items

cdef enum:
    # The number of consecutive settled segments that become a run, and of settlements after which
    # compaction is considered.
    RUN_MIN = 16
    # Dropped segments are removed from the list when there are this many.
    DROP_MIN = 64
    # The least number of settled segments for a compaction; fewer are often released soon.
    COMPACT_MIN = 4096
    # The list is compacted when this fraction of it was settled and is still there.
    COMPACT_PART = 16
    # The approximate memory of a run without its blocks.
    RUN_BYTES = 264


@cython.no_gc
cdef class SegmentList:
    """Segments; those before `first` are dropped."""

    def __cinit__(self):
        self.items = []
        self.node_entries = 100
        self.node_bytes = 4096

    def __dealloc__(self):
        if self.items is not None:
            discard_items(self.items)

    cdef Slot oldest(self):
        """The oldest open reservation; None when there is none."""
        cdef Py_ssize_t at
        # It is the first segment, unless a release failed.
        for at in range(self.first, len(self.items)):
            if (<Slot>self.items[at]).is_open:
                return <Slot>self.items[at]
        return None

    cdef bint has_settled_first(self) noexcept:
        """True if the first segment is already settled, because a release ran out of memory."""
        return self.first < len(self.items) and not (<Slot>self.items[self.first]).is_open

    cdef Py_ssize_t index_of(self, const EntryId* at) noexcept:
        """The index of the last segment that begins at or below an ID; first - 1 without one."""
        cdef Py_ssize_t low = self.first
        cdef Py_ssize_t high = len(self.items)
        cdef Py_ssize_t middle
        cdef Slot segment
        while low < high:
            middle = (low + high) >> 1
            segment = <Slot>self.items[middle]
            if id_less(at.ms, at.seq, segment.id.ms, segment.id.seq):
                high = middle
            else:
                low = middle + 1
        return low - 1

    cdef Slot find_open(self, const EntryId* at, Py_ssize_t* index):
        """The open reservation with this ID, and its index; None when there is none."""
        cdef Slot slot
        if self.first == len(self.items):
            return None
        index[0] = self.probable_index(at)
        slot = <Slot>self.items[index[0]]
        if slot.id.ms != at.ms or slot.id.seq != at.seq:
            index[0] = self.index_of(at)
            if index[0] < self.first:
                return None
            slot = <Slot>self.items[index[0]]
        self.found = index[0]
        return slot if slot.is_open and slot.id.ms == at.ms and slot.id.seq == at.seq else None

    cdef Py_ssize_t probable_index(self, const EntryId* at) noexcept:
        """A guess for the index of an ID: right if the ID is next to the one found before, or was
        reserved together with it; otherwise the first index."""
        cdef Py_ssize_t index = self.found
        cdef Py_ssize_t count = len(self.items)
        cdef Slot slot
        if not self.first <= index < count:
            return self.first
        slot = <Slot>self.items[index]
        if slot.id.ms == at.ms:
            index += <Py_ssize_t>(at.seq - slot.id.seq)
        elif slot.id.ms < at.ms:
            index += 1
        else:
            index -= 1
        return index if self.first <= index < count else self.first

    cdef Slot find_entry(self, const EntryId* at):
        """The segment with a held entry of this ID: a Slot, or a Run with more entries; None when
        there is none."""
        cdef Py_ssize_t index = self.index_of(at)
        cdef Slot slot
        cdef View view
        cdef Entry entry
        if index < self.first:
            return None
        slot = <Slot>self.items[index]
        if type(slot) is Run:
            return slot if (<Run>slot).entries.find(at[0], &view, &entry) else None
        if slot.words is None or slot.id.ms != at.ms or slot.id.seq != at.seq:
            return None
        return slot

    # ------------------------------------------------------------ keeping it short

    cdef int drop_first(self) except -1:
        """Drop the first segment, which is settled. Call `remove_dropped` afterwards."""
        if type(self.items[self.first]) is not Run:
            self.settled_since -= self.settled_since > 0
        self.items[self.first] = None
        self.first += 1
        return 0

    cdef int remove_dropped(self) except -1:
        """Remove dropped segments from the list if there are many."""
        cdef Py_ssize_t count = len(self.items)
        if self.first == count:
            self.items.clear()
            self.first = 0
            self.settled_since = 0
        elif self.first >= DROP_MIN and self.first * 2 >= count:
            del self.items[:self.first]
            self.first = 0
        return 0

    cpdef int tidy(self) except -1:
        """Compact the list if that saves enough. Call this after the effect of a settlement or an
        append was recorded, because it may need memory."""
        if self.settled_since >= COMPACT_MIN and (
                self.settled_since * COMPACT_PART >= len(self.items) - self.first):
            self.compact()
        return 0

    cdef int compact(self) except -1:
        """Join consecutive held entries into runs; remove reservations that were given up. If
        memory runs out it stops early, but each entry is in one place at any time."""
        cdef list items = self.items
        cdef Py_ssize_t count = len(items)
        cdef Py_ssize_t at = self.first
        cdef Py_ssize_t to = 0
        cdef Py_ssize_t gone
        cdef Slot slot
        cdef Run run = None  # the run for the next entries
        cdef bint merges = False
        self.settled_since = 0
        try:
            while at < count:
                slot = <Slot>items[at]
                if slot.is_open:
                    run = None
                    merges = False
                    items[to] = slot
                    to += 1
                elif run is None and not merges and not self.is_worth_a_run(at):
                    # All segments up to the next reservation stay unchanged.
                    while at < count and not (<Slot>items[at]).is_open:
                        slot = <Slot>items[at]
                        if type(slot) is Run or slot.words is not None:
                            items[to] = slot
                            to += 1
                        at += 1
                    continue
                elif type(slot) is not Run and slot.words is None:
                    merges = True
                elif run is None:
                    merges = True
                    run = <Run>slot if type(slot) is Run else self.run_of(slot)
                    items[to] = run
                    to += 1
                elif type(slot) is Run:
                    run.absorb(<Run>slot, self.node_entries, self.node_bytes)
                else:
                    run.append(slot.id, slot.words, slot.writer, self.node_entries,
                               self.node_bytes)
                at += 1
        finally:
            while at < count:
                items[to] = items[at]
                to += 1
                at += 1
            # Now move them to the end of the list. Making a shorter list could fail; this cannot.
            gone = count - to
            for at in range(to - 1, -1, -1):
                items[at + gone] = items[at]
            for at in range(gone):
                items[at] = None
            self.first = gone
        return self.remove_dropped()

    cdef bint is_worth_a_run(self, Py_ssize_t at) except -1:
        """True if the settled segments from this one up to the next reservation should become a
        run."""
        cdef Slot slot
        cdef Py_ssize_t entries = 0
        cdef bint has_run = False
        for at in range(at, len(self.items)):
            slot = <Slot>self.items[at]
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

    cdef uint64_t memory_bytes(self) noexcept:
        """An estimate of the memory of the segments."""
        cdef Slot segment
        cdef uint64_t total = 8 * <uint64_t>len(self.items)
        cdef Py_ssize_t i
        for i in range(self.first, len(self.items)):
            segment = <Slot>self.items[i]
            if type(segment) is Run:
                total += RUN_BYTES + (<Run>segment).entries.data_memory_bytes()
                if (<Run>segment).writers is not None:
                    total += 8 * (<Run>segment).entries.length
            else:
                total += 128
                if segment.words is not None:
                    total += 33 + <uint64_t>len(segment.words)
        return total
