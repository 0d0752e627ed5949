from libc.stdint cimport int64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.encoding cimport Output, Slice

cdef enum:
    NEED_MORE = 0
    COMPLETE = 1
    INLINE = 2
    EMPTY = 3
    BROKEN = -1


cdef class Limits:
    cdef public int64_t bulk_bytes
    cdef public int64_t query_bytes


cdef class RequestArgs(Args):
    cdef Py_ssize_t capacity


cdef class Parser:
    cdef Limits limits
    cdef char* buf
    cdef Py_ssize_t start
    cdef Py_ssize_t end
    cdef Py_ssize_t capacity
    cdef const char* data
    cdef const char* data_end
    cdef const char* at
    cdef const char* command_start
    cdef int64_t words_wanted
    cdef Py_ssize_t words_got
    cdef int64_t bulk_size
    cdef readonly RequestArgs args
    cdef readonly list inline_words
    cdef readonly bytes error

    cdef int feed(self, const char* data, Py_ssize_t size) except -1
    cdef int next(self, bint trusted) except -2
    cdef int keep_rest(self) except -1
    cdef void attach_kept(self) noexcept
    cdef Py_ssize_t waiting_bytes(self) noexcept
    cdef Py_ssize_t table_bytes(self) noexcept
    cdef Py_ssize_t unread_bytes(self) noexcept
    cdef int wait_for_more(self) except -2
    cdef int fail(self, bytes message) except -2
    cdef inline const char* line_end(self, Py_ssize_t limit) noexcept
    cdef inline int read_words(self, bint trusted) except -2
    cdef int read_count(self, bint trusted) except -2
    cdef int read_bulk_size(self, bint trusted) except -2
    cdef int read_inline(self) except -2
    cdef int more_words(self) except -1


cdef int put_error(Output out, str message) except -1
