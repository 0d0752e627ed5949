from libc.stdint cimport uint32_t, uint64_t

from millstream.storage.blocks.block cimport Block
from millstream.storage.blocks.layout cimport Head, View, view_of

cdef enum:
    HEIGHT_MAX = 12
    PAGE_BLOCKS = 128


# A block: its first ID, and its rank: the number of undeleted entries before it in the page, plus
# an arbitrary offset. The slot owns a reference to the object, `head.owner`, and points to its
# bytes, which saves readers an indirection.
cdef struct Slot:
    uint64_t ms
    uint64_t seq
    const Head* head
    uint64_t before


# A page's blocks, from `first` to `count`. `holders`: the reference count, for the page and
# readers; `likely_size`: the size of one of the blocks, which predicts the sizes of the others.
cdef struct Slots:
    uint32_t holders
    uint32_t first
    uint32_t count
    uint32_t capacity
    uint64_t likely_size
    Slot[1] items


# next_ms is a copy from the next page: a seek that goes down a level does not touch that page.
cdef struct Level:
    Page* next
    uint64_t next_ms
    uint64_t span


# No ID in the page is below ms-seq, and no ID in the pages before it is above.
cdef struct Page:
    uint64_t ms
    uint64_t seq
    Slots* slots
    Page* previous
    uint64_t live
    uint32_t height
    Level[1] levels


# One block of a list; `page` is NULL for none. It is valid until the list changes.
cdef struct Place:
    Page* page
    uint32_t at


cdef class Blocks:
    cdef Slots** slots
    cdef uint32_t* firsts
    cdef uint32_t* counts
    cdef Py_ssize_t pages
    cdef Py_ssize_t size
    cdef object tail
    # The end of the last read: the number of a page, and the number of its first block.
    cdef Py_ssize_t page
    cdef Py_ssize_t before

    cdef list take(self, Py_ssize_t start, Py_ssize_t stop)


cdef class SkipList:
    cdef Page* head
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


cdef inline uint64_t rank_in(Slots* slots, uint32_t at) noexcept:
    """The number of undeleted entries in the page before this block."""
    return slots.items[at].before - slots.items[slots.first].before


cdef inline Block block_at(Place place):
    return <Block>place.page.slots.items[place.at].head.owner


cdef inline void view_block(Place place, View* out) noexcept:
    view_of(place.page.slots.items[place.at].head, out)


cdef inline bint same_place(Place one, Place other) noexcept:
    return one.page == other.page and one.at == other.at


cdef inline Place no_place() noexcept:
    cdef Place place
    place.page = NULL
    place.at = 0
    return place


cdef inline Place place_after(Place place) noexcept:
    """The place of the next block; none after the last."""
    place.at += 1
    if place.at == place.page.slots.count:
        place.page = place.page.levels[0].next
        place.at = 0 if place.page == NULL else place.page.slots.first
    return place


cdef inline Place place_before(Place place) noexcept:
    """The place of the previous block; none before the first."""
    if place.at > place.page.slots.first:
        place.at -= 1
    else:
        place.page = place.page.previous
        place.at = 0 if place.page == NULL else place.page.slots.count - 1
    return place
