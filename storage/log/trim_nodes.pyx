# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The nodes of a log, the units in which Redis trims with `~`; a block has up to four.

Also the size of the radix tree that Redis would have for them, for XINFO STREAM.
"""

from libc.stdint cimport uint32_t, uint64_t

from millstream.entry_id cimport EntryId, id_less, step_up
from millstream.storage.blocks.layout cimport (
    Cursor, View, cursor_next, cursor_to_index, view_live_before,
)
from millstream.storage.blocks.skiplist_pages cimport Place, place_after, view_block
from millstream.storage.log.entry_log cimport EntryLog, Walk

cdef enum:
    ID_BYTES = 16


cdef inline uint32_t node_end(const View* view, uint32_t node) noexcept:
    """The index after the last entry of a node."""
    return view.nodes[node] if node + 1 < view.node_count else view.count


cdef inline bint id_past(const View* view, uint32_t end, EntryId* last, EntryId* past) noexcept:
    """Get the ID of the entry before this index, and the next ID; False when there is no larger
    ID."""
    cdef Cursor cursor
    cursor_to_index(&cursor, view, end - 1)
    cursor_next(&cursor, view)
    last.ms = past.ms = cursor.entry.ms
    last.seq = past.seq = cursor.entry.seq
    return step_up(past)


cdef inline uint64_t live_before_index(const View* view, uint32_t end) noexcept:
    """The number of undeleted entries before this index; most blocks have no deleted ones."""
    cdef EntryId last, past
    if view.live == view.count:
        return end
    if id_past(view, end, &last, &past):
        return view_live_before(view, past.ms, past.seq)
    return view.live  # there is no id above the block's last


cdef inline bint has_all(const View* view, uint64_t hidden) noexcept:
    """True if a block still has all of its entries, so that each of its nodes has some."""
    return hidden == 0 and view.live == view.count


cdef list nodes_of(const View* view, uint64_t hidden):
    """Each node of a block as (first ID after it, its last ID, number of its entries that are not
    hidden)."""
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


cpdef uint64_t node_count(EntryLog log) except? 0xffffffffffffffff:
    """The number of nodes of a log; in the first block, only nodes with an entry count."""
    cdef uint64_t nodes = 0
    cdef Walk walk
    if log.sealed is not None:
        nodes += log.sealed.block_nodes
    if log.has_tail():
        nodes += log.tail.node_count
    log.walk_start(&walk, EntryId(0, 0))
    if walk.valid and not has_all(&walk.view, log.head_gone):
        left = sum([1 for _, _, live in nodes_of(&walk.view, log.head_gone) if live])
        nodes -= walk.view.node_count - left
    return nodes


# ---------------------------------------------------------------- where to trim

cdef object boundary_by_nodes(
        EntryLog log, uint64_t keep, const EntryId* minid, uint64_t limit, bint partly):
    """The boundary of a trim with `~`, as in Redis: whole nodes from the head are evicted while at
    least `keep` entries stay, or, if `minid` is not NULL, while all their IDs are below it; at most
    `limit` entries, 0 for no limit. With `partly`, a part of the next node is evicted, too, if the
    limit allows the whole node.

    Returns the first ID (ms, seq) that stays; None to evict nothing, "all" if no ID is above the
    last evicted one.
    """
    cdef Place place = log.head_place()
    cdef View view
    cdef EntryId last, past
    cdef uint64_t removed = 0
    cdef uint64_t before = log.head_gone
    cdef uint64_t live
    cdef uint32_t i
    boundary = None
    if minid == NULL and log.length <= keep:
        return None
    while True:
        if place.page != NULL:
            view_block(place, &view)
        elif log.has_tail():
            log.tail.view(&view)
        else:
            return boundary
        for i in range(view.node_count):
            live = live_before_index(&view, node_end(&view, i))
            if live < before or (before and live == before and not removed):
                continue  # all of it was evicted before
            live, before = live - before, live
            if limit and removed + live > limit:
                return boundary
            if minid == NULL and log.length - removed - live < keep:
                # When `keep` entries are left, the next node stays, with its deleted entries.
                partly = partly and log.length - removed > keep
                return log.boundary_for_length(keep) if partly else boundary
            is_above = id_past(&view, node_end(&view, i), &last, &past)
            if minid != NULL and not id_less(last.ms, last.seq, minid.ms, minid.seq):
                return (minid.ms, minid.seq) if partly else boundary
            if live:
                removed += live
                boundary = (past.ms, past.seq) if is_above else "all"
        if place.page == NULL:
            return boundary
        before = 0
        place = place_after(place)


# ---------------------------------------------------------------- Redis' radix tree

cdef list starts_of(const View* view, uint64_t hidden):
    """The first ID of each node of a block that has an entry which is not hidden."""
    cdef Cursor cursor
    cdef uint32_t i
    cdef list starts = []
    if has_all(view, hidden):
        starts.append((view.first_ms, view.first_seq))
        for i in range(1, view.node_count):
            cursor_to_index(&cursor, view, view.nodes[i - 1])
            cursor_next(&cursor, view)
            starts.append((cursor.entry.ms, cursor.entry.seq))
        return starts
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


cdef list node_starts(EntryLog log, Py_ssize_t most):
    """The first IDs of up to `most` nodes that still have an entry, from the oldest on."""
    cdef Place place = log.head_place()
    cdef View view
    cdef list starts = []
    cdef uint64_t hidden = log.head_gone
    while len(starts) < most:
        if place.page != NULL:
            view_block(place, &view)
        elif log.has_tail():
            log.tail.view(&view)
        else:
            break
        starts += starts_of(&view, hidden)
        if place.page == NULL:
            break
        hidden = 0
        place = place_after(place)
    return starts[:most]


cpdef uint64_t radix_tree_nodes(EntryLog log, Py_ssize_t most) except? 0:
    """The number of nodes of the radix tree that Redis would have: counted for the first `most`
    nodes with an entry, extrapolated for the rest."""
    cdef list starts = node_starts(log, most)
    cdef uint64_t counted = count_radix_nodes(starts)
    if len(starts) < most:
        return counted
    return counted * node_count(log) // <uint64_t>len(starts)


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


cdef inline int nodes_below(int branch, int end) noexcept:
    """The nodes from a branch (its depth in bytes, -1: none) to a deeper node, that node included:
    two if bytes are left between them, since the branch has the first byte of each way."""
    return 1 + (end > branch + 1)


cdef uint64_t count_radix_nodes(list ids) except? 0:
    """The number of nodes of a radix tree of these ascending IDs: one for the end of each ID, one
    for each branch, and one for the bytes between two of these.

    The IDs are visited in order. `branches` has the depths of the branches on the path to the
    current ID. A branch is counted when its last ID was visited.
    """
    cdef Py_ssize_t count = len(ids)
    cdef int[ID_BYTES + 1] branches
    cdef int used = 0
    cdef int shared_before = -1  # the number of bytes shared with the ID before
    cdef int shared  # and with the next one
    cdef uint64_t nodes = 0
    cdef Py_ssize_t i
    if count == 0:
        return 1
    for i in range(count):
        shared = common_bytes(ids[i], ids[i + 1]) if i + 1 < count else -1
        nodes += nodes_below(max(shared_before, shared), ID_BYTES)
        while used and branches[used - 1] > shared:
            used -= 1
            nodes += nodes_below(max(shared, branches[used - 1] if used else -1), branches[used])
        if shared >= 0 and (used == 0 or branches[used - 1] < shared):
            branches[used] = shared
            used += 1
        shared_before = shared
    return nodes
