from libc.stdint cimport uint64_t

from millstream.commands.context cimport Context
from millstream.commands.replies cimport BlockedRead
from millstream.encoding cimport Output
from millstream.storage.group cimport Consumer, Group
from millstream.storage.stream cimport Stream


cdef class ConsumerRead(BlockedRead):
    cdef int db_index
    cdef bytes consumer
    cdef uint64_t limit
    cdef bint keep
    cdef list held

    cdef tuple open_one(self, Context ctx, bytes key)
    cdef serve(self, Context ctx, list opened, list behind)
    cdef int put_entries(self, Context ctx, bytes key, Stream stream, Group group,
                         Consumer consumer, behind, Output out) except -1
    cdef int note_use(self, Context ctx, list opened) except -1
    cdef int hold(self, list groups) except -1


cdef Consumer new_consumer(Context ctx, bytes key, Group group, bytes name)
