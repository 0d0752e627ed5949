from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.log.entry_log cimport EntryLog
from millstream.storage.streams.missed_entries cimport MissedEntries


cdef enum:
    # Reasons for extra checks in an append (Stream.restrictions).
    RESERVING = 1  # IDs are reserved: new entries are held
    SEALED = 2
    FOLLOWED = 4  # readers have a promise that no entry up to an ID will be added


cdef enum:
    # RetentionPolicy.evict: what the limits may evict.
    EVICT_ANY = 0
    EVICT_ACKED = 1  # only what no group holds
    EVICT_DONE = 2  # the same; and what all groups have settled leaves at once


cdef class RetentionPolicy:
    cdef readonly uint64_t max_len
    cdef readonly uint64_t max_age_ms
    cdef readonly uint64_t max_bytes
    cdef readonly bint exact
    cdef readonly uint8_t evict
    cdef readonly uint64_t hard_len
    cdef readonly uint64_t hard_age_ms
    cdef readonly uint64_t hard_bytes
    cdef public uint64_t next_check_ms  # when its stream is checked next; NEVER: not scheduled
    # For EVICT ACKED and DONE (settled). The groups of the stream, None: not known; the number of the
    # one that held the oldest entry.
    cdef list groups
    cdef Py_ssize_t holder
    cdef bint is_marked  # among KeyspaceCore.settling
    # A search for settled blocks after a held entry is scheduled; it begins at this ID.
    cdef bint sweep_due
    cdef EntryId sweep_from


cdef class Stream(EntryLog):
    # Members that appends access come first, as in EntryLog.
    cdef public uint32_t used_s
    cdef public uint8_t restrictions
    cdef bint has_group_ttl  # a group may have a time to live
    cdef public RetentionPolicy policy
    cdef object group_set  # see stream_groups
    cdef public uint64_t incarnation
    cdef public uint64_t capture_mark
    # A Held (storage/reservations/held) once an ID was reserved, else None.
    cdef public object held
    # A Schedule (storage/streams/schedule) once an entry was scheduled, else None.
    cdef public object schedule
    # A Lineage (storage/streams/lineage) if the stream is sealed or has parents, else None.
    cdef public object lineage
    cdef public object idempotence
    cdef public object producers
    # From the first trim with a group on; None before.
    cdef MissedEntries missed

    cdef int set_offset(self, group, EntryId offset) noexcept
    cpdef bint is_held(self, uint64_t ms, uint64_t seq) noexcept
    cpdef int set_ttl(self, group, uint64_t ttl_ms, uint64_t now_ms) except -1
    cpdef uint64_t live_group_count(self, uint64_t now_ms) except? 0xffffffffffffffff
    cpdef list due_groups(self, uint64_t now_ms)
    cpdef int set_last_id(self, uint64_t ms, uint64_t seq, uint32_t node_entries,
                          uint32_t node_bytes) except -1
    cdef int add_group(self, group) except -1
    cpdef object group(self, bytes name)
    cpdef object make_group(self, bytes name, uint64_t ms, uint64_t seq)
    cpdef int move_group(self, group, uint64_t ms, uint64_t seq,
                        int64_t entries_read) except -1
    cpdef bint drop_group(self, bytes name)


cdef inline bint must_settle(Stream stream) noexcept:
    """True if the policy of a stream depends on groups, and is not about to be enforced yet."""
    return (stream.policy is not None and stream.policy.evict != EVICT_ANY
            and not stream.policy.is_marked)
