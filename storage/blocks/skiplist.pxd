from libc.stdint cimport uint32_t, uint64_t

from millstream.storage.blocks.block cimport Block
from millstream.storage.blocks.skiplist_pages cimport HEIGHT_MAX, Blocks, Page, PageTable, Place, Slots


cdef class SkipList:
    cdef Page* head
    # All pages, for seeks that need no rank.
    cdef PageTable table
    cdef Page* last[HEIGHT_MAX]
    cdef uint64_t last_rank[HEIGHT_MAX]
    cdef uint32_t height
    cdef uint32_t seed
    cdef readonly SkipList cut_from  # the list that these blocks were cut off from, or None
    cdef readonly uint32_t parts  # the number of parts that were cut off and are not freed yet
    cdef readonly uint64_t live
    cdef readonly uint64_t blocks
    cdef readonly uint64_t block_nodes
    cdef readonly uint64_t data_bytes

    cdef inline void count_bytes(self, Py_ssize_t more) noexcept
    cdef Place first(self) noexcept
    cdef Place end(self) noexcept
    cdef Page* add_page(self, Block block) except NULL
    cpdef int push(self, Block block) except -1
    cpdef int drop_head(self) except -1
    cdef Place seek(self, uint64_t ms, uint64_t seq, uint64_t* rank) noexcept
    cdef Page* find_page(self, uint64_t ms, uint64_t seq, uint64_t* before) noexcept
    cdef Place seek_rank(self, uint64_t rank, uint64_t* before) noexcept
    cdef int replace(self, Place place, Block block) except -1
    cdef int remove(self, Place place) except -1
    cdef void lower(self, Page* page, uint64_t gone, Page** path) noexcept
    cdef void take_out(self, Page* page, Page** path) noexcept
    cdef uint32_t random_height(self) noexcept
    cdef uint64_t find_path(self, Page* page, Page** path, uint64_t* ranks) noexcept
    cdef Blocks share(self, tail)
    cdef SkipList cut_before(self, Place place)
    cdef uint64_t cut_pages(self, SkipList part, Page* page) noexcept
    cdef bint free_blocks(self, uint64_t most) except -1
    cdef void forget(self, Slots* slots) noexcept
