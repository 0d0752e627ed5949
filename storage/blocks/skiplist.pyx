# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""A stream's sealed blocks: a doubly linked skiplist of pages, in the order of their first IDs.

The structure is the draft's skiplist, with many blocks per node; a node is called a page. The page
size is PAGE_BLOCKS in skiplist_pages.pxd. A seek finds the page in a table of all pages, and then
searches contiguous numbers, so it touches few cache lines even among hundreds of thousands of
blocks. Spans count undeleted entries, so a walk of O(log pages) steps finds the n-th entry and the
number of entries below an ID. Blocks are appended and dropped at the ends. The heights come from a
private generator with a fixed seed: the same history gives the same list.

A page exists until its last block is removed, even if it has few blocks.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from millstream.storage.blocks.block cimport Block
from millstream.storage.blocks.prefetch cimport LINE_BYTES, fetch_line
from millstream.storage.blocks.skiplist_pages cimport (
    HEIGHT_MAX, PAGE_BLOCKS, Blocks, Level, Page, PageStart, Place, Slot, Slots, add_start, block_at, cut_slot,
    free_page, link, lower_after, new_page, new_slots, no_place, own_slots, place_before, rank_in,
    remove_start, renew_slots, reserve_start, start_above,
)

from millstream.storage.blocks.skiplist_pages import NO_MEMORY

cdef enum:
    GALLOP_MAX = 8
    # The initial capacity of a page. It doubles when the page is full, up to PAGE_BLOCKS.
    PAGE_BLOCKS_FIRST = 4

# Bytes of the blocks of all lists.
cdef uint64_t all_data_bytes = 0


def sealed_bytes() -> int:
    """Bytes that the sealed blocks of all streams take, one that is in two streams twice. What a
    snapshot or a reply still holds of blocks that streams have released does not count."""
    return all_data_bytes


cdef inline bint is_above(const Slot* slot, uint64_t ms, uint64_t seq) noexcept:
    return slot.ms > ms or (slot.ms == ms and slot.seq > seq)


cdef uint32_t first_above(Page* page, uint64_t ms, uint64_t seq) noexcept:
    """The first slot of the page whose block begins above ms-seq; `count` when there is none.

    The search starts at a position found by interpolation over the page's time, and continues in
    doubling steps. For IDs made by a clock it touches one cache line.
    """
    cdef Slots* slots = page.slots
    cdef uint32_t low = slots.first
    cdef uint32_t high = slots.count
    cdef uint32_t at = likely_slot(page, ms)
    cdef uint32_t step = 1
    while low < high:
        if is_above(&slots.items[at], ms, seq):
            high = at
            at = at - step if at >= low + step else low
        else:
            low = at + 1
            at = at + step if at + step < high else high - 1
        if step > GALLOP_MAX:
            at = (low + high) >> 1
        step *= 2
    return low


cdef inline uint32_t likely_slot(Page* page, uint64_t ms) noexcept:
    cdef Slots* slots = page.slots
    cdef uint64_t end_ms
    cdef uint32_t at
    cdef double part
    if ms <= page.ms:
        return slots.first
    if page.levels[0].next == NULL:
        end_ms = slots.items[slots.count - 1].ms
        if ms >= end_ms:
            return slots.count - 1
        part = <double>(ms - page.ms) / <double>(end_ms - page.ms)
    else:
        end_ms = page.levels[0].next_ms
        if ms >= end_ms:
            return slots.count - 1
        part = <double>(ms - page.ms) / <double>(end_ms - page.ms)
    at = <uint32_t>(slots.count * part)
    return slots.first if at < slots.first else at if at < slots.count else slots.count - 1


cdef inline void fetch_slots(const PageStart* start, uint64_t ms) noexcept:
    """Prefetch in parallel the page, the numbers of its slots and its likely slot; most pages are
    full. In a large stream each of them is a cache miss. The page is not the last one."""
    cdef uint64_t end_ms = start[1].ms
    cdef const char* slots = start.likely_slots
    cdef uint32_t likely = 0
    if start.ms < ms < end_ms:
        likely = <uint32_t>(PAGE_BLOCKS * (
            <double>(ms - start.ms) / <double>(end_ms - start.ms)))
    fetch_line(start.page)
    fetch_line(<const char*>start.page + LINE_BYTES)
    fetch_line(slots)
    fetch_line(slots + sizeof(Slots) + likely * sizeof(Slot) - sizeof(Slot))
    fetch_line(slots + sizeof(Slots) + likely * sizeof(Slot))


cdef inline void fetch(Place place, uint64_t ms) noexcept:
    """Prefetch in parallel what a reader of the block accesses one after the other: the header,
    tables and names, and the likely position of an entry with this time."""
    cdef Slots* slots = place.page.slots
    cdef Slot* slot = &slots.items[place.at]
    cdef const char* head = <const char*>slot.head
    cdef uint64_t end_ms = place.page.levels[0].next_ms if place.at + 1 == slots.count else slot[1].ms
    cdef const char* likely
    cdef int line
    for line in range(3):
        fetch_line(head + LINE_BYTES * line)
    if slot.ms < ms < end_ms:
        likely = head + <uint64_t>(
            <double>slots.likely_size * <double>(ms - slot.ms) / <double>(end_ms - slot.ms))
        # Decoding begins at a checkpoint, which is usually some cache lines before the entry.
        for line in range(-5, 5):
            fetch_line(likely + LINE_BYTES * line)


cdef class SkipList:
    """Blocks in ID order. `live` and `blocks` are totals; the spans of last pages are unused."""

    def __cinit__(self):
        cdef int i
        self.head = new_page(HEIGHT_MAX)
        self.height = 1
        self.seed = 2463534242
        for i in range(HEIGHT_MAX):
            self.last[i] = self.head
            self.last_rank[i] = 0

    def __dealloc__(self):
        global all_data_bytes
        cdef Page* page = self.head
        cdef Page* after
        all_data_bytes -= self.data_bytes
        while page != NULL:
            after = page.levels[0].next
            free_page(page)
            page = after
        free(self.table.items)

    cdef Place first(self) noexcept:
        """The place of the first block; none when the list is empty."""
        cdef Place place
        place.page = self.head.levels[0].next
        place.at = 0 if place.page == NULL else place.page.slots.first
        return place

    cdef Place end(self) noexcept:
        """The place of the last block; none when the list is empty."""
        cdef Place place
        if self.last[0] == self.head:
            return no_place()
        place.page = self.last[0]
        place.at = place.page.slots.count - 1
        return place

    cdef uint32_t random_height(self) noexcept:
        """A height: 1 with probability 3/4, and each further level with probability 1/4."""
        cdef uint32_t height = 1
        cdef uint32_t bits
        self.seed ^= self.seed << 13
        self.seed ^= self.seed >> 17
        self.seed ^= self.seed << 5
        bits = self.seed
        while height < HEIGHT_MAX and (bits & 3) == 0:
            height += 1
            bits >>= 2
        return height

    cdef inline void count_bytes(self, Py_ssize_t more) noexcept:
        global all_data_bytes
        self.data_bytes += <uint64_t>more
        all_data_bytes += <uint64_t>more

    # ------------------------------------------------------------ the ends

    cpdef int push(self, Block block) except -1:
        """Append a block; its IDs are above all others."""
        cdef Page* page = self.last[0]
        cdef Slots* slots
        cdef Slot* slot
        cdef Py_ssize_t size_bytes = block.data_size()
        if page == self.head or page.slots.count == PAGE_BLOCKS:
            page = self.add_page(block)
        elif page.slots.count == page.slots.capacity:
            renew_slots(page, 2 * page.slots.capacity)
        slots = page.slots
        slot = &slots.items[slots.count]
        Py_INCREF(block)
        slot.ms = block.head.first_ms
        slot.seq = block.head.first_seq
        slot.head = block.head
        slot.before = 0 if slots.count == 0 else slots.items[slots.first].before + page.live
        slots.count += 1
        slots.likely_size = <uint64_t>size_bytes
        page.live += block.head.live
        self.live += block.head.live
        self.blocks += 1
        self.block_nodes += block.head.node_count
        self.count_bytes(size_bytes)
        return 0

    cdef Page* add_page(self, Block block) except NULL:
        """Add an empty page after the last one, for this block and later ones."""
        cdef uint32_t height = self.random_height()
        cdef Slots* slots = new_slots(PAGE_BLOCKS_FIRST)
        cdef Page* page
        cdef uint32_t i
        try:
            if self.table.items != NULL or self.last[0] != self.head:
                reserve_start(&self.table)
            page = new_page(height)
        except MemoryError:
            free(slots)
            raise
        page.slots = slots
        page.ms = block.head.first_ms
        page.seq = block.head.first_seq
        page.previous = NULL if self.last[0] == self.head else self.last[0]
        if height > self.height:
            self.height = height
        for i in range(height):
            link(&self.last[i].levels[i], page)
            self.last[i].levels[i].span = self.live - self.last_rank[i]
            self.last[i] = page
            self.last_rank[i] = self.live
        if self.table.items != NULL:
            if self.table.count == self.table.first and page.previous != NULL:
                add_start(&self.table, page.previous)
            add_start(&self.table, page)
        return page

    cpdef int drop_head(self) except -1:
        """Remove the first block."""
        if self.first().page == NULL:
            raise IndexError("no block to drop")
        return self.remove(self.first())

    # ------------------------------------------------------------ finding

    cdef Place seek(self, uint64_t ms, uint64_t seq, uint64_t* rank) noexcept:
        """The last block whose first ID is at most ms-seq, if any.

        rank, unless NULL, becomes the number of undeleted entries in the blocks before it.
        """
        cdef Place place
        cdef uint64_t before = 0
        cdef uint32_t at
        if rank == NULL and self.table.count > self.table.first:
            at = start_above(&self.table, ms, seq)
            if at == self.table.first:
                return no_place()
            place.page = self.table.items[at - 1].page
            if at < self.table.count:
                fetch_slots(&self.table.items[at - 1], ms)
        else:
            place.page = self.find_page(ms, seq, &before)
            if place.page == self.head:
                return no_place()
        place.at = first_above(place.page, ms, seq)
        if place.at == place.page.slots.first:  # blocks were removed from the page's beginning
            place = place_before(place)
            if place.page == NULL:
                return place
            before -= place.page.live
        else:
            place.at -= 1
        if rank != NULL:
            rank[0] = before + rank_in(place.page.slots, place.at)
        fetch(place, ms)
        return place

    cdef Page* find_page(self, uint64_t ms, uint64_t seq, uint64_t* before) noexcept:
        """The last page that begins at most at ms-seq, else the head; add the number of undeleted
        entries in the pages before it to `before`."""
        cdef Page* page = self.head
        cdef Level* level
        cdef int i
        for i in range(<int>self.height - 1, -1, -1):
            level = &page.levels[i]
            while level.next != NULL and (level.next_ms < ms or (
                    level.next_ms == ms and level.next.seq <= seq)):
                before[0] += level.span
                page = level.next
                level = &page.levels[i]
        return page

    cdef Place seek_rank(self, uint64_t rank, uint64_t* before) noexcept:
        """The block with the undeleted entry of this rank (from 0); none when past the end.

        before becomes the number of undeleted entries in the blocks before it.
        """
        cdef Page* page = self.head
        cdef Place place
        cdef uint32_t low, high, middle
        cdef int i
        if rank >= self.live:
            return no_place()
        before[0] = 0
        for i in range(<int>self.height - 1, -1, -1):
            while page.levels[i].next != NULL and before[0] + page.levels[i].span <= rank:
                before[0] += page.levels[i].span
                page = page.levels[i].next
        low = page.slots.first
        high = page.slots.count
        while high - low > 1:
            middle = (low + high) >> 1
            if rank_in(page.slots, middle) <= rank - before[0]:
                low = middle
            else:
                high = middle
        place.page = page
        place.at = low
        before[0] += rank_in(page.slots, low)
        return place

    cdef uint64_t find_path(self, Page* page, Page** path, uint64_t* ranks) noexcept:
        """For each level, find the last page before this one (the head counts as a page) and,
        unless `ranks` is NULL, the number of undeleted entries before that page. Return the number
        before this page."""
        cdef Page* here = self.head
        cdef Level* level
        cdef uint64_t before = 0
        cdef int i
        for i in range(<int>self.height - 1, -1, -1):
            level = &here.levels[i]
            while level.next != NULL and (level.next_ms < page.ms or (
                    level.next_ms == page.ms and level.next.seq < page.seq)):
                before += level.span
                here = level.next
                level = &here.levels[i]
            path[i] = here
            if ranks != NULL:
                ranks[i] = before
        return before + here.levels[0].span

    # ------------------------------------------------------------ changes

    cdef int replace(self, Place place, Block block) except -1:
        """Replace a block with one that has the same IDs but fewer undeleted entries."""
        cdef Page* path[HEIGHT_MAX]
        cdef Block old
        own_slots(place.page)
        old = block_at(place)
        self.find_path(place.page, path, NULL)
        self.lower(place.page, old.head.live - block.head.live, path)
        lower_after(place.page.slots, place.at, old.head.live - block.head.live)
        Py_INCREF(block)
        place.page.slots.items[place.at].head = block.head
        Py_DECREF(old)
        return 0

    cdef int remove(self, Place place) except -1:
        """Remove a block."""
        cdef Page* path[HEIGHT_MAX]
        cdef Page* page = place.page
        cdef Block block
        own_slots(page)
        block = block_at(place)
        self.find_path(page, path, NULL)
        self.lower(page, block.head.live, path)
        if place.at == page.slots.first:
            page.slots.first += 1
        else:
            lower_after(page.slots, place.at, block.head.live)
            cut_slot(page.slots, place.at)
        Py_DECREF(block)
        if page.slots.first == page.slots.count:
            self.take_out(page, path)
        self.blocks -= 1
        self.block_nodes -= block.head.node_count
        self.count_bytes(-block.data_size())
        return 0

    cdef void lower(self, Page* page, uint64_t gone, Page** path) noexcept:
        """Subtract `gone` entries from the spans over a page; `path` leads to it."""
        cdef Page* before
        cdef uint32_t i
        for i in range(self.height):
            before = page if i < page.height else path[i]
            if before.levels[i].next != NULL:
                before.levels[i].span -= gone
                self.last_rank[i] -= gone  # the level's last page is after this one
        page.live -= gone
        self.live -= gone

    cdef void take_out(self, Page* page, Page** path) noexcept:
        """Remove a page without blocks; `path` leads to it."""
        cdef Page* after = page.levels[0].next
        cdef uint32_t i
        for i in range(page.height):
            if self.last[i] == page:
                self.last[i] = path[i]
                self.last_rank[i] -= path[i].levels[i].span
            link(&path[i].levels[i], page.levels[i].next)
            path[i].levels[i].span += page.levels[i].span
        if after != NULL:
            after.previous = page.previous
        remove_start(&self.table, page)
        free_page(page)

    # ------------------------------------------------------------ large parts

    cdef SkipList cut_before(self, Place place):
        """Remove all blocks before this one, whole pages in O(log pages): these pages become a
        separate list, which supports only `free_blocks`. Until that list is freed, the totals of
        blocks and bytes include it; `live` does not."""
        cdef SkipList part = SkipList.__new__(SkipList)
        cdef Place first
        own_slots(place.page)
        if place.page.previous != NULL:
            self.live -= self.cut_pages(part, place.page)
        first.page = place.page
        while place.page.slots.first < place.at:
            first.at = place.page.slots.first
            self.remove(first)
        part.cut_from = self
        self.parts += 1
        return part

    cdef uint64_t cut_pages(self, SkipList part, Page* page) noexcept:
        """Move the pages before this one to another list; return their number of entries."""
        cdef Page* path[HEIGHT_MAX]
        cdef Level* level
        cdef uint64_t ranks[HEIGHT_MAX]
        cdef uint64_t gone = self.find_path(page, path, ranks)
        cdef int i
        link(&part.head.levels[0], self.head.levels[0].next)
        for i in range(<int>self.height):
            level = &path[i].levels[i]
            link(&self.head.levels[i], level.next)
            if level.next == NULL:
                self.last[i] = self.head
                self.last_rank[i] = 0
            else:
                self.head.levels[i].span = ranks[i] + level.span - gone
                self.last_rank[i] -= gone
            if path[i] != self.head:
                level.next = NULL
        page.previous = NULL
        if self.table.count > self.table.first:
            self.table.first = start_above(&self.table, page.ms, page.seq) - 1
        return gone

    cdef bint free_blocks(self, uint64_t most) except -1:
        """Free about `most` blocks, in whole pages, of a list that is no longer used; False when
        none is left."""
        cdef SkipList whole = self if self.cut_from is None else self.cut_from
        cdef Page* page = self.head.levels[0].next
        cdef uint64_t freed = 0
        self.table.first = self.table.count = 0
        while freed < most and page != NULL:
            freed += page.slots.count - page.slots.first
            whole.forget(page.slots)
            self.head.levels[0].next = page.levels[0].next
            free_page(page)
            page = self.head.levels[0].next
        if page == NULL and self.cut_from is not None:
            whole.parts -= 1
            self.cut_from = None
        return page != NULL

    cdef void forget(self, Slots* slots) noexcept:
        """Subtract these blocks from the totals."""
        cdef Block block
        cdef uint32_t i
        for i in range(slots.first, slots.count):
            block = <Block>slots.items[i].head.owner
            self.blocks -= 1
            self.block_nodes -= block.head.node_count
            self.count_bytes(-block.data_size())

    cdef Blocks share(self, tail):
        """A view of the current blocks that stays readable when the list changes; `tail`, unless
        None, is one more block at the end."""
        cdef Blocks made = Blocks.__new__(Blocks)
        cdef Page* page = self.head.levels[0].next
        cdef Py_ssize_t pages = 0
        while page != NULL:
            pages += 1
            page = page.levels[0].next
        made.slots = <Slots**>malloc(pages * sizeof(Slots*))
        made.firsts = <uint32_t*>malloc(pages * sizeof(uint32_t))
        made.counts = <uint32_t*>malloc(pages * sizeof(uint32_t))
        if pages and (made.slots == NULL or made.firsts == NULL or made.counts == NULL):
            raise MemoryError(NO_MEMORY)
        page = self.head.levels[0].next
        while page != NULL:
            page.slots.holders += 1
            made.slots[made.pages] = page.slots
            made.firsts[made.pages] = page.slots.first
            made.counts[made.pages] = page.slots.count
            made.size += page.slots.count - page.slots.first
            made.pages += 1
            page = page.levels[0].next
        made.tail = tail
        return made

    # ------------------------------------------------------------ Python's view

    def __len__(self) -> int:
        return self.blocks

    def __iter__(self):
        return iter(self.share(None)[:])

    def free_step(self, uint64_t most) -> bool:
        """`free_blocks`."""
        return self.free_blocks(most)
