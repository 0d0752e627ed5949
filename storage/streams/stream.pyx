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
from millstream.storage.groups.group cimport Group
from millstream.storage.groups.pending cimport PendingAt
from millstream.storage.groups.pending_chunks cimport find_pending
from millstream.storage.groups.shared_groups cimport shared_groups
from millstream.storage.log.entry_log cimport EntryLog, Walk
from millstream.storage.log.trim_nodes cimport boundary_by_nodes, node_count, radix_tree_nodes
from millstream.storage.log.trimming cimport (
    delete_entry, evict_all, evict_below, evict_ids, write_end_again,
)

from millstream.storage.blocks.lazyfree import discard_items
from millstream.storage.streams.idempotence import Window
from millstream.storage.streams.producers import Producers


cdef class RetentionPolicy:
    """The limits of a stream, 0 for none. A policy object never changes; it is replaced.

    max_len counts entries, max_age_ms is compared with the milliseconds of an ID, max_bytes is
    compared with `retention.kept_bytes`. exact: evict single entries, otherwise only whole blocks.
    """

    def __init__(self, uint64_t max_len=0, uint64_t max_age_ms=0, uint64_t max_bytes=0,
                 bint exact=False):
        self.max_len = max_len
        self.max_age_ms = max_age_ms
        self.max_bytes = max_bytes
        self.exact = exact
        self.next_check_ms = MAX

    def is_limit(self) -> bool:
        """True if any limit is set."""
        return self.max_len > 0 or self.max_age_ms > 0 or self.max_bytes > 0

    def dump(self) -> list:
        """The form in a stream's map (docs/formats.md)."""
        return [self.max_len, self.max_age_ms, self.max_bytes, self.exact]

    @staticmethod
    def load(row) -> RetentionPolicy:
        """Make a policy from the result of `dump`; ValueError for an invalid limit."""
        try:
            return RetentionPolicy(*row)
        except OverflowError as error:
            raise ValueError(f"the policy {row} is out of range") from error


cdef inline bytes name_of(group):
    return (<Group>group).name


@cython.no_gc
cdef class Stream(EntryLog):
    """A log of entries with its groups."""

    def __init__(self, uint64_t incarnation=0):
        self.incarnation = incarnation

    def __dealloc__(self):
        if self.groups_by_name is not None:
            discard_items(self.groups_by_name)

    # ------------------------------------------------------------ eviction and deletion

    cdef uint64_t evict_before(self, uint64_t ms, uint64_t seq) except? 0xffffffffffffffff:
        """Evict every entry with an ID below ms-seq; returns their number."""
        # With a limit of bytes, evicted blocks must leave the totals at once.
        return evict_below(
            self, EntryId(ms, seq), self.policy is None or self.policy.max_bytes == 0)

    def evict(self, uint64_t ms, uint64_t seq) -> int:
        """`evict_before` for callers in Python."""
        return self.evict_before(ms, seq)

    def evict_all(self) -> int:
        """Evict every entry, including one with the largest possible ID; returns their number."""
        return evict_all(self)

    def evict_ids(self, list ids) -> int:
        """Evict the entries with these ascending IDs (ms, seq), anywhere in the log; IDs without an
        entry are ignored. Returns the number evicted."""
        return evict_ids(self, ids)

    def delete_id(self, uint64_t ms, uint64_t seq) -> bool:
        """Delete one entry (XDEL); False when there is none with this ID."""
        return delete_entry(self, EntryId(ms, seq))

    def boundary_by_nodes(self, keep, minid, uint64_t limit, bint partly=False):
        """`trim_nodes.boundary_by_nodes` for callers in Python; `keep` or `minid` is None."""
        cdef EntryId first_kept
        if minid is None:
            return boundary_by_nodes(self, keep, NULL, limit, partly)
        first_kept.ms, first_kept.seq = minid
        return boundary_by_nodes(self, 0, &first_kept, limit, partly)

    @property
    def node_count(self) -> int:
        """The number of nodes, the units of `~`; in the first block, only nodes with an entry
        count."""
        return node_count(self)

    def radix_tree_nodes(self, Py_ssize_t most) -> int:
        """The number of nodes of the radix tree that Redis would have for this stream: counted for
        the first `most` nodes with an entry, extrapolated for the rest."""
        return radix_tree_nodes(self, most)

    # ------------------------------------------------------------ the last ID

    cpdef int set_last_id(self, uint64_t ms, uint64_t seq, uint32_t node_entries,
                         uint32_t node_bytes) except -1:
        """Set the last ID (XSETID). No entry is above it, but IDs of removed entries may be."""
        cdef Place last = no_place() if self.sealed is None else self.sealed.end()
        cdef View view
        cdef Group group
        if id_less(ms, seq, self.last_ms, self.last_seq):
            # IDs of removed entries may be used again.
            for group in self.all_groups():
                group.forget_gone()
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

    cpdef bint is_held(self, uint64_t ms, uint64_t seq) noexcept:
        """True if a group has not read this entry yet, or has not acknowledged it."""
        cdef Group group
        for group in self.all_groups():
            if id_less(group.offset_ms, group.offset_seq, ms, seq):
                return True
        return self.has_pending(ms, seq)

    cdef bint has_pending(self, uint64_t ms, uint64_t seq) noexcept:
        """True if this ID is pending in a group."""
        cdef Group group
        cdef PendingAt at
        for group in self.all_groups():
            if group.pendings.count and find_pending(group.pendings, EntryId(ms, seq), &at) != NULL:
                return True
        return False

    cdef uint64_t group_count(self) noexcept:
        if self.groups_by_name is not None:
            return len(self.groups_by_name)
        return self.only_group is not None

    cdef list all_groups(self):
        """The groups in the order of their creation."""
        if self.groups_by_name is not None:
            return list(self.groups_by_name.values())
        return [] if self.only_group is None else [self.only_group]

    cdef int add_group(self, group) except -1:
        """Add a group with a new name. Most streams of very many have one group at most, and a dict
        would be larger than the group."""
        if self.groups_by_name is not None:
            self.groups_by_name[name_of(group)] = group
        elif self.only_group is None:
            self.only_group = group
        else:
            self.groups_by_name = {
                name_of(self.only_group): self.only_group, name_of(group): group}
            self.only_group = None
        return 0

    @property
    def groups(self) -> dict:
        """The groups by name; read-only."""
        if self.groups_by_name is not None:
            return self.groups_by_name
        return {} if self.only_group is None else {name_of(self.only_group): self.only_group}

    def load_group(self, Group group not None) -> None:
        """Add a saved group; ValueError when its name exists."""
        if self.group(group.name) is not None:
            raise ValueError(f"it has group {group.name!r} twice")
        self.add_group(group)
        self.has_ttl = self.has_ttl or group.ttl_ms > 0

    cpdef object group(self, bytes name):
        """The group with this name, or None."""
        if self.groups_by_name is not None:
            return self.groups_by_name.get(name)
        if self.only_group is not None and name_of(self.only_group) == name:
            return self.only_group
        return None

    cpdef object make_group(self, bytes name, uint64_t ms, uint64_t seq, uint64_t now_ms):
        """Add a group that reads the entries after ms-seq. For a group that starts at 0, only
        evictions after its creation are a gap."""
        cdef Group group = Group(name, ms, seq, now_ms)
        self.move_group(group, ms, seq, group.entries_read)
        self.add_group(group)
        return group

    cdef int move_group(self, group, uint64_t ms, uint64_t seq, int64_t entries_read) except -1:
        """Continue a group after ms-seq. If that is 0, evictions before now are not a gap."""
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
                        uint32_t retry_number) -> None:
        """Record the first delivery of the entries with start <= ID <= stop, (ms, seq) each, to the
        consumer with this number."""
        cdef uint64_t ms, seq, end_ms, end_seq
        cdef Walk walk
        ms, seq = start
        end_ms, end_seq = stop
        self.walk_start(&walk, EntryId(ms, seq))
        while self.walk_next(&walk) and not id_less(
                end_ms, end_seq, walk.cursor.entry.ms, walk.cursor.entry.seq):
            group.deliver(walk.cursor.entry.ms, walk.cursor.entry.seq, now_ms, owner, retry_number)

    cpdef int set_ttl(self, group, uint64_t ttl_ms) except -1:
        """Set the time after its last use at which a group ends; 0: never."""
        (<Group?>group).ttl_ms = ttl_ms
        self.has_ttl = self.has_ttl or ttl_ms > 0
        return 0

    def count_live_groups(self, uint64_t now_ms) -> int:
        """The number of groups whose time to live has not ended."""
        return self.live_group_count(now_ms)

    cdef uint64_t live_group_count(self, uint64_t now_ms) except? 0xffffffffffffffff:
        """The number of groups whose time to live has not ended; constant time if no group has
        one."""
        cdef Group group
        cdef uint64_t count = self.group_count()
        if self.has_ttl:
            for group in self.all_groups():
                if group.ttl_ms and group.is_over(now_ms):
                    count -= 1
        return count

    cpdef list due_groups(self, uint64_t now_ms):
        """The names of groups whose time to live has ended, or with pending entries that may have
        expired."""
        cdef Group group
        return [group.name for group in self.all_groups() if group.expiry_bound() <= now_ms or (
            group.ttl_ms and group.is_over(now_ms))]

    cpdef bint drop_group(self, bytes name):
        """Remove a group with its pending entries; False when there is none."""
        if self.groups_by_name is not None:
            return self.groups_by_name.pop(name, None) is not None
        if self.only_group is None or name_of(self.only_group) != name:
            return False
        self.only_group = None
        return True

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

    # ------------------------------------------------------------ saving and loading

    @property
    def memory_bytes(self) -> int:
        """An estimate of the memory used: data, tables, objects, groups."""
        cdef Group group
        cdef uint64_t total = 320 + self.data_memory_bytes()
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
        """Another stream with the same content; both share the immutable blocks."""
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
        shared: the groups, the producers and their messages are views that are converted later
        (SharedGroups, Producers.share, Window.share)."""
        cdef object producers = {}
        if self.producers is not None:
            producers = self.producers.share() if shared else self.producers.dump()
        cdef object groups = [(<Group>group).dump() for group in self.all_groups()] if (
            not shared or not self.group_count()) else shared_groups(self.groups, True, 0)
        return self.header(shared, producers, groups), self.blocks()

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
        """Make a stream from the result of `dump`; ValueError when the parts are inconsistent."""
        cdef Stream stream = Stream(meta["incarnation"])
        stream.last_ms, stream.last_seq = meta["last_id"]
        stream.head_ms, stream.head_seq = meta["first_kept"]
        stream.max_evicted_ms, stream.max_evicted_seq = meta["max_evicted"]
        stream.max_deleted_ms, stream.max_deleted_seq = meta["max_deleted"]
        stream.entries_added = meta["entries_added"]
        stream.entries_evicted = meta["entries_evicted"]
        stream.entries_deleted = meta["entries_deleted"]
        stream.load_blocks(blocks, meta.get("open", False))
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
