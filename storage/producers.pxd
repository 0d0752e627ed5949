from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    NOT_THERE = 0xffffffffu


# One producer, 24 bytes. `older` and `newer` are slots: all producers in the order of their last
# appends. A free slot has no name, and `newer` is the next free one.
cdef struct Producer:
    PyObject* name
    uint64_t seq
    uint32_t older
    uint32_t newer


# PAGE_SLOTS producers; the only page of a stream with few has room for fewer. A page that somebody
# else holds too (holders > 1) is copied before it changes.
cdef struct Page:
    uint32_t holders
    uint32_t capacity
    Producer[1] items


# Where a producer stands, by its name's hash. `slot` counts from 1; 0: nothing is here.
cdef struct Place:
    uint32_t hash
    uint32_t slot


cdef class SharedProducers:
    cdef Page** pages
    cdef uint32_t page_count
    cdef uint32_t oldest
    cdef readonly uint32_t count

    cdef inline Producer* at(self, uint32_t slot) noexcept


cdef class Producers:
    cdef Page** pages
    cdef uint32_t page_count
    cdef uint32_t page_capacity
    cdef uint32_t oldest
    cdef uint32_t newest
    cdef uint32_t free
    cdef Place* places
    cdef uint32_t place_mask
    cdef readonly uint32_t count
    cdef uint64_t names_bytes

    cdef bytes name_of(self, const char* text, Py_ssize_t size)
    cdef uint32_t find(self, bytes name) except? 0xffffffff
    cdef bint has_sent(self, bytes name, uint64_t seq) except -1
    cdef uint32_t reserve(self, bytes name) except? 0xffffffff
    cdef void note(self, uint32_t slot, bytes name, uint64_t seq) noexcept
    cpdef bytes drop_oldest(self)
    cpdef bint drop(self, bytes name) except -1
    cpdef Producers copy(self)
    cpdef SharedProducers share(self)
    cdef inline Producer* at(self, uint32_t slot) noexcept
    cdef int own(self, uint32_t slot) except -1
    cdef int add_slots(self) except -1
    cdef int grow_page(self) except -1
    cdef int add_page(self, uint32_t capacity) except -1
    cdef void free_slots(self, Page* page, uint32_t start) noexcept
    cdef int add_places(self) except -1
    cdef void put_place(self, uint32_t hash, uint32_t slot) noexcept
    cdef void take_place(self, uint32_t hash, uint32_t slot) noexcept
    cdef void unlink(self, Producer* producer) noexcept
    cdef void link_newest(self, uint32_t slot) noexcept
    cdef int remove(self, uint32_t slot) except -1
