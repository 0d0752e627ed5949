from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.encoding cimport Slice
from millstream.storage.group cimport Group
from millstream.storage.stream cimport Stream


cdef class Database:
    cdef readonly int index
    cdef Keyspace keyspace
    cdef dict table
    cdef dict slots
    cdef public dict waiting
    cdef bytes cached_key
    cdef Stream cached_stream

    cdef bytes key_of(self, Slice* key)
    cdef Stream stream_at(self, Slice* key)
    cdef Stream writable_at(self, Slice* key)
    cpdef Stream stream(self, bytes key)
    cpdef Stream writable_stream(self, bytes key)
    cpdef Stream make_stream(self, bytes key, uint64_t incarnation)
    cdef int mark_ready_at(self, Slice* key) except -1
    cpdef int mark_ready(self, bytes key) except -1
    cpdef int before_change(self, bytes key) except -1
    cdef int put(self, bytes key, value) except -1
    cdef int forget_cached(self) noexcept


cdef class Keyspace:
    cdef readonly list databases
    cdef public uint64_t dirty
    cdef public uint64_t now_ms
    cdef public uint32_t node_entries
    cdef public uint32_t node_bytes
    cdef public uint64_t incarnation
    cdef public list ready
    cdef public list agenda
    cdef readonly Capture capture
    cdef uint64_t capture_number

    cpdef uint64_t next_incarnation(self, uint64_t now_ms) except? 0
    cpdef int schedule(self, int db_index, bytes key, Group group) except -1
    cpdef int schedule_after(self, int db_index, bytes key, Group group, uint64_t past_ms) except -1


cdef class Captured:
    cdef readonly int db
    cdef readonly bytes key
    cdef readonly str kind
    cdef readonly dict meta
    cdef readonly list blocks


cdef class Capture:
    cdef Keyspace keyspace
    cdef uint64_t number
    cdef list tables
    cdef list slots
    cdef list early
    cdef list done
    cdef int db
    cdef object slot_numbers
    cdef object keys
    cdef public uint64_t looked_at  # keys and slots; for tests

    cdef int before_change(self, Database database, bytes key, value) except -1
    cdef take(self, int db, bytes key, Stream stream)
    cdef bint next_slot(self) except -1
