from libc.stdint cimport int64_t, uint64_t

from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.stream_effects cimport Ids
from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId
from millstream.storage.blocks.layout cimport Entry, View
from millstream.storage.groups.group cimport Group
from millstream.storage.streams.stream cimport Stream


cdef enum:
    # What became of an entry: it no longer exists, it was copied, or it is dead. Codes of TNACK.
    GONE = 1
    COPIED = 2
    DEAD = 3


cdef class DeadLetterWriter:
    cdef Context ctx
    cdef bytes key
    cdef Stream stream
    cdef Group group
    cdef bytes target_key
    cdef Stream target
    cdef str trouble
    cdef str refusal
    cdef bint is_opened
    cdef bint is_grouped
    cdef bint is_broken
    cdef Ids left
    # The number of copies by reason, None while there is one reason; the latest reason, and its number
    # of copies that are not in `copied` yet.
    cdef dict copied
    cdef bytes reason
    cdef uint64_t of_reason
    # The IDs of entries that are dead, by their facts; None without any.
    cdef dict dead
    cdef uint64_t made
    cdef uint64_t size_bytes
    cdef Slice* items
    cdef Py_ssize_t capacity
    # The ID and the numbers in a copy, as text.
    cdef char[128] numbers

    cdef int end(self, EntryId at_id, int64_t deliveries, tuple facts) except -1
    cdef bint end_failed(self, EntryId at_id) except -1
    cdef int take_back(self, EntryId at_id) except -1
    cdef int end_due(self) except -1
    cdef int copy_dead(self) except -1
    cdef int finish(self) except -1
    cdef bint has_budget(self) noexcept
    cdef int open_target(self) except -1
    cdef int copy(self, const View* view, const Entry* entry, int64_t deliveries,
                  tuple facts) except -1
    cdef int put_facts(self, Slice* items, const Entry* entry, int64_t deliveries, tuple facts,
                       int64_t hops) except -1
    cdef int append(self, Py_ssize_t count, uint64_t payload) except -1
    cdef int leave(self, EntryId at_id) except -1
    cdef int keep(self, EntryId at_id, int64_t deliveries, tuple facts, bint may_be_copied) except -1
    cdef Slice* space(self, Py_ssize_t count) except NULL
    cdef int refuse_entry(self, str why) except 0
    cdef int log(self, EntryId at_id, str why) except -1
    cdef int count_copy(self, bytes reason) except -1
    cdef int flush_reason(self) except -1
    cdef int record_dead(self) except -1
    cdef int record_copied(self, bytes reason, uint64_t count) except -1
    cdef int schedule(self) except -1


cdef DeadLetterWriter dead_letter_writer(Context ctx, bytes key, Stream stream, Group group)
cpdef int end_due_deliveries(Context ctx, bytes key, Stream stream, Group group) except -1
