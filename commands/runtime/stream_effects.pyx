# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The effects on entries, groups and consumers: how each is recorded, and how it is applied.

An effect that is recorded in one place has a name here, which its command puts before the words.
Others have a function that records them. docs/formats.md lists all effects.
"""

cimport cython
from libc.stdint cimport UINT64_MAX as NEVER, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, strlen

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.effects cimport (
    ACK_CODE, APPEND_CODE, APPENDONCE_CODE, CLAIM_CODE, DELIVER_CODE, EVICT_CODE, IS_ID, IS_NUMBER,
    PICK_CODE, REDELIVER_CODE, SEEN_CODE, TAKE_CODE, WAIT_CODE, XDEL_CODE, Effects, apply_compiled,
)
from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId, id_less
from millstream.ids cimport make_id, parse_id, parse_u64
from millstream.storage.blocks.layout cimport Entry, View, read_varint
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.group cimport (
    Group, dead_letter_of, has_passed, keys_of, note_recorded, picking_of,
)
from millstream.storage.groups.key_order cimport KeyOrder
from millstream.storage.groups.managed_entries cimport (
    claim_retry_number, extend, give_back, keep_dead, take_again, take_back_later,
)
from millstream.storage.log.entry_log cimport Walk
from millstream.storage.log.trimming cimport delete_between
from millstream.storage.reservations.held cimport Held, handed_out
from millstream.storage.keyspace.keyspace_core cimport DatabaseCore as Database, KeyspaceCore as Keyspace
from millstream.storage.groups.pending cimport NO_RETRY, UNOWNED, Pending, PendingAt
from millstream.storage.groups.pending_chunks cimport find_pending
from millstream.storage.groups.picking cimport Picking
from millstream.storage.streams.head_eviction cimport note_pending
from millstream.storage.streams.stream cimport RESERVING, Stream
from millstream.storage.streams.stream_groups cimport all_groups

from millstream.commands.runtime.effects import effect
from millstream.ids import parse
from millstream.storage.groups.pending_sweeps import delete_consumer
from millstream.storage.log.trimming import evict_ids
from millstream.storage.streams.head_eviction import evict_before, evict_every
from millstream.storage.streams.idempotence import Window
from millstream.storage.streams.producers import Producers


# ---------------------------------------------------------------- the words of an effect

cdef int id_at(Args args, Py_ssize_t place, EntryId* entry_id) except -1:
    if args.items[place].size == IS_ID:
        read_varint(
            read_varint(<const uint8_t*>args.items[place].ptr, &entry_id.ms), &entry_id.seq)
        return 0
    if args.items[place].size < 0 or parse_id(
            args.items[place].ptr, args.items[place].size, False, 0, entry_id) < 0:
        raise ValueError(f"{args[place]!r} is not an id")
    return 0


cdef uint64_t number_at(Args args, Py_ssize_t place) except? 0xffffffffffffffff:
    cdef uint64_t number
    if args.items[place].size == IS_NUMBER:
        read_varint(<const uint8_t*>args.items[place].ptr, &number)
        return number
    if args.items[place].size < 0 or parse_u64(
            args.items[place].ptr, args.items[place].size, &number) < 0:
        raise ValueError(f"{args[place]!r} is not a number")
    return number


cdef bint is_word_at(Args args, Py_ssize_t place, const char* word, Py_ssize_t size) noexcept:
    return args.items[place].size == size and memcmp(args.items[place].ptr, word, size) == 0


@cython.freelist(8)
cdef class Ids:
    """IDs that become words of an effect, such as those of the entries in a reply before they count
    as delivered."""

    def __cinit__(self):
        self.items = self.few
        self.capacity = sizeof(self.few) // sizeof(EntryId)

    def __dealloc__(self):
        if self.items != self.few:
            free(self.items)

    cdef int add(self, uint64_t ms, uint64_t seq) except -1:
        cdef size_t wanted
        cdef EntryId* moved
        if self.count == self.capacity:
            wanted = self.capacity * 4
            moved = <EntryId*>realloc(NULL if self.items == self.few else self.items,
                                      wanted * sizeof(EntryId))
            if moved == NULL:
                raise MemoryError("no memory for the IDs of an effect")
            if self.items == self.few:
                memcpy(moved, self.few, sizeof(self.few))
            self.items = moved
            self.capacity = wanted
        self.items[self.count].ms = ms
        self.items[self.count].seq = seq
        self.count += 1
        return 0

    cdef int take(self, Args args, bint dot_allowed) except -1:
        """Take the remaining words of a request, all of them before one is used."""
        cdef EntryId found
        while args.pos < args.count:
            args.take_id(&found, dot_allowed, 0)
            self.add(found.ms, found.seq)
        return 0

    cdef int put(self, Effects effects) except -1:
        """Write the IDs as words of an effect."""
        cdef size_t i
        for i in range(self.count):
            effects.put_id(self.items[i].ms, self.items[i].seq)
        return 0


cdef Ids ids_of(list ids):
    """IDs, (ms, seq) each."""
    cdef Ids made = Ids.__new__(Ids)
    cdef uint64_t ms, seq
    for ms, seq in ids:
        made.add(ms, seq)
    return made


cdef Stream stream_of(Keyspace keyspace, int db, Args args):
    """The stream that an effect changes; a running snapshot captures it first."""
    cdef Stream stream = (<Database>keyspace.databases[db]).writable_at(&args.items[1])
    if stream is None:
        raise ValueError(f"key {args[1]!r} has no stream")
    return stream


cdef Group group_of(Stream stream, Args args):
    cdef Group group = stream.group(args[2])
    if group is None:
        raise ValueError(f"stream {args[1]!r} has no group {args[2]!r}")
    return group


def id_of(bytes text not None) -> tuple[int, int]:
    """An ID in a list of words."""
    try:
        return parse(text, False)
    except ValueError:
        raise ValueError(f"{text!r} is not an id") from None


def stream_at(Keyspace keyspace not None, int db, bytes key not None) -> Stream:
    """`stream_of` for a list of words."""
    cdef Stream stream = (<Database>keyspace.databases[db]).writable_stream(key)
    if stream is None:
        raise ValueError(f"key {key!r} has no stream")
    return stream


def held_at(Keyspace keyspace not None, int db, bytes key not None) -> Held:
    """The reservations of a stream that an effect changes."""
    held = stream_at(keyspace, db, key).held
    if held is None:
        raise ValueError(f"key {key!r} has no reservations")
    return held


cdef Group named_group(Keyspace keyspace, int db, list words):
    """The group of an effect whose first words are a key and a group."""
    cdef Group group = stream_at(keyspace, db, words[0]).group(words[1])
    if group is None:
        raise ValueError(f"stream {words[0]!r} has no group {words[1]!r}")
    return group


cdef Consumer named_consumer(Group group, bytes name):
    cdef Consumer consumer = group.pending.consumer(name)
    if consumer is None:
        raise ValueError(f"group {group.name!r} has no consumer {name!r}")
    return consumer


# ---------------------------------------------------------------- the line of history

@effect(b"HISTORY", keys=())
def apply_history(Keyspace keyspace not None, int db, list words not None) -> None:
    """HISTORY id number [term]: from this frame on, another line of history."""
    keyspace.begin_history(
        words[0].decode("ascii"), int(words[1]), int(words[2]) if len(words) > 2 else 0)


# ---------------------------------------------------------------- entries

STREAM = b"STREAM"

@effect(STREAM, wakes_readers=True)
def apply_stream(Keyspace keyspace not None, int db, list words not None) -> None:
    """STREAM key incarnation: an empty stream."""
    keyspace.databases[db].make_stream(words[0], int(words[1]))


cdef int record_append(Effects effects, int db, bytes key, EntryId entry_id, Slice* items,
                       Py_ssize_t count) except -1:
    """APPEND key id field value [field value ...]."""
    cdef Py_ssize_t i
    if not effects.enabled:
        return 0
    effects.begin(db, APPEND_CODE, 2 + count)
    effects.put_bytes(key)
    effects.put_id(entry_id.ms, entry_id.seq)
    for i in range(count):
        effects.put(items[i].ptr, items[i].size)
    return effects.finish()


cdef int apply_append(Keyspace keyspace, int db, Args args) except -1:
    if args.count < 5:
        raise ValueError("APPEND without an entry")
    append_again(keyspace, db, args, 3)
    return 0


cdef int record_append_once(Effects effects, int db, bytes key, const NewEntry* entry,
                            bytes producer, uint64_t number) except -1:
    """APPENDONCE key id producer number field value [field value ...]: the entry that a producer
    has numbered."""
    cdef Py_ssize_t i
    if not effects.enabled:
        return 0
    effects.begin(db, APPENDONCE_CODE, 4 + entry.count)
    effects.put_bytes(key)
    effects.put_id(entry.id.ms, entry.id.seq)
    effects.put_bytes(producer)
    effects.put_number(number)
    for i in range(entry.count):
        effects.put(entry.items[i].ptr, entry.items[i].size)
    return effects.finish()


cdef int apply_append_once(Keyspace keyspace, int db, Args args) except -1:
    cdef Stream stream
    cdef bytes name
    cdef uint64_t number
    if args.count < 7:
        raise ValueError("APPENDONCE without a producer's number and an entry")
    number = number_at(args, 4)
    stream = append_again(keyspace, db, args, 5)
    name = args[3]
    if stream.producers is None:
        stream.producers = Producers()
    if stream.producers.has_sent(name, number):
        raise ValueError(f"APPENDONCE of {name!r} with number {number}, not above its last")
    stream.producers.put(name, number)
    return 0


cdef Stream append_again(Keyspace keyspace, int db, Args args, Py_ssize_t fields):
    """Append the entry whose fields begin at word `fields`; key and ID are the effect's first
    words."""
    cdef EntryId entry_id
    cdef Stream stream = (<Database>keyspace.databases[db]).writable_at(&args.items[1])
    if stream is None:
        raise ValueError("APPEND to a stream that does not exist")
    id_at(args, 2, &entry_id)
    put_again(keyspace, db, args, stream, entry_id, &args.items[fields], args.count - fields)
    return stream


cdef int put_again(Keyspace keyspace, int db, Args args, Stream stream, EntryId entry_id,
                   Slice* items, Py_ssize_t count) except -1:
    """Append an entry to the stream of an effect, and mark its key ready."""
    cdef EntryId last = handed_out(stream)
    if not id_less(last.ms, last.seq, entry_id.ms, entry_id.seq):
        raise ValueError(f"{args[0].decode()} with id {bytes(make_id(entry_id.ms, entry_id.seq, False))!r}, "
                         "not above the stream's last")
    if stream.restrictions & RESERVING:
        (<Held>stream.held).hold(entry_id, items, count)
        (<Held>stream.held).segments.tidy()
    else:
        stream.append(entry_id, items, count, keyspace.node_entries, keyspace.node_bytes)
    return (<Database>keyspace.databases[db]).mark_ready_at(&args.items[1])


cdef int record_eviction(Effects effects, int db, bytes key, EntryId first_kept) except -1:
    """EVICT key id: all entries below this ID."""
    if not effects.enabled:
        return 0
    effects.begin(db, EVICT_CODE, 2)
    effects.put_bytes(key)
    effects.put_id(first_kept.ms, first_kept.seq)
    return effects.finish()


cdef int record_evict_all(Effects effects, int db, bytes key) except -1:
    """EVICT key +."""
    return effects.put_effect(db, (b"EVICT", key, b"+"))


@effect(b"EVICT")
def apply_evict(Keyspace keyspace not None, int db, list words not None) -> None:
    """EVICT key id: everything below id; `+`: everything."""
    stream = stream_at(keyspace, db, words[0])
    take_back_passes(keyspace, stream)
    if words[1] == b"+":
        evict_every(stream)
    else:
        evict_before(stream, *id_of(words[1]))


EVICTIDS = b"EVICTIDS"

@effect(EVICTIDS)
def apply_evict_ids(Keyspace keyspace not None, int db, list words not None) -> None:
    """EVICTIDS key id [id ...]: evict these entries, anywhere in the stream."""
    stream = stream_at(keyspace, db, words[0])
    take_back_passes(keyspace, stream)
    evict_ids(stream, [id_of(word) for word in words[1:]])


cdef int record_deletion(Effects effects, int db, bytes key, Ids ids) except -1:
    """XDEL key id [id ...]."""
    if not effects.enabled:
        return 0
    effects.begin(db, XDEL_CODE, 1 + ids.count)
    effects.put_bytes(key)
    ids.put(effects)
    return effects.finish()


XDEL = b"XDEL"

@effect(XDEL)
def apply_xdel(Keyspace keyspace not None, int db, list words not None) -> None:
    """XDEL key id [id ...]."""
    stream = stream_at(keyspace, db, words[0])
    for word in words[1:]:
        stream.delete_id(*id_of(word))


XDELRANGE = b"XDELRANGE"

@effect(XDELRANGE)
def apply_xdelrange(Keyspace keyspace not None, int db, list words not None) -> None:
    """XDELRANGE key first last: delete all entries from first to last."""
    cdef EntryId first, last
    first.ms, first.seq = id_of(words[1])
    last.ms, last.seq = id_of(words[2])
    delete_between(stream_at(keyspace, db, words[0]), first, last)


SETID = b"SETID"


def set_last_id(Keyspace keyspace not None, Stream stream not None, tuple last not None, uint64_t added,
                tuple deleted not None) -> None:
    """Set the last ID of a stream, its number of entries ever added, and its largest deleted ID."""
    stream.set_last_id(last[0], last[1], keyspace.node_entries, keyspace.node_bytes)
    stream.entries_added = added
    stream.max_deleted_ms, stream.max_deleted_seq = deleted


@effect(SETID, wakes_readers=True)
def apply_setid(Keyspace keyspace not None, int db, list words not None) -> None:
    """SETID key last-id entries-added max-deleted-id."""
    stream = stream_at(keyspace, db, words[0])
    set_last_id(keyspace, stream, id_of(words[1]), int(words[2]), id_of(words[3]))


# ---------------------------------------------------------------- messages that count once

cpdef window_of(Stream stream):
    """The stream's idempotence window, created if necessary."""
    if stream.idempotence is None:
        stream.idempotence = Window()
    return stream.idempotence


IDMPSET = b"IDMPSET"

@effect(IDMPSET)
def apply_idmpset(Keyspace keyspace not None, int db, list words not None) -> None:
    """IDMPSET key duration-s maxsize: set the window's bounds; a change removes all names."""
    window_of(stream_at(keyspace, db, words[0])).configure(int(words[1]), int(words[2]))


IDMP = b"IDMP"

@effect(IDMP)
def apply_idmp(Keyspace keyspace not None, int db, list words not None) -> None:
    """IDMP key producer iid id ms: store the name of the message of this entry."""
    window_of(stream_at(keyspace, db, words[0])).add(
        words[1], words[2], id_of(words[3]), int(words[4])
    )


IDMPREPEAT = b"IDMPREPEAT"

@effect(IDMPREPEAT)
def apply_idmprepeat(Keyspace keyspace not None, int db, list words not None) -> None:
    """IDMPREPEAT key: count a repeated message."""
    window_of(stream_at(keyspace, db, words[0])).duplicates += 1


# ---------------------------------------------------------------- groups and consumers

GROUP = b"GROUP"

@effect(GROUP)
def apply_group(Keyspace keyspace not None, int db, list words not None) -> None:
    """GROUP key name id entries-read ttl-ms: a new group."""
    stream = stream_at(keyspace, db, words[0])
    group = stream.make_group(words[1], *id_of(words[2]))
    group.entries_read = int(words[3])
    stream.set_ttl(group, int(words[4]), keyspace.steady_ms)
    keyspace.schedule(db, words[0], group)


GROUPTTL = b"GROUPTTL"

@effect(GROUPTTL)
def apply_group_ttl(Keyspace keyspace not None, int db, list words not None) -> None:
    """GROUPTTL key name ttl-ms."""
    group = named_group(keyspace, db, words)
    stream_at(keyspace, db, words[0]).set_ttl(
        group, int(words[2]), keyspace.steady_ms)
    keyspace.schedule(db, words[0], group)


GROUPRULES = b"GROUPRULES"

# The words of GROUPRULES whose value is a number, and the rules that they set.
RULE_NUMBERS = {
    b"TIMEOUT": "timeout_ms", b"MAXDELIVER": "max_deliver",
    b"MAXINFLIGHT": "max_in_flight",
    b"CONSUMERTTL": "consumer_ttl_ms",
    b"PAUSED": "paused_until_ms",
    b"RUN": "run",
}


@effect(GROUPRULES, wakes_readers=True)
def apply_group_rules(Keyspace keyspace not None, int db, list words not None) -> None:
    """GROUPRULES key group word value ...: rules of delivery of a group; the others stay."""
    group = named_group(keyspace, db, words)
    take_back_passes(keyspace, stream_at(keyspace, db, words[0]))
    group.set_rules(**rules_in(words[2:]))
    keyspace.has_rules = True
    keyspace.schedule(db, words[0], group)


cdef dict rules_in(list words):
    """The rules in the words of GROUPRULES, by their names in GroupRules. BACKOFF and WHERE are followed
    by the number of their words. ORDER is followed by its kind, the field, and a seed for hashes."""
    cdef dict found = {}
    rest = iter(words)
    try:
        for word in rest:
            if word == b"BACKOFF":
                found["backoff_ms"] = tuple([int(next(rest)) for _ in range(int(next(rest)))])
            elif word == b"DEADLETTER":
                found["dead_letter"] = next(rest)
            elif word == b"WHERE":
                found["where"] = [next(rest) for _ in range(int(next(rest)))]
            elif word == b"ORDER":
                found["order"] = next(rest), next(rest), int(next(rest))
            elif word in RULE_NUMBERS:
                found[RULE_NUMBERS[word]] = int(next(rest))
            else:
                raise ValueError(f"GROUPRULES with {word!r}, which is not known to this version")
    except StopIteration:
        raise ValueError(f"GROUPRULES {words!r} are not complete") from None
    return found


GROUPSETID = b"GROUPSETID"

@effect(GROUPSETID)
def apply_group_setid(Keyspace keyspace not None, int db, list words not None) -> None:
    """GROUPSETID key name id entries-read."""
    group = named_group(keyspace, db, words)
    stream_at(keyspace, db, words[0]).move_group(group, *id_of(words[2]), int(words[3]))


GROUPDROP = b"GROUPDROP"

@effect(GROUPDROP, wakes_readers=True)
def apply_group_drop(Keyspace keyspace not None, int db, list words not None) -> None:
    """GROUPDROP key name."""
    stream_at(keyspace, db, words[0]).drop_group(words[1])


CONSUMER = b"CONSUMER"

@effect(CONSUMER)
def apply_consumer(Keyspace keyspace not None, int db, list words not None) -> None:
    """CONSUMER key group name ms: a new consumer."""
    keyspace.note_steady(int(words[3]))
    named_group(keyspace, db, words).pending.make_consumer(words[2], int(words[3]))


CONSUMERDROP = b"CONSUMERDROP"

@effect(CONSUMERDROP)
def apply_consumer_drop(Keyspace keyspace not None, int db, list words not None) -> None:
    """CONSUMERDROP key group name: remove a consumer and its pending entries."""
    group = named_group(keyspace, db, words)
    named_consumer(group, words[2])
    delete_consumer(group, words[2])


cdef int record_seen(Effects effects, int db, bytes key, Group group, Consumer consumer,
                     uint64_t now_ms) except -1:
    """SEEN key group consumer ms."""
    if not effects.enabled:
        return 0
    effects.begin(db, SEEN_CODE, 4)
    effects.put_bytes(key)
    effects.put_bytes(group.name)
    effects.put_bytes(consumer.name)
    effects.put_number(now_ms)
    return effects.finish()


@effect(b"SEEN")
def apply_seen(Keyspace keyspace not None, int db, list words not None) -> None:
    """SEEN key group consumer ms: the consumer made a request and got no new entries."""
    keyspace.note_steady(int(words[3]))
    named_consumer(named_group(keyspace, db, words), words[2]).seen_ms = int(words[3])


# ---------------------------------------------------------------- pending entries

cdef int record_delivery(Effects effects, int db, bytes key, Group group, const Terms* terms,
                         EntryId first, uint64_t now_ms) except -1:
    """DELIVER key group consumer from to ms entries-read retry-ms expire-ms mode, after the delivery."""
    cdef Consumer owner = group.pending.numbered(terms.owner)
    if not effects.enabled:
        return 0
    effects.begin(db, DELIVER_CODE, 10)
    effects.put_bytes(key)
    effects.put_bytes(group.name)
    effects.put_bytes(b"" if owner is None else owner.name)
    effects.put_id(first.ms, first.seq)
    effects.put_id(group.offset_ms, group.offset_seq)
    effects.put_number(now_ms)
    put_signed(effects, group.entries_read)
    put_retry(effects, terms)
    effects.put_bytes(b"keep" if terms.keep else b"forget")
    return effects.finish()


cdef inline int put_signed(Effects effects, int64_t number) except -1:
    """Write a number that may be negative."""
    return effects.put_number(<uint64_t>number) if number >= 0 else effects.put_bytes(b"%d" % number)


cdef int put_retry(Effects effects, const Terms* terms) except -1:
    """Write retry-ms and expire-ms, each `-` without a retry pair."""
    if terms == NULL or not terms.has_retry:
        effects.put(b"-", 1)
        return effects.put(b"-", 1)
    effects.put_number(terms.retry_ms)
    return effects.put_number(terms.expire_ms)


cdef int deliver_between(Stream stream, Group group, EntryId start, EntryId end, uint64_t now_ms,
                         uint32_t owner, uint32_t retry_number) except -1:
    """Record the first delivery of the entries with start <= ID <= end to the consumer with this
    number."""
    cdef Walk walk
    stream.walk_start(&walk, start)
    while stream.walk_next(&walk) and not id_less(
            end.ms, end.seq, walk.cursor.entry.ms, walk.cursor.entry.seq):
        group.pending.deliver(
            walk.cursor.entry.ms, walk.cursor.entry.seq, now_ms, owner, retry_number)
    return 0


cdef int apply_deliver(Keyspace keyspace, int db, Args args) except -1:
    """DELIVER key group consumer from to ms entries-read retry-ms expire-ms mode: new entries.

    The undeleted entries from..to were delivered and the group's offset moved to `to`. Mode `keep`
    makes them pending, `forget` does not; retry-ms `-` stands for no retry. An empty consumer means
    no owner.
    """
    cdef Stream stream
    cdef Group group
    cdef Consumer consumer
    cdef EntryId start
    cdef EntryId end
    cdef uint64_t now_ms
    cdef uint32_t owner = UNOWNED
    cdef uint32_t retry_number = NO_RETRY
    cdef bint keep
    if args.count != 11:
        raise ValueError(f"DELIVER with {args.count - 1} words")
    stream = stream_of(keyspace, db, args)
    group = group_of(stream, args)
    keep = is_word_at(args, 10, b"keep", 4)
    now_ms = number_at(args, 6)
    keyspace.note_steady(now_ms)
    if args.items[3].size:
        consumer = group.pending.consumer(args[3])
        if consumer is None:
            raise ValueError(f"group {group.name!r} has no consumer {args[3]!r}")
        owner = consumer.index
        consumer.seen_ms = now_ms
        if keep:
            consumer.active_ms = now_ms
    id_at(args, 5, &end)
    if keep:
        if not is_word_at(args, 8, b"-", 1):
            retry_number = group.pending.retry_number(number_at(args, 8), number_at(args, 9))
        id_at(args, 4, &start)
        deliver_between(stream, group, start, end, now_ms, owner, retry_number)
    stream.set_offset(group, end)
    group.entries_read = int(args[7])
    keyspace.schedule(db, args[1], group)
    return 0


cdef int record_redelivery(Effects effects, int db, bytes key, Group group, const Terms* terms,
                           Ids ids, uint64_t now_ms) except -1:
    """REDELIVER key group ms retry-ms expire-ms id [id ...]; terms NULL: without a retry pair."""
    if not effects.enabled:
        return 0
    effects.begin(db, REDELIVER_CODE, 5 + ids.count)
    effects.put_bytes(key)
    effects.put_bytes(group.name)
    effects.put_number(now_ms)
    put_retry(effects, terms)
    ids.put(effects)
    return effects.finish()


@effect(b"REDELIVER")
def apply_redeliver(Keyspace keyspace not None, int db, list words not None) -> None:
    """REDELIVER key group ms retry-ms expire-ms id [id ...]: pending entries delivered again;
    retry-ms `-` keeps each entry's own pair."""
    cdef Group group = named_group(keyspace, db, words)
    cdef uint64_t now_ms = int(words[2])
    cdef bint has_retry = words[3] != b"-"
    cdef uint32_t retry_number = NO_RETRY
    cdef Pending* record
    cdef PendingAt at
    cdef uint64_t ms, seq
    keyspace.note_steady(now_ms)
    if has_retry:
        retry_number = group.pending.retry_number(int(words[3]), int(words[4]))
    for word in words[5:]:
        ms, seq = id_of(word)
        record = find_pending(group.pending.records, EntryId(ms, seq), &at)
        if record != NULL:
            group.pending.redeliver(record, &at, now_ms, retry_number, has_retry)
    keyspace.schedule(db, words[0], group)


cdef int record_take(Effects effects, int db, bytes key, Group group, const Terms* terms, Ids ids,
                     uint64_t now_ms) except -1:
    """TAKE key group consumer ms retry-ms expire-ms id [id ...]."""
    cdef Consumer owner
    if not effects.enabled:
        return 0
    owner = group.pending.numbered(terms.owner)
    effects.begin(db, TAKE_CODE, 6 + ids.count)
    effects.put_bytes(key)
    effects.put_bytes(group.name)
    effects.put_bytes(b"" if owner is None else owner.name)
    effects.put_number(now_ms)
    effects.put_number(terms.retry_ms)
    effects.put_number(terms.expire_ms)
    ids.put(effects)
    return effects.finish()


@effect(b"TAKE")
def apply_take(Keyspace keyspace not None, int db, list words not None) -> None:
    """TAKE key group consumer ms retry-ms expire-ms id [id ...]: a managed group delivered entries
    that were due again, to a consumer or (with an empty name) without an owner."""
    group = named_group(keyspace, db, words)
    cdef Consumer consumer = named_consumer(group, words[2]) if words[2] else None
    cdef uint64_t now_ms = int(words[3])
    keyspace.note_steady(now_ms)
    if consumer is not None:
        consumer.seen_ms = consumer.active_ms = now_ms
    retry_number = group.pending.retry_number(int(words[4]), int(words[5]))
    for word in words[6:]:
        ms, seq = id_of(word)
        take_again(group.pending, EntryId(ms, seq), UNOWNED if consumer is None else consumer.index,
                   now_ms, retry_number)
    keyspace.schedule(db, words[0], group)


cdef int record_wait(Effects effects, int db, bytes key, Group group, const WaitTerms* terms,
                     Ids ids) except -1:
    """WAIT key group ms delay-ms deliveries id [id ...]."""
    if not effects.enabled:
        return 0
    effects.begin(db, WAIT_CODE, 5 + ids.count)
    effects.put_bytes(key)
    effects.put_bytes(group.name)
    effects.put_number(terms.now_ms)
    effects.put_number(terms.delay_ms)
    effects.put(terms.deliveries, strlen(terms.deliveries))
    ids.put(effects)
    return effects.finish()


WAIT = b"WAIT"

@effect(WAIT, wakes_readers=True)
def apply_wait(Keyspace keyspace not None, int db, list words not None) -> None:
    """WAIT key group ms delay-ms deliveries id [id ...]: entries of a managed group, pending or not,
    were given back and are due after a delay. deliveries: a number, `-` for one less, `=` for no
    change."""
    cdef Stream stream = stream_at(keyspace, db, words[0])
    group = named_group(keyspace, db, words)
    keyspace.note_steady(int(words[2]))
    for word in words[5:]:
        ms, seq = id_of(word)
        note_key(stream, group, EntryId(ms, seq))
        give_back(group.pending, ms, seq, words[4], int(words[2]), int(words[3]))
        note_pending(stream, ms, seq)
    keyspace.schedule(db, words[0], group)


DEADLINE = b"DEADLINE"

@effect(DEADLINE)
def apply_deadline(Keyspace keyspace not None, int db, list words not None) -> None:
    """DEADLINE key group ms span-ms id [id ...]: entries in flight have until span-ms after ms."""
    group = named_group(keyspace, db, words)
    keyspace.note_steady(int(words[2]))
    for word in words[4:]:
        ms, seq = id_of(word)
        extend(group.pending, ms, seq, int(words[2]), int(words[3]))
    keyspace.schedule(db, words[0], group)


DEAD = b"DEAD"

@effect(DEAD)
def apply_dead(Keyspace keyspace not None, int db, list words not None) -> None:
    """DEAD key group reason consumer text id [id ...]: pending entries have ended without a copy in
    the dead letter stream, which is made later."""
    cdef Group group = named_group(keyspace, db, words)
    for word in words[5:]:
        ms, seq = id_of(word)
        keep_dead(group.pending, ms, seq, (words[2], words[3], words[4]))
    group.own_rules().copy_at_ms = 0 if dead_letter_of(group) is not None else NEVER
    keyspace.dead_letters.note_dead(db, words[0], group.name)
    keyspace.schedule(db, words[0], group)


@effect(b"COPIED")
def apply_copied(Keyspace keyspace not None, int db, list words not None) -> None:
    """COPIED key group reason number: this number of entries was copied to the dead letter stream."""
    named_group(keyspace, db, words).count_dead_letters(words[2], int(words[3]))


cdef int record_pick(Effects effects, int db, bytes key, Group group, const Terms* terms,
                     const Picked* picked, uint64_t now_ms) except -1:
    """PICK, after the delivery; terms NULL: a pass."""
    cdef Consumer owner
    cdef size_t i
    if not effects.enabled:
        return 0
    owner = None if terms == NULL else group.pending.numbered(terms.owner)
    effects.begin(db, PICK_CODE, 9 + picked.delivered_count + picked.parked_count)
    effects.put_bytes(key)
    effects.put_bytes(group.name)
    effects.put_bytes(b"" if owner is None else owner.name)
    effects.put_id(group.offset_ms, group.offset_seq)
    effects.put_number(now_ms)
    put_signed(effects, group.entries_read)
    put_retry(effects, terms)
    effects.put_number(picked.delivered_count)
    for i in range(picked.delivered_count):
        effects.put_id(picked.delivered[i].ms, picked.delivered[i].seq)
    for i in range(picked.parked_count):
        effects.put_id(picked.parked[i].ms, picked.parked[i].seq)
    return effects.finish()


cdef int record_passed(Effects effects, int db, bytes key, Group group, uint64_t now_ms) except -1:
    """PICK for a group with a filter or an order that has passed over entries."""
    cdef Picked nothing = Picked(NULL, 0, NULL, 0)
    cdef Picking picking = picking_of(group)
    record_pick(effects, db, key, group, NULL, &nothing, now_ms)
    note_recorded(group)
    picking.recorded_ms = now_ms
    return 0


cdef int take_back_passes(Keyspace keyspace, Stream stream) except -1:
    """Return groups to the offsets that were recorded. A server that was a primary may have passed over
    more entries, and others count what they miss from there."""
    cdef Group group
    cdef Picking picking
    if stream.group_set is None or not keyspace.has_rules:
        return 0
    for group in all_groups(stream.group_set):
        if has_passed(group):
            picking = picking_of(group)
            stream.set_offset(group, picking.recorded_offset)
            group.entries_read = picking.recorded_read
            note_recorded(group)
    return 0


PICK = b"PICK"

@effect(PICK)
def apply_pick(Keyspace keyspace not None, int db, list words not None) -> None:
    """PICK key group consumer to ms entries-read retry-ms expire-ms n id [id ...]: a group with a filter
    or an order has delivered the first n of these entries, and parked the others. It has passed over all
    others up to `to`."""
    stream = stream_at(keyspace, db, words[0])
    group = named_group(keyspace, db, words)
    cdef Consumer consumer = named_consumer(group, words[2]) if words[2] else None
    cdef uint64_t now_ms = int(words[4])
    cdef uint32_t retry_number = NO_RETRY
    cdef Py_ssize_t delivered = int(words[8])
    cdef Py_ssize_t i
    keyspace.note_steady(now_ms)
    if words[6] != b"-":
        retry_number = group.pending.retry_number(int(words[6]), int(words[7]))
    if consumer is not None:
        consumer.seen_ms = now_ms
        if delivered:
            consumer.active_ms = now_ms
    for i in range(9, len(words)):
        ms, seq = id_of(words[i])
        if i < 9 + delivered:
            note_key(stream, group, EntryId(ms, seq))
            group.pending.deliver(ms, seq, now_ms, UNOWNED if consumer is None else consumer.index, retry_number)
        else:
            park_again(stream, group, EntryId(ms, seq))
    ms, seq = id_of(words[3])
    (<Stream>stream).set_offset(group, EntryId(ms, seq))
    (<Group>group).entries_read = int(words[5])
    note_recorded(group)
    keyspace.schedule(db, words[0], group)


cdef bint key_in(Stream stream, Group group, EntryId at, uint64_t* hash) except -1:
    """Get the hash of the key of an entry; False if the entry is gone or is not ordered."""
    cdef Picking picking = picking_of(group)
    cdef View view
    cdef Entry entry
    if picking is None or picking.keys is None or not stream.find(at, &view, &entry):
        return False
    if picking.reader is not None:
        picking.reader.begin()
    return picking.has_key(&view, &entry, hash)


cdef int note_key(Stream stream, Group group, EntryId at) except -1:
    """Note the key of an entry of an ordered group that becomes pending, unless it has one already."""
    cdef KeyOrder keys = keys_of(group)
    cdef uint64_t hash
    if keys is None or keys.has(at, False) or keys.take_parked(at):
        return 0
    return keys.begin(at, hash) if key_in(stream, group, at, &hash) else 0


cdef int park_again(Stream stream, Group group, EntryId at) except -1:
    cdef uint64_t hash
    if not key_in(stream, group, at, &hash):
        raise ValueError(f"{at.ms}-{at.seq} is parked, and it has no key")
    return keys_of(group).park(at, hash)


cdef bint forget_parked(Group group, EntryId at) except -1:
    """Forget a parked entry; False if it is not parked."""
    cdef KeyOrder keys = keys_of(group)
    return keys is not None and keys.forget(at)


cdef int record_claim(Effects effects, int db, bytes key, Group group, Consumer consumer,
                      const ClaimTerms* terms, Ids ids) except -1:
    """CLAIM key group consumer ms delivery-ms deliveries id [id ...]."""
    if not effects.enabled:
        return 0
    effects.begin(db, CLAIM_CODE, 6 + ids.count)
    effects.put_bytes(key)
    effects.put_bytes(group.name)
    effects.put_bytes(consumer.name)
    effects.put_number(terms.now_ms)
    effects.put_number(terms.delivery_ms)
    effects.put(terms.deliveries, strlen(terms.deliveries))
    ids.put(effects)
    return effects.finish()


@effect(b"CLAIM")
def apply_claim(Keyspace keyspace not None, int db, list words not None) -> None:
    """CLAIM key group consumer ms delivery-ms deliveries id [id ...]: a consumer claims entries. An
    entry that is not pending becomes pending, with one earlier delivery. deliveries: a number, `+`
    for one more, `=` for no change. In a managed group the entries get a new deadline."""
    cdef Stream stream = stream_at(keyspace, db, words[0])
    group = named_group(keyspace, db, words)
    consumer = named_consumer(group, words[2])
    keyspace.note_steady(int(words[3]))
    consumer.seen_ms = consumer.active_ms = int(words[3])
    retry_number = claim_retry_number(group, int(words[3]), int(words[4]))
    for word in words[6:]:
        ms, seq = id_of(word)
        note_key(stream, group, EntryId(ms, seq))
        group.pending.claim(ms, seq, consumer, int(words[4]), words[5], retry_number)
        note_pending(stream, ms, seq)
        take_back_later(group.pending, EntryId(ms, seq))
    if retry_number != NO_RETRY:
        keyspace.schedule(db, words[0], group)


RELEASE = b"RELEASE"

@effect(RELEASE, wakes_readers=True)
def apply_release(Keyspace keyspace not None, int db, list words not None) -> None:
    """RELEASE key group ms deliveries id [id ...]: remove the owners of entries. An entry that is
    not pending becomes pending, without earlier deliveries. deliveries: a number, `-` for one less,
    `=` for no change."""
    cdef Stream stream = stream_at(keyspace, db, words[0])
    group = named_group(keyspace, db, words)
    keyspace.note_steady(int(words[2]))
    for word in words[4:]:
        ms, seq = id_of(word)
        group.pending.release(ms, seq, words[3], int(words[2]))
        note_pending(stream, ms, seq)


cdef int record_ack(Effects effects, int db, bytes key, bytes group, Ids ids) except -1:
    """ACK key group id [id ...]."""
    if not effects.enabled:
        return 0
    effects.begin(db, ACK_CODE, 2 + ids.count)
    effects.put_bytes(key)
    effects.put_bytes(group)
    ids.put(effects)
    return effects.finish()


cdef int apply_ack(Keyspace keyspace, int db, Args args) except -1:
    """ACK key group id [id ...]: remove pending entries (acknowledged, expired, or no longer in the
    stream), and parked ones that were settled or are no longer in the stream."""
    cdef EntryId entry_id
    cdef Group group
    cdef Py_ssize_t place
    if args.count < 3:
        raise ValueError("ACK without a group")
    group = group_of(stream_of(keyspace, db, args), args)
    for place in range(3, args.count):
        id_at(args, place, &entry_id)
        if not group.pending.acknowledge(entry_id.ms, entry_id.seq) and group.rules is not None:
            forget_parked(group, entry_id)
    return 0


apply_compiled(b"APPEND", ~(<uint64_t>1 << 2), apply_append)
apply_compiled(b"APPENDONCE", ~(<uint64_t>1 << 2 | <uint64_t>1 << 4), apply_append_once)
apply_compiled(b"ACK", 1 << 1 | 1 << 2, apply_ack)
apply_compiled(b"DELIVER", 1 << 1 | 1 << 2 | 1 << 3 | 1 << 10, apply_deliver)
