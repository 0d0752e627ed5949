# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The entries of a stream that its groups hold, and those that are settled.

A group holds an entry that it has not read (new), not acknowledged (pending), or not delivered yet because
its key is not free (parked). An entry that no group
holds is settled. The policy remembers the group that held the oldest entry: while this group holds it,
the oldest held entry is known without a look at the others.
"""

from libc.stdint cimport UINT64_MAX as MAX, uint64_t

from millstream.entry_id cimport EntryId, id_less, step_up
from millstream.storage.blocks.layout cimport Entry, View, view_find
from millstream.storage.blocks.skiplist_pages cimport block_at
from millstream.storage.groups.group cimport Group, first_read_held, keys_of
from millstream.storage.groups.key_order cimport KeyOrder
from millstream.storage.groups.pending cimport Pending, PendingAt
from millstream.storage.groups.pending_chunks cimport first_pending, next_pending
from millstream.storage.log.entry_log cimport Walk
from millstream.storage.log.trimming cimport HeadRun, find_head_run
from millstream.storage.streams.retention cimport is_over, whole_bytes
from millstream.storage.streams.stream cimport RetentionPolicy, Stream
from millstream.storage.streams.stream_groups cimport all_groups

cdef enum:
    # LEAPS_MAX for a reply that shows the oldest held entry.
    SHOWN_LEAPS_MAX = 20000


cdef bint first_held_in(Group group, EntryId start, EntryId* held) noexcept:
    """Get the first ID from `start`, that of an entry, on that a group holds; False when there is
    none. The entry with this ID may have been deleted, or may not exist yet."""
    cdef EntryId one
    cdef bint found
    held[0] = EntryId(group.offset_ms, group.offset_seq)
    found = step_up(held)
    if found and id_less(held.ms, held.seq, start.ms, start.seq):
        held[0] = start
        return True
    if first_read_held(group, start, &one) and (
            not found or id_less(one.ms, one.seq, held.ms, held.seq)):
        held[0] = one
        found = True
    return found


cdef list known_groups(RetentionPolicy policy, Stream stream):
    """The groups of a stream with this policy, in the order of their creation."""
    if policy.groups is None:
        policy.groups = all_groups(stream.group_set)
        policy.holder = 0
    return policy.groups


cdef bint find_first_held(Stream stream, EntryId* held, HeadRun* run) except -1:
    """Get the oldest entry that a group holds; False when there is none. The stream has a policy and
    groups. run: the entries before it, if they were read. If the groups have very many deleted entries pending, it may be one that none holds, after
    others that are settled."""
    cdef RetentionPolicy policy = stream.policy
    return oldest_held(stream, known_groups(policy, stream), LEAPS_MAX, &policy.holder, held, run)


# The stream that was settled last, and its first kept ID, which was that of an entry. It still is as long
# as no entry is removed. The address of the policy is only compared.
cdef struct FirstKept:
    void* policy
    uint64_t incarnation
    EntryId entry
    uint64_t removed

cdef FirstKept first_kept = FirstKept(NULL, 0, EntryId(0, 0), 0)


cdef int note_first_kept(Stream stream, EntryId entry) noexcept:
    """Note that an entry, to which all entries before it were evicted, exists."""
    first_kept.policy = <void*>stream.policy
    first_kept.incarnation = stream.incarnation
    first_kept.entry = entry
    first_kept.removed = stream.entries_evicted + stream.entries_deleted
    return 0


cdef inline bint has_first_kept(Stream stream) noexcept:
    """True if the first kept ID is known to be that of an entry."""
    return first_kept.policy == <void*>stream.policy and (
        first_kept.incarnation == stream.incarnation
        and first_kept.entry.ms == stream.head_ms and first_kept.entry.seq == stream.head_seq
        and first_kept.removed == stream.entries_evicted + stream.entries_deleted)


cdef bint oldest_held(Stream stream, list groups, int leaps_max, Py_ssize_t* holder,
                      EntryId* held, HeadRun* run) except -1:
    """`find_first_held` among these groups. The search begins with the one with the number `holder`,
    which becomes the number of the one that holds the entry."""
    cdef Walk walk
    cdef EntryId one, lowest
    cdef Py_ssize_t i, k, at
    cdef Py_ssize_t count = len(groups)
    cdef bint found
    cdef bint exists = has_first_kept(stream)
    run.has_following = False
    if stream.length == 0:
        return False
    held[0] = EntryId(stream.head_ms, stream.head_seq)
    for _ in range(leaps_max):
        found = False
        at = holder[0]
        for k in range(count):
            i = at + k - (count if at + k >= count else 0)
            if not first_held_in(groups[i], held[0], &one):
                continue
            if not found or id_less(one.ms, one.seq, lowest.ms, lowest.seq):
                found = True
                lowest = one
                holder[0] = i
            if lowest.ms == held.ms and lowest.seq == held.seq:
                if exists:
                    return True
                break
        if not found:
            return False
        if find_head_run(stream, lowest, run):
            held[0] = run.following
        else:
            stream.walk_start(&walk, lowest)
            if not stream.walk_next(&walk):
                return False
            held[0] = EntryId(walk.cursor.entry.ms, walk.cursor.entry.seq)
        exists = True
        if lowest.ms == held.ms and lowest.seq == held.seq:
            return True
    return True


# ---------------------------------------------------------------- after the oldest held entry

cdef list settled_runs(Stream stream, const Limits* limits, uint64_t now_ms, EntryId start,
                       EntryId* next, bint* more):
    """The runs of sealed blocks from the block after that of `start` on of which no group holds an
    entry: (first ms, first seq, last ms, last seq) of their entries. With limits, only blocks that
    these evict. more: the search ended early and continues at `next`.

    The block that ends at the offset of a group stays: without its last entry, the number of entries
    that the group has read could not be counted."""
    cdef Walk walk
    cdef list runs = []
    cdef list groups = known_groups(stream.policy, stream)
    cdef EntryId read = lowest_offset(groups)
    cdef uint64_t left = stream.length
    cdef uint64_t total = whole_bytes(stream) if limits != NULL and limits.max_bytes else 0
    cdef uint64_t size = 0
    cdef Py_ssize_t looks = 0
    cdef bint joins = False
    more[0] = False
    stream.walk_start(&walk, start)
    if walk.valid:
        stream.walk_block(&walk)
    while walk.valid and not walk.in_tail and id_less(
            walk.view.last_ms, walk.view.last_seq, read.ms, read.seq):
        if limits != NULL:
            size = <uint64_t>block_at(walk.place).data_size()
            if not is_over(limits, &walk.view, now_ms, left - walk.view.live, total - size):
                break
        if looks >= LOOKS_MAX:
            more[0] = True
            break
        looks += len(groups)
        if is_settled(&walk.view, groups):
            left -= walk.view.live
            total -= size
            add_run(runs, &walk.view, joins)
            joins = True
        else:
            joins = False
        next[0] = EntryId(walk.view.first_ms, walk.view.first_seq)
        stream.walk_block(&walk)
    return runs


cdef int add_run(list runs, const View* view, bint joins) except -1:
    if joins:
        runs[len(runs) - 1][2:] = [view.last_ms, view.last_seq]
    else:
        runs.append([view.first_ms, view.first_seq, view.last_ms, view.last_seq])
    return 0


cdef EntryId lowest_offset(list groups) noexcept:
    cdef Group group
    cdef EntryId lowest = EntryId(MAX, MAX)
    for group in groups:
        if id_less(group.offset_ms, group.offset_seq, lowest.ms, lowest.seq):
            lowest = EntryId(group.offset_ms, group.offset_seq)
    return lowest


cdef bint is_settled(const View* view, list groups) noexcept:
    """True if no entry of a block that all groups have read is pending or parked."""
    cdef Group group
    cdef PendingAt at
    cdef const Pending* record
    cdef Entry entry
    for group in groups:
        record = NULL
        if group.pending.records.count:
            record = first_pending(
                group.pending.records, EntryId(view.first_ms, view.first_seq), &at)
        if has_parked_in(view, group):
            return False
        while record != NULL and not id_less(view.last_ms, view.last_seq, record.ms, record.seq):
            if view_find(view, record.ms, record.seq, &entry):
                return False
            record = next_pending(group.pending.records, &at)
    return True


cdef bint has_parked_in(const View* view, Group group) noexcept:
    """True if an entry of a block is parked."""
    cdef KeyOrder keys = keys_of(group)
    cdef EntryId at = EntryId(view.first_ms, view.first_seq)
    cdef Entry entry
    while keys is not None and keys.first_parked(at, &at) and not id_less(
            view.last_ms, view.last_seq, at.ms, at.seq):
        if view_find(view, at.ms, at.seq, &entry):
            return True
        if not step_up(&at):
            break
    return False


# ---------------------------------------------------------------- for Python

def oldest_held_entry(Stream stream not None) -> tuple[bytes, tuple[int, int]] | None:
    """The name of the group that holds the oldest entry that any group holds, and the ID of the entry;
    None if there is none."""
    cdef list groups = all_groups(stream.group_set)
    cdef Py_ssize_t holder = 0
    cdef EntryId held
    cdef HeadRun run
    if not groups or not oldest_held(stream, groups, SHOWN_LEAPS_MAX, &holder, &held, &run):
        return None
    return (<Group>groups[holder]).name, (held.ms, held.seq)
