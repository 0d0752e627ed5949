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
    # A longer bulk string is sent in slices.
    LONG_BYTES = 262144
    # The approximate size of a slice of a long reply.
    SLICE_BYTES = 262144


cdef class MapHead(Encodable):
    cdef uint64_t pairs


cdef class ArrayHead(Encodable):
    cdef uint64_t length


cdef class LongReply(Encodable):
    cdef object parts
    cdef Sliced remainder

    cpdef Sliced sliced(self, int resp)


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
cdef int put_reply(Output out, reply, int resp) except -1
