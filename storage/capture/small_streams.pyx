# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The compact form of small streams in a snapshot: many streams share a chunk and a section.

A snapshot of very many streams spends its time on what it does for each stream. A stream of at most
one block and few groups is therefore not a map of metadata in the index. Its block is written to a
chunk, and the rest to a row of a few numbers (docs/formats.md, small streams). The rows of a chunk
are one section of the index, so they are read without the chunk (`small_rows`).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from millstream.encoding cimport Output
from millstream.storage.blocks.block cimport Block
from millstream.storage.blocks.layout cimport BLOCK_HEADER_BYTES, Head
from millstream.storage.blocks.skiplist_pages cimport block_at
from millstream.storage.capture.small_rows cimport (
    HAS_BLOCK, HAS_DELETED, HAS_EVICTED, HAS_EXPIRY, HAS_FIRST_KEPT, HAS_GROUPS, HAS_LAST_ID,
    IS_OPEN, NUMBER_BYTES_MAX, put_number,
)
from millstream.storage.groups.consumers cimport Consumer, Details
from millstream.storage.groups.group cimport Group, has_delivery_rules, ttl_ms_of
from millstream.storage.groups.pending cimport Pending, Pendings
from millstream.storage.keyspace.key_slots cimport SLOT_COUNT, Key, KeySlots
from millstream.storage.streams.head_eviction cimport counted_groups
from millstream.storage.streams.stream cimport Stream
from millstream.storage.streams.stream_groups cimport all_groups, group_count

cdef enum:
    # What a stream may have to be small. It keeps the work for one row far below a millisecond.
    FORM_BYTES_MAX = 16384
    GROUPS_MAX = 4
    MEMBERS_MAX = 16
    RETRY_PAIRS_MAX = 8
    PENDING_MAX = 64
    NAME_BYTES_MAX = 4096
    OTHERS_MAX = 16
    ROW_NUMBERS_MAX = 24


cdef inline char* put_signed(char* at, int64_t value) noexcept nogil:
    return put_number(at, (<uint64_t>value << 1) ^ <uint64_t>(value >> 63))


cdef inline char* put_text(char* at, bytes text) noexcept:
    at = put_number(at, PyBytes_GET_SIZE(text))
    memcpy(at, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return at + PyBytes_GET_SIZE(text)


cdef bint is_small_group(Group group):
    cdef Details details = group.pending.details()
    cdef Consumer member
    if (group.missed or group.pending.lost_pending() or has_delivery_rules(group) or group.pending.records.waiting
            or group.pending.records.count > PENDING_MAX
            or len(group.name) > NAME_BYTES_MAX):
        return False
    if details is not None and (
            len(details.consumers) > MEMBERS_MAX + 1 or details.large_counts
            or details.retry_times_count > RETRY_PAIRS_MAX):
        return False
    for member in group.pending.members():
        if member is not None and len(member.name) > NAME_BYTES_MAX:
            return False
    return True


cdef bint is_small(bytes key, Stream stream, uint64_t* blocks, bint* tail):
    """True if a stream has a compact form; also the number of its blocks, and whether the last is
    still open."""
    cdef Group group
    if (stream.restrictions or stream.held is not None or stream.lineage is not None
            or stream.schedule is not None
            or stream.policy is not None or stream.idempotence is not None
            or stream.producers is not None or len(key) > NAME_BYTES_MAX):
        return False
    tail[0] = stream.has_tail()
    blocks[0] = tail[0] + (0 if stream.sealed is None else stream.sealed.blocks)
    if blocks[0] > 1 or group_count(stream.group_set) > GROUPS_MAX:
        return False
    if stream.group_set is None:
        return True
    counted_groups(stream)
    for group in all_groups(stream.group_set):
        if not is_small_group(group):
            return False
    return True


cdef Py_ssize_t put_group(Output rows, Group group) except -1:
    cdef list members = group.pending.members()
    cdef Consumer member
    cdef Details details = group.pending.details()
    cdef uint32_t retry_times = 0 if details is None else details.retry_times_count
    cdef Pendings* pendings = group.pending.records
    cdef Py_ssize_t size_bytes = len(group.name) + NUMBER_BYTES_MAX * (10 + 2 * RETRY_PAIRS_MAX) + (
        group.pending.records.count * sizeof(Pending))
    cdef char* start
    cdef char* at
    cdef uint32_t i, k
    for member in members:
        size_bytes += NUMBER_BYTES_MAX * 3 + (0 if member is None else len(member.name))
    start = at = rows.reserve(size_bytes)
    at = put_text(at, group.name)
    at = put_number(put_number(at, group.offset_ms), group.offset_seq)
    at = put_number(put_number(at, group.gap_floor_ms), group.gap_floor_seq)
    at = put_number(put_signed(at, group.entries_read), ttl_ms_of(group))
    at = put_number(at, len(members) - 1)
    for i in range(1, <uint32_t>len(members)):
        member = members[i]
        if member is None:
            at = put_number(at, 0)
            continue
        at = put_number(at, len(member.name) + 1)
        memcpy(at, PyBytes_AS_STRING(member.name), len(member.name))
        at = put_signed(put_signed(at + len(member.name), member.seen_ms), member.active_ms)
    at = put_number(at, max(retry_times, <uint32_t>1) - 1)
    for i in range(1, retry_times):
        at = put_number(at, pendings.retry_times[i].known)
        if pendings.retry_times[i].known:
            at = put_number(put_number(at, pendings.retry_times[i].retry_ms),
                            pendings.retry_times[i].expire_ms)
    at = put_number(at, group.pending.records.count)
    for i in range(pendings.chunk_count):
        for k in range(pendings.chunks[i].used):
            memcpy(at, &pendings.chunks[i].items[k], sizeof(Pending))
            (<Pending*>at).gone = 0
            at += sizeof(Pending)
    rows.size += at - start
    return 0


cdef class SmallStreams:
    """A batch of small streams at one moment: their rows, and the disk forms of their blocks."""

    def __init__(self, Py_ssize_t full_bytes):
        """A batch that is full at about this size."""
        self.full_bytes = full_bytes
        self.rows = Output()
        self.forms = Output()

    @property
    def is_full(self) -> bool:
        return self.rows.size + self.forms.size >= self.full_bytes

    cpdef bint add(self, uint32_t db, bytes key, Stream stream, expires_ms) except -1:
        """Add a stream; False, with nothing done, when it has no compact form."""
        cdef uint64_t blocks
        cdef bint tail
        cdef Block sealed = None
        cdef Py_ssize_t size = 0
        cdef Group group
        cdef char* form = NULL
        if not is_small(key, stream, &blocks, &tail):
            return False
        if blocks:
            if not tail:
                sealed = block_at(stream.sealed.first())
            size = BLOCK_HEADER_BYTES + (
                stream.tail.data_size() if tail else sealed.data_size())
            if size > FORM_BYTES_MAX:
                return False
            form = self.forms.reserve(size)
            if tail:
                stream.tail.write_unsealed(form)
            else:
                sealed.write_unsealed(form)
        self.put_row(db, key, stream, expires_ms, <Head*>form, size, tail)
        for group in all_groups(stream.group_set):
            put_group(self.rows, group)
        if form != NULL:
            self.forms.size += size
            self.count += (<Head*>form).count
            self.entries += (<Head*>form).live
        self.keys += 1
        return True

    def add_slots(self, database not None, uint32_t start, uint64_t mark, Py_ssize_t most,
                  list others not None) -> tuple[int, int]:
        """Add the small streams of a database (`captured_keys.CapturedKeys`) in the slots from `start` on
        whose mark is below this capture's, and give them its mark. `others` gets the keys with
        other values. Ends after about `most` keys, some others, or a full batch; returns the next
        slot and the number of keys read."""
        cdef KeySlots slots = database.slots
        cdef dict table = database.table
        cdef dict expiries = database.expiries
        cdef uint32_t db = database.db
        cdef uint32_t slot = slots.next_used(start)
        cdef uint32_t count, i
        cdef Key* keys
        cdef Py_ssize_t looked_at = 0
        cdef bytes key
        cdef object value
        while slot < SLOT_COUNT and looked_at < most and len(others) < OTHERS_MAX and (
                self.rows.size + self.forms.size < self.full_bytes):
            keys = slots.keys_at(slot, &count)
            for i in range(count):
                key = <object>keys[i]
                value = table.get(key)
                if type(value) is Stream:
                    if (<Stream>value).capture_mark >= mark:
                        continue
                    if self.add(db, key, value, expiries.get(key) if expiries else None):
                        (<Stream>value).capture_mark = mark
                        continue
                if value is not None:
                    others.append(key)
            looked_at += count + 1
            slot = slots.next_used(slot + 1)
        return slot, looked_at

    cdef int put_row(self, uint32_t db, bytes key, Stream stream, expires_ms, const Head* form,
                     Py_ssize_t size, bint tail) except -1:
        cdef uint8_t flags = 0
        cdef char* start = self.rows.reserve(len(key) + NUMBER_BYTES_MAX * ROW_NUMBERS_MAX)
        cdef char* at = put_number(start, db)
        cdef char* flags_at
        at = put_text(at, key)
        flags_at = at
        at = put_number(at + 1, stream.incarnation)
        at = put_number(at, stream.entries_added)
        at = put_number(put_number(at, stream.entries_evicted), stream.entries_deleted)
        if expires_ms is not None:
            flags |= HAS_EXPIRY
            at = put_number(at, <uint64_t>expires_ms)
        if stream.head_ms or stream.head_seq:
            flags |= HAS_FIRST_KEPT
            at = put_number(put_number(at, stream.head_ms), stream.head_seq)
            at = put_number(at, stream.head_gone)
        if stream.max_evicted_ms or stream.max_evicted_seq:
            flags |= HAS_EVICTED
            at = put_number(put_number(at, stream.max_evicted_ms), stream.max_evicted_seq)
        if stream.max_deleted_ms or stream.max_deleted_seq:
            flags |= HAS_DELETED
            at = put_number(put_number(at, stream.max_deleted_ms), stream.max_deleted_seq)
        if form != NULL:
            flags |= HAS_BLOCK
            at = put_number(put_number(at, size), form.live)
            at = put_number(put_number(at, form.first_ms), form.first_seq)
            at = put_number(put_number(at, form.last_ms - form.first_ms), form.last_seq)
            if tail and not stream.tail.closed:
                flags |= IS_OPEN
        if form == NULL or stream.last_ms != form.last_ms or stream.last_seq != form.last_seq:
            flags |= HAS_LAST_ID
            at = put_number(put_number(at, stream.last_ms), stream.last_seq)
        if group_count(stream.group_set):
            flags |= HAS_GROUPS
            at = put_number(at, group_count(stream.group_set))
        flags_at[0] = <char>flags
        self.rows.size += at - start
        return 0

    def take(self) -> tuple[bytes, bytes]:
        """The rows, and the disk forms without their checksums."""
        return self.rows.take(), self.forms.take()

    def free_step(self, most) -> bool:
        """Free the batch after use: it is small, and `take` has emptied it."""
        return False
