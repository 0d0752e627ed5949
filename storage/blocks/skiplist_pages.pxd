from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memmove

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


# A page and the time at which it begins. `likely_slots`: where its slots were when the next page was
# added. It is only prefetched, and may be invalid.
cdef struct PageStart:
    uint64_t ms
    Page* page
    const char* likely_slots


# The pages of a list in order, from `first` to `count`, in contiguous memory. A list with one page
# that never had more has none: `items` is NULL.
cdef struct PageTable:
    uint32_t first
    uint32_t count
    uint32_t capacity
    PageStart* items


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

    cdef list between(self, Py_ssize_t start, Py_ssize_t stop)


cdef Slots* new_slots(uint32_t capacity) except NULL
cdef int renew_slots(Page* page, uint32_t capacity) except -1
cdef Page* new_page(uint32_t height) except NULL
cdef void free_page(Page* page) noexcept
cdef int reserve_start(PageTable* table) except -1
cdef uint32_t start_above(const PageTable* table, uint64_t ms, uint64_t seq) noexcept
cdef void remove_start(PageTable* table, Page* page) noexcept


cdef inline int own_slots(Page* page) except -1:
    """Copy the page's slots if they are shared. Call this before changing them."""
    if page.slots.holders > 1:
        renew_slots(page, page.slots.capacity)
    return 0


cdef inline void cut_slot(Slots* slots, uint32_t at) noexcept:
    """Remove a block's slot and close the gap."""
    slots.count -= 1
    memmove(&slots.items[at], &slots.items[at + 1], (slots.count - at) * sizeof(Slot))


cdef inline void lower_after(Slots* slots, uint32_t at, uint64_t gone) noexcept:
    """Subtract `gone` entries from the ranks of the blocks after this one."""
    cdef uint32_t i
    for i in range(at + 1, slots.count):
        slots.items[i].before -= gone


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


cdef inline void add_start(PageTable* table, Page* page) noexcept:
    """Add the last page, for which space is reserved."""
    if table.count > table.first:
        table.items[table.count - 1].likely_slots = <const char*>page.previous.slots
    table.items[table.count].likely_slots = NULL
    table.items[table.count].ms = page.ms
    table.items[table.count].page = page
    table.count += 1


cdef inline void link(Level* level, Page* page) noexcept:
    level.next = page
    level.next_ms = 0 if page == NULL else page.ms
