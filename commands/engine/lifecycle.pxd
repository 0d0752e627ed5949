from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.commands.runtime.context cimport Context
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.group cimport Group
from millstream.storage.reservations.held cimport Held
from millstream.storage.streams.stream cimport Stream

cpdef Group new_group(Context ctx, bytes key, Stream stream, bytes name, tuple offset,
                      int64_t entries_read, uint64_t ttl_ms)
cpdef int end_group(Context ctx, bytes key, Stream stream, bytes name) except -1
cpdef bytes checked_consumer_name(bytes name)
cpdef Consumer new_consumer(Context ctx, bytes key, Group group, bytes name)
cpdef Consumer requesting_consumer(Context ctx, bytes key, Group group, bytes name)
cpdef Group live_group(Context ctx, bytes key, Stream stream, bytes name)
cpdef int note_acked(Context ctx, bytes key, bytes name, list ids, uint64_t count) except -1
cpdef int note_freed(Context ctx, bytes key, Group group) except -1
cdef int note_given_back(Context ctx, bytes key, uint64_t count) except -1
cpdef int note_used(Context ctx, bytes key, Group group) except -1
cpdef int64_t read_effects_most(bytes key, Group group, bytes consumer, uint64_t ids) noexcept
cpdef int note_seen(Context ctx, bytes key, Group group, Consumer consumer) except -1
cpdef Held live_held(Context ctx, bytes key, Stream stream)
cdef int release(Context ctx, bytes key, Stream stream, Held held, uint64_t before) except -1
cpdef int give_up(Context ctx, bytes key, Stream stream, list reservations) except -1
cpdef int renew(Context ctx, bytes key, Held held, list reservations, uint32_t lease_ms) except -1
