from libc.stdint cimport int64_t, uint8_t, uint64_t

from millstream.encoding cimport Slice
from millstream.storage.log.entry_log cimport EntryLog

cdef enum:
    NUMBER_TEXT_BYTES = 24  # for the digits of a number


# An element of a listpack: a text, or a number (`text.ptr` is NULL).
cdef struct Element:
    Slice text
    int64_t number


cdef class NodeReader:
    cdef readonly uint64_t first_ms  # of the first entry that was read
    cdef readonly uint64_t first_seq
    cdef EntryLog log
    cdef bytes listpack
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef uint64_t node_ms
    cdef uint64_t node_seq
    cdef int64_t live  # entries that the node says it has
    cdef int64_t deleted
    cdef int64_t appended
    cdef uint64_t elements  # that were read
    cdef uint64_t stated
    cdef bint in_node
    cdef Slice* items  # names and values of an entry, and the digits of its numbers
    cdef char* digits
    cdef uint64_t capacity
    cdef uint64_t names

    cdef int next_element(self, Element* out) except -1
    cdef int long_back_length(self, const uint8_t* at, uint64_t size) except -1
    cdef int64_t next_number(self) except? -0x7f7f7f7f7f7f
    cdef int64_t next_count(self) except? -0x7f7f7f7f7f7f
    cdef uint64_t next_fields(self, uint64_t each) except? 0
    cdef int reserve(self, uint64_t fields) except -1
    cdef int next_text(self, Slice* out, char* digits) except -1
    cdef int begin(self, uint64_t ms, uint64_t seq, bytes listpack) except -1
    cdef int next_entry(self) except -1
    cdef int finish(self) except -1
    cdef int append_items(self, Slice* items, uint64_t fields, uint64_t ms_more,
                          uint64_t seq_more) except -1
    cdef void move_digits(self, char* digits) noexcept


cpdef list take_sealed(EntryLog log)
