from millstream.storage.streams.held cimport Held
from millstream.storage.streams.keyspace_core cimport KeyspaceCore as Keyspace
from millstream.storage.streams.stream cimport Stream


cdef Held held_of(Keyspace keyspace, Stream stream)
