from libc.stdint cimport uint32_t

from millstream.storage.blocks.layout cimport View

cdef int check_view(const View* view) except -1
cdef const char* find_fault(const View* view, uint32_t* entry) noexcept nogil
cdef const char* first_fault(const View* view, uint32_t* entry) noexcept nogil
cdef bint fits(const View* view) noexcept nogil
cdef str fault_text(const char* fault, uint32_t entry, uint32_t count)
