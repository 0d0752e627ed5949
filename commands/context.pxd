from libc.stdint cimport int64_t, uint64_t

from millstream.commands.effects cimport Effects
from millstream.storage.keyspace cimport Database, Keyspace


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


cdef class Context:
    cdef public Session session
    cdef public Keyspace keyspace
    cdef public Database db
    cdef public Effects effects
    cdef public uint64_t now_ms
    cdef public object server
    cdef public bint may_block
    cdef public str write_error
    cdef public dict shared
    cdef public set remade
