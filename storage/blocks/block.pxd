from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from millstream.encoding cimport Output, Slice
from millstream.entry_id cimport EntryId
from millstream.storage.blocks.layout cimport Cursor, Entry, Head, IdText, View


cdef class Block:
    cdef Head* head

    cdef Py_ssize_t data_size(self) noexcept
    cdef Block without(self, uint64_t ms, uint64_t seq)
    cdef Block without_all(self, list ids)
    cdef inline void mark(self, Py_ssize_t at) noexcept
    cdef Block copy(self)
    cdef Py_ssize_t write_unsealed(self, char* at) noexcept
    cdef int write(self, char* at) except -1


cdef class OpenBlock:
    # The members that every append touches come first.
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
    cdef uint32_t first_set  # `sets` while there is one at most

    cdef void view(self, View* out) noexcept
    cdef bint place(self, uint64_t payload, uint32_t node_entries, uint32_t node_bytes) except -1
    cdef int start_node(self) except -1
    cdef int append(self, uint64_t ms, uint64_t seq, Slice* items, Py_ssize_t count,
                    uint64_t payload) except -1
    cdef inline int reserve(self, uint64_t extra) except -1
    cdef inline int before_entry(self, uint32_t start, uint64_t ms, uint64_t seq) except -1
    cdef inline uint8_t* write_id_difference(self, uint8_t* at, uint64_t ms, uint64_t seq) noexcept
    cdef inline uint8_t* write_names(self, uint8_t* at, Slice* items, Py_ssize_t count) except NULL
    cdef int grow_sets(self) except -1
    cdef inline int find_set(self, Slice* items, Py_ssize_t count) noexcept
    cdef inline bint is_new_to_node(self, uint8_t ref) noexcept
    cdef int measure_node(self) noexcept
    cdef inline void measure(self, uint8_t ref, uint64_t ms, uint64_t seq, uint64_t names,
                             uint64_t values, uint64_t fields) noexcept
    cdef bint delete(self, uint64_t ms, uint64_t seq) noexcept
    cdef void reset(self) noexcept
    cdef Py_ssize_t data_size(self) noexcept
    cdef inline void count_capacity(self, uint32_t capacity) noexcept
    cdef Py_ssize_t write_unsealed(self, char* at) noexcept
    cpdef Block freeze(self)


cdef void view_of(const Head* head, View* out) noexcept nogil
cdef const Head* sound_head(const uint8_t* data, Py_ssize_t size) except NULL
cdef uint64_t form_size(const Head* head) noexcept nogil
cdef Block read_block(const Head* form, Py_ssize_t size)
cdef OpenBlock reopened(const View* view)
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
cdef void entry_slices(const Entry* entry, Slice* items) noexcept nogil
cdef const char* view_at(const uint8_t* data, Py_ssize_t size, View* out,
                         Py_ssize_t* length) noexcept nogil
