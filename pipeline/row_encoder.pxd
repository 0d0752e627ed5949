from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from millstream.encoding cimport Output, Slice
from millstream.entry_id cimport EntryId


cdef class Column:
    cdef int kind
    cdef const uint8_t* valid
    cdef const uint8_t* values
    cdef const uint8_t* offsets
    cdef Py_ssize_t start
    cdef bytes head
    cdef tuple kept

    cdef inline bint is_there(self, Py_ssize_t row) noexcept
    cdef inline Slice text(self, Py_ssize_t row) noexcept
    cdef int put(self, Output out, Py_ssize_t row) except -1


cdef class Request:
    cdef readonly bytes data
    cdef readonly Py_ssize_t entries
    cdef readonly Py_ssize_t streams


cdef class RowEncoder:
    cdef bytes key
    cdef Column keys
    cdef Column ids
    cdef list columns
    cdef Column fields
    cdef bytes producer
    cdef uint64_t first_seq
    cdef Py_ssize_t rows
    cdef bint some_nulls
    cdef public bint by_slot
    cdef int32_t* order
    cdef int32_t* group_ends
    cdef Py_ssize_t groups
    cdef Py_ssize_t done
    cdef Py_ssize_t group
    cdef Output out
    cdef list parts
    cdef list part_keys
    cdef Py_ssize_t words

    cdef int put_rows(self) except -1
    cdef int find_groups(self) except -1
    cdef Py_ssize_t put_group(self, Py_ssize_t most) except -1
    cdef int put_entry(self, Py_ssize_t row) except -1
    cdef int put_columns(self, Py_ssize_t row) except -1
    cdef int put_fields(self, Py_ssize_t row) except -1
    cdef int take_id(self, Py_ssize_t row, EntryId* entry_id) except -1
    cdef bytes key_at(self, Py_ssize_t row)
    cdef bytes whole(self)
