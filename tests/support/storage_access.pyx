# cython: language_level=3
"""Operations on streams, groups and blocks that only tests need, callable from Python."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from millstream.encoding cimport Output, Slice
from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.block cimport Block, sound_head, view_entries
from millstream.storage.blocks.block_check cimport check_view, fault_text, first_fault, fits
from millstream.storage.blocks.entry_filter cimport EntryFilter
from millstream.storage.blocks.layout cimport Head, View, bulk_size, view_of
from millstream.storage.blocks.open_block cimport OpenBlock, payload_of
from millstream.storage.blocks.reply_entries cimport Selection
from millstream.storage.blocks.skiplist cimport SkipList
from millstream.storage.blocks.skiplist_pages cimport PAGE_BLOCKS, Blocks, Page, Place, block_at, rank_in
from millstream.storage.groups.consumers cimport Details
from millstream.storage.groups.dead_entries cimport dead_count, dead_entries
from millstream.storage.groups.due_index cimport (
    DueIds, claimable_ms, due_ms, ends_ms, exact_min, is_before,
)
from millstream.storage.groups.group cimport Group, keys_of
from millstream.storage.groups.key_order cimport KeyOrder, key_ids, load_keys, saved_keys
from millstream.storage.groups.managed_entries cimport ids_held_by, rounded_up, take_again
from millstream.storage.groups.pending cimport (
    ABSENT, CHUNK_MAX, DELIVERIES_MAX, EXPIRE, IDLE, KINDS, NO_RETRY, RETRY, UNOWNED, WAKE, Chunk,
    Pending, PendingAt, Pendings, floors_of, heap_of, is_dead,
)
from millstream.storage.groups.pending_chunks cimport find_pending
from millstream.storage.log cimport trim_nodes
from millstream.storage.log.log_ranges cimport encode_range, encode_reverse
from millstream.storage.log.entry_log cimport EntryLog, Walk
from millstream.storage.log.log_search cimport Search, begin_search, search_blocks, search_log
from millstream.storage.reservations.held cimport Held
from millstream.storage.reservations.held_segment_list cimport SegmentList
from millstream.storage.reservations.held_segments cimport Run, Slot, Writer, list_of_words, size_of
from millstream.storage.streams.retention cimport (
    Limits, TrimPoint, age_trim_ms, find_trim_point, limits_of,
)
from millstream.storage.streams.stream cimport RESERVING, Stream
from millstream.storage.streams.stream_groups cimport all_groups

from millstream.storage.log.log_ranges import blocks_between

CHUNK_RECORDS = CHUNK_MAX

cdef uint64_t NEVER = 0xffffffffffffffffULL

# ---------------------------------------------------------------- streams

def upcoming_id(Stream stream not None, uint64_t now_ms) -> tuple[int, int]:
    """The ID that an entry added at this time would get."""
    cdef EntryId found
    stream.next_id(now_ms, &found)
    return found.ms, found.seq


def boundary_by_nodes(Stream stream not None, keep, minid, uint64_t limit, bint partly=False):
    """`trim_nodes.boundary_by_nodes`; `keep` or `minid` is None."""
    cdef EntryId first_kept
    if minid is None:
        return trim_nodes.boundary_by_nodes(stream, keep, NULL, limit, partly)
    first_kept.ms, first_kept.seq = minid
    return trim_nodes.boundary_by_nodes(stream, 0, &first_kept, limit, partly)


def move_last_id(Stream stream not None, uint64_t ms, uint64_t seq, uint32_t node_entries=100,
                 uint32_t node_bytes=4096) -> None:
    """Set the last ID generated; no entry is above it."""
    stream.set_last_id(ms, seq, node_entries, node_bytes)


def id_at(Stream stream not None, uint64_t rank) -> tuple[int, int] | None:
    """The ID of the entry with this rank, 0 being the oldest."""
    cdef EntryId found
    return (found.ms, found.seq) if stream.nth(rank, &found) else None


def encode_between(Stream stream not None, first, last, uint64_t limit, bint dotted=False,
                   bint reverse=False) -> tuple[int, bytes]:
    """Entries from the ID `first` to `last`, (ms, seq) each, as RESP elements: (how many, bytes)."""
    cdef Output out = Output()
    cdef Selection wanted
    cdef EntryId newest
    wanted.start.ms, wanted.start.seq = first
    wanted.end.ms, wanted.end.seq = last
    wanted.limit = limit
    wanted.full_size = <Py_ssize_t>(1 << 60)
    if reverse:
        made = encode_reverse(stream, out, &wanted, dotted, &newest)
    else:
        made = encode_range(stream, out, &wanted, dotted, &newest)
    return made, out.take()


def search_entries(Stream stream not None, EntryFilter filter not None, first, last, uint64_t limit,
                   bint reverse=False, bint in_blocks=False,
                   int64_t work=1 << 60) -> tuple[int, bytes]:
    """Like `encode_between`, only what matches; in the stream or in its blocks, with so much work in
    each turn."""
    cdef Output out = Output()
    cdef Search search
    cdef EntryId start, end
    cdef list blocks = blocks_between(stream, *first, *last)
    cdef Py_ssize_t left = len(blocks)
    cdef bint complete = False
    start.ms, start.seq = max(first, (stream.head_ms, stream.head_seq))
    end.ms, end.seq = last
    if not reverse:
        blocks.reverse()
    begin_search(&search, start, end, limit)
    search.reverse = reverse
    search.full_size = <Py_ssize_t>(1 << 60)
    while not complete:
        search.work = work
        if in_blocks:
            left = search_blocks(blocks, left, filter, &search, out)
            complete = left == 0
        else:
            complete = search_log(stream, filter, &search, out)
    assert search.found == search.encoded
    return search.found, out.take()


def count_entries(Stream stream not None, uint64_t ms, uint64_t seq, uint64_t end_ms,
                  uint64_t end_seq) -> int:
    """The number of entries with start <= id <= end."""
    return stream.count_between(EntryId(ms, seq), EntryId(end_ms, end_seq))


def check_stream(Stream stream not None) -> None:
    """Raise AssertionError or ValueError when anything does not fit together."""
    check_log(stream)
    for group in all_groups(stream.group_set):
        check_group(group)
    if stream.idempotence is not None:
        stream.idempotence.check()
    if stream.producers is not None:
        stream.producers.check()


cdef int check_log(EntryLog log) except -1:
    cdef Walk walk
    cdef View view
    cdef uint64_t count = 0
    before = None
    if log.sealed is not None:
        check_list(log.sealed)
        for block in log.sealed:
            block.check()
    if log.has_tail():
        log.tail.view(&view)
        check_view(&view)
    log.walk_start(&walk, EntryId(0, 0))
    while log.walk_next(&walk):
        here = (walk.cursor.entry.ms, walk.cursor.entry.seq)
        assert before is None or before < here
        before = here
        count += 1
    assert count == log.length
    assert before is None or before <= log.last_id
    assert log.entries_added >= log.length
    return 0


def due_moment_ms(Stream stream not None) -> int | None:
    """`age_trim_ms`; None for never."""
    moment_ms = age_trim_ms(stream, 0)
    return None if moment_ms == NEVER else moment_ms


def cut_of(Stream stream not None, uint64_t now_ms, uint32_t blocks_max=0xffffffff):
    """The result of `find_trim_point`: (first ID to keep, "all" or None; whether there may be
    more)."""
    cdef TrimPoint cut
    cdef Limits limits = limits_of(stream.policy)
    find_trim_point(stream, &limits, now_ms, NULL, blocks_max, &cut)
    first = "all" if cut.all else (cut.first.ms, cut.first.seq) if cut.some else None
    return first, bool(cut.more)


# ---------------------------------------------------------------- reservations and held entries

def check_held(Held held not None, Stream stream not None) -> None:
    """Raise AssertionError or ValueError when anything does not fit together."""
    cdef SegmentList segments = held.segments
    cdef Slot segment
    cdef Writer writer
    cdef Run run
    cdef uint64_t entries = 0
    cdef uint64_t reservations = 0
    cdef uint64_t size_bytes = 0
    cdef Py_ssize_t i
    for i in range(segments.first):
        assert segments.items[i] is None
    for i in range(segments.first, len(segments.items)):
        segment = <Slot>segments.items[i]
        if type(segment) is Run:
            run = <Run>segment
            check_log(run.entries)
            assert run.entries.first_id == (segment.id.ms, segment.id.seq)
            assert run.writers is None or <uint64_t>len(run.writers) == run.entries.length
            entries += run.entries.length
            size_bytes += run.size_bytes
        elif segment.is_open:
            reservations += 1
            assert held.next_deadline_ms <= segment.deadline_ms
        elif segment.words is not None:
            entries += 1
            size_bytes += size_of(segment.words)
    assert (entries, reservations) == (held.entries, held.reservations)
    assert size_bytes == held.size_bytes
    assert bool(stream.restrictions & RESERVING) == (reservations > 0)
    assert sum([writer.reservations for writer in held.writers.by_name.values()]) == reservations
    kept = segments.items
    segments.items = kept[segments.first:]
    try:
        held.check_order(stream)
    finally:
        segments.items = kept
    for writer in held.writers.by_name.values():
        assert reserved_ids(held, writer.name) == sorted(reserved_ids(held, writer.name))
        assert <uint64_t>len(reserved_ids(held, writer.name)) == writer.reservations


def reserved_ids(Held held not None, bytes writer_name not None) -> list:
    """The open reservations of a writer, as (ms, seq), in order."""
    cdef Writer writer = held.writers.by_name.get(writer_name)
    cdef void* at = NULL if writer is None else writer.oldest
    found = []
    while at != NULL:
        found.append(((<Slot>at).id.ms, (<Slot>at).id.seq))
        at = (<Slot>at).following
    return found


def held_entries(Held held not None) -> list:
    """The held entries as (ms, seq, [field, value, ...])."""
    cdef list found = []
    cdef Slot slot
    for slot in held.segments.items[held.segments.first:]:
        if type(slot) is Run:
            found += (<Run>slot).entries.range()
        elif slot.words is not None:
            found.append((slot.id.ms, slot.id.seq, list_of_words(slot.words)))
    return found


def compact_held(Held held not None) -> int:
    """Put held entries into runs now; returns the number of segments."""
    held.segments.compact()
    return len(held.segments.items)


# ---------------------------------------------------------------- groups

def check_group(Group group not None) -> None:
    """Raise AssertionError when order, counts, bounds or heaps are wrong."""
    cdef uint32_t i, j, up
    cdef int kind
    cdef Chunk* chunk
    cdef Pending* record
    cdef const EntryId* floors
    cdef Details details = group.pending.details()
    total = 0
    unowned = 0
    waiting = 0
    large = 0
    dead = set()
    before = None
    members = group.pending.consumers
    assert group.pending.consumer_count() == len(members)
    assert all(group.pending.consumer(name) is c for name, c in members.items())
    owned = {c.index: 0 for c in members.values()}
    uses = {}
    in_heaps = [0] * KINDS
    for i in range(group.pending.records.chunk_count):
        chunk = group.pending.records.chunks[i]
        assert 0 < chunk.used <= chunk.capacity <= CHUNK_MAX
        if group.pending.records.chunk_capacity > 1:
            floors = floors_of(group.pending.records)
            assert (floors[i].ms, floors[i].seq) <= (chunk.items[0].ms, chunk.items[0].seq)
            assert i == 0 or before < (floors[i].ms, floors[i].seq)
        for j in range(chunk.used):
            record = &chunk.items[j]
            assert before is None or before < (record.ms, record.seq)
            before = (record.ms, record.seq)
            assert chunk.bounds[RETRY] <= due_ms(group.pending.records, record, True)
            assert chunk.bounds[WAKE] <= due_ms(group.pending.records, record, False)
            assert chunk.bounds[EXPIRE] <= ends_ms(group.pending.records, record)
            assert chunk.bounds[IDLE] <= claimable_ms(group.pending.records, record)
            if is_dead(group.pending.records, record):
                dead.add((record.ms, record.seq))
            if record.deliveries == DELIVERIES_MAX:
                large += 1
            uses[record.retry_number] = uses.get(record.retry_number, 0) + 1
            if record.consumer == UNOWNED:
                unowned += 1
                waiting += record.waiting
            else:
                assert not record.waiting
                owned[record.consumer] += 1
        for kind in range(KINDS):
            assert (chunk.heap_at[kind] == ABSENT) == (chunk.bounds[kind] == NEVER)
            if chunk.heap_at[kind] != ABSENT:
                in_heaps[kind] += 1
                up = (chunk.heap_at[kind] - 1) // 2 if chunk.heap_at[kind] else 0
                assert heap_of(group.pending.records, kind)[chunk.heap_at[kind]] == chunk
                assert not is_before(chunk, heap_of(group.pending.records, kind)[up], kind)
        total += chunk.used
    # An old snapshot may have records with many deliveries but without their exact count.
    assert len(group.pending.large_counts() or ()) <= large
    assert total == group.pending.records.count and unowned == group.pending.records.unowned
    assert waiting == group.pending.records.waiting
    assert dead == set(dead_entries(group.pending))
    assert len(dead) == dead_count(group.pending)
    for c in members.values():
        assert c.pending == owned[c.index]
    for kind in range(KINDS):
        assert in_heaps[kind] == group.pending.records.heap_counts[kind]
    free_retry_times = set(() if details is None else details.free_retry_times or ())
    for i in range(1, 0 if details is None else details.retry_times_count):
        assert group.pending.records.retry_times[i].uses == uses.get(i, 0)
        assert group.pending.records.retry_times[i].known != (i in free_retry_times)


def acknowledge_id(Group group not None, uint64_t ms, uint64_t seq) -> bool:
    """Remove one entry from pending."""
    return group.pending.acknowledge(ms, seq)


def deliver_id(Group group not None, uint64_t ms, uint64_t seq, uint64_t now_ms,
               bytes consumer=b"", retry=None) -> None:
    """Note a first delivery; retry is (retry_ms, expire_ms) or None."""
    group.pending.deliver(ms, seq, now_ms, owner_of(group, consumer), retry_number_of(group, retry))


def deliver_ids(Group group not None, list ids, uint64_t now_ms, bytes consumer=b"",
                retry=None) -> None:
    """Like deliver_id, for many ascending IDs."""
    cdef uint32_t index = owner_of(group, consumer)
    cdef uint32_t retry_number = retry_number_of(group, retry)
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
            done += group.pending.deliver_some(&run[done], count - done, now_ms, index, retry_number)
    finally:
        free(run)


def redeliver_id(Group group not None, uint64_t ms, uint64_t seq, uint64_t now_ms,
                 retry=None) -> bool:
    """Note another delivery of a pending entry; a pair given replaces its own."""
    cdef PendingAt at
    cdef Pending* record = find_pending(group.pending.records, EntryId(ms, seq), &at)
    if record == NULL:
        return False
    group.pending.redeliver(record, &at, now_ms, retry_number_of(group, retry), retry is not None)
    return True


def hand_over_id(Group group not None, uint64_t ms, uint64_t seq, bytes consumer,
                 uint64_t delivery_ms, int64_t deliveries) -> bool:
    """Give a pending entry another owner (b"": none), time of delivery and count."""
    cdef PendingAt at
    if find_pending(group.pending.records, EntryId(ms, seq), &at) == NULL:
        return False
    group.pending.transfer(&at, owner_of(group, consumer), delivery_ms, deliveries, 0)
    return True


def take_again_id(Group group not None, uint64_t ms, uint64_t seq, bytes consumer, uint64_t now_ms,
                  retry) -> None:
    """Record another delivery of a pending entry to this consumer (b"": none)."""
    take_again(group.pending, EntryId(ms, seq), owner_of(group, consumer), now_ms,
               group.pending.retry_number(retry[0], retry[1]))


def held_ids(Group group not None, bytes consumer) -> list:
    """The IDs that a consumer (b"": a reader without a name) holds."""
    return ids_held_by(group.pending, owner_of(group, consumer))


def rounded_span(uint64_t span_ms) -> int:
    """A delay, as a retry pair has it."""
    return rounded_up(span_ms)


def key_entries(Group group not None) -> tuple[list, list]:
    """The IDs of the parked entries of a group, and of the pending ones with a key."""
    cdef KeyOrder keys = keys_of(group)
    return ([], []) if keys is None else (
        sorted(key_ids(keys, True)), sorted(key_ids(keys, False)))


cdef class Keys:
    """A KeyOrder with numbers as IDs and keys."""

    cdef KeyOrder keys

    def __init__(self, uint32_t run):
        self.keys = KeyOrder(7, run)

    def next_read(self) -> None:
        self.keys.next_read()

    def is_free(self, uint64_t key) -> bool:
        return self.keys.is_free(key)

    def next_parked(self) -> int | None:
        cdef EntryId found
        return found.ms if self.keys.next_parked(&found) else None

    def first_parked(self, uint64_t start) -> int | None:
        cdef EntryId found
        return found.ms if self.keys.first_parked(EntryId(start, 0), &found) else None

    def begin(self, uint64_t at, uint64_t key) -> None:
        self.keys.begin(EntryId(at, 0), key)

    def park(self, uint64_t at, uint64_t key) -> None:
        self.keys.park(EntryId(at, 0), key)

    def take_parked(self, uint64_t at) -> bool:
        return self.keys.take_parked(EntryId(at, 0))

    def park_again(self, uint64_t at) -> bool:
        return self.keys.park_again(EntryId(at, 0))

    def end(self, uint64_t at) -> bool:
        return self.keys.end(EntryId(at, 0))

    def forget(self, uint64_t at) -> bool:
        return self.keys.forget(EntryId(at, 0))

    def forget_parked(self) -> None:
        self.keys.forget_parked()

    def others(self, uint64_t at) -> list[int]:
        return [ms for ms, _ in self.keys.others(EntryId(at, 0))]

    def reload(self) -> None:
        """Replace the keys by those of their snapshot."""
        cdef KeyOrder made = KeyOrder(7, self.keys.run)
        load_keys(made, saved_keys(self.keys, False), False)
        load_keys(made, saved_keys(self.keys, True), True)
        self.keys = made

    def content(self) -> tuple[list, list]:
        """The sorted numbers of the pending and of the parked entries."""
        return (sorted([ms for ms, _ in key_ids(self.keys, False)]),
                sorted([ms for ms, _ in key_ids(self.keys, True)]))


def key_hash(bytes text not None, uint64_t seed) -> int:
    return KeyOrder(seed, 1).hash_of(text, len(text))


def due_ids(Group group not None, uint64_t now_ms, uint64_t limit, bint with_zero=True) -> list:
    """IDs due now, earliest due first, then by ID."""
    cdef DueIds found = group.pending.take_due(now_ms, limit, with_zero)
    return [(found.items[i].ms, found.items[i].seq) for i in range(found.count)]


def idle_ids(Group group not None, uint64_t now_ms, uint64_t min_idle_ms, uint64_t limit) -> list:
    """IDs that are idle for at least min_idle_ms, longest idle first, then by ID."""
    return group.pending.idle_ids(now_ms, min_idle_ms, limit)


def shared_pending(Group group not None):
    """The pending entries, whose chunks are shared until they change."""
    return group.pending.share_pending()


def next_event_ms(Group group not None) -> int | None:
    """The next moment of a timed retry, of an expiry, or of the end of the group."""
    cdef uint64_t moment = min(
        exact_min(group.pending.records, WAKE, NEVER), exact_min(group.pending.records, EXPIRE, NEVER))
    if group.rules is not None and group.rules.ttl_ms and not group.pending.blocked_clients:
        moment = min(moment, min(NEVER, <object>group.rules.last_used_ms + group.rules.ttl_ms))
    return None if moment == NEVER else moment


def consumer_at(Group group not None, uint32_t index):
    """The consumer with a number, None if there is none."""
    return group.pending.members()[index]


def pending_sizes() -> tuple[int, int]:
    """The sizes of what a group allocates for one pending entry."""
    return sizeof(Pendings), sizeof(Chunk)


def shared_chunks(Group group not None) -> int:
    """The number of chunks of pending entries that are shared."""
    cdef uint32_t i
    return sum(1 for i in range(group.pending.records.chunk_count) if group.pending.records.chunks[i].holders > 1)


cdef uint32_t owner_of(Group group, bytes consumer) except? 0:
    return group.pending.consumer(consumer).index if consumer else UNOWNED


cdef uint32_t retry_number_of(Group group, retry) except? 0:
    return group.pending.retry_number(retry[0], retry[1]) if retry else NO_RETRY


# ---------------------------------------------------------------- blocks

def find_rank(SkipList blocks not None, uint64_t rank):
    """The block that holds the entry of this rank and the entries before that block."""
    cdef uint64_t before
    cdef Place place = blocks.seek_rank(rank, &before)
    return None if place.page == NULL else (block_at(place), before)


def bulk_size_of(Py_ssize_t size) -> int:
    """The size of a RESP bulk string with this many bytes of content."""
    return bulk_size(size)


def verdicts(data) -> tuple[bool, str | None]:
    """The results of `fits` and `first_fault` for a disk form."""
    cdef const uint8_t[::1] raw = data
    cdef const Head* head = sound_head(&raw[0], raw.shape[0])
    cdef View view
    cdef uint32_t entry
    view_of(head, &view)
    cdef const char* fault = first_fault(&view, &entry)
    return fits(&view), None if fault == NULL else fault_text(fault, entry, view.count)


cdef class BlockWriter(OpenBlock):
    """An open block that Python can write to."""

    @staticmethod
    def reopen(Block block not None) -> BlockWriter | None:
        """An open block that continues this block, which is not modified; None when the block was
        not written by this implementation."""
        cdef View view
        cdef BlockWriter made = BlockWriter()
        view_of(block.head, &view)
        return made if made.resume(&view) else None

    def __len__(self) -> int:
        return self.live

    def append_entry(self, uint64_t ms, uint64_t seq, list words not None,
                     uint32_t node_entries=100, uint32_t node_bytes=4096) -> bool:
        """Append one entry given as bytes; False when the block is full."""
        cdef Slice[64] few
        cdef Py_ssize_t i
        cdef bytes word
        if len(words) > 64 or len(words) % 2 or not words:
            raise ValueError("1 to 32 fields with a value each")
        if self.count and not id_less(self.last_ms, self.last_seq, ms, seq):
            raise ValueError("ids must rise")
        for i in range(len(words)):
            word = words[i]
            few[i].ptr = word
            few[i].size = len(word)
        if not self.place(payload_of(few, len(words)), node_entries, node_bytes):
            return False
        self.append(ms, seq, few, len(words), payload_of(few, len(words)))
        return True

    def delete_entry(self, uint64_t ms, uint64_t seq) -> bool:
        """Mark one entry deleted."""
        return self.delete(ms, seq)

    def entries(self) -> list[tuple[int, int, list[bytes]]]:
        """Every undeleted entry as (ms, seq, [field, value, ...])."""
        cdef View view
        self.view(&view)
        return view_entries(&view)

    def check(self) -> None:
        """Check every length and offset; ValueError names the first invalid one."""
        cdef View view
        if self.count:
            self.view(&view)
            check_view(&view)


cdef int check_list(SkipList blocks) except -1:
    """Raise AssertionError when links, order, spans or totals are wrong."""
    cdef Page* page = blocks.head.levels[0].next
    cdef Page* before = NULL
    cdef uint64_t rank = 0
    cdef uint64_t count = 0
    cdef uint64_t nodes = 0
    cdef uint32_t i
    cdef Block block
    ranks = {}
    last_id = None
    while page != NULL:
        assert page.previous == before
        assert page.slots.first < page.slots.count <= page.slots.capacity <= PAGE_BLOCKS
        assert (page.ms, page.seq) <= (
            <Block>page.slots.items[page.slots.first].head.owner).first_id
        assert last_id is None or last_id < (page.ms, page.seq)
        ranks[<size_t>page] = rank
        for i in range(page.slots.first, page.slots.count):
            block = <Block>page.slots.items[i].head.owner
            assert (page.slots.items[i].ms, page.slots.items[i].seq) == block.first_id
            assert last_id is None or last_id < block.first_id
            assert rank_in(page.slots, i) == rank - ranks[<size_t>page]
            last_id = block.last_id
            rank += block.head.live
            count += 1
            nodes += block.head.node_count
        assert page.live == rank - ranks[<size_t>page]
        before = page
        page = page.levels[0].next
    assert rank == blocks.live
    if blocks.table.items != NULL:
        assert [<size_t>blocks.table.items[i].page
                for i in range(blocks.table.first, blocks.table.count)] == list(ranks)
        for i in range(blocks.table.first, blocks.table.count):
            assert blocks.table.items[i].ms == blocks.table.items[i].page.ms
    else:
        assert len(ranks) < 2
    assert blocks.parts or (count == blocks.blocks and nodes == blocks.block_nodes)
    assert blocks.last[0] == (blocks.head if before == NULL else before)
    for i in range(blocks.height):
        page = blocks.head
        while page.levels[i].next != NULL:
            here = 0 if page == blocks.head else ranks[<size_t>page]
            assert page.levels[i].span == ranks[<size_t>page.levels[i].next] - here
            assert page.levels[i].next_ms == page.levels[i].next.ms
            page = page.levels[i].next
        assert blocks.last[i] == page
        assert blocks.last_rank[i] == (0 if page == blocks.head else ranks[<size_t>page])
    return 0


cdef class BlockList(SkipList):
    """A list of sealed blocks whose blocks Python can find and change."""

    def shared(self) -> Blocks:
        """A view of the current blocks."""
        return self.share(None)

    def find(self, uint64_t ms, uint64_t seq) -> tuple[Block, int] | None:
        """The last block whose first ID is at most ms-seq, and the number of entries before it."""
        cdef uint64_t rank
        cdef Place place = self.seek(ms, seq, &rank)
        cdef Place same = self.seek(ms, seq, NULL)
        assert same.page == place.page and same.at == place.at
        return None if place.page == NULL else (block_at(place), rank)

    def cut(self, uint64_t ms, uint64_t seq) -> SkipList | None:
        """`cut_before` the last block whose first ID is at most ms-seq, if there is one."""
        cdef Place place = self.seek(ms, seq, NULL)
        return None if place.page == NULL else self.cut_before(place)

    def delete(self, uint64_t ms, uint64_t seq) -> bool:
        """Delete one entry: its block is replaced, or removed with its last entry."""
        cdef Place place = self.seek(ms, seq, NULL)
        cdef Block block
        if place.page == NULL:
            return False
        block = block_at(place).without(ms, seq)
        if block is None:
            return False
        if block.head.live:
            self.replace(place, block)
        else:
            self.remove(place)
        return True

    def check(self) -> None:
        """Raise AssertionError when links, order, spans or totals are wrong."""
        check_list(self)
