from libc.stdint cimport uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.encoding cimport Slice

cdef enum:
    NO_KEYS
    IN_A_ROW
    AFTER_STREAMS
    ELSEWHERE


cdef class Demand:
    cdef readonly str name
    cdef readonly Py_ssize_t number
    cdef readonly bint open_to_all
    cdef readonly bint uses_channels
    cdef readonly int place
    cdef readonly int slot_place
    cdef readonly bint any_slots
    cdef Py_ssize_t first
    cdef Py_ssize_t last
    cdef Py_ssize_t step
    cdef int use
    cdef bytes option
    cdef Demand with_option

    cdef Demand of(self, Args args)


cdef struct KeyPattern:
    # A key pattern. A key whose first bytes differ from `front` where `mask` has bits does not fit.
    const char* text
    Py_ssize_t size  # of the text that is compared: without the star of a prefix
    uint64_t front
    uint64_t mask
    int use
    int kind


cdef class Permission:
    cdef readonly object user
    cdef bytes allowed
    cdef bint all_keys
    cdef bint all_channels
    cdef list texts
    cdef KeyPattern* patterns
    cdef Py_ssize_t pattern_count

    cdef bint passes(self, Demand demand, Args args) except -1
    cdef bint passes_keys(self, Demand demand, Args args) noexcept
    cdef bint passes_key(self, Slice* key, int use) noexcept


cdef Py_ssize_t streams_end(Args args, Py_ssize_t at) noexcept


cdef bint glob_matches(const char* pattern, Py_ssize_t pattern_size,
                       const char* text, Py_ssize_t text_size) noexcept nogil
