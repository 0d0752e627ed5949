from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.commands.arguments cimport Args
from millstream.commands.context cimport Context
from millstream.encoding cimport Output
from millstream.ids cimport EntryId
from millstream.storage.group cimport Group
from millstream.storage.stream cimport Stream

cdef class Retry:
    cdef uint64_t retry_ms
    cdef uint64_t expire_ms


cdef Stream stream_to_write(Context ctx, bytes key)
cdef Group live_group(Context ctx, bytes key, Stream stream, bytes name)
cdef int used(Context ctx, bytes key, Group group) except -1
cdef Group new_group(Context ctx, bytes key, Stream stream, bytes name, uint64_t ms, uint64_t seq,
                     int64_t entries_read, uint64_t ttl_ms)
cdef bint group_has_gap(Stream stream, Group group) noexcept
cdef uint64_t give_new(Context ctx, bytes key, Stream stream, Group group, bytes consumer,
                       bint keep, Retry retry, uint64_t limit, bint dotted, Output out) except? 0xffffffffffffffff
cdef uint64_t give_due(Context ctx, bytes key, Stream stream, Group group, Retry retry,
                       bint with_zero, uint64_t limit, Output out, int resp) except? 0xffffffffffffffff
cdef int64_t acknowledge(Context ctx, Args args, bint dot_allowed) except -1
cdef int64_t distance_from_first(Stream stream, uint64_t ms, uint64_t seq) noexcept
