# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The log of a stream: its entries in ID order; appending and reading.

Sealed blocks are in a skiplist, and the open block is at the end. If the first kept entry is inside
a block, the block does not change, because sealed blocks are never modified: `head`, the first kept
ID, hides the entries before it. `head_gone` counts the undeleted hidden entries of the first block.
`trimming` evicts and deletes entries.
"""

from libc.stdint cimport UINT64_MAX as MAX, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

cimport cython

from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId, id_less, step_up
from millstream.storage.blocks.layout cimport (
    BLOCK_BYTES_MAX, FORMAT_VERSION_PACKED, Entry, View, cursor_next, cursor_seek, cursor_start, entry_words,
    view_find, view_live_before, view_nth_live,
)
from millstream.storage.blocks.open_block cimport OpenBlock, payload_of
from millstream.storage.blocks.skiplist cimport SkipList
from millstream.storage.blocks.skiplist_pages cimport Place, block_at, no_place, place_after, view_block

from millstream.errors import EXHAUSTED, CommandError
from millstream.storage.blocks.lazyfree import discard


cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(object)


cdef inline bint ends_plain(SkipList sealed):
    """True if the last sealed block is not packed."""
    cdef Place last = sealed.end()
    return last.page != NULL and block_at(last).head.version != FORMAT_VERSION_PACKED


@cython.no_gc
cdef class EntryLog:
    """Entries in ID order."""

    def __dealloc__(self):
        self.discard_sealed()

    def __len__(self) -> int:
        return self.length

    cdef int discard_sealed(self) except -1:
        """Discard the sealed blocks. Only parts that were cut off may still refer to the list."""
        cdef SkipList sealed = self.sealed
        self.sealed = None
        if sealed is not None and Py_REFCNT(sealed) <= <Py_ssize_t>sealed.parts + 1:
            discard(sealed)
        return 0

    # ------------------------------------------------------------ append

    cdef int next_id(self, uint64_t now_ms, EntryId* out) except -1:
        """The ID of an entry that is appended now. As in the draft, it uses the last ms again if
        the clock is earlier."""
        if now_ms > self.last_ms:
            out.ms = now_ms
            out.seq = 0
            return 0
        out.ms = self.last_ms
        out.seq = self.last_seq
        if not step_up(out):
            raise CommandError(EXHAUSTED)
        return 0

    cdef int append(self, EntryId entry_id, Slice* items, Py_ssize_t count, uint32_t node_entries,
                    uint32_t node_bytes) except -1:
        """Append one entry of `count` words; its ID must be above the last ID."""
        cdef uint64_t payload = payload_of(items, count)
        if self.tail is None:
            self.tail = OpenBlock.__new__(OpenBlock)
        if self.length == 0:
            # No entry is left to hide, and this ID may be below the first kept ID of an eviction.
            self.head_ms = self.head_seq = 0
        if not self.tail.place(payload, node_entries, node_bytes):
            self.seal()
            self.tail.place(payload, node_entries, node_bytes)
        self.tail.append(entry_id.ms, entry_id.seq, items, count, payload)
        self.last_ms = entry_id.ms
        self.last_seq = entry_id.seq
        self.length += 1
        self.entries_added += 1
        return 0

    cdef seal(self):
        if self.tail.live:
            if self.sealed is None:
                self.sealed = SkipList.__new__(SkipList)
            self.sealed.push(self.tail.seal(ends_plain(self.sealed)))
        self.tail.reset()

    cdef bint resume_tail(self, const View* view) except -1:
        """Continue a block as the open block; False when that is impossible."""
        cdef OpenBlock tail = OpenBlock.__new__(OpenBlock)
        if not tail.resume(view):
            return False
        self.tail = tail
        return True

    def blocks(self):
        """All current blocks, with a copy of the open block at the end."""
        tail = self.tail.freeze() if self.has_tail() else None
        if self.sealed is not None:
            return self.sealed.share(tail)
        return [] if tail is None else [tail]

    # ------------------------------------------------------------ finding

    cdef bint first_entry(self, EntryId* out) noexcept:
        """Get the ID of the oldest entry; False when there is none."""
        cdef Walk walk
        self.walk_start(&walk, EntryId(0, 0))
        if not self.walk_next(&walk):
            return False
        out.ms = walk.cursor.entry.ms
        out.seq = walk.cursor.entry.seq
        return True

    cdef bint last_entry(self, EntryId* out) noexcept:
        """Get the ID of the newest entry; False when there is none."""
        if self.length == 0:
            return False
        return self.nth(self.length - 1, out)

    cdef bint has_newer(self, EntryId entry_id) noexcept:
        """True if an entry with an ID above this one exists."""
        cdef Walk walk
        if self.length == 0 or not id_less(
                entry_id.ms, entry_id.seq, self.last_ms, self.last_seq):
            return False
        if self.has_tail() and self.tail.live == self.tail.count:
            # The last entry of the tail is the newest one. Otherwise the IDs must be looked at.
            return id_less(entry_id.ms, entry_id.seq, self.tail.last_ms, self.tail.last_seq)
        step_up(&entry_id)
        self.walk_start(&walk, entry_id)
        return self.walk_next(&walk)

    cdef uint64_t rank_of(self, EntryId entry_id) noexcept:
        """The number of entries with an ID below this one."""
        cdef uint64_t rank = 0
        cdef Place place
        cdef View view
        if not id_less(self.head_ms, self.head_seq, entry_id.ms, entry_id.seq):
            return 0
        if self.is_in_tail(entry_id):
            rank = self.sealed_live()
            self.tail.view(&view)
            return rank + view_live_before(&view, entry_id.ms, entry_id.seq) - self.head_gone
        if self.sealed is None:
            return 0
        place = self.sealed.seek(entry_id.ms, entry_id.seq, &rank)
        if place.page == NULL:
            return 0
        view_block(place, &view)
        rank += view_live_before(&view, entry_id.ms, entry_id.seq)
        return rank - self.head_gone if rank > self.head_gone else 0

    cdef bint nth(self, uint64_t rank, EntryId* out) noexcept:
        """Get the ID of the entry with this rank (0: the oldest); False when there is none."""
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

    cdef uint64_t count_between(self, EntryId start, EntryId end) noexcept:
        """The number of entries with start <= ID <= end."""
        cdef uint64_t past = self.length
        if id_less(end.ms, end.seq, start.ms, start.seq):
            return 0
        if step_up(&end):
            past = self.rank_of(end)
        return past - self.rank_of(start)

    cdef bint find(self, EntryId entry_id, View* view, Entry* out) noexcept:
        """Find the undeleted entry with exactly this ID, and the view of its block; False when
        there is none."""
        cdef Place place
        if id_less(entry_id.ms, entry_id.seq, self.head_ms, self.head_seq):
            return False
        if self.is_in_tail(entry_id):
            self.tail.view(view)
            return view_find(view, entry_id.ms, entry_id.seq, out)
        if self.sealed is None:
            return False
        place = self.sealed.seek(entry_id.ms, entry_id.seq, NULL)
        if place.page == NULL:
            return False
        view_block(place, view)
        return view_find(view, entry_id.ms, entry_id.seq, out)

    def boundary_for_length(self, uint64_t keep) -> tuple[int, int] | None:
        """The first ID to keep so that `keep` entries stay; None if there are not more entries."""
        cdef EntryId found
        if self.length <= keep:
            return None
        if keep == 0:
            return self.past_end()
        self.nth(self.length - keep, &found)
        return found.ms, found.seq

    def past_end(self) -> tuple[int, int]:
        """The ID after the last one: an eviction before it evicts all entries."""
        cdef EntryId above
        above.ms = self.last_ms
        above.seq = self.last_seq
        step_up(&above)  # the largest ID has no successor; the last entry then stays
        return above.ms, above.seq

    # ------------------------------------------------------------ walking

    cdef void walk_start(self, Walk* walk, EntryId start) noexcept:
        """Begin a walk before the first entry with an ID of at least this one. It is valid until
        the stream changes.
        """
        self.skip_hidden(&start)
        self.walk_enter(walk, start)
        if walk.valid:
            cursor_seek(&walk.cursor, &walk.view, start.ms, start.seq)

    cdef void walk_enter(self, Walk* walk, EntryId start) noexcept:
        """Begin a walk at the block with the first entry from this ID on, which is not below the
        first kept ID. The cursor is not set."""
        walk.valid = True
        walk.in_tail = False
        walk.place = no_place()
        if self.is_in_tail(start):
            self.enter_tail(walk)
        elif self.head_place().page != NULL:
            walk.place = self.sealed.seek(start.ms, start.seq, NULL)
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
        """Move to the next undeleted entry (walk.cursor.entry); False at the end."""
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

    # ------------------------------------------------------------ Python's view

    def append_entry(self, uint64_t ms, uint64_t seq, list words not None,
                     uint32_t node_entries=100, uint32_t node_bytes=4096) -> None:
        """Append one entry; `words` are its fields and values as bytes, and its ID must be above
        the last one."""
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
            self.append(EntryId(ms, seq), items, len(words), node_entries, node_bytes)
        finally:
            free(items)

    def begin_node(self, uint64_t node_bytes) -> None:
        """Begin another block if a node of this many bytes would not fit into the open one."""
        if self.has_tail() and self.tail.size + node_bytes > BLOCK_BYTES_MAX:
            self.seal()

    def has_entry(self, uint64_t ms, uint64_t seq) -> bool:
        """True if there is an undeleted entry with this ID."""
        cdef View view
        cdef Entry entry
        return self.find(EntryId(ms, seq), &view, &entry)

    def range(self, uint64_t ms=0, uint64_t seq=0, end=None, limit=None) -> list:
        """Entries as (ms, seq, [field, value, ...]), oldest first."""
        cdef Walk walk
        end = end or (MAX, MAX)
        found = []
        self.walk_start(&walk, EntryId(ms, seq))
        while (limit is None or len(found) < limit) and self.walk_next(&walk):
            if (walk.cursor.entry.ms, walk.cursor.entry.seq) > end:
                break
            found.append((walk.cursor.entry.ms, walk.cursor.entry.seq,
                          entry_words(&walk.view, &walk.cursor.entry)))
        return found

    def rank(self, uint64_t ms, uint64_t seq) -> int:
        """The number of entries with an ID below ms-seq."""
        return self.rank_of(EntryId(ms, seq))

    @property
    def last_id(self) -> tuple[int, int]:
        """The position: the last ID handed out before the oldest reservation, or the last one."""
        return self.last_ms, self.last_seq

    def raise_last_id(self, uint64_t ms, uint64_t seq) -> None:
        """Set the last ID to ms-seq, which is not below it, so that all later IDs are above."""
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
        """Entries below this ID are hidden: they were evicted from inside a block."""
        return self.head_ms, self.head_seq

    @property
    def first_id(self) -> tuple[int, int] | None:
        """The ID of the oldest entry, None when empty."""
        cdef EntryId found
        return (found.ms, found.seq) if self.first_entry(&found) else None

    @property
    def newest_id(self) -> tuple[int, int] | None:
        """The ID of the newest entry, None when empty."""
        cdef EntryId found
        return (found.ms, found.seq) if self.last_entry(&found) else None

    @property
    def block_count(self) -> int:
        return (0 if self.sealed is None else self.sealed.blocks) + self.has_tail()

    cdef uint64_t data_memory_bytes(self) noexcept:
        """An estimate of the memory of the blocks."""
        cdef uint64_t total = 0
        if self.sealed is not None:
            total += 620 + self.sealed.data_bytes + self.sealed.blocks * 176
        if self.tail is not None:
            total += 160 + self.tail.capacity + 4 * (
                self.tail.checkpoint_capacity + self.tail.set_capacity + self.tail.node_capacity)
        return total
