# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The pages of a skiplist, each with blocks in the order of their first IDs.

The page size is PAGE_BLOCKS in skiplist_pages.pxd. A new page has room for fewer blocks and grows to
this size (PAGE_BLOCKS_FIRST in skiplist.pyx).

The slots of a page are its blocks, with their first IDs and ranks. They have a reference count: a
point-in-time view of a list (`Blocks`) holds the slots of its pages, of which there are few. Shared
slots are copied before they change. Only new blocks after the last one are added to shared slots, at
positions that older views never read.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

cdef enum:
    TABLE_FIRST = 8  # the initial capacity of a table of pages
    LARGE_STEP = 1 << 28  # of a search in a table: larger steps would overflow

NO_MEMORY = "no memory for a block's place in its stream"


# ---------------------------------------------------------------- slots

cdef Slots* new_slots(uint32_t capacity) except NULL:
    cdef Slots* slots = <Slots*>malloc(sizeof(Slots) + (capacity - 1) * sizeof(Slot))
    if slots == NULL:
        raise MemoryError(NO_MEMORY)
    slots.holders = 1
    slots.first = slots.count = 0
    slots.capacity = capacity
    slots.likely_size = 0
    return slots


cdef void release(Slots* slots) noexcept:
    """Release one reference."""
    cdef uint32_t i
    slots.holders -= 1
    if slots.holders:
        return
    for i in range(slots.first, slots.count):
        Py_DECREF(<object>slots.items[i].head.owner)
    free(slots)


cdef int renew_slots(Page* page, uint32_t capacity) except -1:
    """Copy the page's slots to new ones with space for `capacity` blocks; positions do not
    change."""
    cdef Slots* old = page.slots
    cdef Slots* made = new_slots(capacity)
    cdef uint32_t i
    made.first = old.first
    made.count = old.count
    made.likely_size = old.likely_size
    memcpy(made.items, old.items, old.count * sizeof(Slot))
    for i in range(made.first, made.count):
        Py_INCREF(<object>made.items[i].head.owner)
    page.slots = made
    release(old)
    return 0


# ---------------------------------------------------------------- pages

cdef Page* new_page(uint32_t height) except NULL:
    cdef Page* page = <Page*>malloc(sizeof(Page) + (height - 1) * sizeof(Level))
    cdef uint32_t i
    if page == NULL:
        raise MemoryError(NO_MEMORY)
    page.ms = page.seq = 0
    page.slots = NULL
    page.previous = NULL
    page.live = 0
    page.height = height
    for i in range(height):
        page.levels[i].next = NULL
        page.levels[i].next_ms = 0
        page.levels[i].span = 0
    return page


cdef void free_page(Page* page) noexcept:
    if page.slots != NULL:
        release(page.slots)
    free(page)


# ---------------------------------------------------------------- tables of pages

cdef int reserve_start(PageTable* table) except -1:
    """Ensure that there is space for one more page."""
    cdef PageStart* moved
    cdef uint32_t wanted
    if table.items != NULL and table.count < table.capacity:
        return 0
    if table.first > table.capacity // 2:
        table.count -= table.first
        memmove(table.items, &table.items[table.first], table.count * sizeof(PageStart))
        table.first = 0
        return 0
    wanted = max(<uint32_t>TABLE_FIRST, 2 * table.capacity)
    moved = <PageStart*>realloc(table.items, wanted * sizeof(PageStart))
    if moved == NULL:
        raise MemoryError(NO_MEMORY)
    table.items = moved
    table.capacity = wanted
    return 0


cdef inline bint begins_above(const PageStart* start, uint64_t ms, uint64_t seq) noexcept:
    return start.ms > ms or (start.ms == ms and start.page.seq > seq)


cdef uint32_t start_above(const PageTable* table, uint64_t ms, uint64_t seq) noexcept:
    """The number of the first page that begins above ms-seq; `count` when there is none. The table
    is not empty. The search starts at the page that contains this time if all pages take equally
    long, and continues in growing steps."""
    cdef uint32_t low = table.first
    cdef uint32_t high = table.count
    cdef uint32_t step = 1
    cdef uint64_t start_ms = table.items[low].ms
    cdef uint64_t end_ms = table.items[high - 1].ms
    cdef uint32_t at = low
    if ms >= end_ms:
        at = high - 1
    elif ms > start_ms:
        at += <uint32_t>(<double>(high - 1 - low) * <double>(ms - start_ms) / <double>(
            end_ms - start_ms))
    while low < high:
        if begins_above(&table.items[at], ms, seq):
            high = at
            at = at - step if at >= low + step else (low + high) >> 1
        else:
            low = at + 1
            at = at + step if at + step < high else (low + high) >> 1
        if step < LARGE_STEP:
            step *= 4
    return low


cdef void remove_start(PageTable* table, Page* page) noexcept:
    """Remove a page, if the table is in use."""
    cdef uint32_t at
    if table.count == table.first:
        return
    at = start_above(table, page.ms, page.seq) - 1
    if at == table.first:
        table.first += 1
        return
    table.count -= 1
    memmove(&table.items[at], &table.items[at + 1], (table.count - at) * sizeof(PageStart))


cdef class Blocks:
    """A point-in-time view of a list: a sequence of blocks that is read in slices. One thread may
    read it while another changes the list; both must hold the interpreter's lock.
    """

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.pages):
            release(self.slots[i])
        free(self.slots)
        free(self.firsts)
        free(self.counts)

    def free_step(self, Py_ssize_t most) -> bool:
        """Release about `most` blocks from the end, in whole pages; False when none is left.
        Releasing very many blocks at once would hold the interpreter's lock for long."""
        cdef Py_ssize_t held
        self.tail = None
        self.page = self.before = 0
        while self.pages and most > 0:
            self.pages -= 1
            held = self.counts[self.pages] - self.firsts[self.pages]
            self.size -= held
            most -= held
            release(self.slots[self.pages])
        return self.pages > 0

    def __len__(self) -> int:
        return self.size + (self.tail is not None)

    def __getitem__(self, index):
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("blocks are read in order")
            return self.between(start, max(start, stop))
        if not -len(self) <= index < len(self):
            raise IndexError("there is no such block")
        index %= len(self)
        return self.between(index, index + 1)[0]

    cdef list between(self, Py_ssize_t start, Py_ssize_t stop):
        """Blocks start to stop: 0 <= start <= stop <= len. Fastest near the previous slice."""
        cdef list found = []
        cdef Py_ssize_t within = min(stop, self.size)
        cdef uint32_t i
        while start < self.before:
            self.page -= 1
            self.before -= self.counts[self.page] - self.firsts[self.page]
        while start < within:
            i = self.firsts[self.page] + <uint32_t>(start - self.before)
            if i < self.counts[self.page]:
                found.append(<object>self.slots[self.page].items[i].head.owner)
                start += 1
            else:
                self.before += self.counts[self.page] - self.firsts[self.page]
                self.page += 1
        if start < stop:
            found.append(self.tail)
        return found
