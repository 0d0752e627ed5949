from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t

from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId


cdef bint same_letters(const char* word, const char* upper, Py_ssize_t size) noexcept nogil


cdef inline bint is_word(Slice* word, bytes upper) noexcept:
    """Whether the word equals `upper` (given in capitals), in any case."""
    return word.size == PyBytes_GET_SIZE(upper) and same_letters(
        word.ptr, PyBytes_AS_STRING(upper), word.size)


cdef class Args:
    cdef Slice* items
    cdef readonly Py_ssize_t count
    cdef public Py_ssize_t pos

    cdef Slice* take_slice(self) except NULL
    cpdef bytes take(self)
    cdef int take_id(self, EntryId* out, bint dot_allowed, uint64_t missing_seq) except -1
    cpdef int64_t take_int(self) except? -1
    cpdef int64_t take_int_or(self, str refusal) except? -1
    cpdef Py_ssize_t skip_ids(self, str not_positive, str too_few) except -1
    cpdef list ids_at(self, Py_ssize_t first, Py_ssize_t count)

    cdef inline bint next_is(self, bytes upper) noexcept:
        """True, and the cursor moves on, when the next argument is this word in any case."""
        if self.pos < self.count and is_word(&self.items[self.pos], upper):
            self.pos += 1
            return True
        return False


cdef class OwnedArgs(Args):
    cdef list _kept


cdef int64_t take_timeout_ms(Args args) except? -1
cdef int parse_int(const char* text, Py_ssize_t size, int64_t* out) noexcept nogil
