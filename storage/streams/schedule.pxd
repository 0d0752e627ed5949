from libc.stdint cimport uint64_t

from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId


cdef enum:
    # The part of a scheduled entry in its size besides its name, and its names and values: its ticket.
    TICKET_BYTES = 16


cdef class Scheduled:
    cdef EntryId ticket  # the time at which it is due, and its number
    cdef readonly bytes name  # None for an entry without a name
    cdef bytes words  # the packed names and values


cdef class Page:
    cdef list items
    cdef uint64_t epoch  # of the schedule when `items` was made


cdef class Schedule:
    cdef list pages  # in the order of tickets; none is empty
    cdef dict by_name
    cdef uint64_t epoch
    cdef public uint64_t last_number
    cdef readonly uint64_t count
    cdef readonly uint64_t size_bytes
    # The time for which the stream is in the keyspace's schedule of firing; NEVER: it is not.
    cdef public uint64_t noted_ms

    cdef Scheduled first(self)
    cdef Py_ssize_t page_at(self, EntryId ticket) noexcept
    cdef Page own_page(self, Py_ssize_t at)
    cdef int prepare_removal(self, Scheduled entry) except -1
    cdef int add(self, Scheduled entry) except -1
    cdef int insert(self, Scheduled entry) except -1
    cdef Scheduled find(self, EntryId ticket)
    cdef Scheduled named(self, bytes name)
    cdef int remove(self, Scheduled entry) except -1
    cdef int take_out(self, Scheduled entry) except -1


cdef Scheduled make_scheduled(EntryId ticket, bytes name, Slice* items, Py_ssize_t count)
cdef uint64_t size_of(Scheduled entry) noexcept
cdef Py_ssize_t word_count(Scheduled entry) noexcept
cdef Py_ssize_t words_of(Scheduled entry, Slice* items) noexcept
