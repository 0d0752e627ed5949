# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The parts of `held`: reservations and entries (Slot), many entries as blocks (Run), writers.

The names and values of a held entry are packed in one bytes object. A Run has a log of its own,
whose blocks later become blocks of the stream's log without a copy.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

cimport cython

from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.layout cimport entry_slices
from millstream.storage.blocks.open_block cimport OpenBlock, payload_of
from millstream.storage.blocks.skiplist_pages cimport Place, block_at, place_after
from millstream.storage.log.entry_log cimport EntryLog, Walk
from millstream.storage.log.trimming cimport evict_below

cdef enum:
    WORDS_ON_STACK = 128


# ---------------------------------------------------------------- the words of an entry

cdef bytes pack_words(Slice* items, Py_ssize_t count, uint64_t payload):
    """Names and values, `payload` bytes in total, in one object: their number, their sizes, their
    bytes.
    """
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, 4 + 4 * count + <Py_ssize_t>payload)
    cdef char* start = PyBytes_AS_STRING(packed)
    cdef char* at = start + 4 + 4 * count
    cdef uint32_t number = <uint32_t>count
    cdef Py_ssize_t i
    memcpy(start, &number, 4)
    for i in range(count):
        number = <uint32_t>items[i].size
        memcpy(start + 4 + 4 * i, &number, 4)
        memcpy(at, items[i].ptr, items[i].size)
        at += items[i].size
    return packed


cdef Py_ssize_t word_count(bytes words) noexcept:
    cdef uint32_t count
    memcpy(&count, PyBytes_AS_STRING(words), 4)
    return count


cdef Py_ssize_t words_of(bytes words, Slice* items) noexcept:
    """Set `items`, which has space for `word_count` views, to the words that `pack_words`
    packed."""
    cdef const char* start = PyBytes_AS_STRING(words)
    cdef Py_ssize_t count = word_count(words)
    cdef const char* at = start + 4 + 4 * count
    cdef uint32_t size
    cdef Py_ssize_t i
    for i in range(count):
        memcpy(&size, start + 4 + 4 * i, 4)
        items[i].ptr = at
        items[i].size = size
        at += size
    return count


cdef list list_of_words(bytes words):
    """The words that `pack_words` packed, as a list of bytes."""
    cdef Py_ssize_t count = word_count(words)
    cdef object space = bytearray(count * sizeof(Slice))
    cdef Slice* items = <Slice*><char*>(<bytearray>space)
    words_of(words, items)
    return [items[i].ptr[:items[i].size] for i in range(count)]


cdef bytes pack_list(list words):
    """Like `pack_words`, for a list of bytes."""
    cdef object space = bytearray(len(words) * sizeof(Slice))
    cdef Slice* items = <Slice*><char*>(<bytearray>space)
    cdef Py_ssize_t i
    cdef bytes word
    for i in range(len(words)):
        word = words[i]
        items[i].ptr = word
        items[i].size = len(word)
    return pack_words(items, len(words), payload_of(items, len(words)))


cdef uint64_t size_of(bytes words) noexcept:
    """The size of an entry in `held-bytes`."""
    return <uint64_t>(len(words) - 4 - 4 * word_count(words)) + ENTRY_BYTES


cdef int append_words(EntryLog log, EntryId at, bytes words, uint32_t node_entries,
                      uint32_t node_bytes) except -1:
    """Append one entry with these packed words to a log."""
    cdef Slice[WORDS_ON_STACK] few
    cdef Slice* items = few
    cdef object space
    cdef Py_ssize_t count = word_count(words)
    if count > WORDS_ON_STACK:
        space = bytearray(count * sizeof(Slice))
        items = <Slice*><char*>(<bytearray>space)
    words_of(words, items)
    return log.append(at, items, count, node_entries, node_bytes)


# ---------------------------------------------------------------- segments

@cython.no_gc
@cython.freelist(256)
cdef class Slot:
    """One ID above the position. One that was given up stays until the position passes it."""


@cython.no_gc
cdef class Run(Slot):
    """Consecutive complete entries, as the blocks of a log of their own."""

    cdef Writer writer_of(self, EntryId at):
        """The writer of an entry, which exists; None for an append without a reservation."""
        return None if self.writers is None else self.writers[self.entries.rank_of(at)]

    cdef int append(self, EntryId at, bytes words, Writer writer, uint32_t node_entries,
                    uint32_t node_bytes) except -1:
        """Append an entry. MemoryError changes nothing."""
        if writer is not None and self.writers is None:
            self.writers = [None] * <Py_ssize_t>self.entries.length
        if self.writers is not None:
            self.writers.append(writer)
        try:
            append_words(self.entries, at, words, node_entries, node_bytes)
        except BaseException:
            if self.writers is not None:
                self.writers.pop()
            raise
        self.size_bytes += size_of(words)
        return 0

    cdef int absorb(self, Run other, uint32_t node_entries, uint32_t node_bytes) except -1:
        """Move the entries of the next run to this one. If memory runs out, some or all stay
        there."""
        cdef Py_ssize_t before
        if other.entries.sealed is None:
            return other.move_into(self, self.entries, node_entries, node_bytes)
        if other.writers is not None and self.writers is None:
            self.writers = [None] * <Py_ssize_t>self.entries.length
        before = 0 if self.writers is None else len(self.writers)
        try:
            if self.writers is not None:
                self.writers += other.writers or [None] * <Py_ssize_t>other.entries.length
            link(self.entries, other.entries)
        except BaseException:
            while self.writers is not None and len(self.writers) > before:
                self.writers.pop()
            raise
        self.size_bytes += other.size_bytes
        return 0

    cdef int move_into(self, Run run, EntryLog log, uint32_t node_entries,
                       uint32_t node_bytes) except -1:
        """Append the entries one by one to a run or, without one, to a log. If one cannot be
        appended, it and the later ones stay here."""
        cdef Walk walk
        cdef EntryId at
        cdef Py_ssize_t moved = 0
        cdef uint64_t moved_bytes = 0
        cdef uint64_t payload
        cdef Slice[WORDS_ON_STACK] few
        cdef Slice* items
        cdef object space
        cdef object _unpacked
        cdef Py_ssize_t count
        self.entries.walk_start(&walk, EntryId(0, 0))
        try:
            while self.entries.walk_next(&walk):
                at.ms = walk.cursor.entry.ms
                at.seq = walk.cursor.entry.seq
                items = few
                count = 2 * <Py_ssize_t>walk.cursor.entry.fields
                if count > WORDS_ON_STACK:
                    space = bytearray(count * sizeof(Slice))
                    items = <Slice*><char*>(<bytearray>space)
                _unpacked = entry_slices(&walk.view, &walk.cursor.entry, items)
                payload = payload_of(items, count)
                if run is None:
                    log.append(at, items, count, node_entries, node_bytes)
                else:
                    run.append(at, pack_words(items, count, payload),
                               None if self.writers is None else self.writers[moved],
                               node_entries, node_bytes)
                moved += 1
                moved_bytes += payload + ENTRY_BYTES
        except BaseException:
            self.forget_first(moved, moved_bytes, at)
            raise
        return 0

    cdef int forget_first(self, Py_ssize_t count, uint64_t size_bytes, EntryId first) except -1:
        """Remove the first entries, which were moved; the others begin with the ID `first`. Needs
        no memory."""
        if count == 0:
            return 0
        evict_below(self.entries, first, True)
        self.id = first
        self.size_bytes -= size_bytes
        while self.writers is not None and <uint64_t>len(self.writers) > self.entries.length:
            self.writers.pop(0)
        return 0


cdef int link(EntryLog log, EntryLog more) except -1:
    """Move the blocks of `more`, which are above the last ID of the log, to the log's end without a
    copy. MemoryError changes nothing."""
    cdef Place place
    cdef OpenBlock tail
    cdef Py_ssize_t pushed = 0
    if log.length == 0:
        # As in EntryLog.append: no entry is left to hide.
        log.head_ms = log.head_seq = 0
    if log.has_tail():
        log.seal()
    if log.sealed is None:
        log.sealed = more.sealed
    else:
        place = more.sealed.first()
        try:
            while place.page != NULL:
                log.sealed.push(block_at(place))
                pushed += 1
                place = place_after(place)
        except BaseException:
            for _ in range(pushed):
                log.sealed.remove(log.sealed.end())
            raise
    tail = log.tail
    log.tail = more.tail
    more.tail = tail
    more.sealed = None
    log.length += more.length
    log.entries_added += more.length
    log.last_ms = more.last_ms
    log.last_seq = more.last_seq
    return 0


# ---------------------------------------------------------------- writers

@cython.no_gc
cdef class Writer:
    """A writer that reserves IDs: its open reservations in the order of IDs, and the IDs that it
    has settled.
    """

    cdef EntryId greatest(self) noexcept:
        """The greatest ID that the writer has reserved, as far as the server remembers."""
        cdef EntryId found = self.last
        if id_less(found.ms, found.seq, self.settled.ms, self.settled.seq):
            found = self.settled
        if self.newest != NULL and id_less(
                found.ms, found.seq, (<Slot>self.newest).id.ms, (<Slot>self.newest).id.seq):
            found = (<Slot>self.newest).id
        return found

    cdef bint is_open_below(self, const EntryId* at) noexcept:
        """True if the writer has an open reservation below an ID."""
        cdef Slot oldest
        if self.oldest == NULL:
            return False
        oldest = <Slot>self.oldest
        return id_less(oldest.id.ms, oldest.id.seq, at.ms, at.seq)

    cdef int add(self, Slot reservation) noexcept:
        """Add a reservation, which is above all others."""
        reservation.writer = self
        reservation.is_open = True
        reservation.previous = self.newest
        reservation.following = NULL
        reservation.settled = self.settled
        if self.newest == NULL:
            self.oldest = <void*>reservation
        else:
            (<Slot>self.newest).following = <void*>reservation
        self.newest = <void*>reservation
        self.settled.ms = self.settled.seq = 0
        self.reservations += 1
        return 0

    cdef int settle(self, Slot reservation) noexcept:
        """Remove an open reservation, which is settled."""
        cdef EntryId* after = &self.settled
        reservation.is_open = False
        if reservation.previous != NULL:
            (<Slot>reservation.previous).following = reservation.following
        else:
            self.oldest = reservation.following
        if reservation.following != NULL:
            (<Slot>reservation.following).previous = reservation.previous
            after = &(<Slot>reservation.following).settled
        else:
            self.newest = reservation.previous
        if after.ms == 0 and after.seq == 0:
            after[0] = reservation.id
        if reservation.previous == NULL:
            # It was the oldest: the IDs settled up to the next reservation are now below the
            # oldest.
            self.last = after[0]
        reservation.previous = reservation.following = NULL
        self.reservations -= 1
        return 0
