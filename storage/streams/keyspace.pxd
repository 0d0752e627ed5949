from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.encoding cimport Slice
from millstream.storage.streams.stream cimport Stream


cdef enum:
    AT_ONCE = 0  # the moment that has come already


cdef class Database:
    cdef readonly int index
    cdef Keyspace keyspace
    cdef readonly dict table
    cdef readonly dict slots
    cdef readonly dict expiries
    cdef object due
    cdef dict used_s
    cdef dict append_buffers
    cdef readonly dict watched
    cdef public uint64_t reservations
    cdef public dict waiting
    cdef bytes cached_key
    cdef Stream cached_stream

    cdef peek(self, bytes key)
    cdef settle(self, bytes key)
    cdef bytearray buffer_of(self, bytes key)
    cdef int note_changed(self, bytes key) except -1
    cdef int capture_stream(self, bytes key, Stream stream) except -1
    cdef bytes key_of(self, Slice* key)
    cdef Stream writable_at(self, Slice* key)
    cpdef Stream stream(self, bytes key)
    cpdef Stream writable_stream(self, bytes key)
    cpdef Stream make_stream(self, bytes key, uint64_t incarnation)
    cdef int mark_ready_at(self, Slice* key) except -1
    cpdef int mark_ready(self, bytes key) except -1
    cpdef int before_change(self, bytes key) except -1
    cpdef int put(self, bytes key, value) except -1
    cpdef int forget_cached(self) noexcept
    cdef int begin_table(self) except -1
    cdef inline Stream find_at(self, Slice* key)
    cdef Stream stream_at(self, Slice* key)
    cdef int note_use(self, bytes key, value) except -1
    cpdef int schedule_groups(self, bytes key, Stream stream) except -1
    cdef int note_come(self, int slot, bytes key) except -1
    cdef int note_gone(self, bytes key) except -1
    cdef int remove(self, bytes key) except -1
    cdef int forget_moment(self, bytes key, Stream stream) except -1
    cdef int schedule_leases(self, bytes key, held) except -1
    cdef bint has_expired(self, bytes key) except -1
    cdef int drop_expired(self, bytes key) except -1
    cpdef int note_expiry(self, bytes key, uint64_t at_ms) except -1
    cdef int drop_expiry(self, bytes key) except -1


cdef class Keyspace:
    cdef readonly list databases
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
    cdef public uint64_t promised_ms
    cdef public uint64_t recorded_promise_ms
    cdef public bint has_ordering
    cdef public uint64_t reservations_expired
    cdef public uint64_t unlogged_expiries
    cdef public uint64_t expiry_log_ms
    cdef public uint64_t incarnation
    cdef public list ready
    cdef public list timer_requests
    cdef public list deferred
    cdef readonly object calendar
    cdef readonly object capture
    cdef readonly list walks
    cdef uint64_t capture_number
    cdef uint32_t now_s
    cdef public bint expiring
    cdef public bint may_delete
    cdef public bint touching
    cdef public bint active_expiry
    cdef public bint expiry_noted
    cdef public object on_expired
    cdef public uint64_t expired_count
    cdef public uint64_t hits
    cdef public uint64_t misses

    cdef int set_now(self, uint64_t now_ms, uint64_t steady_ms) noexcept
    cpdef int note_steady(self, uint64_t steady_ms) noexcept

    cpdef uint64_t next_incarnation(self, uint64_t now_ms) except? 0
    cdef uint64_t note_trim(self, uint64_t moment_ms, int db_index, bytes key) except? 0
    cpdef int schedule_trim(self, int db_index, bytes key, Stream stream) except -1
    cpdef int schedule(self, int db_index, bytes key, group) except -1
    cpdef int schedule_after(self, int db_index, bytes key, group, uint64_t past_ms) except -1
