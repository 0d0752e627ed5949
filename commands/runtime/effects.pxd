from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from millstream.commands.runtime.arguments cimport Args
from millstream.encoding cimport Output, Slice
from millstream.storage.blocks.layout cimport write_varint
from millstream.storage.keyspace.keyspace_core cimport KeyspaceCore as Keyspace


cpdef enum:
    # The maximum size of an ID as a word of an effect.
    ID_WORD_BYTES = 48
    # The maximum size of an effect in addition to its names and ids.
    EFFECT_BYTES = 256


# Codes of effects that compiled modules record. CODES in effects.pyx has all of them.
cdef enum:
    TIME_CODE = 2
    SELECT_CODE = 3
    APPEND_CODE = 5
    APPENDONCE_CODE = 6
    EVICT_CODE = 8
    XDEL_CODE = 11
    RESERVE_CODE = 12
    COMPLETE_CODE = 13
    ABORT_CODE = 14
    LEASE_CODE = 15
    DELIVER_CODE = 30
    REDELIVER_CODE = 31
    CLAIM_CODE = 32
    ACK_CODE = 34
    SEEN_CODE = 35
    TAKE_CODE = 52
    WAIT_CODE = 53
    COPIED_CODE = 56
    SCHEDULE_CODE = 57
    UNSCHEDULE_CODE = 58
    FIRE_CODE = 59
    PICK_CODE = 62

# The beginning of a word: an ID follows, or a number, or N - BYTES_WORD bytes.
cdef enum:
    ID_WORD = 0
    NUMBER_WORD = 1
    BYTES_WORD = 2


cdef class Effects:
    cdef public bint enabled
    cdef readonly uint64_t count
    cdef uint64_t begun
    cdef Output out
    cdef int db
    cdef readonly int64_t room
    cdef public object make_room
    cdef bint resp  # whether the effect that is begun is RESP
    # The last ID's milliseconds as a varint: neighbouring entries mostly have the same.
    cdef uint64_t id_ms
    cdef int id_size
    cdef uint8_t[16] id_bytes

    cdef int require(self, int64_t size) except -1
    cdef bint has_room(self, int64_t size) except -1
    cdef int begin(self, int db, int code, Py_ssize_t words) except -1
    cdef int begin_named(self, int db, bytes name, Py_ssize_t words) except -1
    cdef int select(self, int db) except -1
    cdef int finish(self) except -1
    cdef void open_group(self) noexcept
    cdef void close_group(self) noexcept
    cdef int put_effect(self, int db, tuple words) except -1
    cdef bytes take(self)

    cdef inline int put(self, const char* data, Py_ssize_t size) except -1:
        """A word: these bytes."""
        cdef uint8_t* at
        if self.resp:
            return self.out.put_bulk(data, size)
        at = <uint8_t*>self.out.reserve(size + 10)
        if size < 128 - BYTES_WORD:
            at[0] = <uint8_t>(size + BYTES_WORD)
            memcpy(at + 1, data, size)
            self.out.size += 1 + size
            return 0
        at = write_varint(at, <uint64_t>size + BYTES_WORD)
        memcpy(at, data, size)
        self.out.size = <char*>at + size - self.out.buf
        return 0

    cdef inline int put_bytes(self, bytes data) except -1:
        return self.put(data, len(data))

    cdef inline int put_id(self, uint64_t ms, uint64_t seq) except -1:
        """A word: this ID."""
        cdef uint8_t* start
        cdef uint8_t* at
        if self.resp:
            return self.out.put_id(ms, seq, False)
        if self.id_ms != ms or self.id_size == 0:
            self.id_ms = ms
            self.id_size = <int>(write_varint(self.id_bytes, ms) - self.id_bytes)
        start = <uint8_t*>self.out.reserve(32)
        start[0] = ID_WORD
        memcpy(start + 1, self.id_bytes, 16)
        at = write_varint(start + 1 + self.id_size, seq)
        self.out.size += at - start
        return 0

    cdef int put_number(self, uint64_t number) except -1


# Applies an effect with these words.
ctypedef int (*ApplyWords)(Keyspace keyspace, int db, Args args) except -1

cdef int apply_compiled(bytes name, uint64_t texts, ApplyWords function) except -1

# The sizes of words that are not bytes: `ptr` is at the varints of an ID, or at that of a number.
cdef enum:
    IS_ID = -1
    IS_NUMBER = -2


cdef class EffectArgs(Args):
    cdef int code
    cdef uint64_t packed
    cdef Slice[64] few
    cdef object space
    cdef list texts

    cdef const char* read(self, const char* at, const char* end) except NULL
    cdef const char* read_resp(self, const char* at, const char* end) except NULL
    cdef int make_space(self, Py_ssize_t words) except -1
    cdef int unpack(self) except -1
