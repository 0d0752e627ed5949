from libc.stdint cimport uint8_t, uint64_t

from millstream.storage.blocks.layout cimport Head, View


cdef class Block:
    cdef Head* head

    cdef Py_ssize_t data_size(self) noexcept
    cdef Block without(self, uint64_t ms, uint64_t seq)
    cdef Block without_all(self, list ids)
    cdef inline void mark(self, Py_ssize_t at) noexcept
    cdef Block copy(self)
    cdef Py_ssize_t write_unsealed(self, char* at) noexcept
    cdef int write(self, char* at) except -1


cdef Head* new_head(Block owner, uint64_t data_size) except NULL
cdef const Head* sound_head(const uint8_t* data, Py_ssize_t size) except NULL
cdef Block read_block(const Head* form, Py_ssize_t size)
cdef list view_entries(const View* view)
cdef const char* view_at(const uint8_t* data, Py_ssize_t size, View* out,
                         Py_ssize_t* length) noexcept nogil
