from libc.stdint cimport int64_t, uint64_t

from millstream.encoding cimport Output


cdef class Encodable
cdef class Sliced(Encodable)


cdef class Encodable:
    cdef int encode(self, Output out, int resp) except -1
    cdef Sliced rest(self)


cdef class Sliced(Encodable):
    pass


cdef class RowSource(Sliced):
    cdef int resp
    cdef bint is_kept

    cdef bint put_rows(self, Output out, Py_ssize_t full_size) except -1
    cdef int keep(self) except -1
    cdef RowSource later(self, int resp)


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


cdef class LongReply(RowSource):
    cdef object parts
    cdef bytes ready
    cdef bint is_complete


cdef class Several(Encodable):
    cdef list parts
    cdef list later


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


cdef inline int put_signed(Output out, int64_t number) except -1:
    if number < 0:
        return out.put(b":%d\r\n" % number)
    return out.put_head(c':', number)


cdef inline int put_map_head(Output out, int resp, uint64_t pairs) except -1:
    return out.put_head(c'%', pairs) if resp == 3 else out.put_head(c'*', 2 * pairs)


cdef Raw make_raw(bytes data)
cdef ArrayHead make_array_head(uint64_t length)
cdef MapHead make_map_head(uint64_t pairs)
cdef Several make_several(list parts)
cdef list put_later(list later, Output out, Py_ssize_t start, Sliced rest)
cdef int put_reply(Output out, reply, int resp) except -1
