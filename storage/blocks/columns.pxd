from libc.stdint cimport uint8_t, uint32_t

from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId
from millstream.storage.blocks.column_buffers cimport Column
from millstream.storage.blocks.field_layouts cimport Layout, LayoutCache
from millstream.storage.blocks.layout cimport View


cdef struct Fault:
    const char* what
    uint32_t entry
    uint32_t count
    bint of_block
    Py_ssize_t offset


cdef class Decoder:
    cdef list wanted
    cdef Slice* field_names
    cdef Column* columns
    cdef int column_count
    cdef int fields_column
    cdef bint wants_values
    cdef bint wants_walk
    cdef readonly Py_ssize_t rows
    cdef Py_ssize_t rows_max
    cdef size_t bytes_max
    cdef size_t row_bytes
    cdef uint32_t resume_at
    cdef Fault fault
    cdef LayoutCache layouts
    cdef EntryId* ids
    cdef Py_ssize_t ids_capacity
    cdef uint8_t* unpacked  # the last value that is not in its block as it is

    cdef Py_ssize_t add_blocks(self, const uint8_t* data, Py_ssize_t size, const uint8_t* key,
                               Py_ssize_t key_size, EntryId first, EntryId last) noexcept nogil
    cdef int add_block(self, const View* view, const uint8_t* key, Py_ssize_t key_size,
                       EntryId first, EntryId last, const uint8_t* limit) noexcept nogil
    cdef bint is_counted(self, const View* view, Py_ssize_t key_size, EntryId first,
                         EntryId last) noexcept nogil
    cdef int walk(self, const View* view, Py_ssize_t key_size, EntryId first, EntryId last,
                  const uint8_t* limit, Py_ssize_t* taken) noexcept nogil
    cdef inline int failed(self, const char* what) noexcept nogil
    cdef const uint8_t* add_values(self, Layout* layout, const uint8_t* at, const uint8_t* limit,
                                   Py_ssize_t row) noexcept nogil
    cdef const uint8_t* add_packed(self, Layout* layout, const View* view, const uint8_t* at,
                                   const uint8_t* limit, Py_ssize_t row) noexcept nogil
    cdef int add_names(self, Layout* layout, Column* column) noexcept nogil
    cdef int put_columns(self, Py_ssize_t count, const uint8_t* key,
                         Py_ssize_t key_size) noexcept nogil
