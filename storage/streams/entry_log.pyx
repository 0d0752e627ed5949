# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The log of a stream: its entries in id order, how they are appended and how they are read.

Sealed blocks are in a skiplist, and the open block is at the end. When the first kept entry lies
inside a block, the block stays as it is and `head`, the first kept id, hides what is before it
(sealed blocks are never modified). `head_gone` counts the undeleted entries hidden so in the first
block. `trimming` evicts and deletes entries.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

cimport cython

from millstream.encoding cimport Output, Slice
from millstream.entry_id cimport EntryId, id_less, step_up
from millstream.storage.blocks.block cimport Block
from millstream.storage.blocks.encode cimport (
    IdText, Selection, encode_backward, encode_entry, encode_forward,
)
from millstream.storage.blocks.layout cimport (
    BLOCK_BYTES_MAX, Entry, View, cursor_next, cursor_seek, cursor_start, entry_words,
    view_disk_size, view_find, view_live_before, view_nth_live, view_of,
)
from millstream.storage.blocks.open_block cimport OpenBlock, payload_of
from millstream.storage.blocks.pages cimport (
    Place, block_at, no_place, place_after, place_before, view_block,
)
from millstream.storage.blocks.skiplist cimport SkipList

from millstream.errors import EXHAUSTED, CommandError
from millstream.storage.blocks.lazyfree import discard


cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(object)

cdef extern from *:
    """
    /* gcc takes a function that only fetches ahead for one without effect, and leaves it out. */
    static inline void fetch_line(const void *at) { __builtin_prefetch(at); __asm__ volatile(""); }
    """
    void fetch_line(const void* at) noexcept nogil

cdef enum:
    LINE_BYTES = 64
    FEW_ENTRIES = 32


@cython.no_gc
cdef class EntryLog:
    """Entries in id order."""

    def __dealloc__(self):
        self.discard_sealed()

    def __len__(self) -> int:
        return self.length

    cdef int discard_sealed(self) except -1:
        """Discard the sealed blocks. Only parts that were cut off still refer to the list."""
        cdef SkipList sealed = self.sealed
        self.sealed = None
        if sealed is not None and Py_REFCNT(sealed) <= <Py_ssize_t>sealed.parts + 1:
            discard(sealed)
        return 0

    # ------------------------------------------------------------ append

    cdef int next_id(self, uint64_t now_ms, EntryId* out) except -1:
        """The id of an entry added now: the draft reuses the last ms when the clock is earlier."""
        if now_ms > self.last_ms:
            out.ms = now_ms
            out.seq = 0
            return 0
        out.ms = self.last_ms
        out.seq = self.last_seq
        if not step_up(out):
            raise CommandError(EXHAUSTED)
        return 0

    cdef int append(self, uint64_t ms, uint64_t seq, Slice* items, Py_ssize_t count,
                    uint32_t node_entries, uint32_t node_bytes) except -1:
        """Add one entry of `count` words; its id is above the last id."""
        cdef uint64_t payload = payload_of(items, count)
        if self.tail is None:
            self.tail = OpenBlock.__new__(OpenBlock)
        if self.length == 0:
            # Nothing is left to hide, and this id may be below what an eviction named.
            self.head_ms = self.head_seq = 0
        if not self.tail.place(payload, node_entries, node_bytes):
            self.seal()
            self.tail.place(payload, node_entries, node_bytes)
        self.tail.append(ms, seq, items, count, payload)
        self.last_ms = ms
        self.last_seq = seq
        self.length += 1
        self.entries_added += 1
        return 0

    cdef seal(self):
        if self.tail.live:
            if self.sealed is None:
                self.sealed = SkipList.__new__(SkipList)
            self.sealed.push(self.tail.freeze())
        self.tail.reset()

    cdef int load_blocks(self, blocks, bint is_open) except -1:
        """Put blocks that were saved into an empty log whose `head` is known; is_open: the last one
        continues as the open block. ValueError when they do not fit together."""
        cdef Block block
        cdef View view
        cdef uint64_t hidden
        newest = blocks[len(blocks) - 1] if blocks else None
        last = None
        for block in blocks:
            if last is not None and block.first_id <= last:
                raise ValueError("its blocks are out of order")
            hidden = 0
            if last is None:
                view_of(block.head, &view)
                hidden = self.head_gone = view_live_before(&view, self.head_ms, self.head_seq)
            last = block.last_id
            if block.head.live <= hidden:
                raise ValueError("a block of it has no entry left")
            if is_open and block is newest:
                view_of(block.head, &view)
                if self.resume_tail(&view):
                    break
            if self.sealed is None:
                self.sealed = SkipList.__new__(SkipList)
            self.sealed.push(block)
        if last is not None and last > self.last_id:
            raise ValueError("its last id is below its last entry")
        self.length = self.sealed_live() - self.head_gone
        if self.tail is not None:
            self.length += self.tail.live
        return 0

    cdef bint resume_tail(self, const View* view) except -1:
        """Continue a block as the open one; False when it cannot be continued."""
        cdef OpenBlock tail = OpenBlock.__new__(OpenBlock)
        if not tail.resume(view):
            return False
        self.tail = tail
        return True

    def blocks(self):
        """All of its blocks as they are now, with a copy of the open one after them."""
        tail = self.tail.freeze() if self.has_tail() else None
        if self.sealed is not None:
            return self.sealed.share(tail)
        return [] if tail is None else [tail]

    # ------------------------------------------------------------ finding

    cdef bint first_entry(self, EntryId* out) noexcept:
        """The id of the oldest entry; False when there is none."""
        cdef Walk walk
        self.walk_start(&walk, 0, 0)
        if not self.walk_next(&walk):
            return False
        out.ms = walk.cursor.entry.ms
        out.seq = walk.cursor.entry.seq
        return True

    cdef bint last_entry(self, EntryId* out) noexcept:
        """The id of the newest entry; False when there is none."""
        if self.length == 0:
            return False
        return self.nth(self.length - 1, out)

    cdef bint has_newer(self, uint64_t ms, uint64_t seq) noexcept:
        """Whether an entry with an id above ms-seq exists."""
        cdef Walk walk
        cdef EntryId above
        if self.length == 0 or not id_less(ms, seq, self.last_ms, self.last_seq):
            return False
        above.ms = ms
        above.seq = seq
        step_up(&above)
        self.walk_start(&walk, above.ms, above.seq)
        return self.walk_next(&walk)

    cdef uint64_t rank_of(self, uint64_t ms, uint64_t seq) noexcept:
        """How many entries have an id below ms-seq."""
        cdef uint64_t rank = 0
        cdef Place place
        cdef View view
        if not id_less(self.head_ms, self.head_seq, ms, seq):
            return 0
        if self.is_in_tail(ms, seq):
            rank = self.sealed_live()
            self.tail.view(&view)
            return rank + view_live_before(&view, ms, seq) - self.head_gone
        if self.sealed is None:
            return 0
        place = self.sealed.seek(ms, seq, &rank)
        if place.page == NULL:
            return 0
        view_block(place, &view)
        rank += view_live_before(&view, ms, seq)
        return rank - self.head_gone if rank > self.head_gone else 0

    cdef bint nth(self, uint64_t rank, EntryId* out) noexcept:
        """The id of the entry with this rank, 0 being the oldest."""
        cdef uint64_t before = 0
        cdef Place place
        cdef View view
        cdef Entry entry
        if rank >= self.length:
            return False
        rank += self.head_gone
        if rank >= self.sealed_live():
            before = self.sealed_live()
            self.tail.view(&view)
        else:
            place = self.sealed.seek_rank(rank, &before)
            view_block(place, &view)
        if not view_nth_live(&view, 0, 0, rank - before, &entry):
            return False
        out.ms = entry.ms
        out.seq = entry.seq
        return True

    cdef uint64_t count_between(self, uint64_t ms, uint64_t seq, uint64_t end_ms,
                                uint64_t end_seq) noexcept:
        """How many entries have start <= id <= end."""
        cdef EntryId above
        cdef uint64_t past = self.length
        if id_less(end_ms, end_seq, ms, seq):
            return 0
        above.ms = end_ms
        above.seq = end_seq
        if step_up(&above):
            past = self.rank_of(above.ms, above.seq)
        return past - self.rank_of(ms, seq)

    cdef bint find(self, uint64_t ms, uint64_t seq, View* view, Entry* out) noexcept:
        """The entry with exactly this id, and a view of its block."""
        cdef Place place
        if id_less(ms, seq, self.head_ms, self.head_seq):
            return False
        if self.is_in_tail(ms, seq):
            self.tail.view(view)
            return view_find(view, ms, seq, out)
        if self.sealed is None:
            return False
        place = self.sealed.seek(ms, seq, NULL)
        if place.page == NULL:
            return False
        view_block(place, view)
        return view_find(view, ms, seq, out)

    def boundary_for_length(self, uint64_t keep) -> tuple[int, int] | None:
        """The first id to keep so that `keep` entries stay; None when no more than that exist."""
        cdef EntryId found
        if self.length <= keep:
            return None
        if keep == 0:
            return self.past_end()
        self.nth(self.length - keep, &found)
        return found.ms, found.seq

    def past_end(self) -> tuple[int, int]:
        """The id right above the last one: keeping from here keeps nothing."""
        cdef EntryId above
        above.ms = self.last_ms
        above.seq = self.last_seq
        step_up(&above)  # at the very last id there is none above; the last entry then stays
        return above.ms, above.seq

    # ------------------------------------------------------------ walking

    cdef void walk_start(self, Walk* walk, uint64_t ms, uint64_t seq) noexcept:
        """Stand before the first entry with an id of at least ms-seq.

        A walk is valid while nothing changes the stream.
        """
        cdef EntryId start = EntryId(ms, seq)
        self.skip_hidden(&start)
        self.walk_enter(walk, start.ms, start.seq)
        if walk.valid:
            cursor_seek(&walk.cursor, &walk.view, start.ms, start.seq)

    cdef void walk_enter(self, Walk* walk, uint64_t ms, uint64_t seq) noexcept:
        """Stand at the block where the entries from ms-seq on begin, which is not below the first
        one kept; the cursor is not placed."""
        walk.valid = True
        walk.in_tail = False
        walk.place = no_place()
        if self.is_in_tail(ms, seq):
            self.enter_tail(walk)
        elif self.head_place().page != NULL:
            walk.place = self.sealed.seek(ms, seq, NULL)
            if walk.place.page == NULL:
                walk.place = self.sealed.first()
            view_block(walk.place, &walk.view)
        else:
            self.enter_tail(walk)

    cdef void enter_tail(self, Walk* walk) noexcept:
        walk.in_tail = True
        walk.place = no_place()
        walk.valid = self.has_tail()
        if walk.valid:
            self.tail.view(&walk.view)
            cursor_start(&walk.cursor, &walk.view)

    cdef bint walk_next(self, Walk* walk) noexcept:
        """Step to the next undeleted entry (walk.cursor.entry); False at the end."""
        while walk.valid:
            while cursor_next(&walk.cursor, &walk.view):
                if not walk.cursor.entry.deleted:
                    return True
            self.walk_block(walk)
        return False

    cdef inline void walk_block(self, Walk* walk) noexcept:
        if walk.in_tail:
            walk.valid = False
            return
        walk.place = place_after(walk.place)
        if walk.place.page == NULL:
            self.enter_tail(walk)
        else:
            view_block(walk.place, &walk.view)
            cursor_start(&walk.cursor, &walk.view)

    # ------------------------------------------------------------ encoding

    cdef int64_t encode_range(self, Output out, const Selection* wanted, bint dotted,
                              EntryId* last) except -1:
        """Encode the wanted entries as reply elements, oldest first; returns how many, and the id of
        the last in `last`."""
        cdef Walk walk
        cdef IdText id_text
        cdef Selection rest = wanted[0]
        cdef uint64_t made
        id_text.size = 0
        id_text.dotted = dotted
        self.skip_hidden(&rest.start)
        self.walk_enter(&walk, rest.start.ms, rest.start.seq)
        while walk.valid and rest.limit and out.size < rest.full_size and not id_less(
                rest.end.ms, rest.end.seq, walk.view.first_ms, walk.view.first_seq):
            made = encode_forward(out, &walk.view, &rest, &id_text, last)
            rest.limit -= made
            self.walk_block(&walk)
        return <int64_t>(wanted.limit - rest.limit)

    cdef int64_t encode_reverse(self, Output out, const Selection* wanted, bint dotted,
                                EntryId* last) except -1:
        """As encode_range, newest first."""
        cdef IdText id_text
        cdef Place place
        cdef View view
        cdef Selection rest = wanted[0]
        id_text.size = 0
        id_text.dotted = dotted
        self.skip_hidden(&rest.start)
        if self.is_in_tail(rest.end.ms, rest.end.seq):
            self.tail.view(&view)
            if view.count <= FEW_ENTRIES:
                # The whole block will be read. Among very many streams none of it is in the cache.
                fetch_line(view.entries)
                fetch_line(view.entries + LINE_BYTES)
                fetch_line(view.entries + 2 * LINE_BYTES)
                fetch_line(view.entries + 3 * LINE_BYTES)
            rest.limit -= encode_backward(out, &view, &rest, &id_text, last)
        if self.sealed is None:
            return <int64_t>(wanted.limit - rest.limit)
        place = self.sealed.seek(rest.end.ms, rest.end.seq, NULL)
        while place.page != NULL and rest.limit and out.size < rest.full_size:
            view_block(place, &view)
            if id_less(view.last_ms, view.last_seq, rest.start.ms, rest.start.seq):
                break
            rest.limit -= encode_backward(out, &view, &rest, &id_text, last)
            place = place_before(place)
        return <int64_t>(wanted.limit - rest.limit)

    # ------------------------------------------------------------ blocks

    def blocks_between(self, uint64_t ms, uint64_t seq, uint64_t end_ms,
                       uint64_t end_seq) -> list[Block]:
        """Immutable blocks that hold every entry with start <= id <= end, in order. The open
        block is copied; hidden and deleted entries are among them, `first_kept` cuts the former."""
        cdef Walk walk
        cdef list found = []
        self.walk_start(&walk, ms, seq)
        while walk.valid and not id_less(
                end_ms, end_seq, walk.view.first_ms, walk.view.first_seq):
            found.append(self.tail.freeze() if walk.in_tail else block_at(walk.place))
            self.walk_block(&walk)
        return found

    def next_blocks(self, start, stop, uint64_t most, uint64_t size_bytes) -> tuple:
        """The first blocks that may hold entries with start <= id <= stop, (ms, seq) each: at most
        `most`, and only as many as stay within size_bytes in their disk form, but one at least. The
        open block is copied. And where the next one begins, None when there are no more."""
        cdef Walk walk
        cdef uint64_t size = 0
        cdef list found = []
        cdef EntryId first
        cdef EntryId end
        first.ms, first.seq = start
        end.ms, end.seq = stop
        self.walk_start(&walk, first.ms, first.seq)
        if walk.valid and id_less(walk.view.last_ms, walk.view.last_seq, first.ms, first.seq):
            self.walk_block(&walk)
        while walk.valid and not id_less(
                end.ms, end.seq, walk.view.first_ms, walk.view.first_seq):
            size += view_disk_size(&walk.view)
            if found and (size > size_bytes or <uint64_t>len(found) >= most):
                return found, (walk.view.first_ms, walk.view.first_seq)
            found.append(self.tail.freeze() if walk.in_tail else block_at(walk.place))
            self.walk_block(&walk)
        return found, None

    # ------------------------------------------------------------ Python's view

    def append_entry(self, uint64_t ms, uint64_t seq, list words not None,
                     uint32_t node_entries=100, uint32_t node_bytes=4096) -> None:
        """Add one entry given as bytes, field, value, ...; its id must be above the last."""
        cdef Slice* items
        cdef Py_ssize_t i
        cdef bytes word
        if len(words) % 2 or not words:
            raise ValueError("an entry needs at least one field, and a value for each")
        if not id_less(self.last_ms, self.last_seq, ms, seq):
            raise ValueError("ids must rise")
        items = <Slice*>malloc(len(words) * sizeof(Slice))
        if items == NULL:
            raise MemoryError("no memory for an entry's fields")
        try:
            for i in range(len(words)):
                word = words[i]
                items[i].ptr = word
                items[i].size = len(word)
            self.append(ms, seq, items, len(words), node_entries, node_bytes)
        finally:
            free(items)

    def begin_node(self, uint64_t node_bytes) -> None:
        """Begin another block if a node of this many bytes would not fit into the open one."""
        if self.has_tail() and self.tail.size + node_bytes > BLOCK_BYTES_MAX:
            self.seal()

    def has_entry(self, uint64_t ms, uint64_t seq) -> bool:
        """Whether there is an undeleted entry with this id."""
        cdef View view
        cdef Entry entry
        return self.find(ms, seq, &view, &entry)

    def encoded_entry(self, uint64_t ms, uint64_t seq) -> bytes | None:
        """An undeleted entry as RESP, None when there is none with this id."""
        cdef Output out
        cdef View view
        cdef Entry entry
        cdef IdText id_text
        if not self.find(ms, seq, &view, &entry):
            return None
        id_text.size = 0
        id_text.dotted = False
        out = Output()
        encode_entry(out, &view, &entry, &id_text)
        return out.take()

    def range(self, uint64_t ms=0, uint64_t seq=0, end=None, limit=None) -> list:
        """Entries as (ms, seq, [field, value, ...]), oldest first."""
        cdef Walk walk
        end = end or (MAX, MAX)
        found = []
        self.walk_start(&walk, ms, seq)
        while (limit is None or len(found) < limit) and self.walk_next(&walk):
            if (walk.cursor.entry.ms, walk.cursor.entry.seq) > end:
                break
            found.append((walk.cursor.entry.ms, walk.cursor.entry.seq,
                          entry_words(&walk.cursor.entry)))
        return found

    def rank(self, uint64_t ms, uint64_t seq) -> int:
        """How many entries have an id below ms-seq."""
        return self.rank_of(ms, seq)

    @property
    def last_id(self) -> tuple[int, int]:
        """The position: the last ID handed out before the oldest reservation, or the last one."""
        return self.last_ms, self.last_seq

    def raise_last_id(self, uint64_t ms, uint64_t seq) -> None:
        """Let the next IDs be above ms-seq, which is not below the last one."""
        self.last_ms = ms
        self.last_seq = seq

    @property
    def max_evicted_id(self) -> tuple[int, int]:
        return self.max_evicted_ms, self.max_evicted_seq

    @property
    def max_deleted_id(self) -> tuple[int, int]:
        return self.max_deleted_ms, self.max_deleted_seq

    @property
    def first_kept(self) -> tuple[int, int]:
        """Entries below this id are hidden (evicted from inside a block)."""
        return self.head_ms, self.head_seq

    @property
    def first_id(self) -> tuple[int, int] | None:
        """The id of the oldest entry, None when empty."""
        cdef EntryId found
        return (found.ms, found.seq) if self.first_entry(&found) else None

    @property
    def newest_id(self) -> tuple[int, int] | None:
        """The id of the newest entry, None when empty."""
        cdef EntryId found
        return (found.ms, found.seq) if self.last_entry(&found) else None

    @property
    def block_count(self) -> int:
        return (0 if self.sealed is None else self.sealed.blocks) + self.has_tail()

    cdef uint64_t data_memory_bytes(self) noexcept:
        """An estimate of the memory that its blocks take."""
        cdef uint64_t total = 0
        if self.sealed is not None:
            total += 620 + self.sealed.data_bytes + self.sealed.blocks * 176
        if self.tail is not None:
            total += 160 + self.tail.capacity + 4 * (
                self.tail.checkpoint_capacity + self.tail.set_capacity + self.tail.node_capacity)
        return total
