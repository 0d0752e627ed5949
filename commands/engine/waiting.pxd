from libc.stdint cimport int64_t, uint64_t

from millstream.commands.engine.search_work cimport SearchShare
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.replies cimport BlockedRead
from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId
from millstream.storage.blocks.entry_filter cimport EntryFilter
from millstream.storage.groups.group cimport Group
from millstream.storage.streams.stream cimport Stream


cdef class StreamsRead(BlockedRead):
    cdef int db_index
    cdef list after

    cdef Stream look_up(self, Context ctx, Slice* key)
    cdef tuple take_after(self, Args args, Stream stream)
    cdef list take_streams(self, Context ctx, Args args)


cdef class SearchingRead(StreamsRead):
    cdef EntryFilter filter
    # For each stream, None or (incarnation, ms, seq): up to where nothing matches.
    cdef list looked
    # For each stream, None or (incarnation, ms, seq, is gap): the greatest evicted ID, when a search
    # began before it. What was searched before its eviction is not missed.
    cdef list missed
    cdef SearchShare share  # None before the first search

    cdef inline bint is_searching(self) noexcept:
        return self.share is not None and self.share.is_running

    cdef int set_searching(self, bint searching) except -1
    cdef EntryId position(self, Py_ssize_t i, Stream stream)
    cdef int note_missed(self, Py_ssize_t i, Stream stream, EntryId start) except -1
    cdef bint has_missed(self, Py_ssize_t i, Stream stream, EntryId* evicted) except -1
    cdef bint has_gap_in(self, Py_ssize_t i, Stream stream) except -1
    cdef bint look(self, list streams) except -1
    cdef bint look_on(self, list streams, int64_t* work) except -1


cdef class GroupsRead(BlockedRead):
    cdef int db_index
    cdef list held

    cdef int count_in(self, Group group, int change) except -1
    cdef int hold(self, list groups) except -1
    cdef int note_end(self, Context ctx, Group group) except -1
    cdef int retry_later(self, Context ctx) except -1
    cdef int look_again(self, Context ctx, bytes key, uint64_t after_ms) except -1
    cdef bint has_room(self, Context ctx, int64_t size, bint first) except -1
