# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Eviction and deletion of entries of a log.

Eviction drops whole blocks from the head; the evicted entries of the first kept block are hidden
(`EntryLog.head_ms`). A single deletion replaces a sealed block by a copy in which the entry is deleted.
"""

from libc.stdint cimport uint32_t, uint64_t

from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.block cimport Block
from millstream.storage.blocks.layout cimport (
    Cursor, Entry, View, cursor_next, cursor_to_index, view_last_live_before, view_live_before,
    view_nth_live,
)
from millstream.storage.blocks.skiplist_pages cimport (
    Place, block_at, no_place, place_before, same_place, view_block,
)
from millstream.storage.log.entry_log cimport EntryLog, Walk

from millstream.storage.blocks.lazyfree import discard_part, is_deferring

# A trim of more entries cuts them off as a whole.
cdef uint64_t CUT_MIN = 1024
# A trim of fewer entries of a block reads them one by one.
cdef int EVICTED_FEW = 32


# ---------------------------------------------------------------- eviction from the head

cdef uint64_t evict_below(EntryLog log, EntryId first, bint at_once) except? 0xffffffffffffffff:
    """Evict every entry with an ID below `first`; returns their number. at_once: many blocks may be
    cut off together; they count in the totals of blocks and bytes until they are freed."""
    cdef uint64_t evicted = 0
    cdef Place place
    cdef View view
    if not id_less(log.head_ms, log.head_seq, first.ms, first.seq):
        return 0
    if at_once:
        evicted = cut_before(log, first)
    place = log.head_place()
    while place.page != NULL:
        view_block(place, &view)
        if not id_less(view.first_ms, view.first_seq, first.ms, first.seq):
            break
        evicted += evict_in(log, &view, first)
        if log.head_gone < view.live:
            break
        log.head_gone = 0
        log.sealed.drop_head()
        place = log.head_place()
    if place.page == NULL and log.has_tail() and id_less(
            log.tail.first_ms, log.tail.first_seq, first.ms, first.seq):
        log.tail.view(&view)
        evicted += evict_in(log, &view, first)
        if log.head_gone == view.live:
            log.head_gone = 0
            log.tail.reset()
    log.head_ms = first.ms
    log.head_seq = first.seq
    log.length -= evicted
    log.entries_evicted += evicted
    return evicted


cdef uint64_t cut_before(EntryLog log, EntryId first) except? 0xffffffffffffffff:
    """Remove all complete blocks below `first` together, without reading each, and free them
    lazily. Returns the number of removed entries that were not hidden."""
    cdef uint64_t rank
    cdef uint64_t gone
    cdef Place place = no_place()
    cdef View view
    if log.sealed is not None:
        place = log.sealed.seek(first.ms, first.seq, &rank)
    if place.page == NULL or rank < CUT_MIN or not is_deferring():
        return 0
    view_block(place_before(place), &view)
    note_evicted(log, &view, first)
    discard_part(log.sealed.cut_before(place))
    gone = rank - log.head_gone
    log.head_gone = 0
    return gone


cdef int note_evicted(EntryLog log, View* view, EntryId first) noexcept:
    """Record that the entries of a block below `first` are evicted."""
    cdef Entry entry
    if view_last_live_before(view, first.ms, first.seq, &entry):
        note_evicted_id(log, entry.ms, entry.seq)
    return 0


cdef inline void note_evicted_id(EntryLog log, uint64_t ms, uint64_t seq) noexcept:
    if id_less(log.max_evicted_ms, log.max_evicted_seq, ms, seq):
        log.max_evicted_ms = ms
        log.max_evicted_seq = seq


cdef uint64_t evict_in(EntryLog log, View* view, EntryId first) noexcept:
    """Hide the entries of the first block below `first`; returns the number of newly hidden
    ones."""
    cdef uint64_t before = log.head_gone
    if view.live == view.count and evict_few(log, view, first):
        return log.head_gone - before
    log.head_gone = view_live_before(view, first.ms, first.seq)
    if log.head_gone > before:
        note_evicted(log, view, first)
    return log.head_gone - before


cdef bint evict_few(EntryLog log, View* view, EntryId first) noexcept:
    """Like `evict_in`, for a few entries of a block without deleted entries; False, without a
    change, if there are more. A trim by ID or age after each append evicts one entry at a time."""
    cdef HeadRun run
    if not read_head_run(log, view, first, &run):
        return False
    if run.count:
        log.head_gone += run.count
        note_evicted_id(log, run.last.ms, run.last.seq)
    return True


cdef bint read_head_run(EntryLog log, const View* view, EntryId first, HeadRun* run) noexcept:
    """Get the entries below `first` of the first block, which has no deleted entries; False if they are
    many."""
    cdef Cursor cursor
    run.count = 0
    run.has_following = False
    cursor_to_index(&cursor, view, <uint32_t>log.head_gone)
    for _ in range(EVICTED_FEW):
        if not cursor_next(&cursor, view):
            return True
        if not id_less(cursor.entry.ms, cursor.entry.seq, first.ms, first.seq):
            run.following = EntryId(cursor.entry.ms, cursor.entry.seq)
            run.has_following = True
            return True
        run.last = EntryId(cursor.entry.ms, cursor.entry.seq)
        run.count += 1
    return False


cdef bint find_head_run(EntryLog log, EntryId first, HeadRun* run) noexcept:
    """Get the entries below `first` in the frequent case: they are few, and the first block has no
    deleted entries and keeps at least one. False in other cases."""
    cdef View view
    return view_head(log, &view) and view.live == view.count and (
        read_head_run(log, &view, first, run) and run.has_following)


cdef uint64_t evict_head_run(EntryLog log, const HeadRun* run) noexcept:
    """Evict the entries that were found, if the log has not changed since; returns their number."""
    if run.count:
        note_evicted_id(log, run.last.ms, run.last.seq)
        keep_from(log, run.count, run.following)
    return run.count


cdef inline bint view_head(EntryLog log, View* view) noexcept:
    """View the first block; False without one."""
    cdef Place place = log.head_place()
    if place.page != NULL:
        view_block(place, view)
    elif log.has_tail():
        log.tail.view(view)
    else:
        return False
    return True


cdef inline void keep_from(EntryLog log, uint64_t count, EntryId first) noexcept:
    """Hide the oldest `count` entries, those before `first` in the first block."""
    log.head_gone += count
    log.head_ms = first.ms
    log.head_seq = first.seq
    log.length -= count
    log.entries_evicted += count


cdef uint64_t evict_oldest(EntryLog log, uint64_t count, EntryId first_max) noexcept:
    """Evict the oldest `count` entries if the first block has no deleted entries and keeps at
    least one, and the first kept ID is at most `first_max`. Returns `count`, or 0 if nothing was
    changed. This is the frequent case of a trim by length."""
    cdef Cursor cursor
    cdef EntryId last
    cdef View view
    if not view_head(log, &view):
        return 0
    if view.live != view.count or log.head_gone + count >= view.count:
        return 0
    cursor_to_index(&cursor, &view, <uint32_t>(log.head_gone + count) - 1)
    cursor_next(&cursor, &view)
    last.ms = cursor.entry.ms
    last.seq = cursor.entry.seq
    cursor_next(&cursor, &view)
    if id_less(first_max.ms, first_max.seq, cursor.entry.ms, cursor.entry.seq):
        return 0
    note_evicted_id(log, last.ms, last.seq)
    keep_from(log, count, EntryId(cursor.entry.ms, cursor.entry.seq))
    return count


cpdef uint64_t evict_all(EntryLog log) except? 0xffffffffffffffff:
    """Evict every entry, including one with the largest possible ID; returns their number."""
    cdef EntryId last
    cdef uint64_t evicted = log.length
    if evicted:
        log.last_entry(&last)
        log.max_evicted_ms = last.ms
        log.max_evicted_seq = last.seq
    log.discard_sealed()
    if log.tail is not None:
        log.tail.reset()
    log.head_ms, log.head_seq = log.past_end()
    log.head_gone = 0
    log.length = 0
    log.entries_evicted += evicted
    return evicted


# ---------------------------------------------------------------- entries anywhere

cpdef uint64_t evict_ids(EntryLog log, list ids) except? 0xffffffffffffffff:
    """Evict the entries with these ascending IDs (ms, seq), anywhere in the log; IDs without an
    entry are ignored. Returns the number evicted."""
    cdef list found = remove_ids(log, ids)
    if found and found[len(found) - 1] > (log.max_evicted_ms, log.max_evicted_seq):
        log.max_evicted_ms, log.max_evicted_seq = found[len(found) - 1]
    log.entries_evicted += <uint64_t>len(found)
    return len(found)


cpdef list delete_ids(EntryLog log, list ids):
    """Like `delete_entry` for ascending IDs (ms, seq); returns those that were there. A block is
    copied once for all its entries."""
    cdef list found = remove_ids(log, ids)
    if found:
        note_deleted(log, <uint64_t>len(found), found[len(found) - 1])
    return found


cdef int note_deleted(EntryLog log, uint64_t count, tuple last) except -1:
    """Count entries that were deleted, the last of which has this ID."""
    log.entries_deleted += count
    if last > (log.max_deleted_ms, log.max_deleted_seq):
        log.max_deleted_ms, log.max_deleted_seq = last
    return 0


cdef uint64_t delete_between(EntryLog log, EntryId first, EntryId last) except? 0xffffffffffffffff:
    """Delete the entries with first <= ID <= last; returns their number. Blocks of which all entries are
    between these IDs are removed as they are."""
    cdef uint64_t before = log.length
    cdef Walk walk
    cdef list ids = None
    while True:
        log.walk_start(&walk, first)
        if not log.walk_next(&walk) or id_less(
                last.ms, last.seq, walk.cursor.entry.ms, walk.cursor.entry.seq):
            break
        if not walk.in_tail and not id_less(
                walk.view.first_ms, walk.view.first_seq, first.ms, first.seq) and not id_less(
                last.ms, last.seq, walk.view.last_ms, walk.view.last_seq):
            ids = [remove_block(log, walk.place, &walk.view)]
        else:
            ids = remove_ids(log, ids_between(&walk, last))
    if ids is not None:
        note_deleted(log, before - log.length, ids[len(ids) - 1])
    return before - log.length


cdef tuple remove_block(EntryLog log, Place place, const View* view):
    """Remove a sealed block with at least one entry; returns the ID of its last entry."""
    cdef Entry entry
    cdef uint64_t hidden = 0
    view_nth_live(view, 0, 0, view.live - 1, &entry)
    if same_place(place, log.sealed.first()):
        hidden = log.head_gone
        log.head_gone = 0
    log.length -= view.live - hidden
    log.sealed.remove(place)
    return entry.ms, entry.seq


cdef list ids_between(Walk* walk, EntryId last):
    """The IDs from a walk's entry to `last` in the block of the walk."""
    cdef list ids = []
    while not id_less(last.ms, last.seq, walk.cursor.entry.ms, walk.cursor.entry.seq):
        if not walk.cursor.entry.deleted:
            ids.append((walk.cursor.entry.ms, walk.cursor.entry.seq))
        if not cursor_next(&walk.cursor, &walk.view):
            break
    return ids


cdef list remove_ids(EntryLog log, list ids):
    """Remove the entries with these ascending IDs; returns the IDs (ms, seq) of those that were
    there."""
    cdef Py_ssize_t at = 0
    cdef Place place
    cdef View view
    cdef Entry entry
    cdef list found = [
        (ms, seq) for ms, seq in ids if log.find(EntryId(ms, seq), &view, &entry)]
    while at < len(found):
        ms, seq = found[at]
        if log.is_in_tail(EntryId(ms, seq)):
            evict_in_tail(log, found[at:])
            break
        place = log.sealed.seek(ms, seq, NULL)
        at += evict_in_block(log, place, found, at)
    return found


cdef int evict_in_tail(EntryLog log, list ids) except -1:
    for ms, seq in ids:
        log.tail.delete(ms, seq)
    log.length -= <uint64_t>len(ids)
    return clear_empty_tail(log)


cdef int clear_empty_tail(EntryLog log) except -1:
    """Clear the open block if no entry is left in it."""
    cdef bint is_first = log.head_place().page == NULL
    if log.tail.live == (log.head_gone if is_first else 0):
        log.tail.reset()
        if is_first:
            log.head_gone = 0
    return 0


cdef Py_ssize_t evict_in_block(EntryLog log, Place place, list ids, Py_ssize_t start) except -1:
    """Evict the entries among ids[start:] that are in a sealed block; returns their number."""
    cdef Block block = block_at(place)
    cdef Py_ssize_t end = start
    while end < len(ids) and ids[end] <= (block.head.last_ms, block.head.last_seq):
        end += 1
    block = block.without_all(ids[start:end])
    put_back(log, place, block)
    log.length -= <uint64_t>(end - start)
    return end - start


cdef bint delete_entry(EntryLog log, EntryId entry_id) except -1:
    """Delete one entry (XDEL); False when there is none with this ID."""
    cdef Place place
    if id_less(entry_id.ms, entry_id.seq, log.head_ms, log.head_seq):
        return False
    if log.is_in_tail(entry_id):
        if not log.tail.delete(entry_id.ms, entry_id.seq):
            return False
        clear_empty_tail(log)
    else:
        if log.sealed is None:
            return False
        place = log.sealed.seek(entry_id.ms, entry_id.seq, NULL)
        if place.page == NULL or not delete_in(log, place, entry_id):
            return False
    log.length -= 1
    log.entries_deleted += 1
    if id_less(log.max_deleted_ms, log.max_deleted_seq, entry_id.ms, entry_id.seq):
        log.max_deleted_ms = entry_id.ms
        log.max_deleted_seq = entry_id.seq
    return True


cdef bint delete_in(EntryLog log, Place place, EntryId entry_id) except -1:
    cdef Block block = block_at(place).without(entry_id.ms, entry_id.seq)
    if block is None:
        return False
    put_back(log, place, block)
    return True


cdef int put_back(EntryLog log, Place place, Block block) except -1:
    """Replace a block by one with fewer undeleted entries, or remove it if none is left."""
    cdef uint64_t hidden = log.head_gone if same_place(place, log.sealed.first()) else 0
    if block.head.live > hidden:
        return log.sealed.replace(place, block)
    if hidden:
        log.head_gone = 0
    return log.sealed.remove(place)


# ---------------------------------------------------------------- the end

cdef int write_end_again(EntryLog log, uint32_t node_entries, uint32_t node_bytes) except -1:
    """Rewrite the last block without its deleted entries: its last ID is then that of an entry, so
    lower IDs can follow."""
    cdef Place last
    cdef bytearray space
    cdef Slice* items
    cdef Py_ssize_t i
    cdef uint64_t added = log.entries_added
    cdef bytes word
    if log.has_tail():
        entries = log.range(log.tail.first_ms, log.tail.first_seq)
        log.tail.reset()
    else:
        last = log.sealed.end()
        entries = log.range(*block_at(last).first_id)
        log.sealed.remove(last)
    if log.head_place().page == NULL:
        log.head_gone = 0
    log.length -= <uint64_t>len(entries)
    for ms, seq, words in entries:
        space = bytearray(len(words) * sizeof(Slice))
        items = <Slice*><char*>space
        for i in range(len(words)):
            word = words[i]
            items[i].ptr = word
            items[i].size = len(word)
        log.append(EntryId(ms, seq), items, len(words), node_entries, node_bytes)
    log.entries_added = added
    return 0
