# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""A consumer group: its offset, its rules, its consumers and its pending entries.

`Group.pending` has the pending entries, and the consumers that own them. There may be millions of
pending entries, so they are plain records in chunks (`pending_chunks`), without a second index by
time (`due_index`). A snapshot shares the chunks instead of copying them.

A stream may have very many groups, and most of them are small. A group therefore allocates the
content of its parts when it is first needed: rules, chunks, consumers, retry pairs.
"""

from libc.stdint cimport INT64_MAX, UINT64_MAX as NEVER, int64_t, uint32_t, uint64_t
cimport cython

from millstream.entry_id cimport EntryId, id_less
from millstream.storage.groups.consumers cimport known_name
from millstream.storage.groups.dead_entries cimport dead_count, dead_entries
from millstream.storage.groups.due_index cimport change_timeout, set_limit
from millstream.storage.groups.pending cimport (
    Chunk, Pending, PendingAt, Pendings, RetryTimes, older_timeout_ms,
)
from millstream.storage.groups.key_order cimport KeyOrder, saved_keys
from millstream.storage.groups.ordered_pending cimport pending_with
from millstream.storage.groups.pending_chunks cimport allocated, first_pending, nothing_pending
from millstream.storage.groups.pending_list cimport PendingList
from millstream.storage.groups.picking cimport Picking
from millstream.storage.groups.retry_pairs cimport has_unpaired, set_older_timeout

cdef enum:
    # For MEMORY USAGE: the size of a group with its name and its item in the stream, of its rules,
    # of a consumer with its name and items, and of the objects for the first consumer. And the
    # number of sampled chunks.
    GROUP_BYTES = 200
    RULES_BYTES = 128
    DELAY_BYTES = 40
    CONSUMER_BYTES = 170
    DETAILS_BYTES = 200
    TABLE_BYTES = 56  # of a chunk, in the table of chunks
    DEAD_BYTES = 300  # of a dead entry, without its record
    SAMPLED_CHUNKS = 64


# The end of a pause without an end; of a pause, it is the most that a journal has.
UNTIL_RESUMED = INT64_MAX
# Rules that are None when they are not set.
NONE_IF_EMPTY = ("backoff_ms", "dead_letter")
# Rules that a snapshot has only if they are set. Each is a number.
LATER_RULES = ("max_deliver", "max_in_flight", "consumer_ttl_ms", "paused_until_ms")
# The rules of a Picking.
PICKING_RULES = frozenset(["where", "order", "run"])
NO_ORDER = (b"NONE", b"", 0)


@cython.no_gc
cdef class GroupRules:
    """The rules of a group: it ends ttl_ms after `last_used_ms`, unless clients wait on it or ttl_ms is
    0; when its deliveries fail, and what becomes of entries whose deliveries have ended."""


@cython.no_gc
cdef class Group:
    """State of one group. `entries_read` is Redis' counter, -1 when it is unknown. `scheduled_ms` is
    the earliest time for which a timer is scheduled. `missed`: MissedEntries.
    """

    def __cinit__(self):
        self.pending = PendingList.__new__(PendingList)

    def __init__(self, bytes name, uint64_t offset_ms=0, uint64_t offset_seq=0):
        self.name = known_name(name)
        self.offset_ms = offset_ms
        self.offset_seq = offset_seq
        self.entries_read = -1
        self.scheduled_ms = NEVER

    def is_over(self, uint64_t now_ms) -> bool:
        """True if its time to live has ended."""
        return has_ended(self, now_ms)

    @property
    def ttl_ms(self) -> int:
        """The time to live; 0: none."""
        return ttl_ms_of(self)

    def set_ttl(self, uint64_t ttl_ms, uint64_t now_ms) -> None:
        """Set the time to live, which begins now; 0: none."""
        if ttl_ms or self.rules is not None:
            self.own_rules()
            self.rules.ttl_ms = ttl_ms
            self.rules.last_used_ms = now_ms
            self.drop_empty_rules()

    def set_rules(self, **rules) -> None:
        """Set some rules by their names in GroupRules; the others stay."""
        cdef GroupRules own = self.own_rules()
        for name, value in rules.items():
            if name not in PICKING_RULES:
                setattr(own, name, value or None if name in NONE_IF_EMPTY else value)
        if not PICKING_RULES.isdisjoint(rules):
            change_picking(self, rules)
        if "consumer_ttl_ms" in rules:
            own.consumer_check_ms = own.consumer_looked = 0
        if "timeout_ms" in rules:
            self.set_timeout_of_older()
        if "max_deliver" in rules or "dead_letter" in rules:
            self.set_end_of_deliveries()
        self.drop_empty_rules()

    def set_timeout_of_older(self) -> None:
        """Let the timeout count for entries that became pending while the group had none."""
        cdef uint64_t before_ms = older_timeout_ms(self.pending.records)
        if before_ms == self.rules.timeout_ms:
            return
        self.pending.records = allocated(self.pending.records)
        set_older_timeout(
            self.pending.records, self.pending.own_details(), self.rules.timeout_ms)
        if has_unpaired(self.pending.records, self.pending.details()):
            change_timeout(self.pending.records, before_ms)

    def set_end_of_deliveries(self) -> None:
        """Let the limit of deliveries count for pending entries, too. Dead entries can be copied at
        once if there is a dead letter stream."""
        cdef uint32_t limit = 0 if self.rules.dead_letter is None else self.rules.max_deliver
        self.rules.copy_at_ms = NEVER
        if self.rules.dead_letter is not None and dead_count(self.pending):
            self.rules.copy_at_ms = 0
        if limit or self.pending.records.limit:
            self.pending.records = allocated(self.pending.records)
            set_limit(self.pending.records, limit)

    def drop_empty_rules(self) -> None:
        """Forget the rules if none is set, and no entry is dead."""
        if self.rules.ttl_ms == 0 and not has_delivery_rules(self) and dead_count(self.pending) == 0:
            self.rules = None

    def own_rules(self) -> GroupRules:
        """The rules of the group, which has some from now on."""
        if self.rules is None:
            self.rules = GroupRules.__new__(GroupRules)
            self.rules.copy_at_ms = NEVER
        return self.rules

    @property
    def dead_letters(self) -> dict:
        """The number of copies in the dead letter stream for each reason."""
        return {} if self.rules is None or self.rules.dead_letters is None else self.rules.dead_letters

    def count_dead_letters(self, bytes reason not None, uint64_t count) -> None:
        """Count copies of entries that were ended for this reason."""
        self.own_rules()
        count_copies(self, reason, count)

    @property
    def timeout_ms(self) -> int:
        """The timeout of deliveries; 0: the group is not managed."""
        return timeout_ms_of(self)

    @property
    def backoff_ms(self) -> tuple:
        """The delays after the first failure, the second, and so on."""
        return () if self.rules is None or self.rules.backoff_ms is None else self.rules.backoff_ms

    @property
    def in_flight(self) -> int:
        """The number of entries that readers hold."""
        return in_flight_of(self)

    @property
    def is_ordered(self) -> bool:
        """True if entries of one key come one after the other."""
        return keys_of(self) is not None

    @property
    def parked(self) -> int:
        """The number of parked entries."""
        cdef Picking picking = picking_of(self)
        return 0 if picking is None else picking.parked

    def has_parked(self, uint64_t ms, uint64_t seq) -> bool:
        return is_parked(self, EntryId(ms, seq))

    @property
    def recorded_place(self) -> dict:
        """The offset and the count of entries read as the effects so far have them."""
        return recorded_place(self)

    def restart_ttl(self, uint64_t now_ms) -> None:
        """Restart the time to live, if the group has one."""
        if self.rules is not None:
            self.rules.last_used_ms = now_ms

    @property
    def memory_bytes(self) -> int:
        return size_bytes_of(self)


cdef int count_copies(Group group, bytes reason, uint64_t count) except -1:
    """`count_dead_letters` for a group that has rules."""
    cdef GroupRules rules = group.rules
    if rules.dead_letters is None:
        rules.dead_letters = {}
    rules.dead_letters[reason] = rules.dead_letters.get(reason, 0) + count
    return 0


cdef bint has_delivery_rules(Group group) noexcept:
    """True if the group has rules other than a time to live, or had copies made by them."""
    cdef GroupRules rules = group.rules
    return rules is not None and (
        rules.timeout_ms > 0 or rules.backoff_ms is not None or rules.max_in_flight > 0
        or rules.dead_letter is not None or rules.dead_letters is not None
        or rules.consumer_ttl_ms > 0 or rules.paused_until_ms > 0 or rules.picking is not None)


cdef dict delivery_rules(Group group):
    """The rules of delivery for a snapshot; None if the group has none and none of its entries
    waits."""
    cdef dict found
    if not has_delivery_rules(group) and group.pending.records.waiting == 0:
        return None
    found = {"timeout_ms": group.timeout_ms, "backoff_ms": list(group.backoff_ms)}
    if group.rules is not None:
        for name in LATER_RULES:
            value = getattr(group.rules, name)
            if value:
                found[name] = value
        if group.rules.dead_letter is not None:
            found["dead_letter"] = group.rules.dead_letter
        if group.rules.picking is not None:
            found |= picking_rules(group.rules.picking)
    return found


cdef dict rules_meta(Group group):
    """The result of `delivery_rules`, the dead entries, the numbers of copies, and the place that was
    recorded, if it is another one; None if there are none. `packable` completes it, later and on any
    thread."""
    cdef dict made
    rules = delivery_rules(group)
    if rules is None:
        return None
    made = {"rules": rules}
    if dead_count(group.pending):
        made["dead"] = dead_entries(group.pending)
    if group.dead_letters:
        made["counters"] = {"dead_letters": dict(group.dead_letters)}
    if keys_of(group) is not None:
        made |= order_meta(group)
    if has_passed(group):
        made |= recorded_place(group)
    return made


cdef dict packable(dict meta):
    """The result of `rules_meta` as msgpack-able values."""
    if "dead" in meta:
        meta = {**meta, "dead": [[*entry_id, *facts] for entry_id, facts in meta["dead"].items()]}
    return meta


cdef dict picking_rules(Picking picking):
    """The filter and the order of a group, as far as they are set."""
    cdef dict found = {}
    if picking.filter is not None:
        found["where"] = picking.where
    if picking.keys is not None:
        found["order"] = [picking.order, picking.field, picking.seed]
    if picking.run != 1:
        found["run"] = picking.run
    return found


cdef int change_picking(Group group, dict rules) except -1:
    """Change the filter, the order, or the number of entries of a key that come together. A new order
    begins without keys; nothing is pending then."""
    cdef Picking old = group.rules.picking
    cdef Picking made
    cdef dict all_rules = {"where": [], "order": NO_ORDER, "run": 1}
    cdef KeyOrder keys = None
    if old is not None:
        all_rules |= picking_rules(old)
        keys = old.keys
    all_rules |= rules
    order, field, seed = all_rules["order"]
    if "order" in rules:
        keys = None
    made = Picking(all_rules["where"], order, field, seed, all_rules["run"], keys)
    if old is not None:
        made.unrecorded, made.recorded_ms = old.unrecorded, old.recorded_ms
        made.recorded_offset, made.recorded_read = old.recorded_offset, old.recorded_read
    if "order" in rules:
        group.pending = pending_with(group.pending, made.keys)
    group.rules.picking = made if picking_rules(made) else None
    return 0


cdef dict order_meta(Group group):
    """The keys of the entries of an ordered group, for a snapshot."""
    cdef KeyOrder keys = keys_of(group)
    return {"parked": saved_keys(keys, True), "order_keys": saved_keys(keys, False)}


def copied_rules(Group group not None) -> dict:
    """The rules of delivery by their names in GroupRules, for another group."""
    rules = delivery_rules(group) or {}
    return {**rules, "backoff_ms": group.backoff_ms} if rules else {}


cdef Picking picking_of(Group group):
    """The filter and the order of a group; None without them."""
    return None if group.rules is None else <Picking>group.rules.picking


cdef KeyOrder keys_of(Group group):
    """The keys of an ordered group, else None."""
    cdef Picking picking = picking_of(group)
    return None if picking is None else picking.keys


cdef dict recorded_place(Group group):
    """The offset and the count of entries read for a snapshot: those of the effects up to it, without
    the entries that the group has passed over since."""
    cdef Picking picking = picking_of(group)
    if not has_passed(group):
        return {"offset": [group.offset_ms, group.offset_seq], "entries_read": group.entries_read}
    return {"offset": [picking.recorded_offset.ms, picking.recorded_offset.seq],
            "entries_read": picking.recorded_read}


cdef bint has_passed(Group group) noexcept:
    """True if the group has passed over entries since its offset was recorded."""
    cdef Picking picking = picking_of(group)
    return picking is not None and picking.unrecorded > 0


cdef int note_recorded(Group group) noexcept:
    """Note that the offset is recorded."""
    if is_picking(group):
        picking_of(group).unrecorded = 0
    return 0


cdef bint first_read_held(Group group, EntryId start, EntryId* held) noexcept:
    """Get the first entry from `start` on that the group has passed and holds: a pending or a parked
    one. False without one."""
    cdef PendingAt at
    cdef const Pending* record = NULL
    cdef KeyOrder keys = keys_of(group)
    cdef EntryId parked
    if group.pending.records.count:
        record = first_pending(group.pending.records, start, &at)
    if keys is not None and keys.first_parked(start, &parked) and (
            record == NULL or id_less(parked.ms, parked.seq, record.ms, record.seq)):
        held[0] = parked
        return True
    if record == NULL:
        return False
    held[0] = EntryId(record.ms, record.seq)
    return True


cdef bint is_parked(Group group, EntryId at) noexcept:
    cdef KeyOrder keys = keys_of(group)
    return keys is not None and keys.has(at, True)


cdef uint64_t delay_after(Group group, int64_t deliveries) except? 0:
    """The delay of an entry whose delivery with this number has failed."""
    cdef tuple delays = group.backoff_ms
    if not delays:
        return 0
    return delays[min(max(deliveries, 1), len(delays)) - 1]


cdef uint64_t size_bytes_of(Group group) noexcept:
    """An estimate of the memory that a group uses, from a sample of the chunks if there are many."""
    cdef PendingList pending = group.pending
    cdef Pendings* records = pending.records
    cdef uint32_t sampled = min(records.chunk_count, <uint32_t>SAMPLED_CHUNKS)
    cdef uint64_t chunks = 0
    cdef uint64_t total = GROUP_BYTES
    cdef uint32_t i
    total += CONSUMER_BYTES * <uint64_t>pending.consumer_count()
    if group.rules is not None:
        total += RULES_BYTES + DELAY_BYTES * <uint64_t>len(group.backoff_ms)
        total += DEAD_BYTES * <uint64_t>dead_count(group.pending)
        if keys_of(group) is not None:
            total += keys_of(group).size_bytes()
    if pending.details() is not None:
        total += DETAILS_BYTES + pending.details().retry_times_capacity * sizeof(RetryTimes)
    if records == nothing_pending():
        return total
    for i in range(sampled):
        chunks += sizeof(Chunk) + records.chunks[i].capacity * sizeof(Pending)
    if sampled:
        total += chunks * records.chunk_count // sampled
    return total + sizeof(Pendings) + (
        0 if records.chunk_capacity == 1 else TABLE_BYTES * <uint64_t>records.chunk_capacity)
