from libc.stdint cimport int64_t, uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.stream_effects cimport Ids
from millstream.entry_id cimport EntryId
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.group cimport Group
from millstream.storage.groups.pending cimport Pending, PendingAt
from millstream.storage.streams.stream cimport Stream


# The stream and the group of a request whose first words are a key and a group.
cdef class Target:
    cdef bytes key
    cdef Stream stream
    cdef Group group


cdef class Claims:
    cdef uint64_t min_idle_ms
    cdef uint64_t delivery_ms
    cdef bytes count
    cdef bint sets_count
    cdef Ids claimed
    cdef list gone

    cdef bint is_too_early(self, const Pending* record, uint64_t now_ms) noexcept
    cdef bint is_refused(self, Group group, const Pending* record) noexcept
    cdef bint may_take(self, Context ctx, Group group, const Pending* record) except -1
    cdef int take(self, Context ctx, Group group, Consumer consumer, EntryId at_id, Pending* record,
                  PendingAt* at) except -1
    cdef int record(self, Context ctx, bytes key, Group group, Consumer consumer) except -1


cdef Target target_in(Context ctx, bytes key, Stream stream, bytes name)
cdef Target take_target(Context ctx, Args args)
cdef enum:
    # Longer replies are encoded as the client reads them.
    SMALL_BYTES = 65536


cdef list claimed_later(Stream stream, Claims claims)
cdef bytes encoded_ids(Ids ids)
