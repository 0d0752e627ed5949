from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef enum:
    NUMBER_BYTES_MAX = 10
    # What a row has beyond the numbers that every row has.
    HAS_EXPIRY = 1
    IS_OPEN = 2
    HAS_FIRST_KEPT = 4
    HAS_EVICTED = 8
    HAS_DELETED = 16
    HAS_GROUPS = 32
    HAS_LAST_ID = 64  # it is not the last ID of the block
    HAS_BLOCK = 128


cdef struct Reader:
    const uint8_t* at
    const uint8_t* end


# A row, from its key to its groups, which follow at the reader's position.
cdef struct Row:
    uint64_t db
    const char* key
    Py_ssize_t key_size
    uint8_t flags
    uint64_t expires_ms
    uint64_t incarnation
    uint64_t entries_added
    uint64_t entries_evicted
    uint64_t entries_deleted
    uint64_t[2] first_kept
    uint64_t hidden
    uint64_t[2] max_evicted
    uint64_t[2] max_deleted
    uint64_t form_size
    uint64_t live
    uint64_t[2] first_id
    uint64_t[2] newest_id
    uint64_t[2] last_id
    uint64_t groups


cdef class Section:
    cdef bytes data
    cdef Reader r
    cdef uint64_t chunk_after  # the number of the chunk plus 1; 0: there is none
    cdef uint64_t offset  # where the next block begins in the chunk

    cdef object chunk_number(self)


cdef inline char* put_number(char* at, uint64_t value) noexcept nogil:
    """Write a varint; return the position after it."""
    while value >= 128:
        at[0] = <char>(value | 128)
        at += 1
        value >>= 7
    at[0] = <char>value
    return at + 1


cdef uint64_t number(Reader* r) except? 0xffffffffffffffff
cdef int64_t signed_number(Reader* r) except? -1
cdef const char* text(Reader* r, uint64_t size) except NULL
cdef bytes name_of(Reader* r, uint64_t size)
cdef int read_row(Reader* r, Row* row) except -1
cdef list retry_pairs(Reader* r)
cdef uint64_t pending_size(Reader* r) except? 0xffffffffffffffff
