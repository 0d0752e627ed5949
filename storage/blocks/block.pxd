from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from millstream.encoding cimport Output, Slice
from millstream.ids cimport EntryId


cdef enum:
    BLOCK_HEADER_BYTES = 64
    CHECKPOINT_EVERY = 32
    BLOCK_BYTES_MAX = 65536  # a block is sealed after this many bytes
    SETS_MAX = 30
    # An entry's first byte: deleted or not, how its id follows the one before, its field-name set.
    DELETED = 0x80
    FORM_NEXT_SEQ = 0
    FORM_NEXT_MS = 1
    FORM_LATER_MS = 2
    FORM_ANCHOR = 3
    REF_LITERAL = 31


# A block's first 64 bytes, in memory as on the disk, but for two numbers: `crc32`, which is computed
# when the block is written out, and `owner`, the Block that has these bytes, which is 0 there.
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


cdef class Block:
    cdef Head* head

    cdef Py_ssize_t data_size(self) noexcept
    cdef Block without(self, uint64_t ms, uint64_t seq)
    cdef Block without_all(self, list ids)
    cdef inline void mark(self, Py_ssize_t at) noexcept
    cdef Block copy(self)
    cdef int write(self, char* at) except -1


cdef class OpenBlock:
    # What every append touches comes first.
    cdef uint8_t* data
    cdef uint32_t size
    cdef uint32_t capacity
    cdef readonly uint32_t count
    cdef readonly uint32_t live
    cdef uint16_t set_count
    cdef uint16_t last_ref
    cdef uint32_t node_start
    cdef uint32_t node_listpack
    cdef uint64_t node_ms
    cdef uint64_t node_seq
    cdef uint8_t node_ref
    cdef bint closed
    cdef uint64_t last_ms
    cdef uint64_t last_seq
    cdef uint32_t* checkpoints
    cdef uint32_t* sets
    cdef uint32_t* nodes
    cdef uint64_t first_ms
    cdef uint64_t first_seq
    cdef uint32_t checkpoint_capacity
    cdef uint16_t set_capacity
    cdef uint16_t node_count
    cdef uint16_t node_capacity

    cdef void view(self, View* out) noexcept
    cdef bint place(self, uint64_t payload, uint32_t node_entries, uint32_t node_bytes) except -1
    cdef int start_node(self) except -1
    cdef int append(self, uint64_t ms, uint64_t seq, Slice* items, Py_ssize_t count,
                    uint64_t payload) except -1
    cdef inline int reserve(self, uint64_t extra) except -1
    cdef inline int before_entry(self, uint32_t start, uint64_t ms, uint64_t seq) except -1
    cdef inline uint8_t* write_id_difference(self, uint8_t* at, uint64_t ms, uint64_t seq) noexcept
    cdef inline uint8_t* write_names(self, uint8_t* at, Slice* items, Py_ssize_t count) except NULL
    cdef inline int find_set(self, Slice* items, Py_ssize_t count) noexcept
    cdef inline bint is_new_to_node(self, uint8_t ref) noexcept
    cdef int measure_again(self, const View* view) noexcept
    cdef inline void measure(self, uint8_t ref, uint64_t ms, uint64_t seq, uint64_t names,
                             uint64_t values, uint64_t fields) noexcept
    cdef bint delete(self, uint64_t ms, uint64_t seq) noexcept
    cdef void reset(self) noexcept
    cdef Py_ssize_t data_size(self) noexcept
    cdef inline void count_capacity(self, uint32_t capacity) noexcept
    cpdef Block freeze(self)


cdef void view_of(const Head* head, View* out) noexcept nogil
cdef uint64_t payload_of(Slice* items, Py_ssize_t count) except? 0
cdef void cursor_start(Cursor* cursor, const View* view) noexcept nogil
cdef void cursor_seek(Cursor* cursor, const View* view, uint64_t ms, uint64_t seq) noexcept nogil
cdef void cursor_to_index(Cursor* cursor, const View* view, uint32_t index) noexcept nogil
cdef const uint8_t* entry_head(const View* view, const uint8_t* at, Entry* entry) noexcept nogil
cdef bint cursor_next(Cursor* cursor, const View* view) noexcept nogil
cdef bint view_find(const View* view, uint64_t ms, uint64_t seq, Entry* out) noexcept nogil
cdef uint32_t view_live_before(const View* view, uint64_t ms, uint64_t seq) noexcept nogil
cdef bint view_last_live_before(const View* view, uint64_t ms, uint64_t seq, Entry* out) noexcept nogil
cdef bint view_nth_live(const View* view, uint64_t ms, uint64_t seq, uint64_t nth, Entry* out) noexcept nogil
cdef int encode_entry(Output out, const View* view, const Entry* entry, IdText* id_text) except -1
cdef int64_t encode_forward(Output out, const View* view, uint64_t ms, uint64_t seq,
                            uint64_t end_ms, uint64_t end_seq, uint64_t limit,
                            Py_ssize_t full_size, IdText* id_text, EntryId* last) except -1
cdef int64_t encode_backward(Output out, const View* view, uint64_t ms, uint64_t seq,
                             uint64_t end_ms, uint64_t end_seq, uint64_t limit,
                             Py_ssize_t full_size, IdText* id_text, EntryId* last) except -1
cdef uint64_t view_disk_size(const View* view) noexcept nogil
cdef list entry_words(const Entry* entry)
cdef const char* view_at(const uint8_t* data, Py_ssize_t size, View* out,
                         Py_ssize_t* length) noexcept nogil


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
    """Bytes of a bulk string whose content has this many."""
    cdef uint64_t total = <uint64_t>size + 6
    while size >= 10:
        size //= 10
        total += 1
    return total
