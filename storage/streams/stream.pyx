# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""One stream: a log of entries with counters, groups and a retention policy.

Changes happen at the two ends of the log, except single deletions (`entry_log`, `trimming`). A
stream emptied by eviction keeps its last ID, its groups and its counters.

The counters `entries_added` and `max_deleted` are those of Redis. `max_evicted` is the greatest ID
that eviction (not XDEL) removed; with it, readers are notified of a gap.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint32_t, uint64_t

cimport cython

from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.layout cimport View
from millstream.storage.blocks.skiplist_pages cimport Place, no_place, view_block
from millstream.storage.groups.group cimport Group, keys_of, note_recorded, ttl_ms_of
from millstream.storage.log.entry_log cimport EntryLog
from millstream.storage.log.trimming cimport delete_entry, write_end_again
from millstream.storage.streams cimport stream_groups
from millstream.storage.streams.stream_groups cimport (
    count_live_groups, find_group, forget_gone, group_count, groups_by_name,
    groups_size_bytes, is_held_by_group, with_group, without_group)

from millstream.storage.blocks.lazyfree import discard_items

NO_LIMITS = (0, 0, 0)


cdef class RetentionPolicy:
    """The limits of a stream, 0 for none. The limits of an object never change: another object replaces
    it. The other attributes say when the limits are enforced next.

    max_len counts entries, max_age_ms is compared with the milliseconds of an ID, max_bytes is
    compared with `retention.kept_bytes`. exact: evict single entries, otherwise only whole blocks.
    The hard limits (length, age in ms, bytes) also evict what groups hold; they are 0 unless `evict`
    says that the others do not.
    """

    def __init__(self, uint64_t max_len=0, uint64_t max_age_ms=0, uint64_t max_bytes=0,
                 bint exact=False, uint8_t evict=EVICT_ANY, hard=NO_LIMITS):
        if evict > EVICT_DONE or evict == EVICT_ANY and any(hard):
            raise ValueError(f"a policy cannot have EVICT {evict} and these hard limits")
        self.max_len = max_len
        self.max_age_ms = max_age_ms
        self.max_bytes = max_bytes
        self.exact = exact
        self.evict = evict
        self.hard_len, self.hard_age_ms, self.hard_bytes = hard
        self.next_check_ms = MAX

    def is_set(self) -> bool:
        """True if there is any limit, or if groups matter."""
        return (self.max_len > 0 or self.max_age_ms > 0 or self.max_bytes > 0
                or self.evict != EVICT_ANY)

    def dump(self) -> list:
        """The form in a stream's map (docs/formats.md)."""
        row = [self.max_len, self.max_age_ms, self.max_bytes, self.exact]
        if self.evict != EVICT_ANY:
            row += [self.evict, self.hard_len, self.hard_age_ms, self.hard_bytes]
        return row

    @staticmethod
    def load(row) -> RetentionPolicy:
        """Make a policy from the result of `dump`; ValueError for an invalid limit."""
        try:
            return RetentionPolicy(*row[:5], hard=row[5:] or NO_LIMITS)
        except OverflowError as error:
            raise ValueError(f"the policy {row} is out of range") from error


cdef inline void forget_groups(RetentionPolicy policy):
    """The groups of the stream have changed."""
    if policy is not None:
        policy.groups = None


@cython.no_gc
cdef class Stream(EntryLog):
    """A log of entries with its groups."""

    def __init__(self, uint64_t incarnation=0):
        self.incarnation = incarnation

    def __dealloc__(self):
        if type(self.group_set) is dict:
            discard_items(self.group_set)

    # ------------------------------------------------------------ eviction and deletion

    def delete_id(self, uint64_t ms, uint64_t seq) -> bool:
        """Delete one entry (XDEL); False when there is none with this ID."""
        return delete_entry(self, EntryId(ms, seq))

    cpdef int set_last_id(self, uint64_t ms, uint64_t seq, uint32_t node_entries,
                         uint32_t node_bytes) except -1:
        """Set the last ID (XSETID). No entry is above it, but IDs of removed entries may be."""
        cdef Place last = no_place() if self.sealed is None else self.sealed.end()
        cdef View view
        if id_less(ms, seq, self.last_ms, self.last_seq):
            # IDs of removed entries may be used again, also those of trimmed ones.
            forget_gone(self.group_set)
            if self.missed is not None:
                self.missed.settle(self.group_set)
        if self.has_tail():
            self.tail.view(&view)
        elif last.page != NULL:
            view_block(last, &view)
        if (self.has_tail() or last.page != NULL) and id_less(ms, seq, view.last_ms, view.last_seq):
            write_end_again(self, node_entries, node_bytes)
        self.last_ms = ms
        self.last_seq = seq
        if id_less(ms, seq, self.max_evicted_ms, self.max_evicted_seq):
            self.max_evicted_ms = ms
            self.max_evicted_seq = seq
        return 0

    # ------------------------------------------------------------ groups

    @property
    def groups(self) -> dict:
        """The groups by name; read-only."""
        return groups_by_name(self.group_set)

    cpdef object group(self, bytes name):
        """The group with this name, or None."""
        return find_group(self.group_set, name)

    def load_group(self, group not None) -> None:
        """Add a saved group; ValueError when its name exists."""
        if self.group(group.name) is not None:
            raise ValueError(f"it has group {group.name!r} twice")
        self.add_group(group)

    cdef int add_group(self, group) except -1:
        """Add a group with a new name."""
        self.group_set = with_group(self.group_set, group)
        forget_groups(self.policy)
        if self.missed is not None:
            self.missed.enter(group)
        self.has_group_ttl = self.has_group_ttl or ttl_ms_of(<Group?>group) > 0
        return 0

    cpdef object make_group(self, bytes name, uint64_t ms, uint64_t seq):
        """Add a group that reads the entries after ms-seq. For a group that starts at 0, only
        evictions after its creation are a gap."""
        cdef Group group = Group(name, ms, seq)
        self.add_group(group)
        self.move_group(group, ms, seq, group.entries_read)
        return group

    cdef int set_offset(self, group, EntryId offset) noexcept:
        """Continue a group of this stream after an ID."""
        if self.missed is not None:
            self.missed.leave(group)
        (<Group>group).offset_ms = offset.ms
        (<Group>group).offset_seq = offset.seq
        return 0 if self.missed is None else self.missed.enter(group)

    cpdef int move_group(self, group, uint64_t ms, uint64_t seq, int64_t entries_read) except -1:
        """Continue a group after ms-seq. If that is 0, evictions before now are not a gap."""
        cdef Group moved = group
        self.set_offset(group, EntryId(ms, seq))
        note_moved(moved, entries_read)
        if ms == 0 and seq == 0:
            moved.gap_floor_ms = self.max_evicted_ms
            moved.gap_floor_seq = self.max_evicted_seq
        return 0

    cpdef int set_ttl(self, group, uint64_t ttl_ms, uint64_t now_ms) except -1:
        """Set the time after its last use at which a group ends; 0: never."""
        (<Group?>group).set_ttl(ttl_ms, now_ms)
        self.has_group_ttl = self.has_group_ttl or ttl_ms > 0
        return 0

    cpdef bint drop_group(self, bytes name):
        """Remove a group with its pending entries; False when there is none."""
        if self.group(name) is None:
            return False
        if self.missed is not None:
            self.missed.leave(self.group(name))
        self.group_set = without_group(self.group_set, name)
        forget_groups(self.policy)
        return True

    cpdef bint is_held(self, uint64_t ms, uint64_t seq) noexcept:
        """True if a group has not read this entry yet, or has not acknowledged it."""
        return is_held_by_group(self.group_set, ms, seq)

    cpdef uint64_t live_group_count(self, uint64_t now_ms) except? 0xffffffffffffffff:
        """The number of groups whose time to live has not ended; constant time if no group has
        one."""
        if self.has_group_ttl:
            return count_live_groups(self.group_set, now_ms)
        return group_count(self.group_set)

    cpdef list due_groups(self, uint64_t now_ms):
        """The names of groups whose time to live has ended, or with pending entries that may have
        expired."""
        return stream_groups.due_groups(self.group_set, now_ms)

    # ------------------------------------------------------------ restrictions

    @property
    def is_reserving(self) -> bool:
        """True if IDs are reserved."""
        return self.restrictions & RESERVING != 0

    @property
    def is_sealed(self) -> bool:
        """True if the stream accepts no more entries and reservations."""
        return self.restrictions & SEALED != 0

    def set_sealed(self) -> None:
        self.restrictions |= SEALED

    @property
    def is_followed(self) -> bool:
        """True if readers have a promise that no entry up to an ID will be added."""
        return self.restrictions & FOLLOWED != 0

    def set_followed(self) -> None:
        self.restrictions |= FOLLOWED

    @property
    def memory_bytes(self) -> int:
        """An estimate of the memory used: data, tables, objects, groups."""
        cdef uint64_t total = 320 + self.data_memory_bytes() + groups_size_bytes(self.group_set)
        for part in (self.idempotence, self.producers, self.held, self.schedule):
            if part is not None:
                total += part.memory_bytes
        return total


cdef int note_moved(Group group, int64_t entries_read) noexcept:
    """Note that a command has moved the offset of a group, which forgets its parked entries."""
    group.entries_read = entries_read
    note_recorded(group)
    return 0 if keys_of(group) is None else keys_of(group).forget_parked()
