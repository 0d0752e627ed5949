from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

from millstream.storage.block cimport Block

cdef enum:
    HEIGHT_MAX = 16


# next_ms repeats next.ms: a seek that goes down here need not touch the next node.
cdef struct Level:
    Node* next
    uint64_t next_ms
    uint64_t span


cdef struct Node:
    # The block's first id, beside the links: a seek then touches one place in memory a step.
    uint64_t ms
    uint64_t seq
    PyObject* block
    Node* previous
    uint32_t height
    bint in_slab
    Level[1] levels


# Room for many nodes on one page; `nodes` of them are in use.
cdef struct Slab:
    uint32_t nodes
    uint32_t used_bytes


cdef class SkipList:
    cdef Node* head
    cdef Node* last[HEIGHT_MAX]
    cdef uint64_t last_rank[HEIGHT_MAX]
    cdef uint32_t height
    cdef uint32_t seed
    cdef Slab* slab
    cdef SkipList cut_from
    cdef readonly uint32_t parts  # that were cut off and are not freed yet
    cdef readonly uint64_t live
    cdef readonly uint64_t blocks
    cdef readonly uint64_t block_nodes
    cdef readonly uint64_t data_bytes

    cdef inline void count_bytes(self, Py_ssize_t more) noexcept
    cdef Node* first(self) noexcept
    cdef Node* end(self) noexcept
    cpdef int push(self, Block block) except -1
    cpdef int drop_head(self) except -1
    cdef Node* take_node(self, uint32_t height) except NULL
    cdef SkipList cut_before(self, Node* node)
    cdef void begin_behind(self, int i, Node* last, uint64_t rank, uint64_t gone) noexcept
    cdef bint free_blocks(self, uint64_t most) except -1
    cdef Node* seek(self, uint64_t ms, uint64_t seq, uint64_t* rank) noexcept
    cdef Node* seek_rank(self, uint64_t rank, uint64_t* before) noexcept
    cdef int replace(self, Node* node, Block block) except -1
    cdef int remove(self, Node* node) except -1
    cdef uint32_t random_height(self) noexcept
    cdef inline void lower_last(self, uint32_t level, Block changed, uint64_t gone) noexcept
    cdef void forget(self, Node* node) noexcept
    cdef void leave_slab(self) noexcept
    cdef void find_path(self, uint64_t ms, uint64_t seq, Node** path) noexcept


cdef inline Block block_of(Node* node):
    return <Block>node.block
