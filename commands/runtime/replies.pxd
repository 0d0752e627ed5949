from libc.stdint cimport int64_t, uint64_t

from millstream.encoding cimport Output


cdef class Sliced:
    pass


cdef class Encodable:
    cdef int encode(self, Output out, int resp) except -1
    cdef Sliced rest(self)


cdef class Raw(Encodable):
    cdef bytes data


cdef enum:
    # A longer bulk string goes out in slices, of this many bytes.
    LONG_BYTES = 262144


cdef class MapHead(Encodable):
    cdef uint64_t pairs


cdef class SlicedBytes(Sliced):
    cdef bytes data
    cdef Py_ssize_t start


cdef class Run:
    cdef readonly list requests


cdef class Wait:
    cdef readonly object read
    cdef readonly int64_t deadline_ms


cdef class BlockedRead:
    cdef public list keys
    cdef public bytes group


cdef Raw make_raw(bytes data)
