# cython: language_level=3
"""What only tests do with streams, groups and lists of blocks: one step at a time, from Python."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from millstream.entry_id cimport EntryId
from millstream.storage.streams.group cimport NO_POLICY, UNOWNED, Group, Pending, PendingAt
from millstream.storage.blocks.skiplist cimport Place, SkipList, block_at
from millstream.storage.streams.held cimport Held, Run, Slot, list_of_words
from millstream.storage.streams.stream cimport Stream

cdef uint64_t NEVER = 0xffffffffffffffffULL

# ---------------------------------------------------------------- streams

def upcoming_id(Stream stream not None, uint64_t now_ms) -> tuple[int, int]:
    """The ID that an entry added at this time would get."""
    cdef EntryId found
    stream.next_id(now_ms, &found)
    return found.ms, found.seq


def evict_some(Stream stream not None, list ids not None) -> int:
    """Evict the entries with these IDs, which rise; returns how many there were."""
    return stream.evict_ids(ids)


def move_last_id(Stream stream not None, uint64_t ms, uint64_t seq, uint32_t node_entries=100,
                 uint32_t node_bytes=4096) -> None:
    """Set the last ID generated; no entry is above it."""
    stream.set_last_id(ms, seq, node_entries, node_bytes)


def id_at(Stream stream not None, uint64_t rank) -> tuple[int, int] | None:
    """The ID of the entry with this rank, 0 being the oldest."""
    cdef EntryId found
    return (found.ms, found.seq) if stream.nth(rank, &found) else None


# ---------------------------------------------------------------- what is held

def held_entries(Held held not None) -> list:
    """The held entries as (ms, seq, [field, value, ...])."""
    cdef list found = []
    cdef Slot slot
    for slot in held.segments[held.first:]:
        if type(slot) is Run:
            found += (<Run>slot).entries.range()
        elif slot.words is not None:
            found.append((slot.id.ms, slot.id.seq, list_of_words(slot.words)))
    return found


def compact_held(Held held not None) -> int:
    """Put held entries into runs now; returns the number of segments."""
    held.compact()
    return len(held.segments)


# ---------------------------------------------------------------- groups

def acknowledge_id(Group group not None, uint64_t ms, uint64_t seq) -> bool:
    """Remove one entry from pending."""
    return group.acknowledge(ms, seq)


def deliver_id(Group group not None, uint64_t ms, uint64_t seq, uint64_t now_ms,
               bytes consumer=b"", retry=None) -> None:
    """Note a first delivery; retry is (retry_ms, expire_ms) or None."""
    group.deliver(ms, seq, now_ms, owner_of(group, consumer), policy_of(group, retry))


def deliver_ids(Group group not None, list ids, uint64_t now_ms, bytes consumer=b"",
                retry=None) -> None:
    """As deliver_id for IDs that rise, many at a time."""
    cdef uint32_t index = owner_of(group, consumer)
    cdef uint32_t policy = policy_of(group, retry)
    cdef EntryId* run = <EntryId*>malloc(max(len(ids), 1) * sizeof(EntryId))
    cdef size_t count = len(ids)
    cdef size_t done = 0
    if run == NULL:
        raise MemoryError("no memory for ids")
    try:
        for i, (ms, seq) in enumerate(ids):
            run[<size_t>i].ms = ms
            run[<size_t>i].seq = seq
        while done < count:
            done += group.deliver_some(&run[done], count - done, now_ms, index, policy)
    finally:
        free(run)


def redeliver_id(Group group not None, uint64_t ms, uint64_t seq, uint64_t now_ms,
                 retry=None) -> bool:
    """Note another delivery of a pending entry; a pair given replaces its own."""
    cdef PendingAt at
    cdef Pending* record = group.find(ms, seq, &at)
    if record == NULL:
        return False
    group.redeliver(record, &at, now_ms, policy_of(group, retry), retry is not None)
    return True


def hand_over_id(Group group not None, uint64_t ms, uint64_t seq, bytes consumer,
                 uint64_t delivery_ms, int64_t deliveries) -> bool:
    """Give a pending entry another owner (b"": none), time of delivery and count."""
    cdef PendingAt at
    if group.find(ms, seq, &at) == NULL:
        return False
    group.transfer(&at, owner_of(group, consumer), delivery_ms, deliveries)
    return True


def next_event_ms(Group group not None) -> int | None:
    """The next moment of a timed retry, of an expiry, or of the end of the group."""
    cdef uint64_t moment = min(group.next_wake_ms(), group.next_expiry_ms())
    if group.ttl_ms and not group.blocked_clients:
        moment = min(moment, min(NEVER, <object>group.last_used_ms + group.ttl_ms))
    return None if moment == NEVER else moment


def consumer_at(Group group not None, uint32_t index):
    """The consumer with a number, None if there is none."""
    return group.members()[index]


def shared_chunks(Group group not None) -> int:
    """Chunks of pending entries that something else holds too."""
    cdef uint32_t i
    return sum(1 for i in range(group.pendings.chunk_count) if group.pendings.chunks[i].holders > 1)


cdef uint32_t owner_of(Group group, bytes consumer) except? 0:
    return group.consumer(consumer).index if consumer else UNOWNED


cdef uint32_t policy_of(Group group, retry) except? 0:
    return group.policy(retry[0], retry[1]) if retry else NO_POLICY


# ---------------------------------------------------------------- blocks

def find_rank(SkipList blocks not None, uint64_t rank):
    """The block that holds the entry of this rank and the entries before that block."""
    cdef uint64_t before
    cdef Place place = blocks.seek_rank(rank, &before)
    return None if place.page == NULL else (block_at(place), before)
