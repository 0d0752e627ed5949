from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.encoding cimport Slice
from millstream.storage.keyspace.key_slots cimport KeySlots
from millstream.storage.reservations.held cimport Held
from millstream.storage.streams.schedule cimport Schedule
from millstream.storage.streams.stream cimport Stream


cdef enum:
    AT_ONCE = 0  # a time that has already passed
    LOOK_AGAIN_MS = 100  # at entries that end only after earlier ones of their key
    NO_DATABASE = -1  # in a ready mark that only says that streams are to be settled


cdef class DatabaseCore:
    cdef readonly int index
    cdef readonly KeyspaceCore keyspace
    cdef public dict table
    cdef public KeySlots slots
    cdef public dict expiries
    cdef public dict used_s
    cdef public dict append_buffers
    cdef public dict watched
    cdef public uint64_t reservations
    cdef public uint64_t scheduled
    cdef public dict waiting
    cdef bytes cached_key
    cdef Stream cached_stream

    cdef bytes key_of(self, Slice* key)
    cdef inline Stream find_at(self, Slice* key)
    cdef Stream stream_at(self, Slice* key)
    cdef Stream writable_at(self, Slice* key)
    cdef Stream find(self, bytes key)
    cdef bint put_new(self, bytes key, Stream stream) except -1
    cpdef Stream stream(self, bytes key)
    cpdef Stream writable_stream(self, bytes key)
    cdef int capture_stream(self, bytes key, Stream stream) except -1
    cdef value_of(self, bytes key)
    cpdef int forget_cached(self) noexcept
    cpdef bint has_expired(self, bytes key) except -1
    cpdef int note_use(self, bytes key, value) except -1
    cpdef bint replace_string(self, bytes key, bytes value, bint keep_expiry) except -1
    cpdef bint extend_expiry(self, bytes key, int64_t at_ms) except -1
    cdef int mark_ready_at(self, Slice* key) except -1
    cpdef int note_lease_moment(self, bytes key, Held held, uint64_t moment_ms) except -1
    cpdef int mark_ready(self, bytes key) except -1


cdef class KeyspaceCore:
    cdef public list databases
    cdef public bint clustered
    cdef public uint64_t dirty
    cdef public uint64_t now_ms
    cdef public uint64_t steady_ms
    cdef readonly uint64_t newest_steady_ms
    cdef public uint32_t node_entries
    cdef public uint32_t node_bytes
    cdef public uint32_t idmp_duration_s
    cdef public uint32_t idmp_maxsize
    cdef public uint32_t producers_max
    cdef public uint64_t held_max_bytes
    cdef public uint64_t reservations_max
    cdef public uint64_t writers_max
    cdef public uint64_t scheduled_max
    cdef public uint64_t scheduled_max_bytes
    cdef public uint64_t promised_ms
    cdef public uint64_t recorded_promise_ms
    cdef public bint has_ordering
    # True if groups may have rules of delivery: an earlier version does not load a base with them.
    cdef public bint has_rules
    cdef public uint64_t reservations_expired
    cdef public uint64_t scheduled_fired
    cdef public uint64_t unfired_log_ms
    cdef public uint64_t unlogged_expiries
    cdef public uint64_t expiry_log_ms
    cdef public uint64_t incarnation
    cdef public list ready
    cdef public list timer_requests
    cdef public list deferred
    cdef public object retention_schedule
    cdef public object firing_schedule
    cdef public object capture
    cdef public list walks
    cdef public uint64_t capture_number
    cdef readonly uint32_t now_s
    cdef public bint expiring
    cdef public bint may_delete
    cdef public bint touching
    cdef public bint active_expiry
    cdef public bint expiry_noted
    cdef public object on_expired
    cdef public uint64_t expired_count
    cdef public uint64_t redelivered_due  # entries that a group delivered again after their retry time
    cdef public uint64_t redelivered_claimed
    cdef public object dead_letters  # a DeadLetterTotals
    # Entries trimmed before groups read them, counted for each group.
    cdef public uint64_t missed_entries
    cdef public uint64_t unlogged_missed
    cdef public uint64_t missed_log_ms
    # Entries evicted while groups held them, counted for each group.
    cdef public uint64_t lost_entries
    cdef public uint64_t unlogged_lost
    cdef public uint64_t lost_log_ms
    # The streams, (database, key, policy), with a policy that depends on groups, that a command may have
    # changed.
    cdef public list settling
    cdef public uint64_t hits
    cdef public uint64_t misses

    cdef int set_now(self, uint64_t now_ms, uint64_t steady_ms) noexcept
    cpdef int note_steady(self, uint64_t steady_ms) noexcept
    cpdef uint64_t next_incarnation(self, uint64_t now_ms) except? 0
    cdef uint64_t note_trim(self, uint64_t moment_ms, int db_index, bytes key) except? 0
    cpdef int note_firing(self, int db_index, bytes key, Schedule schedule) except -1
    cdef int note_firing_at(self, int db_index, bytes key, Schedule schedule,
                            uint64_t moment_ms) except -1
    cpdef int schedule_trim(self, int db_index, bytes key, Stream stream) except -1
    cpdef int schedule(self, int db_index, bytes key, group) except -1
    cpdef int schedule_after(self, int db_index, bytes key, group, uint64_t past_ms) except -1
