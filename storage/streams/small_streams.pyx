# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The compact form of small streams in a snapshot: many streams share a chunk and a section.

A snapshot of very many streams spends its time on what it does for each stream. A stream of at most
one block and few groups is therefore not a map of metadata in the index. Its block is written to a
chunk, and the rest to a row of a few numbers (docs/formats.md, small streams). The rows of a chunk
are one section of the index, so they are read without the chunk.

Rows are checked while they are read: no sequence of bytes leads out of the section or the chunk.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from millstream.encoding cimport Output
from millstream.entry_id cimport id_less
from millstream.storage.blocks.block cimport Block, read_block, sound_head
from millstream.storage.blocks.block_check cimport check_view
from millstream.storage.blocks.layout cimport (
    BLOCK_HEADER_BYTES, Head, View, form_size, view_live_before, view_of,
)
from millstream.storage.blocks.skiplist cimport SkipList, block_at
from millstream.storage.streams.group cimport (
    Consumer, Details, Group, Pending, Pendings, checked_policies,
)
from millstream.storage.streams.key_slots cimport SLOT_COUNT, Key, KeySlots
from millstream.storage.streams.keyspace_core cimport DatabaseCore, KeyspaceCore
from millstream.storage.streams.stream cimport Stream

from millstream.errors import BlockError

cdef enum:
    # What a stream may have to be small. It keeps the work for one row far below a millisecond.
    FORM_BYTES_MAX = 16384
    GROUPS_MAX = 4
    MEMBERS_MAX = 16
    RETRY_PAIRS_MAX = 8
    PENDING_MAX = 64
    NAME_BYTES_MAX = 4096
    OTHERS_MAX = 16
    NUMBER_BYTES_MAX = 10
    ROW_NUMBERS_MAX = 24
    # What a row has beyond the numbers that every row has.
    HAS_EXPIRY = 1
    IS_OPEN = 2
    HAS_FIRST_KEPT = 4
    HAS_EVICTED = 8
    HAS_DELETED = 16
    HAS_GROUPS = 32
    HAS_LAST_ID = 64  # it is not the last ID of the block
    HAS_BLOCK = 128

# No section of maps begins with this byte: msgpack does not use it.
MARK = 0xC1
cdef uint8_t MARK_BYTE = 0xC1


cdef struct Reader:
    const uint8_t* at
    const uint8_t* end


# A row, from its key to its groups, which follow at the reader's position.
cdef struct Row:
    uint64_t db
    const char* key
    Py_ssize_t key_size
    uint8_t flags
    uint64_t expires_ms
    uint64_t incarnation
    uint64_t entries_added
    uint64_t entries_evicted
    uint64_t entries_deleted
    uint64_t[2] first_kept
    uint64_t hidden
    uint64_t[2] max_evicted
    uint64_t[2] max_deleted
    uint64_t form_size
    uint64_t live
    uint64_t[2] first_id
    uint64_t[2] newest_id
    uint64_t[2] last_id
    uint64_t groups


# ---------------------------------------------------------------- writing

cdef inline char* put_number(char* at, uint64_t value) noexcept nogil:
    """Write a varint; return the position after it."""
    while value >= 128:
        at[0] = <char>(value | 128)
        at += 1
        value >>= 7
    at[0] = <char>value
    return at + 1


cdef inline char* put_signed(char* at, int64_t value) noexcept nogil:
    return put_number(at, (<uint64_t>value << 1) ^ <uint64_t>(value >> 63))


cdef inline char* put_text(char* at, bytes text) noexcept:
    at = put_number(at, PyBytes_GET_SIZE(text))
    memcpy(at, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return at + PyBytes_GET_SIZE(text)


cdef bint is_small_group(Group group):
    cdef Details details = group.details
    cdef Consumer member
    if (group.pending_count > PENDING_MAX or group.pendings.retry_times_count > RETRY_PAIRS_MAX
            or len(group.name) > NAME_BYTES_MAX):
        return False
    if details is not None and (
            len(details.consumers) > MEMBERS_MAX + 1 or details.large_counts):
        return False
    for member in group.members():
        if member is not None and len(member.name) > NAME_BYTES_MAX:
            return False
    return True


cdef bint is_small(bytes key, Stream stream, uint64_t* blocks, bint* tail):
    """Whether a stream has a compact form; how many blocks it has, and whether its last block is
    still open."""
    cdef Group group
    if (stream.restrictions or stream.held is not None or stream.lineage is not None
            or stream.policy is not None or stream.idempotence is not None
            or stream.producers is not None or len(key) > NAME_BYTES_MAX):
        return False
    tail[0] = stream.has_tail()
    blocks[0] = tail[0] + (0 if stream.sealed is None else stream.sealed.blocks)
    if blocks[0] > 1 or stream.group_count() > GROUPS_MAX:
        return False
    if stream.group_count() == 0:
        return True
    for group in stream.all_groups():
        if not is_small_group(group):
            return False
    return True


cdef Py_ssize_t put_group(Output rows, Group group) except -1:
    cdef list members = group.members()
    cdef Consumer member
    cdef Pendings* pendings = group.pendings
    cdef Py_ssize_t room = len(group.name) + NUMBER_BYTES_MAX * (10 + 2 * RETRY_PAIRS_MAX) + (
        group.pending_count * sizeof(Pending))
    cdef char* start
    cdef char* at
    cdef uint32_t i, k
    for member in members:
        room += NUMBER_BYTES_MAX * 3 + (0 if member is None else len(member.name))
    start = at = rows.reserve(room)
    at = put_text(at, group.name)
    at = put_number(put_number(at, group.offset_ms), group.offset_seq)
    at = put_number(put_number(at, group.gap_floor_ms), group.gap_floor_seq)
    at = put_number(put_signed(at, group.entries_read), group.ttl_ms)
    at = put_number(at, len(members) - 1)
    for i in range(1, <uint32_t>len(members)):
        member = members[i]
        if member is None:
            at = put_number(at, 0)
            continue
        at = put_number(at, len(member.name) + 1)
        memcpy(at, PyBytes_AS_STRING(member.name), len(member.name))
        at = put_signed(put_signed(at + len(member.name), member.seen_ms), member.active_ms)
    at = put_number(at, max(pendings.retry_times_count, <uint32_t>1) - 1)
    for i in range(1, pendings.retry_times_count):
        at = put_number(at, pendings.retry_times[i].known)
        if pendings.retry_times[i].known:
            at = put_number(put_number(at, pendings.retry_times[i].retry_ms),
                            pendings.retry_times[i].expire_ms)
    at = put_number(at, group.pending_count)
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
        for group in stream.all_groups():
            put_group(self.rows, group)
        if form != NULL:
            self.forms.size += size
            self.count += (<Head*>form).count
            self.entries += stream.length
        self.keys += 1
        return True

    def add_slots(self, KeySlots slots not None, uint32_t start, dict table not None,
                  dict expiries not None, uint32_t db, uint64_t mark, Py_ssize_t most,
                  list others not None) -> tuple[int, int]:
        """Add the small streams of the slots from `start` on that do not have this capture's mark,
        and give them the mark. `others` gets the keys with other values. Ends after about `most`
        keys, some others, or a full batch; returns the next slot and the number of keys read."""
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
                    if (<Stream>value).capture_mark == mark:
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
        if stream.group_count():
            flags |= HAS_GROUPS
            at = put_number(at, stream.group_count())
        flags_at[0] = <char>flags
        self.rows.size += at - start
        return 0

    def take(self) -> tuple[bytes, bytes]:
        """The rows, and the disk forms without their checksums."""
        return self.rows.take(), self.forms.take()

    def free_step(self, most) -> bool:
        """Free the batch after use: it is small, and `take` has emptied it."""
        return False


def section_head(chunk) -> bytes:
    """The beginning of a section of small streams whose blocks are in this chunk; None: no stream
    has one."""
    cdef char[NUMBER_BYTES_MAX + 1] head
    cdef uint64_t after = 0 if chunk is None else chunk + 1
    head[0] = <char>MARK_BYTE
    return PyBytes_FromStringAndSize(head, put_number(head + 1, after) - head)


# ---------------------------------------------------------------- reading

cdef uint64_t number(Reader* r) except? 0xffffffffffffffff:
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while r.at < r.end and shift < 64:
        byte = r.at[0]
        r.at += 1
        if shift == 63 and byte > 1:
            break
        value |= <uint64_t>(byte & 127) << shift
        if byte < 128:
            return value
        shift += 7
    raise ValueError("a number of a small stream does not end")


cdef int64_t signed_number(Reader* r) except? -1:
    cdef uint64_t value = number(r)
    return <int64_t>(value >> 1) ^ -<int64_t>(value & 1)


cdef const char* text(Reader* r, uint64_t size) except NULL:
    """`size` bytes at the reader's position."""
    cdef const char* at = <const char*>r.at
    if size > <uint64_t>(r.end - r.at):
        raise ValueError("a part of a small stream is longer than what is there")
    r.at += size
    return at


cdef bytes name_of(Reader* r, uint64_t size):
    return PyBytes_FromStringAndSize(text(r, size), size)


cdef int two_numbers(Reader* r, uint64_t* pair) except -1:
    pair[0] = number(r)
    pair[1] = number(r)
    return 0


cdef int read_row(Reader* r, Row* row) except -1:
    """Read a row up to its groups."""
    row.db = number(r)
    row.key_size = number(r)
    row.key = text(r, row.key_size)
    row.flags = <uint8_t>text(r, 1)[0]
    row.incarnation = number(r)
    row.entries_added = number(r)
    row.entries_evicted = number(r)
    row.entries_deleted = number(r)
    row.first_kept[0] = row.first_kept[1] = row.hidden = 0
    row.max_evicted[0] = row.max_evicted[1] = row.max_deleted[0] = row.max_deleted[1] = 0
    row.form_size = row.live = row.groups = 0
    row.newest_id[0] = row.newest_id[1] = 0
    row.expires_ms = number(r) if row.flags & HAS_EXPIRY else 0
    if row.flags & HAS_FIRST_KEPT:
        two_numbers(r, row.first_kept)
        row.hidden = number(r)
    if row.flags & HAS_EVICTED:
        two_numbers(r, row.max_evicted)
    if row.flags & HAS_DELETED:
        two_numbers(r, row.max_deleted)
    if row.flags & HAS_BLOCK:
        row.form_size = number(r)
        row.live = number(r)
        two_numbers(r, row.first_id)
        two_numbers(r, row.newest_id)
        row.newest_id[0] += row.first_id[0]
    row.last_id = row.newest_id
    if row.flags & HAS_LAST_ID:
        two_numbers(r, row.last_id)
    if row.flags & HAS_GROUPS:
        row.groups = number(r)
    if row.hidden > row.live:
        raise ValueError("a small stream hides more entries than it has")
    return 0


cdef class Section:
    """A section of small streams."""
    cdef bytes data
    cdef Reader r
    cdef uint64_t chunk_after  # the number of the chunk plus 1; 0: there is none
    cdef uint64_t offset  # where the next block begins in the chunk

    def __cinit__(self, bytes section not None):
        self.data = section
        self.r.at = <const uint8_t*>PyBytes_AS_STRING(section)
        self.r.end = self.r.at + PyBytes_GET_SIZE(section)
        if text(&self.r, 1)[0] != <char>MARK_BYTE:
            raise ValueError("a section of small streams begins with another byte")
        self.chunk_after = number(&self.r)

    cdef object chunk_number(self):
        return self.chunk_after - 1 if self.chunk_after else None


def is_small_section(bytes section not None) -> bool:
    """Whether an unpacked section has rows of small streams, not an array of maps."""
    return PyBytes_GET_SIZE(section) > 0 and <uint8_t>PyBytes_AS_STRING(section)[0] == MARK_BYTE


def chunk_of(bytes section not None) -> int | None:
    """The number of the chunk with the blocks of a section of small streams; None: no chunk."""
    cdef Section of = Section(section)
    return of.chunk_number()


def small_rows(bytes section not None) -> list:
    """A section of small streams as rows of KeyRecord's fields; ValueError when it is malformed."""
    cdef Section of = Section(section)
    cdef Row row
    cdef list found = []
    cdef list pieces
    while of.r.at < of.r.end:
        read_row(&of.r, &row)
        pieces = []
        if row.flags & HAS_BLOCK:
            if of.chunk_after == 0:
                raise ValueError("a small stream has a block, and its section has no chunk")
            pieces.append([of.chunk_after - 1, of.offset, row.form_size, 1, row.live, row.first_id[0],
                           row.first_id[1], row.newest_id[0], row.newest_id[1]])
            of.offset += row.form_size
        found.append([row.db, PyBytes_FromStringAndSize(row.key, row.key_size), "stream",
                      meta_of(&of.r, &row), None, pieces])
    return found


cdef dict meta_of(Reader* r, Row* row):
    """A row as the map of a stream."""
    cdef uint64_t _
    cdef dict meta = {
        "length": row.live - row.hidden,
        "last_id": [row.last_id[0], row.last_id[1]],
        "first_kept": [row.first_kept[0], row.first_kept[1]],
        "max_evicted": [row.max_evicted[0], row.max_evicted[1]],
        "max_deleted": [row.max_deleted[0], row.max_deleted[1]],
        "entries_added": row.entries_added,
        "entries_evicted": row.entries_evicted,
        "entries_deleted": row.entries_deleted,
        "incarnation": row.incarnation,
        "groups": [group_map(r) for _ in range(row.groups)],
        "producers": {},
        "open": row.flags & IS_OPEN != 0,
    }
    if row.flags & HAS_EXPIRY:
        meta["expires_ms"] = row.expires_ms
    return meta


cdef dict group_map(Reader* r):
    cdef uint64_t size
    cdef uint64_t _
    cdef dict made = {
        "name": name_of(r, number(r)),
        "offset": [number(r), number(r)],
        "gap_floor": [number(r), number(r)],
        "entries_read": signed_number(r),
        "ttl_ms": number(r),
    }
    cdef list consumers = [None]
    for _ in range(number(r)):
        size = number(r)
        consumers.append(
            [name_of(r, size - 1), signed_number(r), signed_number(r)] if size else None)
    made["consumers"] = consumers
    made["policies"] = retry_pairs(r)
    made["large_counts"] = []
    size = pending_size(r)
    made["pending"] = name_of(r, size)
    return made


cdef list retry_pairs(Reader* r):
    cdef uint64_t _
    cdef list pairs = [None]
    for _ in range(number(r)):
        pairs.append([number(r), number(r)] if number(r) else None)
    return pairs


cdef uint64_t pending_size(Reader* r) except? 0xffffffffffffffff:
    cdef uint64_t count = number(r)
    if count > <uint64_t>(r.end - r.at) // sizeof(Pending):
        raise ValueError("pending entries of a small stream are longer than what is there")
    return count * sizeof(Pending)


# ---------------------------------------------------------------- loading

cdef Group load_group(Reader* r, uint64_t now_ms):
    cdef bytes name = name_of(r, number(r))
    cdef Group group = Group(name, number(r), number(r), now_ms)
    cdef Consumer member
    cdef uint64_t size, i, count
    cdef list pairs
    group.gap_floor_ms = number(r)
    group.gap_floor_seq = number(r)
    group.entries_read = signed_number(r)
    group.ttl_ms = number(r)
    count = number(r)
    for i in range(count):
        size = number(r)
        if size == 0:
            group.skip_number()
            continue
        name = name_of(r, size - 1)
        if group.consumer(name) is not None:
            raise ValueError(f"group {group.name!r} has consumer {name!r} twice")
        member = Consumer(name, <uint32_t>(i + 1), signed_number(r), signed_number(r))
        group.add_member(member)
    if count:
        group.free_numbers()
    pairs = retry_pairs(r)
    if len(pairs) > 1:
        group.set_policies(checked_policies(pairs, group.name))
    size = pending_size(r)
    group.load_pending(text(r, size), size)
    return group


cdef class SmallLoader:
    """Puts the streams of a section into a keyspace, some at a time. `entries` is what a reader
    sees of those that were loaded, `key` the key that is being loaded."""

    cdef Section section
    cdef const uint8_t[::1] chunk
    cdef readonly uint64_t entries
    cdef readonly bytes key

    def __init__(self, bytes section not None, chunk not None):
        self.section = Section(section)
        self.chunk = chunk

    @property
    def chunk_number(self) -> int | None:
        """The number of the chunk with the blocks; None when no stream has one."""
        return self.section.chunk_number()

    def step(self, keyspace not None, Py_ssize_t most) -> int:
        """Load up to `most` streams; return their number, 0 at the end. ValueError when a row is
        malformed or does not fit its block, BlockError when a block is."""
        cdef Reader* r = &self.section.r
        cdef Row row
        cdef Stream stream
        cdef Group group
        cdef Py_ssize_t done = 0
        cdef uint64_t _
        cdef KeyspaceCore space = keyspace
        cdef DatabaseCore database
        cdef uint64_t now_ms = space.steady_ms
        cdef list databases = space.databases
        while done < most and r.at < r.end:
            read_row(r, &row)
            self.key = PyBytes_FromStringAndSize(row.key, row.key_size)
            if row.db >= <uint64_t>len(databases):
                raise ValueError(
                    f"it belongs to database {row.db}; there are {len(databases)}")
            stream = self.load_stream(&row)
            for _ in range(row.groups):
                stream.load_group(load_group(r, now_ms))
            database = databases[row.db]
            if not database.put_new(self.key, stream):
                (<object>database).put(self.key, stream)
            if row.flags & HAS_EXPIRY:
                (<object>database).note_expiry(self.key, row.expires_ms)
            for group in stream.all_groups() if row.groups else ():
                space.schedule(database.index, self.key, group)
            self.entries += stream.length
            done += 1
        if done == 0 and <Py_ssize_t>self.section.offset != self.chunk.shape[0]:
            raise ValueError("its section does not have all blocks of the chunk")
        return done

    cdef Stream load_stream(self, Row* row):
        cdef Stream stream = Stream(row.incarnation)
        stream.last_ms, stream.last_seq = row.last_id[0], row.last_id[1]
        stream.head_ms, stream.head_seq = row.first_kept[0], row.first_kept[1]
        stream.max_evicted_ms, stream.max_evicted_seq = row.max_evicted[0], row.max_evicted[1]
        stream.max_deleted_ms, stream.max_deleted_seq = row.max_deleted[0], row.max_deleted[1]
        stream.entries_added = row.entries_added
        stream.entries_evicted = row.entries_evicted
        stream.entries_deleted = row.entries_deleted
        if row.flags & HAS_BLOCK:
            self.load_block(stream, row)
        return stream

    cdef int load_block(self, Stream stream, Row* row) except -1:
        cdef Py_ssize_t at = self.section.offset
        cdef Py_ssize_t left = self.chunk.shape[0] - at
        cdef const Head* head
        cdef View view
        if left <= 0:
            raise ValueError("its block is beyond the end of the chunk")
        try:
            head = sound_head(&self.chunk[at], left)
            view_of(head, &view)
            check_view(&view)
        except ValueError as error:
            raise BlockError(at, str(error)) from None
        if (form_size(head) != row.form_size or head.live != row.live
                or head.first_ms != row.first_id[0] or head.first_seq != row.first_id[1]
                or head.last_ms != row.newest_id[0] or head.last_seq != row.newest_id[1]):
            raise ValueError("the index says otherwise of its block")
        if row.flags & HAS_FIRST_KEPT:
            stream.head_gone = view_live_before(&view, stream.head_ms, stream.head_seq)
        if stream.head_gone != row.hidden or head.live <= stream.head_gone:
            raise ValueError("its hidden entries do not fit its block")
        if id_less(stream.last_ms, stream.last_seq, head.last_ms, head.last_seq):
            raise ValueError("its last id is below its last entry")
        if not (row.flags & IS_OPEN and stream.resume_tail(&view)):
            stream.sealed = SkipList.__new__(SkipList)
            stream.sealed.push(read_block(head, form_size(head)))
        stream.length = head.live - stream.head_gone
        self.section.offset += row.form_size
        return 0
