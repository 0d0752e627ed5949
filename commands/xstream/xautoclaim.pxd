from millstream.entry_id cimport EntryId
from millstream.storage.blocks.reply_entries cimport IdText
from millstream.storage.streams.entry_log cimport Walk
from millstream.storage.streams.stream cimport Stream


cdef class Finder:
    cdef Stream stream
    cdef Walk walk
    cdef bint has_more

    cdef bint find(self, EntryId wanted) noexcept
