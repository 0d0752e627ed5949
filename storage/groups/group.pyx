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

from millstream.storage.groups.consumers cimport known_name
from millstream.storage.groups.pending cimport Chunk, Pending, Pendings, RetryTimes
from millstream.storage.groups.pending_chunks cimport nothing_pending
from millstream.storage.groups.pending_list cimport PendingList

cdef enum:
    # For MEMORY USAGE: the size of a group with its name and its item in the stream, of its rules,
    # of a consumer with its name and items, and of the objects for the first consumer. And the
    # number of sampled chunks.
    GROUP_BYTES = 200
    RULES_BYTES = 96
    DELAY_BYTES = 40
    CONSUMER_BYTES = 170
    DETAILS_BYTES = 200
    TABLE_BYTES = 56  # of a chunk, in the table of chunks
    SAMPLED_CHUNKS = 64


# The end of a pause without an end; of a pause, it is the most that a journal has.
UNTIL_RESUMED = INT64_MAX
# Rules that a snapshot has only if they are set. Each is a number.
LATER_RULES = ("max_in_flight", "consumer_ttl_ms", "paused_until_ms")


@cython.no_gc
cdef class GroupRules:
    """The rules of a group: it ends ttl_ms after `last_used_ms`, unless clients wait on it or ttl_ms is
    0; and when its deliveries fail."""


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
            setattr(own, name, value or None if name == "backoff_ms" else value)
        if "consumer_ttl_ms" in rules:
            own.consumer_check_ms = own.consumer_looked = 0
        self.drop_empty_rules()

    def drop_empty_rules(self) -> None:
        """Forget the rules if none is set."""
        if self.rules.ttl_ms == 0 and not has_delivery_rules(self):
            self.rules = None

    def own_rules(self) -> GroupRules:
        """The rules of the group, which has some from now on."""
        if self.rules is None:
            self.rules = GroupRules.__new__(GroupRules)
        return self.rules

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

    def restart_ttl(self, uint64_t now_ms) -> None:
        """Restart the time to live, if the group has one."""
        if self.rules is not None:
            self.rules.last_used_ms = now_ms

    @property
    def memory_bytes(self) -> int:
        return size_bytes_of(self)


cdef bint has_delivery_rules(Group group) noexcept:
    """True if the group has rules other than a time to live."""
    cdef GroupRules rules = group.rules
    return rules is not None and (
        rules.timeout_ms > 0 or rules.backoff_ms is not None or rules.max_in_flight > 0
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
    return found


def copied_rules(Group group not None) -> dict:
    """The rules of delivery by their names in GroupRules, for another group."""
    rules = delivery_rules(group) or {}
    return {**rules, "backoff_ms": group.backoff_ms} if rules else {}


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
        total += RULES_BYTES
        if group.rules.backoff_ms is not None:
            total += DELAY_BYTES * <uint64_t>len(group.rules.backoff_ms)
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
