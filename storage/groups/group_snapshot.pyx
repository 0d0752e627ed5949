# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""A group in a snapshot, and a copy of a group."""

from libc.stdint cimport INT64_MAX, UINT64_MAX as NEVER, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from millstream.entry_id cimport EntryId, id_less
from millstream.storage.groups.consumers cimport Consumer, Details
from millstream.storage.groups.dead_entries cimport dead_count, dead_entries, set_dead
from millstream.storage.groups.group cimport (
    Group, dead_letter_of, keys_of, order_meta, packable, rules_meta, ttl_ms_of,
)
from millstream.storage.groups.key_order cimport KeyOrder, key_ids, load_keys
from millstream.storage.groups.pending cimport (
    CONSUMERS_MAX, DELIVERIES_MAX, NO_RETRY, UNOWNED, Pending, PendingAt, is_dead,
)
from millstream.storage.groups.pending_chunks cimport (
    allocated, copy_chunks, find_pending, nothing_pending,
)
from millstream.storage.groups.retry_pairs cimport checked_pairs, copy_pairs, load_pairs, retry_pairs

from millstream.storage.groups.group import LATER_RULES, PICKING_RULES, copied_rules

PENDING_SIZE = sizeof(Pending)

cdef enum:
    # Pending entries that one step of load_group_in_steps adds: about a third of a millisecond.
    STEP_PENDING = 4096


cpdef dict dump_group(Group group):
    """The group as msgpack-able values (docs/formats.md, group). A group of a stream must have its
    complete number of missed entries."""
    meta = {
        "name": group.name,
        "offset": [group.offset_ms, group.offset_seq],
        "gap_floor": [group.gap_floor_ms, group.gap_floor_seq],
        "entries_read": group.entries_read,
        "ttl_ms": ttl_ms_of(group),
        "consumers": [
            None if c is None else [c.name, c.seen_ms, c.active_ms] for c in group.pending.members()
        ],
        "policies": retry_pairs(group.pending.records, group.pending.details()),
        "large_counts": [[ms, seq, count] for (ms, seq), count in (
            group.pending.large_counts() or {}).items()],
        "pending": bytes(group.pending.share_pending()),
    }
    if group.missed:
        meta["missed"] = group.missed
    if group.pending.lost_pending():
        meta["lost"] = group.pending.lost_pending()
    rules = rules_meta(group)
    if rules is not None:
        meta.update(packable(rules))
    return meta


cdef int load_order(Group group, meta) except -1:
    """Restore the keys of an ordered group, whose pending entries are loaded."""
    cdef KeyOrder keys = keys_of(group)
    cdef uint64_t ms, seq
    if keys is None:
        return 0
    load_keys(keys, meta.get("order_keys", b""), False)
    load_keys(keys, meta.get("parked", b""), True)
    for ms, seq in key_ids(keys, False):
        if not group.pending.has(ms, seq):
            raise ValueError(f"entry {ms}-{seq} of group {group.name!r} has a key and is not pending")
    return 0


cpdef Group load_group(dict meta, uint64_t now_ms):
    """Make a group from the result of `dump_group`; its TTL starts again at now_ms. ValueError when
    the pending entries are not ascending or refer to a missing consumer or retry pair, or when
    a consumer or retry pair occurs twice."""
    cdef Group group = load_consumers(meta, now_ms)
    cdef bytes packed = meta["pending"]
    load_pending(group, packed, 0, len(packed))
    load_large_counts(group, meta.get("large_counts", ()))
    load_dead(group, meta.get("dead", ()))
    load_order(group, meta)
    return group


def load_group_in_steps(dict meta not None, uint64_t now_ms):
    """A generator that returns the result of `load_group`."""
    cdef Group group = load_consumers(meta, now_ms)
    cdef bytes packed = meta["pending"]
    cdef Py_ssize_t size = len(packed)
    cdef Py_ssize_t begin = 0
    cdef Py_ssize_t end
    while begin < size:
        end = min(begin + <Py_ssize_t>(STEP_PENDING * sizeof(Pending)), size)
        load_pending(group, packed, begin, end)
        begin = end
        yield
    load_large_counts(group, meta.get("large_counts", ()))
    load_dead(group, meta.get("dead", ()))
    load_order(group, meta)
    return group


cdef Group load_consumers(dict meta, uint64_t now_ms):
    """A group with the consumers and retry pairs of a dump, and without pending entries."""
    cdef Group group = Group(meta["name"], meta["offset"][0], meta["offset"][1])
    group.gap_floor_ms, group.gap_floor_seq = meta["gap_floor"]
    group.entries_read = meta["entries_read"]
    group.set_ttl(meta["ttl_ms"], now_ms)
    if "rules" in meta:
        load_rules(group, meta)
    group.missed = meta.get("missed", 0)
    if meta.get("lost"):
        group.pending.own_details().lost_pending = meta["lost"]
    add_consumers(group, meta["consumers"][1:])
    group.pending.free_numbers()
    load_retry_pairs(group, checked_pairs(meta["policies"], group.name))
    return group


cdef int add_consumers(Group group, list rows) except -1:
    """Add the consumers with the next numbers."""
    cdef uint32_t index = len(group.pending.members())
    index = max(index, <uint32_t>1)
    if index + len(rows) > CONSUMERS_MAX + 1:
        raise ValueError(f"group {group.name!r} has too many consumers")
    for row in rows:
        if row is None:
            group.pending.skip_number()
        elif group.pending.consumer(row[0]) is not None:
            raise ValueError(f"group {group.name!r} has consumer {row[0]!r} twice")
        else:
            group.pending.add_member(Consumer(row[0], index, row[1], row[2]))
        index += 1
    return 0


cdef int load_rules(Group group, dict meta) except -1:
    """Restore the rules of delivery of a dump, and the numbers of copies."""
    cdef uint64_t count
    rules = meta["rules"]
    cdef tuple delays_ms = tuple(rules["backoff_ms"])
    later = {name: rules[name] for name in LATER_RULES if name in rules}
    numbers = (rules["timeout_ms"], *delays_ms, *later.values())
    dead_letter = rules.get("dead_letter", b"")
    if not all([isinstance(number, int) and 0 <= number <= INT64_MAX for number in numbers]) or (
            not isinstance(dead_letter, bytes)
            or later.get("max_deliver", 0) >= DELIVERIES_MAX):
        raise ValueError(f"the rules of group {group.name!r} are malformed")
    group.set_rules(
        timeout_ms=numbers[0], backoff_ms=delays_ms, dead_letter=dead_letter, **later)
    picking = {name: rules[name] for name in PICKING_RULES if name in rules}
    if picking:
        try:
            group.set_rules(**picking)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"the rules of group {group.name!r} are malformed: {error}") from None
    for reason, count in meta.get("counters", {}).get("dead_letters", {}).items():
        group.count_dead_letters(reason, count)
    return 0


cdef int load_dead(Group group, rows) except -1:
    """Restore the reasons of dead entries; their records say that they are dead."""
    cdef PendingAt at
    cdef const Pending* record
    cdef Details details = group.pending.details()
    numbers = None if details is None else details.retry_numbers
    for ms, seq, reason, consumer, text in rows:
        record = find_pending(group.pending.records, EntryId(ms, seq), &at)
        if record == NULL or not is_dead(group.pending.records, record):
            raise ValueError(f"an entry of group {group.name!r} is dead and pending")
        facts = reason, consumer, text
        if not all([type(fact) is bytes for fact in facts]):
            raise ValueError(f"the reason of a dead entry of group {group.name!r} is malformed")
        set_dead(group.pending, ms, seq, facts, True)
    dead = numbers.get((NEVER, 0)) if numbers else None
    cdef uint64_t found = dead_count(group.pending)
    if found != (0 if dead is None else group.pending.records.retry_times[<uint32_t>dead].uses):
        raise ValueError(f"a dead entry of group {group.name!r} has no reason")
    if found and dead_letter_of(group) is not None:
        group.rules.copy_at_ms = 0
    return 0


cdef int load_retry_pairs(Group group, list pairs) except -1:
    """Restore the retry pairs of a dump in a new group."""
    if len(pairs) == 1:
        return 0
    group.pending.records = allocated(group.pending.records)
    return load_pairs(group.pending.records, group.pending.own_details(), pairs)


cdef int load_pending(
        Group group, const char* packed, Py_ssize_t begin, Py_ssize_t end) except -1:
    """Add the records from `begin` to `end`, in bytes, of a dump to a group with its consumers and
    retry pairs. The records before them must be in the group."""
    cdef list members = group.pending.members()
    cdef Details details = group.pending.details()
    cdef uint32_t retry_times = 0 if details is None else details.retry_times_count
    cdef Py_ssize_t i
    cdef Pending record, before
    if (end - begin) % sizeof(Pending):
        raise ValueError(f"pending entries of group {group.name!r} end in the middle of one")
    before.ms = before.seq = 0
    if begin:
        memcpy(&before, packed + begin - sizeof(Pending), sizeof(Pending))
    for i in range(begin, end, sizeof(Pending)):
        memcpy(&record, packed + i, sizeof(Pending))
        record.gone = 0
        if record.consumer >= <size_t>len(members) or (
                record.consumer and members[record.consumer] is None):
            raise ValueError(f"a pending entry of group {group.name!r} has an unknown consumer")
        if record.retry_number != NO_RETRY and (
                record.retry_number >= retry_times
                or not group.pending.records.retry_times[record.retry_number].known):
            raise ValueError(f"a pending entry of group {group.name!r} has an unknown retry pair")
        if record.waiting and (record.consumer != UNOWNED or record.retry_number == NO_RETRY):
            raise ValueError(f"a pending entry of group {group.name!r} cannot wait")
        if i and not id_less(before.ms, before.seq, record.ms, record.seq):
            raise ValueError(f"pending entries of group {group.name!r} do not rise")
        before = record
        group.pending.put(&record)
    return 0


def load_more_consumers(Group group not None, list rows not None) -> None:
    """Add consumers of a dump to a group, after those that it has. ValueError as in `load_group`."""
    cdef Py_ssize_t first = max(len(group.pending.members()), 1)
    cdef Py_ssize_t i
    cdef Details details
    add_consumers(group, rows)
    unused = [i for i in range(first + len(rows) - 1, first - 1, -1) if rows[i - first] is None]
    if unused:
        details = group.pending.own_details()
        details.free_consumers = unused + (details.free_consumers or [])


def load_more_pending(
        Group group not None, bytes packed not None, large_counts=(), dead=()) -> None:
    """Add records of a dump to a group with its consumers and retry pairs, after those that it has,
    and what a dump has about these records. ValueError as in `load_group`."""
    load_pending(group, packed, 0, len(packed))
    load_large_counts(group, large_counts)
    load_dead(group, dead)


def load_more_keys(Group group not None, bytes packed not None, bint parked) -> None:
    """Add keys of a dump to an ordered group: of entries that are parked, or that are pending.
    ValueError if the group has no order, or the keys are malformed."""
    if keys_of(group) is None:
        raise ValueError(f"group {group.name!r} has keys and no order")
    load_keys(keys_of(group), packed, parked)


cdef int load_large_counts(Group group, rows) except -1:
    """Restore the delivery counts that are stored outside the records."""
    cdef PendingAt at
    cdef Pending* record
    cdef int64_t count
    for ms, seq, number in rows:
        record = find_pending(group.pending.records, EntryId(ms, seq), &at)
        count = number
        if record == NULL or record.deliveries != DELIVERIES_MAX or count < DELIVERIES_MAX:
            raise ValueError(
                f"group {group.name!r} has a count of deliveries that belongs to nothing")
        group.pending.set_deliveries(record, count)
    return 0


cdef Group copy_group(Group group, uint64_t now_ms):
    """A group with the same content for another stream; its TTL runs from now_ms."""
    cdef Group made = Group(group.name, group.offset_ms, group.offset_seq)
    cdef Consumer one
    made.gap_floor_ms = group.gap_floor_ms
    made.gap_floor_seq = group.gap_floor_seq
    made.entries_read = group.entries_read
    made.missed = group.missed
    made.set_ttl(ttl_ms_of(group), now_ms)
    made.set_rules(**copied_rules(group))
    for reason, count in group.dead_letters.items():
        made.count_dead_letters(reason, count)
    for one in group.pending.members():
        if one is not None:
            # Keep the numbers, because records refer to consumers by number.
            made.pending.copy_consumer(one)
    if group.pending.lost_pending():
        made.pending.own_details().lost_pending = group.pending.lost_pending()
    made.pending.free_numbers()
    if group.pending.records != nothing_pending():
        copy_pending(made, group)
    if keys_of(group) is not None:
        load_order(made, order_meta(group))
    return made


cdef int copy_pending(Group group, Group other) except -1:
    """Copy the pending entries of another group to a group that has none."""
    group.pending.records = allocated(group.pending.records)
    if other.pending.details() is not None:
        copy_pairs(group.pending.records, group.pending.own_details(), other.pending.records,
                   other.pending.details())
    copy_chunks(group.pending.records, other.pending.records)
    if other.pending.large_counts() is not None:
        group.pending.own_details().large_counts = dict(other.pending.large_counts())
    if dead_count(other.pending):
        group.pending.own_details().dead = dead_entries(other.pending)
        group.pending.own_details().uncopied = {}
        group.own_rules().copy_at_ms = 0 if dead_letter_of(group) is not None else NEVER
    group.pending.records.count = other.pending.records.count
    group.pending.records.unowned = other.pending.records.unowned
    group.pending.records.waiting = other.pending.records.waiting
    group.pending.records.has_gone = other.pending.records.has_gone
    return 0
