from libc.stdint cimport uint32_t, uint64_t

from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId
from millstream.storage.log.entry_log cimport EntryLog


cdef enum:
    # The part of an entry in held-bytes besides its names and values: its ID.
    ENTRY_BYTES = 16


cdef class Slot:
    cdef EntryId id  # for a run: the first ID
    cdef EntryId before  # the last ID handed out before it
    cdef uint64_t deadline_ms
    cdef uint32_t lease_ms
    cdef bint is_open
    cdef Writer writer  # None for an append without a reservation
    cdef bytes words  # the packed names and values of an entry
    # The writer's neighbouring open reservations, without reference counts: the list of segments
    # owns them.
    cdef void* previous
    cdef void* following
    cdef EntryId settled  # the writer's greatest settled ID between `previous` and this one


cdef class Run(Slot):
    cdef EntryLog entries
    cdef list writers  # of each entry; None if all are appends without a reservation
    cdef uint64_t size_bytes

    cdef Writer writer_of(self, EntryId at)
    cdef int append(self, EntryId at, bytes words, Writer writer, uint32_t node_entries,
                    uint32_t node_bytes) except -1
    cdef int absorb(self, Run other, uint32_t node_entries, uint32_t node_bytes) except -1
    cdef int move_into(self, Run run, EntryLog log, uint32_t node_entries,
                       uint32_t node_bytes) except -1
    cdef int forget_first(self, Py_ssize_t count, uint64_t size_bytes, EntryId first) except -1


cdef class Writer:
    cdef readonly bytes name
    cdef readonly uint64_t reservations
    cdef EntryId last  # the greatest ID that it has settled below its oldest reservation
    cdef void* oldest
    cdef void* newest
    cdef EntryId settled  # the greatest settled ID after `newest`

    cdef EntryId greatest(self) noexcept
    cdef bint is_open_below(self, const EntryId* at) noexcept
    cdef int add(self, Slot reservation) noexcept
    cdef int settle(self, Slot reservation) noexcept


cdef bytes pack_list(list words)
cdef list list_of_words(bytes words)
cdef uint64_t size_of(bytes words) noexcept
cdef bytes pack_words(Slice* items, Py_ssize_t count, uint64_t payload)
cdef Py_ssize_t words_of(bytes words, Slice* items) noexcept
cdef Py_ssize_t word_count(bytes words) noexcept
cdef int append_words(EntryLog log, EntryId at, bytes words, uint32_t node_entries,
                      uint32_t node_bytes) except -1
cdef int link(EntryLog log, EntryLog more) except -1
