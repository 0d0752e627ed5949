from libc.stdint cimport uint64_t

from millstream.commands.engine.ranges cimport EntryRange
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.replies cimport BlockedRead
from millstream.encoding cimport Output
from millstream.entry_id cimport EntryId
from millstream.storage.blocks.layout cimport Entry, View
from millstream.storage.streams.held cimport Held, Run, Slot
from millstream.storage.streams.stream cimport Stream


cdef class EntryIds:
    cdef EntryId* items
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity

    cdef int append(self, EntryId entry_id) except -1


cdef class PeekRead(BlockedRead):
    cdef int db_index
    cdef uint64_t limit
    cdef EntryId after
    cdef EntryIds to_come

    cdef bint take_token(self, Args args) except -1
    cdef bytes token(self)
    cdef int begin_now(self, Stream stream) except -1
    cdef reply(self, Context ctx, Stream stream, bint waits)
    cdef plain_reply(self, Stream stream, bint waits)
    cdef held_reply(self, Context ctx, Stream stream, bint waits)


cdef class PlainPeek(EntryRange):
    cdef EntryId token


cdef class Peek:
    cdef Stream stream
    cdef Held held
    cdef uint64_t limit
    cdef bint discards  # entries are skipped
    cdef Output out
    cdef uint64_t count
    cdef EntryId after
    cdef EntryIds waited
    cdef EntryIds to_come
    cdef bint full

    cdef int begin(self, PeekRead read, Stream stream) except -1
    cdef bint is_full(self) noexcept
    cdef bint read_to_come(self) except -1
    cdef bint read_one(self, EntryId* at) except -1
    cdef Slot segment_at(self, EntryId* at)
    cdef bint may_be_seen(self, Slot segment, EntryId* at) except -1
    cdef int read_log(self) except -1
    cdef int read_held(self) except -1
    cdef int read_segment(self, Slot segment) except -1
    cdef int read_run(self, Run run) except -1
    cdef int pass_run(self, Run run, uint64_t rank) except -1
    cdef int put_entry(self, const View* view, const Entry* entry) except -1
    cdef int put_held(self, Slot entry) except -1
