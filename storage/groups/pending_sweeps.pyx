# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Removes many pending entries of a group in one pass: those of a consumer, and expired ones. Finds
consumers that own none."""

from libc.stdint cimport INT64_MAX, UINT64_MAX as NEVER, int64_t, uint32_t, uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.due_index cimport (
    chunk_bounds, exact_min, expires_ms, leave_heaps, work,
)
from millstream.storage.groups.group cimport Group
from millstream.storage.groups.ordered_pending cimport OrderedPending, ordered
from millstream.storage.groups.pending cimport EXPIRE, Chunk, Pending, first_of
from millstream.storage.groups.pending_chunks cimport (
    close_gaps, drop_chunk, merge_small, own_chunk, place_of,
)
from millstream.storage.groups.pending_list cimport PendingList

cdef enum:
    ANY_CONSUMER = 0xffffffffu


def delete_consumer(Group group not None, bytes name not None) -> int:
    """Remove a consumer and its pending entries; return their number."""
    cdef PendingList pending = group.pending
    cdef Consumer gone = pending.consumer(name)
    cdef uint32_t place
    dropped = gone.pending
    if dropped:
        for place in range(pending.records.chunk_count):
            own_chunk(pending.records, place)  # steps that can fail come before the first change
        for place in range(pending.records.chunk_count):
            sweep_chunk(pending, place, gone.index, 0, NEVER, None)
        close_gaps(pending.records)
    pending.remove_member(gone)
    return dropped


def idle_consumers(Group group not None, int64_t seen_before_ms, Py_ssize_t first, Py_ssize_t looks) -> tuple:
    """The names of consumers that own nothing and were last seen at seen_before_ms or earlier; the
    number at which a next look begins, 0 at the end; and when the others were seen, at least. The look
    begins at the number `first`."""
    cdef list members = group.pending.members()
    cdef Py_ssize_t end = min(first + looks, <Py_ssize_t>len(members))
    cdef int64_t oldest_ms = INT64_MAX
    cdef list found = []
    cdef Consumer one
    cdef Py_ssize_t i
    for i in range(first, end):
        one = members[i]
        if one is None:
            continue
        if one.pending == 0 and one.seen_ms <= seen_before_ms:
            found.append(one.name)
        else:
            oldest_ms = min(oldest_ms, one.seen_ms)
    return found, end if end < len(members) else 0, oldest_ms


cdef uint32_t sweep_chunk(PendingList pending, uint32_t place, uint32_t consumer, uint64_t now_ms,
                          uint64_t limit, list gone) except? 0xffffffff:
    """Remove, in one pass, up to `limit` records of a consumer or (ANY_CONSUMER) records expired by
    now_ms, whose IDs are added to `gone`. Return their number. The chunk may become empty and
    is then in no heap."""
    cdef Chunk* chunk = own_chunk(pending.records, place)
    cdef Pending* record
    cdef uint32_t kept = 0
    cdef uint32_t removed = 0
    cdef uint32_t i
    cdef list found = []
    work.count += chunk.used
    if consumer == ANY_CONSUMER:
        # The only step that can fail comes before the first change.
        found = [(chunk.items[i].ms, chunk.items[i].seq) for i in range(chunk.used)
                 if expires_ms(pending.records, &chunk.items[i]) <= now_ms][:limit]
        gone += found
        limit = len(found)
    for i in range(chunk.used):
        record = &chunk.items[i]
        if removed < limit and (expires_ms(pending.records, record) <= now_ms if consumer == ANY_CONSUMER
                                else record.consumer == consumer):
            pending.forget_count(record)
            pending.leave_owner(record)
            pending.count_retry(record.retry_number, -1)
            removed += 1
            continue
        if kept != i:
            chunk.items[kept] = record[0]
        kept += 1
    pending.records.count -= removed
    if kept == 0:
        leave_heaps(pending.records, chunk)
    chunk.used = kept
    if removed and kept:
        chunk_bounds(pending.records, chunk)
    return removed


def take_expired(Group group not None, uint64_t now_ms, uint64_t limit) -> list[tuple[int, int]]:
    """Remove up to `limit` expired records; return their IDs in no particular order."""
    cdef PendingList pending = group.pending
    cdef OrderedPending keyed = ordered(pending)
    cdef uint64_t ms, seq
    cdef list gone = []
    cdef Chunk* first = first_of(pending.records, EXPIRE)
    cdef uint32_t place
    while <uint64_t>len(gone) < limit and first != NULL and first.bounds[EXPIRE] <= now_ms:
        place = place_of(pending.records, first)
        if sweep_chunk(pending, place, ANY_CONSUMER, now_ms, limit - <uint64_t>len(gone), gone) == 0:
            chunk_bounds(pending.records, pending.records.chunks[place])
        elif pending.records.chunks[place].used == 0:
            drop_chunk(pending.records, place)
        else:
            merge_small(pending.records, place)
        first = first_of(pending.records, EXPIRE)
    exact_min(pending.records, EXPIRE, NEVER)
    if keyed is not None:
        for ms, seq in gone:
            keyed.keys.end(EntryId(ms, seq))
    return gone
