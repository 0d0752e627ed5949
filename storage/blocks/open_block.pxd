from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from millstream.encoding cimport Slice
from millstream.storage.blocks.block cimport Block
from millstream.storage.blocks.layout cimport View


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
    cdef Block seal(self, bint is_plain_before)
    cdef bint resume(self, const View* view) except -1


cdef uint64_t payload_of(Slice* items, Py_ssize_t count) except? 0
