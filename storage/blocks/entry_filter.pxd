cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from millstream.encoding cimport Slice
from millstream.storage.blocks.layout cimport SETS_MAX, Cursor, Entry, Packed, ValueSpace, View
from millstream.storage.blocks.numbers cimport Bound


cpdef enum:
    CONDITIONS_MAX = 8
    IN_VALUES_MAX = 1000


# `values` has the operand of EQ and PREFIX, or those of IN, sorted. `above` and `below`: the bounds
# of BETWEEN are excluded.
cdef struct Condition:
    int how
    Slice field
    Slice* values
    Py_ssize_t count
    Bound low
    Bound high
    bint above
    bint below


# A value to look at: the number of its field in the set, and the condition. `is_last`: no later field
# has the name of the condition.
cdef struct Look:
    uint32_t field
    uint8_t condition
    bint is_last


# What `next_match` has found.
cdef enum:
    NO_MATCH
    MATCH
    OUT_OF_WORK


@cython.final
cdef class EntryFilter:
    """How to use it: `begin` for each block, which may exclude the whole block; then `matches` for
    an entry of this block, or `next_match` to move to the next entry that matches."""

    cdef readonly list words
    cdef readonly Py_ssize_t count
    cdef list operands
    cdef Condition[CONDITIONS_MAX] conditions
    # The looks of all sets of the block, one set after the other: set i has those from starts[i] on.
    # A set without any does not have all the fields.
    cdef Look* looks
    cdef uint32_t look_capacity
    cdef uint32_t[SETS_MAX + 1] starts
    cdef const uint8_t* names[SETS_MAX]
    cdef uint32_t set_count
    cdef ValueSpace space
    # Bytes that each matching entry has, if its values are not packed; none if the size is 0.
    cdef bytes needle
    cdef Py_ssize_t needle_size
    cdef uint32_t candidates  # entries of the block that have the needle, so far
    # Where `passes` has stopped in the values, and how many are before that.
    cdef const uint8_t* at
    cdef uint32_t passed
    # The work of the last steps, in units of about ten nanoseconds.
    cdef int64_t work

    cdef bint begin(self, const View* view) except -1
    cdef bint matches(self, const View* view, const Entry* entry) except -1
    cdef int next_match(self, Cursor* cursor, const View* view, uint64_t end_ms, uint64_t end_seq,
                        int64_t* work_left) except -1
    cdef int set_needle(self) except -1
    cdef bint needle_helps(self, const View* view, uint32_t looked_at) noexcept
    cdef bint may_have(self, const View* view, const uint8_t* at, const uint8_t* end) except -1
    cdef int next_with_needle(self, Cursor* cursor, const View* view, uint64_t end_ms,
                              uint64_t end_seq, int64_t* work_left) except -1
    cdef int next_looked_at(self, Cursor* cursor, const View* view, uint64_t end_ms,
                            uint64_t end_seq, int64_t* work_left) except -1
    cdef bint look_at(self, Cursor* cursor, const View* view, const uint8_t* values) except -1
    cdef int add_condition(self, Condition* condition, list words, Py_ssize_t at) except -1
    cdef int resolve(self, const uint8_t* names, uint32_t fields, bint plain,
                     uint32_t* end) except -1
    cdef int add_look(self, uint32_t at, uint32_t field, int condition) except -1
    cdef bint has_looks_for_all(self, uint32_t start, uint32_t end) noexcept
    cdef bint passes(self, const View* view, const Entry* entry, uint32_t start,
                     uint32_t end) except -1
    cdef bint passes_plain(self, const uint8_t* at, const Look* look, const Look* last) except -1
    cdef bint holds(self, const Condition* condition, const char* text, Py_ssize_t size) except -1
    cdef const char* unpacked(self, const Packed* packed) except NULL
