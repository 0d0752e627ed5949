# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""One stream: sealed blocks in a skiplist, the open block at the end, counters and groups.

Everything happens at the two ends, except reading and single deletions. Eviction drops whole blocks
from the head; when the first kept entry lies inside a block, the block stays as it is and `head`,
the first kept id, hides what is before it (sealed blocks are never modified). `head_gone` counts
the undeleted entries hidden so in the first block. A stream emptied by eviction keeps its last id,
its groups and its counters.

The counters serve later readers too: `entries_added` and `max_deleted` are Redis', and
`max_evicted`, the greatest id that eviction (not XDEL) removed, is how a reader learns of a gap.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

cimport cython

from millstream.encoding cimport Output, Slice
from millstream.entry_id cimport EntryId, id_less, step_up
from millstream.storage.blocks.block cimport (
    Block, OpenBlock, cursor_next, cursor_seek, cursor_start, cursor_to_index, encode_backward,
    encode_entry, encode_forward, entry_words, payload_of, view_disk_size, view_find, view_last_live_before,
    view_live_before, view_nth_live, view_of,
)
from millstream.storage.blocks.layout cimport BLOCK_BYTES_MAX, Cursor, Entry, IdText, View
from millstream.storage.streams.group cimport Consumer, Group, Pending, PendingAt
from millstream.storage.blocks.skiplist cimport (
    Place, SkipList, block_at, no_place, place_before, place_after, same_place, view_block,
)
from millstream.storage.streams.shared_groups cimport shared_groups

from millstream.errors import EXHAUSTED, CommandError
from millstream.storage.streams.idempotence import Window
from millstream.storage.streams.producers import Producers
from millstream.storage.blocks.lazyfree import discard, discard_items, discard_part, is_deferring


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

# A trim that takes more entries cuts them off.
cdef uint64_t CUT_MIN = 1024
# A trim that evicts fewer entries of a block reads them one by one.
cdef int EVICTED_FEW = 32


cdef list starts_of(const View* view, uint64_t hidden):
    """The first id of each node of a block that has an entry which is not hidden."""
    cdef Cursor cursor
    cdef uint32_t i
    cdef list starts = []
    with_entries = {last for _, last, live in nodes_of(view, hidden) if live}
    for i in range(view.node_count):
        cursor_to_index(&cursor, view, view.nodes[i - 1] if i else 0)
        cursor_next(&cursor, view)
        first = (cursor.entry.ms, cursor.entry.seq)
        cursor_to_index(
            &cursor, view, (view.nodes[i] if i + 1 < view.node_count else view.count) - 1)
        cursor_next(&cursor, view)
        if (cursor.entry.ms, cursor.entry.seq) in with_entries:
            starts.append(first)
    return starts


cdef inline uint32_t node_end(const View* view, uint32_t node) noexcept:
    """The index after the last entry of a node."""
    return view.nodes[node] if node + 1 < view.node_count else view.count


cdef inline bint id_past(const View* view, uint32_t end, EntryId* last, EntryId* past) noexcept:
    """The id of the entry before this index, and the next id; False when there is none above it."""
    cdef Cursor cursor
    cursor_to_index(&cursor, view, end - 1)
    cursor_next(&cursor, view)
    last.ms = past.ms = cursor.entry.ms
    last.seq = past.seq = cursor.entry.seq
    return step_up(past)


cdef inline uint64_t live_before_index(const View* view, uint32_t end) noexcept:
    """Entries before this index that are not deleted; most blocks have no deleted ones."""
    cdef EntryId last, past
    if view.live == view.count:
        return end
    if id_past(view, end, &last, &past):
        return view_live_before(view, past.ms, past.seq)
    return view.live  # there is no id above the block's last


cdef list nodes_of(const View* view, uint64_t hidden):
    """Each node of a block as (first id after it, its last id, its entries that are not hidden)."""
    cdef uint32_t i
    cdef uint64_t before = hidden
    cdef uint64_t live
    cdef EntryId past, last
    found = []
    for i in range(view.node_count):
        live = live_before_index(view, node_end(view, i))
        if live >= before:
            id_past(view, node_end(view, i), &last, &past)
            found.append(((past.ms, past.seq), (last.ms, last.seq), live - before))
            before = live
    return found


cdef class RetentionPolicy:
    """What a stream keeps: limits, 0 for none. A policy never changes; another one replaces it.

    max_len counts entries, max_age_ms is compared with the milliseconds of an ID, max_bytes is
    compared with `retention.kept_bytes`. exact: to the entry, else whole blocks only.
    """

    def __init__(self, uint64_t max_len=0, uint64_t max_age_ms=0, uint64_t max_bytes=0,
                 bint exact=False):
        self.max_len = max_len
        self.max_age_ms = max_age_ms
        self.max_bytes = max_bytes
        self.exact = exact
        self.next_check_ms = MAX

    def is_limit(self) -> bool:
        """Whether it limits anything."""
        return self.max_len > 0 or self.max_age_ms > 0 or self.max_bytes > 0

    def dump(self) -> list:
        """As in a stream's map (docs/formats.md)."""
        return [self.max_len, self.max_age_ms, self.max_bytes, self.exact]

    @staticmethod
    def load(row) -> RetentionPolicy:
        """Make a policy of what `dump` gave; ValueError for a number that cannot be a limit."""
        try:
            return RetentionPolicy(*row)
        except OverflowError as error:
            raise ValueError(f"the policy {row} is out of range") from error


@cython.no_gc
cdef class Stream:
    """An append-only log of entries in id order."""

    def __init__(self, uint64_t incarnation=0):
        self.incarnation = incarnation

    def __dealloc__(self):
        self.discard_sealed()
        if self.groups_by_name is not None:
            discard_items(self.groups_by_name)

    def __len__(self) -> int:
        return self.length

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

    # ------------------------------------------------------------ places

    cdef inline Place head_place(self) noexcept:
        """The first sealed block's place, none when there is none."""
        return no_place() if self.sealed is None else self.sealed.first()

    cdef inline bint has_tail(self) noexcept:
        return self.tail is not None and self.tail.count > 0

    cdef inline uint64_t sealed_live(self) noexcept:
        return 0 if self.sealed is None else self.sealed.live

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
        if self.has_tail() and not id_less(ms, seq, self.tail.first_ms, self.tail.first_seq):
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
        if self.has_tail() and not id_less(ms, seq, self.tail.first_ms, self.tail.first_seq):
            self.tail.view(view)
            return view_find(view, ms, seq, out)
        if self.sealed is None:
            return False
        place = self.sealed.seek(ms, seq, NULL)
        if place.page == NULL:
            return False
        view_block(place, view)
        return view_find(view, ms, seq, out)

    # ------------------------------------------------------------ walking

    cdef void walk_start(self, Walk* walk, uint64_t ms, uint64_t seq) noexcept:
        """Stand before the first entry with an id of at least ms-seq.

        A walk is valid while nothing changes the stream.
        """
        if id_less(ms, seq, self.head_ms, self.head_seq):
            ms = self.head_ms
            seq = self.head_seq
        self.walk_enter(walk, ms, seq)
        if walk.valid:
            cursor_seek(&walk.cursor, &walk.view, ms, seq)

    cdef void walk_enter(self, Walk* walk, uint64_t ms, uint64_t seq) noexcept:
        """Stand at the block where the entries from ms-seq on begin, which is not below the first
        one kept; the cursor is not placed."""
        walk.valid = True
        walk.in_tail = False
        walk.place = no_place()
        if self.has_tail() and not id_less(ms, seq, self.tail.first_ms, self.tail.first_seq):
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

    cdef int64_t encode_range(self, Output out, uint64_t ms, uint64_t seq, uint64_t end_ms,
                              uint64_t end_seq, uint64_t limit, bint dotted,
                              Py_ssize_t full_size, EntryId* last) except -1:
        """Encode up to `limit` entries with start <= id <= end as reply elements, oldest first,
        until `out` has reached full_size; returns how many, and the id of the last in `last`."""
        cdef Walk walk
        cdef IdText id_text
        cdef uint64_t done = 0
        cdef uint64_t made
        id_text.size = 0
        id_text.dotted = dotted
        if id_less(ms, seq, self.head_ms, self.head_seq):
            ms = self.head_ms
            seq = self.head_seq
        self.walk_enter(&walk, ms, seq)
        while walk.valid and done < limit and out.size < full_size and not id_less(
                end_ms, end_seq, walk.view.first_ms, walk.view.first_seq):
            made = encode_forward(out, &walk.view, ms, seq, end_ms, end_seq, limit - done,
                                  full_size, &id_text, last)
            done += made
            self.walk_block(&walk)
        return <int64_t>done

    cdef int64_t encode_reverse(self, Output out, uint64_t ms, uint64_t seq, uint64_t end_ms,
                                uint64_t end_seq, uint64_t limit, bint dotted,
                                Py_ssize_t full_size, EntryId* last) except -1:
        """As encode_range, newest first."""
        cdef IdText id_text
        cdef Place place
        cdef View view
        cdef uint64_t done = 0
        id_text.size = 0
        id_text.dotted = dotted
        if id_less(ms, seq, self.head_ms, self.head_seq):
            ms = self.head_ms
            seq = self.head_seq
        if self.has_tail() and not id_less(
                end_ms, end_seq, self.tail.first_ms, self.tail.first_seq):
            self.tail.view(&view)
            if view.count <= FEW_ENTRIES:
                # The whole block will be read. Among very many streams none of it is in the cache.
                fetch_line(view.entries)
                fetch_line(view.entries + LINE_BYTES)
                fetch_line(view.entries + 2 * LINE_BYTES)
                fetch_line(view.entries + 3 * LINE_BYTES)
            done = encode_backward(
                out, &view, ms, seq, end_ms, end_seq, limit, full_size, &id_text, last)
        if self.sealed is None:
            return <int64_t>done
        place = self.sealed.seek(end_ms, end_seq, NULL)
        while place.page != NULL and done < limit and out.size < full_size:
            view_block(place, &view)
            if id_less(view.last_ms, view.last_seq, ms, seq):
                break
            done += encode_backward(
                out, &view, ms, seq, end_ms, end_seq, limit - done, full_size, &id_text, last)
            place = place_before(place)
        return <int64_t>done

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

    # ------------------------------------------------------------ eviction and deletion

    cdef uint64_t evict_before(self, uint64_t ms, uint64_t seq) except? 0xffffffffffffffff:
        """Evict every entry with an id below ms-seq; returns how many."""
        cdef uint64_t evicted = 0
        cdef Place place
        cdef View view
        if not id_less(self.head_ms, self.head_seq, ms, seq):
            return 0
        # A policy by bytes wants them counted off with every trim.
        if self.policy is None or self.policy.max_bytes == 0:
            evicted = self.cut_before(ms, seq)
        place = self.head_place()
        while place.page != NULL:
            view_block(place, &view)
            if not id_less(view.first_ms, view.first_seq, ms, seq):
                break
            evicted += self.evict_in(&view, ms, seq)
            if self.head_gone < view.live:
                break
            self.head_gone = 0
            self.sealed.drop_head()
            place = self.head_place()
        if place.page == NULL and self.has_tail() and id_less(
                self.tail.first_ms, self.tail.first_seq, ms, seq):
            self.tail.view(&view)
            evicted += self.evict_in(&view, ms, seq)
            if self.head_gone == view.live:
                self.head_gone = 0
                self.tail.reset()
        self.head_ms = ms
        self.head_seq = seq
        self.length -= evicted
        self.entries_evicted += evicted
        return evicted

    cdef uint64_t cut_before(self, uint64_t ms, uint64_t seq) except? 0xffffffffffffffff:
        """Take many whole blocks below ms-seq away at once, without a look at each, and free them
        later where that may be. Returns how many entries that were not hidden went."""
        cdef uint64_t rank
        cdef uint64_t gone
        cdef Place place = no_place()
        cdef View view
        if self.sealed is not None:
            place = self.sealed.seek(ms, seq, &rank)
        if place.page == NULL or rank < CUT_MIN or not is_deferring():
            return 0
        view_block(place_before(place), &view)
        self.note_evicted(&view, ms, seq)
        discard_part(self.sealed.cut_before(place))
        gone = rank - self.head_gone
        self.head_gone = 0
        return gone

    cdef int note_evicted(self, View* view, uint64_t ms, uint64_t seq) noexcept:
        """The last entry of a block below ms-seq goes."""
        cdef Entry entry
        if view_last_live_before(view, ms, seq, &entry) and id_less(
                self.max_evicted_ms, self.max_evicted_seq, entry.ms, entry.seq):
            self.max_evicted_ms = entry.ms
            self.max_evicted_seq = entry.seq
        return 0

    cdef uint64_t evict_in(self, View* view, uint64_t ms, uint64_t seq) noexcept:
        """Hide the entries of the first block below ms-seq; returns how many more than before."""
        cdef uint64_t before = self.head_gone
        if view.live == view.count and self.evict_few(view, ms, seq):
            return self.head_gone - before
        self.head_gone = view_live_before(view, ms, seq)
        if self.head_gone > before:
            self.note_evicted(view, ms, seq)
        return self.head_gone - before

    cdef bint evict_few(self, View* view, uint64_t ms, uint64_t seq) noexcept:
        """As `evict_in`, for a few entries of a block of which none was deleted; False, with nothing
        done, when there are more. A trim after each append evicts one entry at a time."""
        cdef Cursor cursor
        cdef EntryId last
        cdef uint64_t gone = self.head_gone
        cursor_to_index(&cursor, view, <uint32_t>gone)
        for _ in range(EVICTED_FEW):
            if not cursor_next(&cursor, view) or not id_less(
                    cursor.entry.ms, cursor.entry.seq, ms, seq):
                break
            last.ms = cursor.entry.ms
            last.seq = cursor.entry.seq
            gone += 1
        else:
            return False
        if gone > self.head_gone:
            self.head_gone = gone
            if id_less(self.max_evicted_ms, self.max_evicted_seq, last.ms, last.seq):
                self.max_evicted_ms = last.ms
                self.max_evicted_seq = last.seq
        return True

    cpdef uint64_t evict_all(self) except? 0xffffffffffffffff:
        """Evict every entry, the one with the last possible id too; returns how many."""
        cdef EntryId last
        cdef uint64_t evicted = self.length
        if evicted:
            self.last_entry(&last)
            self.max_evicted_ms = last.ms
            self.max_evicted_seq = last.seq
        self.discard_sealed()
        if self.tail is not None:
            self.tail.reset()
        self.head_ms, self.head_seq = self.past_end()
        self.head_gone = 0
        self.length = 0
        self.entries_evicted += evicted
        return evicted

    cpdef uint64_t evict_ids(self, list ids) except? 0xffffffffffffffff:
        """Evict the entries with these ids (ms, seq), which rise, wherever they stand; ids without
        an entry are passed over. Returns how many went."""
        cdef uint64_t before = self.length
        cdef Py_ssize_t at = 0
        cdef Place place
        cdef uint64_t evicted
        cdef View view
        cdef Entry entry
        found = [(ms, seq) for ms, seq in ids if self.find(ms, seq, &view, &entry)]
        while at < len(found):
            ms, seq = found[at]
            if self.has_tail() and not id_less(ms, seq, self.tail.first_ms, self.tail.first_seq):
                self.evict_in_tail(found[at:])
                break
            place = self.sealed.seek(ms, seq, NULL)
            at += self.evict_in_block(place, found, at)
        if found and found[len(found) - 1] > (self.max_evicted_ms, self.max_evicted_seq):
            self.max_evicted_ms, self.max_evicted_seq = found[len(found) - 1]
        evicted = before - self.length
        self.entries_evicted += evicted
        return evicted

    cdef int discard_sealed(self) except -1:
        """Discard the sealed blocks. Only parts that were cut off still refer to the list."""
        cdef SkipList sealed = self.sealed
        self.sealed = None
        if sealed is not None and Py_REFCNT(sealed) <= <Py_ssize_t>sealed.parts + 1:
            discard(sealed)
        return 0

    cdef int evict_in_tail(self, list ids) except -1:
        for ms, seq in ids:
            self.tail.delete(ms, seq)
        self.length -= <uint64_t>len(ids)
        if self.tail.live == (self.head_gone if self.head_place().page == NULL else 0):
            self.tail.reset()
            self.head_gone = 0 if self.head_place().page == NULL else self.head_gone
        return 0

    cdef Py_ssize_t evict_in_block(self, Place place, list ids, Py_ssize_t start) except -1:
        """Evict those of ids[start:] that a sealed block holds; returns how many."""
        cdef Block block = block_at(place)
        cdef Py_ssize_t end = start
        while end < len(ids) and ids[end] <= (block.head.last_ms, block.head.last_seq):
            end += 1
        block = block.without_all(ids[start:end])
        self.put_back(place, block)
        self.length -= <uint64_t>(end - start)
        return end - start

    cdef bint delete(self, uint64_t ms, uint64_t seq) except -1:
        """Delete one entry (XDEL); False when there is none with this id."""
        cdef Place place
        if id_less(ms, seq, self.head_ms, self.head_seq):
            return False
        if self.has_tail() and not id_less(ms, seq, self.tail.first_ms, self.tail.first_seq):
            if not self.tail.delete(ms, seq):
                return False
            if self.tail.live == (self.head_gone if self.head_place().page == NULL else 0):
                self.tail.reset()
                self.head_gone = 0 if self.head_place().page == NULL else self.head_gone
        else:
            if self.sealed is None:
                return False
            place = self.sealed.seek(ms, seq, NULL)
            if place.page == NULL or not self.delete_in(place, ms, seq):
                return False
        self.length -= 1
        self.entries_deleted += 1
        if id_less(self.max_deleted_ms, self.max_deleted_seq, ms, seq):
            self.max_deleted_ms = ms
            self.max_deleted_seq = seq
        return True

    cdef bint delete_in(self, Place place, uint64_t ms, uint64_t seq) except -1:
        cdef Block block = block_at(place).without(ms, seq)
        if block is None:
            return False
        self.put_back(place, block)
        return True

    cdef int put_back(self, Place place, Block block) except -1:
        """Put a block with fewer undeleted entries in another one's place; without any it goes."""
        cdef uint64_t hidden = self.head_gone if same_place(place, self.sealed.first()) else 0
        if block.head.live > hidden:
            return self.sealed.replace(place, block)
        if hidden:
            self.head_gone = 0
        return self.sealed.remove(place)

    # ------------------------------------------------------------ the last id

    cpdef int set_last_id(self, uint64_t ms, uint64_t seq, uint32_t node_entries,
                         uint32_t node_bytes) except -1:
        """Set the last id (XSETID); no entry is above it, but ids that are gone may be."""
        cdef Place last = no_place() if self.sealed is None else self.sealed.end()
        cdef View view
        cdef Group group
        if id_less(ms, seq, self.last_ms, self.last_seq):
            # Entries that are gone can come again with the same ids.
            for group in self.all_groups():
                group.forget_gone()
        if self.has_tail():
            self.tail.view(&view)
        elif last.page != NULL:
            view_block(last, &view)
        if (self.has_tail() or last.page != NULL) and id_less(ms, seq, view.last_ms, view.last_seq):
            self.write_end_anew(node_entries, node_bytes)
        self.last_ms = ms
        self.last_seq = seq
        if id_less(ms, seq, self.max_evicted_ms, self.max_evicted_seq):
            self.max_evicted_ms = ms
            self.max_evicted_seq = seq
        return 0

    cdef int write_end_anew(self, uint32_t node_entries, uint32_t node_bytes) except -1:
        """Write the entries of the last block again without what is deleted there: its last id is
        then that of an entry, and lower ids can come after it."""
        cdef Place last
        cdef bytearray room
        cdef Slice* items
        cdef Py_ssize_t i
        cdef uint64_t added = self.entries_added
        cdef bytes word
        if self.has_tail():
            entries = self.range(self.tail.first_ms, self.tail.first_seq)
            self.tail.reset()
        else:
            last = self.sealed.end()
            entries = self.range(*block_at(last).first_id)
            self.sealed.remove(last)
        if self.head_place().page == NULL:
            self.head_gone = 0
        self.length -= <uint64_t>len(entries)
        for ms, seq, words in entries:
            room = bytearray(len(words) * sizeof(Slice))
            items = <Slice*><char*>room
            for i in range(len(words)):
                word = words[i]
                items[i].ptr = word
                items[i].size = len(word)
            self.append(ms, seq, items, len(words), node_entries, node_bytes)
        self.entries_added = added
        return 0

    # ------------------------------------------------------------ where to trim

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

    cpdef object boundary_by_nodes(self, keep, minid, uint64_t limit, bint partly=False):
        """As Redis trims with `~`: whole nodes from the head while at least `keep` entries stay,
        or while all their ids are below `minid`; at most `limit` entries, 0 for any number. With
        `partly` a part of the next node goes, too, if the limit has room for the whole node.

        One of keep and minid is given. The result is the first id (ms, seq) that stays; None when
        nothing is to go, "all" when there is no id above the last that goes.
        """
        cdef Place place = self.head_place()
        cdef View view
        cdef EntryId last, past
        cdef uint64_t removed = 0
        cdef uint64_t before = self.head_gone
        cdef uint64_t live
        cdef uint64_t kept = 0 if keep is None else keep
        cdef bint by_id = minid is not None
        cdef uint32_t i
        boundary = None
        if not by_id and self.length <= kept:
            return None
        while True:
            if place.page != NULL:
                view_block(place, &view)
            elif self.has_tail():
                self.tail.view(&view)
            else:
                return boundary
            for i in range(view.node_count):
                live = live_before_index(&view, node_end(&view, i))
                if live < before or (before and live == before and not removed):
                    continue  # all of it went before
                live, before = live - before, live
                if limit and removed + live > limit:
                    return boundary
                if not by_id and self.length - removed - live < kept:
                    # When `keep` entries are left, the next node and what was deleted in it stays.
                    partly = partly and self.length - removed > kept
                    return self.boundary_for_length(kept) if partly else boundary
                is_above = id_past(&view, node_end(&view, i), &last, &past)
                if by_id and (last.ms, last.seq) >= minid:
                    return minid if partly else boundary
                if live:
                    removed += live
                    boundary = (past.ms, past.seq) if is_above else "all"
            if place.page == NULL:
                return boundary
            before = 0
            place = place_after(place)

    # ------------------------------------------------------------ groups

    cpdef bint is_held(self, uint64_t ms, uint64_t seq) noexcept:
        """Whether a group has yet to read this entry, or has not acknowledged it."""
        cdef Group group
        for group in self.all_groups():
            if id_less(group.offset_ms, group.offset_seq, ms, seq):
                return True
        return self.has_pending(ms, seq)

    cdef bint has_pending(self, uint64_t ms, uint64_t seq) noexcept:
        """Whether this id is pending in a group."""
        cdef Group group
        cdef PendingAt at
        for group in self.all_groups():
            if group.pending_count and group.find(ms, seq, &at) != NULL:
                return True
        return False

    cdef uint64_t group_count(self) noexcept:
        if self.groups_by_name is not None:
            return len(self.groups_by_name)
        return self.only_group is not None

    cdef list all_groups(self):
        """The groups in the order in which they were made."""
        if self.groups_by_name is not None:
            return list(self.groups_by_name.values())
        return [] if self.only_group is None else [self.only_group]

    cdef int add_group(self, Group group) except -1:
        """Add a group with a new name. Most streams of very many have one group at most, and a dict
        would be larger than the group."""
        if self.groups_by_name is not None:
            self.groups_by_name[group.name] = group
        elif self.only_group is None:
            self.only_group = group
        else:
            self.groups_by_name = {self.only_group.name: self.only_group, group.name: group}
            self.only_group = None
        return 0

    @property
    def groups(self) -> dict:
        """The groups by name; read-only."""
        if self.groups_by_name is not None:
            return self.groups_by_name
        return {} if self.only_group is None else {self.only_group.name: self.only_group}

    def load_group(self, Group group not None) -> None:
        """Add a group that was saved; ValueError when there is one with its name."""
        if self.group(group.name) is not None:
            raise ValueError(f"it has group {group.name!r} twice")
        self.add_group(group)
        self.has_ttl = self.has_ttl or group.ttl_ms > 0

    cpdef object group(self, bytes name):
        """The group of this name or None."""
        if self.groups_by_name is not None:
            return self.groups_by_name.get(name)
        if self.only_group is not None and self.only_group.name == name:
            return self.only_group
        return None

    cpdef object make_group(self, bytes name, uint64_t ms, uint64_t seq, uint64_t now_ms):
        """Add a group that will read what comes after ms-seq. One that starts at 0 reports only
        evictions after its creation only."""
        cdef Group group = Group(name, ms, seq, now_ms)
        self.move_group(group, ms, seq, group.entries_read)
        self.add_group(group)
        return group

    cdef int move_group(self, group, uint64_t ms, uint64_t seq, int64_t entries_read) except -1:
        """Let a group continue after ms-seq; evictions before now are no gap if it begins at 0."""
        cdef Group moved = group
        moved.offset_ms = ms
        moved.offset_seq = seq
        moved.entries_read = entries_read
        if ms == 0 and seq == 0:
            moved.gap_floor_ms = self.max_evicted_ms
            moved.gap_floor_seq = self.max_evicted_seq
        return 0

    def set_group_offset(self, Group group not None, uint64_t ms, uint64_t seq,
                         int64_t entries_read) -> None:
        """`move_group` for callers in Python."""
        self.move_group(group, ms, seq, entries_read)

    def deliver_between(self, Group group not None, start, stop, uint64_t now_ms, uint32_t owner,
                        uint32_t policy) -> None:
        """Note that the entries with start <= id <= stop, (ms, seq) each, were delivered to the
        consumer with this number for the first time."""
        cdef uint64_t ms, seq, end_ms, end_seq
        cdef Walk walk
        ms, seq = start
        end_ms, end_seq = stop
        self.walk_start(&walk, ms, seq)
        while self.walk_next(&walk) and not id_less(
                end_ms, end_seq, walk.cursor.entry.ms, walk.cursor.entry.seq):
            group.deliver(walk.cursor.entry.ms, walk.cursor.entry.seq, now_ms, owner, policy)

    def claim(self, Group group not None, Consumer consumer not None, list ids not None,
              uint64_t min_idle_ms, uint64_t delivery_ms, bytes count not None, uint64_t now_ms,
              bint force, uint64_t most, list claimed not None, list gone not None) -> int:
        """Give pending entries with these ids, (ms, seq) each, to a consumer, as Group.claim does,
        if they were not delivered for min_idle_ms; force: an entry that is not pending, too.
        What was claimed is added to `claimed`, what is pending without an entry to `gone`. Returns
        how many ids were looked at: no more after `most` were added."""
        cdef View view
        cdef Entry entry
        cdef Pending* record
        cdef PendingAt at
        cdef uint64_t ms, seq
        cdef uint64_t left = most
        cdef Py_ssize_t looks = 0
        for entry_id in ids:
            if left == 0:
                break
            looks += 1
            ms, seq = entry_id
            record = group.find(ms, seq, &at)
            if not self.find(ms, seq, &view, &entry):
                if record != NULL:
                    gone.append(entry_id)
                    left -= 1
            elif record != NULL and min_idle_ms and (
                    now_ms - min(<uint64_t>record.last_delivery_ms, now_ms) < min_idle_ms):
                continue
            elif record != NULL or force:
                claimed.append(entry_id)
                left -= 1
                group.claim(ms, seq, consumer, delivery_ms, count)
                group.note_again(ms, seq, delivery_ms, now_ms)
                consumer.active_ms = now_ms
        return looks

    cpdef int set_ttl(self, group, uint64_t ttl_ms) except -1:
        """Let a group end this long after its last use; 0: never."""
        (<Group?>group).ttl_ms = ttl_ms
        self.has_ttl = self.has_ttl or ttl_ms > 0
        return 0

    def count_live_groups(self, uint64_t now_ms) -> int:
        """How many groups there are, without those whose time to live has ended."""
        return self.live_group_count(now_ms)

    cdef uint64_t live_group_count(self, uint64_t now_ms) except? 0xffffffffffffffff:
        """How many groups there are whose time to live has not ended; without a look at them where
        none has one."""
        cdef Group group
        cdef uint64_t count = self.group_count()
        if self.has_ttl:
            for group in self.all_groups():
                if group.ttl_ms and group.is_over(now_ms):
                    count -= 1
        return count

    cpdef list due_groups(self, uint64_t now_ms):
        """The names of groups that are over, or have pending entries that may have expired."""
        cdef Group group
        return [group.name for group in self.all_groups() if group.expiry_bound() <= now_ms or (
            group.ttl_ms and group.is_over(now_ms))]

    cpdef bint drop_group(self, bytes name):
        """Remove a group with all it knows; False when there is none."""
        if self.groups_by_name is not None:
            return self.groups_by_name.pop(name, None) is not None
        if self.only_group is None or self.only_group.name != name:
            return False
        self.only_group = None
        return True

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

    def evict(self, uint64_t ms, uint64_t seq) -> int:
        """Evict every entry with an id below ms-seq; returns how many."""
        return self.evict_before(ms, seq)

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

    def delete_id(self, uint64_t ms, uint64_t seq) -> bool:
        """`delete` for callers in Python."""
        return self.delete(ms, seq)

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

    def count(self, uint64_t ms, uint64_t seq, uint64_t end_ms, uint64_t end_seq) -> int:
        """How many entries have start <= id <= end."""
        return self.count_between(ms, seq, end_ms, end_seq)

    def encode(self, uint64_t ms, uint64_t seq, uint64_t end_ms, uint64_t end_seq,
               uint64_t limit, bint dotted=False, bint reverse=False) -> tuple[int, bytes]:
        """Entries as RESP elements: (how many, bytes)."""
        cdef Output out = Output()
        cdef EntryId last
        if reverse:
            made = self.encode_reverse(
                out, ms, seq, end_ms, end_seq, limit, dotted, PY_SSIZE_T_MAX, &last)
        else:
            made = self.encode_range(
                out, ms, seq, end_ms, end_seq, limit, dotted, PY_SSIZE_T_MAX, &last)
        return made, out.take()

    @property
    def last_id(self) -> tuple[int, int]:
        """The position: the last ID handed out before the oldest reservation, or the last one."""
        return self.last_ms, self.last_seq

    def raise_last_id(self, uint64_t ms, uint64_t seq) -> None:
        """Let the next IDs be above ms-seq, which is not below the last one."""
        self.last_ms = ms
        self.last_seq = seq

    @property
    def is_reserving(self) -> bool:
        """Whether IDs are reserved."""
        return self.restrictions & RESERVING != 0

    @property
    def is_sealed(self) -> bool:
        """Whether no entries or reservations are taken any more."""
        return self.restrictions & SEALED != 0

    def set_sealed(self) -> None:
        self.restrictions |= SEALED

    @property
    def is_followed(self) -> bool:
        """Whether readers were promised that nothing comes up to an ID."""
        return self.restrictions & FOLLOWED != 0

    def set_followed(self) -> None:
        self.restrictions |= FOLLOWED

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

    @property
    def node_count(self) -> int:
        """Nodes, the units of `~`; of the first block those that still have an entry."""
        cdef uint64_t nodes = 0
        cdef Walk walk
        if self.sealed is not None:
            nodes += self.sealed.block_nodes
        if self.has_tail():
            nodes += self.tail.node_count
        self.walk_start(&walk, 0, 0)
        if walk.valid:
            left = sum(1 for _, _, live in nodes_of(&walk.view, self.head_gone) if live)
            nodes -= walk.view.node_count - left
        return nodes

    cdef list node_starts(self, Py_ssize_t most):
        """The first ids of up to `most` nodes that still have an entry, from the oldest on."""
        cdef Place place = self.head_place()
        cdef View view
        cdef list starts = []
        cdef uint64_t hidden = self.head_gone
        while len(starts) < most:
            if place.page != NULL:
                view_block(place, &view)
            elif self.has_tail():
                self.tail.view(&view)
            else:
                break
            starts += starts_of(&view, hidden)
            if place.page == NULL:
                break
            hidden = 0
            place = place_after(place)
        return starts[:most]

    def radix_tree_nodes(self, Py_ssize_t most) -> int:
        """The number of nodes of the radix tree that Redis would have for this stream: counted for
        the first `most` nodes with an entry, in proportion beyond."""
        cdef list starts = self.node_starts(most)
        cdef uint64_t counted = count_radix_nodes(starts)
        if len(starts) < most:
            return counted
        return counted * self.node_count // <uint64_t>len(starts)

    @property
    def memory_bytes(self) -> int:
        """An estimate of the memory it takes: data, tables, objects, groups."""
        cdef Group group
        cdef uint64_t total = 320
        if self.sealed is not None:
            total += 620 + self.sealed.data_bytes + self.sealed.blocks * 176
        if self.tail is not None:
            total += 160 + self.tail.capacity + 4 * (
                self.tail.checkpoint_capacity + self.tail.set_capacity + self.tail.node_capacity)
        for group in self.all_groups():
            total += group.size_bytes()
        if self.idempotence is not None:
            total += self.idempotence.memory_bytes
        if self.producers is not None:
            total += self.producers.memory_bytes
        if self.held is not None:
            total += self.held.memory_bytes
        return total

    def duplicate(self, uint64_t incarnation, uint64_t now_ms) -> Stream:
        """Another stream with the same content, which shares what never changes."""
        cdef Group group
        cdef Stream made = Stream.load(
            {**self.header(False, {}, []), "incarnation": incarnation}, self.blocks(), now_ms)
        for group in self.all_groups():
            made.add_group(group.duplicate(now_ms))
        made.has_ttl = self.has_ttl
        made.producers = None if self.producers is None else self.producers.copy()
        return made

    def dump(self, bint shared=False) -> tuple:
        """The stream as msgpack-able metadata and immutable blocks (docs/formats.md, stream).
        shared: the groups' pending entries, the producers and their messages are not copied yet
        (SharedGroups, Producers.share, Window.share)."""
        cdef object producers = {}
        if self.producers is not None:
            producers = self.producers.share() if shared else self.producers.dump()
        cdef object groups = [(<Group>group).dump() for group in self.all_groups()] if (
            not shared or not self.group_count()) else shared_groups(self.groups, True, 0)
        return self.header(shared, producers, groups), self.blocks()

    def blocks(self):
        """All of its blocks as they are now, with a copy of the open one after them."""
        tail = self.tail.freeze() if self.has_tail() else None
        if self.sealed is not None:
            return self.sealed.share(tail)
        return [] if tail is None else [tail]

    cdef dict header(self, bint shared, producers, groups):
        meta = {
            "length": self.length,
            "last_id": [self.last_ms, self.last_seq],
            "first_kept": [self.head_ms, self.head_seq],
            "max_evicted": [self.max_evicted_ms, self.max_evicted_seq],
            "max_deleted": [self.max_deleted_ms, self.max_deleted_seq],
            "entries_added": self.entries_added,
            "entries_evicted": self.entries_evicted,
            "entries_deleted": self.entries_deleted,
            "incarnation": self.incarnation,
            "groups": groups,
            "producers": producers,
            "open": self.has_tail() and not self.tail.closed,
        }
        if self.policy is not None:
            meta["policy"] = self.policy.dump()
        if self.idempotence is not None:
            meta["idempotence"] = (
                self.idempotence.share() if shared else self.idempotence.dump())
        return meta

    @staticmethod
    def load(meta, blocks, uint64_t now_ms) -> Stream:
        """Make a stream of what `dump` gave; ValueError when the parts do not fit together."""
        cdef Stream stream = Stream(meta["incarnation"])
        cdef Block block
        cdef View view
        cdef uint64_t hidden
        newest = blocks[len(blocks) - 1] if blocks else None
        last = None
        stream.last_ms, stream.last_seq = meta["last_id"]
        stream.head_ms, stream.head_seq = meta["first_kept"]
        stream.max_evicted_ms, stream.max_evicted_seq = meta["max_evicted"]
        stream.max_deleted_ms, stream.max_deleted_seq = meta["max_deleted"]
        stream.entries_added = meta["entries_added"]
        stream.entries_evicted = meta["entries_evicted"]
        stream.entries_deleted = meta["entries_deleted"]
        for block in blocks:
            if last is not None and block.first_id <= last:
                raise ValueError("its blocks are out of order")
            hidden = 0
            if last is None:
                view_of(block.head, &view)
                hidden = stream.head_gone = view_live_before(
                    &view, stream.head_ms, stream.head_seq)
            last = block.last_id
            if block.head.live <= hidden:
                raise ValueError("a block of it has no entry left")
            if block is newest and meta.get("open"):
                stream.tail = OpenBlock.reopen(block)
                if stream.tail is not None:
                    break
            if stream.sealed is None:
                stream.sealed = SkipList.__new__(SkipList)
            stream.sealed.push(block)
        if last is not None and last > stream.last_id:
            raise ValueError("its last id is below its last entry")
        stream.length = stream.sealed_live() - stream.head_gone
        if stream.tail is not None:
            stream.length += stream.tail.live
        if stream.length != meta["length"]:
            raise ValueError(f"it holds {stream.length} entries and says {meta['length']}")
        for row in meta["groups"]:
            stream.load_group(Group.load(row, now_ms))
        if "policy" in meta:
            stream.policy = RetentionPolicy.load(meta["policy"])
        if meta["producers"]:
            stream.producers = Producers.load(meta["producers"])
        if "idempotence" in meta:
            stream.idempotence = Window.load(meta["idempotence"])
        return stream

    def check(self) -> None:
        """Raise AssertionError or ValueError when anything does not fit together."""
        cdef Walk walk
        cdef uint64_t count = 0
        before = None
        if self.sealed is not None:
            self.sealed.check()
            for block in self.sealed:
                block.check()
        if self.tail is not None:
            self.tail.check()
        self.walk_start(&walk, 0, 0)
        while self.walk_next(&walk):
            here = (walk.cursor.entry.ms, walk.cursor.entry.seq)
            assert before is None or before < here
            before = here
            count += 1
        assert count == self.length
        assert before is None or before <= self.last_id
        assert self.entries_added >= self.length
        for group in self.all_groups():
            group.check()
        if self.idempotence is not None:
            self.idempotence.check()
        if self.producers is not None:
            self.producers.check()


# ---------------------------------------------------------------- Redis' radix tree

cdef enum:
    ID_BYTES = 16


cdef int common_bytes(tuple one, tuple other) except -1:
    """The number of equal bytes at the beginning of two IDs, which differ."""
    cdef uint64_t differing = <uint64_t>one[0] ^ <uint64_t>other[0]
    cdef int count = 0
    if differing == 0:
        differing = <uint64_t>one[1] ^ <uint64_t>other[1]
        count = 8
    while not differing >> 56:
        differing <<= 8
        count += 1
    return count


cdef uint64_t count_radix_nodes(list ids) except? 0:
    """The number of nodes of a radix tree of these IDs, which rise: one for the end of each ID, one
    where IDs part, and one for the bytes between two of these."""
    cdef Py_ssize_t count = len(ids)
    cdef int[ID_BYTES + 1] branches  # depths at which IDs part, on the way to the current one
    cdef int used = 0
    cdef int before = -1
    cdef int parting, branch, above
    cdef uint64_t nodes = 0
    cdef Py_ssize_t i
    if count == 0:
        return 1
    for i in range(count):
        parting = common_bytes(ids[i], ids[i + 1]) if i + 1 < count else -1
        nodes += 1 + (ID_BYTES > max(before, parting) + 1)
        while used and branches[used - 1] > parting:
            used -= 1
            branch = branches[used]
            above = max(parting, branches[used - 1] if used else -1)
            nodes += 1 + (branch > above + 1)
        if parting >= 0 and (used == 0 or branches[used - 1] < parting):
            branches[used] = parting
            used += 1
        before = parting
    return nodes
