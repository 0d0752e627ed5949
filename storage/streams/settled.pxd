from libc.stdint cimport uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.groups.group cimport Group
from millstream.storage.log.trimming cimport HeadRun
from millstream.storage.streams.retention cimport Limits
from millstream.storage.streams.stream cimport Stream

cdef enum:
    # The number of deleted entries among the pending ones that a search for the oldest held entry
    # passes over.
    LEAPS_MAX = 1000
    # The number of looks of a group at a block in one turn, about a millisecond.
    LOOKS_MAX = 10000


cdef bint first_held_in(Group group, EntryId start, EntryId* held) noexcept
cdef bint find_first_held(Stream stream, EntryId* held, HeadRun* run) except -1
cdef int note_first_kept(Stream stream, EntryId entry) noexcept
cdef list settled_runs(Stream stream, const Limits* limits, uint64_t now_ms, EntryId start,
                       EntryId* next, bint* more)
