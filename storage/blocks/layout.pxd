# The layout of a block in memory. Only `block` and `block_check` use it.
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef enum:
    BLOCK_HEADER_BYTES = 64
    CHECKPOINT_EVERY = 32
    BLOCK_BYTES_MAX = 65536  # a block is sealed after this many bytes
    SETS_MAX = 30
    # An entry's first byte: the deletion flag, the encoding of its ID, its field-name set.
    DELETED = 0x80
    FORM_NEXT_SEQ = 0
    FORM_NEXT_MS = 1
    FORM_LATER_MS = 2
    FORM_ANCHOR = 3
    REF_LITERAL = 31


# A block's first 64 bytes. They are the same in memory and on the disk except for two numbers:
# `crc32` is computed when the block is written to a file, and `owner`, the Block that owns these
# bytes, is 0 on the disk.
cdef struct Head:
    char[2] magic
    uint8_t version
    uint8_t zero
    uint32_t crc32
    uint32_t count
    uint32_t live
    uint32_t size
    uint16_t set_count
    uint16_t node_count
    uint64_t first_ms
    uint64_t first_seq
    uint64_t last_ms
    uint64_t last_seq
    PyObject* owner


cdef struct View:
    const uint8_t* entries
    uint32_t size
    uint32_t count
    uint32_t live
    uint64_t first_ms
    uint64_t first_seq
    uint64_t last_ms
    uint64_t last_seq
    const uint32_t* checkpoints
    const uint32_t* sets
    uint32_t set_count
    const uint32_t* nodes
    uint32_t node_count


cdef struct Entry:
    uint64_t ms
    uint64_t seq
    bint deleted
    uint32_t fields
    uint32_t names_size
    const uint8_t* names
    const uint8_t* values


cdef struct Cursor:
    const uint8_t* at
    uint32_t index
    Entry entry


cdef struct IdText:
    uint64_t ms
    int size
    bint dotted
    char text[24]


cdef inline const uint8_t* read_varint(const uint8_t* at, uint64_t* out) noexcept nogil:
    cdef uint64_t value = at[0]
    cdef int shift = 7
    if value < 128:
        out[0] = value
        return at + 1
    value &= 127
    at += 1
    while at[0] >= 128 and shift < 63:
        value |= (<uint64_t>(at[0] & 127)) << shift
        shift += 7
        at += 1
    out[0] = value | ((<uint64_t>at[0]) << shift)
    return at + 1


cdef inline uint64_t bulk_size(Py_ssize_t size) noexcept nogil:
    """The size of a bulk string whose content has `size` bytes."""
    cdef uint64_t total = <uint64_t>size + 6
    while size >= 10:
        size //= 10
        total += 1
    return total
