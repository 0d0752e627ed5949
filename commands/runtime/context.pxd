from libc.stdint cimport int64_t, uint64_t

from millstream.commands.runtime.effects cimport Effects
from millstream.encoding cimport Slice
from millstream.storage.keyspace.keyspace_core cimport DatabaseCore as Database, KeyspaceCore as Keyspace
from millstream.storage.streams.stream cimport Stream, must_settle


cdef class Session:
    cdef public uint64_t id
    cdef public int db_index
    cdef public int resp
    cdef public bint authenticated
    cdef public bint close_after_reply
    cdef public bint blocked
    cdef public bytes name
    cdef public bytes lib_name
    cdef public bytes lib_version
    cdef public str address
    cdef public str local_address
    cdef public uint64_t created_ms
    cdef public uint64_t last_active_ms
    cdef public object last_command
    cdef public bint no_evict
    cdef public bint no_touch
    cdef public list queue
    cdef public bint queue_failed
    cdef public uint64_t queued_bytes
    cdef public dict watches
    cdef public dict channels
    cdef public dict patterns
    cdef public dict shard_channels
    cdef public str reply_mode
    cdef public bint monitoring
    cdef public uint64_t wrote_seq
    cdef public object feed
    cdef public object user
    cdef public object permission
    cdef bint special

    cdef bint is_special(self) noexcept
    cdef bint is_subscribed(self) noexcept


cdef class Context:
    cdef public Session session
    cdef public Keyspace keyspace
    cdef public Database db
    cdef public Effects effects
    cdef public uint64_t now_ms
    cdef public uint64_t steady_ms
    cdef public int64_t wall_ahead_ms
    cdef public object server
    cdef public bint may_block
    cdef public bint timed_alone
    cdef public str write_error
    cdef public str memory_error
    cdef public dict shared
    cdef public set remade
    cdef public bytes events
    cdef public set scripts

    cdef Stream read_stream_at(self, Slice* key)
    cpdef Stream read_stream(self, bytes key)
    cdef Stream read_for_update_at(self, Slice* key)
    cpdef Stream read_for_update(self, bytes key)

    cdef inline Stream write_stream_at(self, Slice* key):
        """`write_stream` for a key in a request."""
        cdef Stream stream = self.db.writable_at(key)
        if stream is not None and must_settle(stream):
            self.mark_settling(self.db.key_of(key), stream)
        return stream

    cdef int mark_settling(self, bytes key, Stream stream) except -1
    cpdef Stream write_stream(self, bytes key)
    cpdef Stream open_stream(self, bytes key)
    cpdef Stream maintained_stream(self, bytes key)
    cdef int set_window(self, bytes key, Stream stream) except -1
    cdef int count_hits(self, uint64_t count) except -1
    cdef int count_miss(self, Slice* key) except -1
    cdef int change(self, tuple effect, bytes event, uint64_t count) except -1

    cdef inline int count_change(self, bytes key, bytes event, uint64_t count) except -1:
        """`changed` without the effect, which the caller has recorded.
        """
        self.keyspace.dirty += count
        if event is not None and self.events:
            self.notify(event, key)
        return 0
