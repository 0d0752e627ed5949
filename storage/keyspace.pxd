from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.encoding cimport Slice
from millstream.storage.group cimport Group
from millstream.storage.stream cimport Stream


cdef enum:
    AT_ONCE = 0  # the moment that has come already


cdef class Due:
    cdef dict keys
    cdef list moments

    cdef int add(self, uint64_t at_ms, bytes key) except -1
    cdef int remove(self, uint64_t at_ms, bytes key) except -1
    cdef uint64_t earliest_ms(self) except? 0
    cdef bytes key_at(self, uint64_t at_ms)


cdef class Watch:
    cdef uint64_t changes
    cdef uint64_t holders


cdef class Database:
    cdef readonly int index
    cdef Keyspace keyspace
    cdef dict table
    cdef dict slots
    cdef dict expiries
    cdef Due due
    cdef dict used_s
    cdef dict growing
    cdef readonly dict watched
    cdef public dict waiting
    cdef bytes cached_key
    cdef Stream cached_stream

    cdef peek(self, bytes key)
    cdef settle(self, bytes key)
    cdef int settle_all(self) except -1
    cdef bytes key_of(self, Slice* key)
    cdef Stream writable_at(self, Slice* key)
    cpdef Stream stream(self, bytes key)
    cpdef Stream writable_stream(self, bytes key)
    cpdef Stream make_stream(self, bytes key, uint64_t incarnation)
    cdef int mark_ready_at(self, Slice* key) except -1
    cpdef int mark_ready(self, bytes key) except -1
    cpdef int before_change(self, bytes key) except -1
    cdef int put(self, bytes key, value) except -1
    cdef int forget_cached(self) noexcept
    cdef int begin_table(self) except -1
    cdef inline Stream find_at(self, Slice* key)
    cdef Stream stream_at(self, Slice* key)
    cdef int note_use(self, bytes key, value) except -1
    cdef int schedule_groups(self, bytes key, Stream stream) except -1
    cdef int note_come(self, int slot, bytes key) except -1
    cdef int note_gone(self, bytes key) except -1
    cdef int remove(self, bytes key) except -1
    cdef int forget_moment(self, bytes key, Stream stream) except -1
    cdef bint has_expired(self, bytes key) except -1
    cdef int drop_expired(self, bytes key) except -1
    cdef int note_expiry(self, bytes key, uint64_t at_ms) except -1
    cdef int drop_expiry(self, bytes key) except -1


cdef class KeyWalk:
    cdef Keyspace keyspace
    cdef dict slots
    cdef dict expiries
    cdef uint64_t now_ms
    cdef int slot
    cdef set come
    cdef list gone

    cdef bint was_there(self, bytes key) except -1


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
    cdef public uint64_t incarnation
    cdef public list ready
    cdef public list agenda
    cdef public list put_off
    cdef readonly object calendar
    cdef readonly Capture capture
    cdef list walks
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

    cdef int look_at(self, uint64_t now_ms, uint64_t steady_ms) noexcept
    cdef int note_steady(self, uint64_t steady_ms) noexcept

    cpdef uint64_t next_incarnation(self, uint64_t now_ms) except? 0
    cdef uint64_t note_trim(self, uint64_t moment_ms, int db_index, bytes key) except? 0
    cpdef int schedule_trim(self, int db_index, bytes key, Stream stream) except -1
    cpdef int schedule(self, int db_index, bytes key, Group group) except -1
    cpdef int schedule_after(self, int db_index, bytes key, Group group, uint64_t past_ms) except -1


cdef class Captured:
    cdef readonly int db
    cdef readonly bytes key
    cdef readonly str kind
    cdef readonly dict meta
    cdef readonly object blocks


cdef class Capture:
    cdef Keyspace keyspace
    cdef uint64_t number
    cdef list tables
    cdef list slots
    cdef list expiries
    cdef dict places
    cdef list early
    cdef list done
    cdef int db
    cdef object slot_numbers
    cdef object keys
    cdef public uint64_t looked_at  # keys and slots; for tests

    cdef int before_change(self, Database database, bytes key, value) except -1
    cdef take(self, int db, bytes key, Stream stream)
    cdef take_string(self, int db, bytes key, value)
    cdef dict with_expiry(self, int db, bytes key, dict meta)
    cdef bint next_slot(self) except -1
