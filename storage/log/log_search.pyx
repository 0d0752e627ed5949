# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Searches: the entries of a log that match a filter, in either direction.

A search takes as long as it has work to do, so that its caller can continue it in a later turn: in the
log itself, or in a list of its blocks.
"""

from libc.stdint cimport INT64_MAX, uint8_t, uint32_t, uint64_t

from millstream.encoding cimport Output
from millstream.entry_id cimport EntryId, id_less, step_down, step_up
from millstream.storage.blocks.block cimport Block
from millstream.storage.blocks.entry_filter cimport MATCH, NO_MATCH, EntryFilter
from millstream.storage.blocks.layout cimport (
    CHECKPOINT_EVERY, Cursor, Entry, View, checkpoint_count, cursor_checkpoint, cursor_next, cursor_seek,
    view_of,
)
from millstream.storage.blocks.reply_entries cimport IdText, encode_entry
from millstream.storage.blocks.skiplist_pages cimport Place, place_before, view_block
from millstream.storage.log.entry_log cimport EntryLog, Walk
from millstream.storage.log.log_search cimport Search

cdef enum:
    # A match costs about as much as this many bytes in its reply.
    BYTES_OF_WORK = 16


cdef int begin_search(Search* search, EntryId start, EntryId end, uint64_t limit) noexcept:
    """Set a search from start to end, both included, that only counts."""
    search.start, search.end = start, end
    search.limit = limit
    search.work = INT64_MAX
    search.full_size = 0
    search.stops_when_full = search.reverse = search.dotted = False
    search.found = search.encoded = 0
    return 0


cdef inline bint is_over(const Search* search) noexcept:
    """True if all wanted matches were found, or nothing is left."""
    return search.found >= search.limit or id_less(
        search.end.ms, search.end.seq, search.start.ms, search.start.seq)


cdef int note_match(Search* search, const View* view, const Entry* entry, Output out,
                    IdText* id_text) except -1:
    """Count a match, and encode it if there is space."""
    cdef Py_ssize_t size
    search.found += 1
    search.last = EntryId(entry.ms, entry.seq)
    if out is not None and out.size < search.full_size:
        size = out.size
        encode_entry(out, view, entry, id_text)
        search.work -= (out.size - size) // BYTES_OF_WORK
        search.encoded += 1
        search.last_encoded = search.last
    return 0


cdef inline bint is_full(const Search* search, Output out) noexcept:
    return search.stops_when_full and out.size >= search.full_size


cdef bint begin_block(EntryFilter filter, const View* view, Search* search,
                      IdText* id_text) except -1:
    """Begin with the entries of a block; False if none of them can match."""
    cdef bint possible
    filter.work = 0
    possible = filter.begin(view)
    search.work -= filter.work
    filter.work = 0
    id_text.size = 0
    id_text.dotted = search.dotted
    return possible


cdef bint search_view(EntryFilter filter, const View* view, Search* search, Output out) except -1:
    """Search a block, oldest first; True if the next block is to be searched, too."""
    cdef Cursor cursor
    cdef IdText id_text
    cdef int found
    if not begin_block(filter, view, search, &id_text):
        return step_past(search, EntryId(view.last_ms, view.last_seq))
    cursor_seek(&cursor, view, search.start.ms, search.start.seq)
    while True:
        found = filter.next_match(&cursor, view, search.end.ms, search.end.seq, &search.work)
        if found == NO_MATCH:
            return step_past(search, EntryId(view.last_ms, view.last_seq))
        if found == MATCH:
            note_match(search, view, &cursor.entry, out, &id_text)
        if not step_past(search, EntryId(cursor.entry.ms, cursor.entry.seq)) or (
                search.work <= 0 or is_full(search, out)):
            return False


cdef bint step_past(Search* search, EntryId last) noexcept:
    """Continue after an ID; False if nothing is left."""
    if not step_up(&last):
        search.limit = search.found
        return False
    if id_less(search.start.ms, search.start.seq, last.ms, last.seq):
        search.start = last
    return not is_over(search)


cdef uint32_t count_up_to(const View* view, EntryId last) noexcept:
    """The number of entries of a block up to an ID, deleted ones included."""
    cdef Cursor cursor
    if not id_less(last.ms, last.seq, view.last_ms, view.last_seq):
        return view.count
    step_up(&last)
    cursor_seek(&cursor, view, last.ms, last.seq)
    return cursor.index


cdef const uint8_t* group_end(const View* view, uint32_t index) noexcept:
    """The end of the entries up to the next checkpoint after an entry."""
    cdef uint32_t following = index // CHECKPOINT_EVERY
    if following < checkpoint_count(view.count):
        return view.entries + view.checkpoints[following]
    return view.entries + view.size


cdef bint search_back(EntryFilter filter, const View* view, Search* search, Output out) except -1:
    """Search a block, newest first: decode 32 entries, then look at them backward."""
    cdef Cursor cursor
    cdef Entry[CHECKPOINT_EVERY] group
    cdef IdText id_text
    cdef uint32_t past
    cdef int held
    if not begin_block(filter, view, search, &id_text):
        return step_before(search, EntryId(view.first_ms, view.first_seq))
    past = count_up_to(view, search.end)
    while past > 0:
        cursor_checkpoint(&cursor, view, (past - 1) // CHECKPOINT_EVERY)
        if not filter.may_have(view, cursor.at, group_end(view, past - 1)):
            past = cursor.index
            search.work -= filter.work
            filter.work = 0
            cursor_next(&cursor, view)
            if not step_before(search, EntryId(cursor.entry.ms, cursor.entry.seq)) or (
                    search.work <= 0):
                return False
            continue
        held = 0
        while cursor.index < past:
            cursor_next(&cursor, view)
            group[held] = cursor.entry
            held += 1
            filter.work += 1 + (cursor.entry.fields >> 2)
        past -= held
        search.work -= filter.work
        filter.work = 0
        while held > 0:
            held -= 1
            if id_less(group[held].ms, group[held].seq, search.start.ms, search.start.seq):
                search.limit = search.found
                return False
            if not group[held].deleted and filter.matches(view, &group[held]):
                note_match(search, view, &group[held], out, &id_text)
            if not step_before(search, EntryId(group[held].ms, group[held].seq)) or (
                    is_full(search, out)):
                return False
        search.work -= filter.work
        filter.work = 0
        if search.work <= 0:
            return False
    return step_before(search, EntryId(view.first_ms, view.first_seq))


cdef bint step_before(Search* search, EntryId first) noexcept:
    """Continue before an ID; False if nothing is left."""
    if not step_down(&first):
        search.limit = search.found
        return False
    if id_less(first.ms, first.seq, search.end.ms, search.end.seq):
        search.end = first
    return not is_over(search)


cdef bint search_log(EntryLog log, EntryFilter filter, Search* search, Output out) except -1:
    """Continue a search in a log; True when it is complete."""
    log.skip_hidden(&search.start)
    if is_over(search) or log.length == 0:
        return True
    if search.reverse:
        search_log_back(log, filter, search, out)
    elif search_log_on(log, filter, search, out):
        return True
    return is_over(search)


cdef bint search_log_on(EntryLog log, EntryFilter filter, Search* search, Output out) except -1:
    """Search oldest first; True at the end of the log."""
    cdef Walk walk
    log.walk_enter(&walk, search.start)
    if walk.valid and id_less(
            walk.view.last_ms, walk.view.last_seq, search.start.ms, search.start.seq):
        log.walk_block(&walk)  # each turn must look at something
    while walk.valid:
        if not search_view(filter, &walk.view, search, out):
            return False
        if search.work <= 0:
            return False
        log.walk_block(&walk)
    return True


cdef int search_log_back(EntryLog log, EntryFilter filter, Search* search, Output out) except -1:
    cdef Place place
    cdef View view
    if log.is_in_tail(search.end):
        log.tail.view(&view)
        if not search_back(filter, &view, search, out) or search.work <= 0:
            return 0
    if log.sealed is not None:
        place = log.sealed.seek(search.end.ms, search.end.seq, NULL)
        while place.page != NULL:
            view_block(place, &view)
            if not search_back(filter, &view, search, out) or search.work <= 0:
                return 0
            place = place_before(place)
    search.limit = search.found
    return 0


cdef Py_ssize_t search_blocks(list blocks, Py_ssize_t left, EntryFilter filter, Search* search,
                              Output out) except -1:
    """Continue a search in the first `left` blocks of a list, of which the last one comes first;
    return how many are left. 0: the search is complete."""
    cdef View view
    cdef bint is_searched
    while left > 0 and not is_over(search):
        view_of((<Block>blocks[left - 1]).head, &view)
        if search.reverse:
            is_searched = search_back(filter, &view, search, out)
        else:
            is_searched = search_view(filter, &view, search, out)
        if is_searched:
            left -= 1
        if not is_searched or search.work <= 0:
            break
    return 0 if is_over(search) else left
