from libc.stdint cimport int64_t, uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.encoding cimport Output
from millstream.storage.keyspace.keyspace_core cimport KeyspaceCore as Keyspace


cpdef enum:
    # The maximum size of an ID as a word of an effect.
    ID_WORD_BYTES = 48
    # The maximum size of an effect in addition to its names and ids.
    EFFECT_BYTES = 256


cdef class Effects:
    cdef public bint enabled
    cdef readonly uint64_t count
    cdef uint64_t begun
    cdef Output out
    cdef int db
    cdef readonly int64_t room
    cdef public object make_room

    cdef int require(self, int64_t size) except -1
    cdef bint has_room(self, int64_t size) except -1
    cdef int begin(self, int db, const char* head, Py_ssize_t head_size, Py_ssize_t words) except -1
    cdef int finish(self) except -1
    cdef void open_group(self) noexcept
    cdef void close_group(self) noexcept
    cdef int put_effect(self, int db, tuple words) except -1
    cdef int put_number(self, uint64_t number) except -1
    cdef bytes take(self)


cdef enum:
    COMPILED_MAX = 4


# Applies an effect with these words.
ctypedef int (*ApplyWords)(Keyspace keyspace, int db, Args args) except -1

cdef int apply_compiled(const char* name, Py_ssize_t size, ApplyWords function) except -1
