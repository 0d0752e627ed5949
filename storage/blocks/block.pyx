# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The block: a packed run of entries that can be decoded alone. Streams, snapshots and replies
consist of blocks.

Entries are appended to an OpenBlock. When the OpenBlock is full, an exact copy, a Block, is kept
and never modified again (a deletion makes another copy). Therefore a snapshot or a long reply may
hold a Block while the server continues. docs/formats.md has the byte layout. It has three main
properties. Field names are stored once per block, in RESP form, so a reply copies them. An ID is
stored as the difference from the previous ID, mostly in no byte at all. Every 32nd entry can be
decoded without the entries before it, so seeks and backward reads need no back-length in each
entry.

The functions on View, Cursor and Entry are the only readers of the layout. They do not validate the
bytes: data from files goes through `Block.from_bytes` or `Block.unpack`, where `block_check` first
checks every length.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from millstream.encoding cimport Output, Slice, format_u64, write_bulk, write_head
from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.block_check cimport check_view, fault_text, first_fault, fits
from millstream.storage.blocks.layout cimport (
    BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, CHECKPOINT_EVERY, DELETED, FORM_ANCHOR, FORM_LATER_MS,
    FORM_NEXT_MS, FORM_NEXT_SEQ, REF_LITERAL, SETS_MAX, Cursor, Entry, Head, IdText, View,
    bulk_size, read_varint,
)

from millstream.errors import BlockError, CommandError
from millstream.storage.blocks.checksum import crc32

cdef enum:
    FORMAT_VERSION = 1
    # A block is sealed after this many nodes (the unit of approximate trimming) or entries.
    NODES_MAX = 4
    BLOCK_ENTRIES_MAX = 4096
    # Readable bytes after the entries, because short copies may read past the end.
    SLACK = 32
    PAYLOAD_MAX = 0x7fffffff
    NOT_MEASURED = 0xffffffff
    GROWN_BY_HALF = 4096


cdef uint64_t payload_of(Slice* items, Py_ssize_t count) except? 0:
    """The total size of these names and values."""
    cdef uint64_t payload = 0
    cdef Py_ssize_t i
    for i in range(count):
        payload += <uint64_t>items[i].size
    if payload + 64 * <uint64_t>count > PAYLOAD_MAX:
        raise CommandError(
            f"ERR an entry of {payload} bytes is larger than an entry can be ({PAYLOAD_MAX} bytes)")
    return payload


# ---------------------------------------------------------------- bytes in Redis

cdef inline uint32_t listpack_int(int64_t number) noexcept nogil:
    """The size of a number in a Redis listpack."""
    if 0 <= number <= 127:
        return 2
    if -4096 <= number <= 4095:
        return 3
    if -32768 <= number <= 32767:
        return 4
    if -8388608 <= number <= 8388607:
        return 5
    return 6 if -2147483648 <= number <= 2147483647 else 10


cdef inline uint64_t listpack_text(uint64_t size) noexcept nogil:
    """The size in a Redis listpack of a text of `size` bytes, with the lengths before and after
    it."""
    return size + 2 + (size >= 64) + (size >= 126) + 3 * (size >= 4096)


cdef uint64_t listpack_names(Slice* items, Py_ssize_t count) noexcept nogil:
    cdef uint64_t names = 0
    cdef Py_ssize_t i
    for i in range(0, count, 2):
        names += listpack_text(<uint64_t>items[i].size)
    return names


# ---------------------------------------------------------------- bytes

cdef inline uint8_t* write_varint(uint8_t* at, uint64_t value) noexcept nogil:
    while value >= 128:
        at[0] = <uint8_t>((value & 127) | 128)
        at += 1
        value >>= 7
    at[0] = <uint8_t>value
    return at + 1


cdef inline void copy_short(char* to, const uint8_t* source, uint64_t size) noexcept nogil:
    """memcpy from a block to a reserved reply. Short texts are copied in whole vectors, which reads
    and writes up to SLACK bytes past their end."""
    if size <= 16:
        memcpy(to, source, 16)
    elif size <= 32:
        memcpy(to, source, 32)
    else:
        memcpy(to, source, size)


# ---------------------------------------------------------------- reading

cdef inline const uint8_t* read_entry(const View* view, const uint8_t* at,
                                      Entry* entry) noexcept nogil:
    """Decode the head of the entry at `at`; `entry` holds the previous ID. Return its values."""
    cdef uint8_t head = at[0]
    cdef uint32_t ref = head & 31
    cdef uint32_t form = (head >> 5) & 3
    cdef uint64_t number
    cdef const uint8_t* definition
    at += 1
    entry.deleted = head >> 7
    if form == FORM_NEXT_SEQ:
        entry.seq += 1
    elif form == FORM_NEXT_MS:
        entry.ms += 1
        entry.seq = 0
    elif form == FORM_LATER_MS:
        at = read_varint(at, &number)
        entry.ms += number
        entry.seq = 0
    else:
        at = read_varint(at, &number)
        entry.ms = view.first_ms + number
        at = read_varint(at, &entry.seq)
    definition = at if ref == REF_LITERAL else view.entries + view.sets[ref]
    entry.names = read_varint(definition, &number)
    entry.fields = <uint32_t>number
    entry.names = read_varint(entry.names, &number)
    entry.names_size = <uint32_t>number
    entry.values = entry.names + number if definition == at else at
    return entry.values


cdef inline const uint8_t* skip_values(const uint8_t* at, uint32_t fields) noexcept nogil:
    cdef uint64_t size
    cdef uint32_t _
    for _ in range(fields):
        at = read_varint(at, &size)
        at += size
    return at


cdef const uint8_t* entry_head(const View* view, const uint8_t* at, Entry* entry) noexcept nogil:
    """`read_entry` for other modules. They iterate over the values, and the next entry begins at
    the end of the values."""
    return read_entry(view, at, entry)


cdef void cursor_start(Cursor* cursor, const View* view) noexcept nogil:
    cursor.at = view.entries
    cursor.index = 0
    cursor.entry.ms = view.first_ms
    cursor.entry.seq = view.first_seq - 1


cdef inline void cursor_checkpoint(Cursor* cursor, const View* view,
                                   uint32_t checkpoint) noexcept nogil:
    """Move before entry 32 x checkpoint. These entries, except the first, contain their whole
    ID."""
    if checkpoint == 0:
        cursor_start(cursor, view)
    else:
        cursor.at = view.entries + view.checkpoints[checkpoint - 1]
        cursor.index = checkpoint * CHECKPOINT_EVERY


cdef bint cursor_next(Cursor* cursor, const View* view) noexcept nogil:
    """Move to the next entry, deleted or not; False at the end."""
    if cursor.index >= view.count:
        return False
    read_entry(view, cursor.at, &cursor.entry)
    cursor.at = skip_values(cursor.entry.values, cursor.entry.fields)
    cursor.index += 1
    return True


cdef inline uint32_t checkpoint_count(uint32_t count) noexcept nogil:
    return 0 if count == 0 else (count - 1) // CHECKPOINT_EVERY


cdef void checkpoint_id(const View* view, uint32_t checkpoint, Entry* entry) noexcept nogil:
    cdef uint64_t number
    cdef const uint8_t* at = view.entries + view.checkpoints[checkpoint - 1] + 1
    at = read_varint(at, &number)
    entry.ms = view.first_ms + number
    read_varint(at, &entry.seq)


cdef inline uint32_t likely_checkpoint(const View* view, uint64_t ms,
                                       uint32_t most) noexcept nogil:
    """The checkpoint (1 to most) before which an ID is likely, by interpolation over the block's
    time. Each probe of a large stream is a cache miss; for IDs made by a clock this checkpoint and
    its neighbour are usually enough."""
    cdef double part
    cdef uint32_t guess
    if view.last_ms <= view.first_ms:
        return (most + 1) // 2
    part = <double>(ms - view.first_ms) / (<double>(view.last_ms - view.first_ms) + 1.0)
    if part >= 1.0:
        return most
    guess = <uint32_t>(part * view.count) // CHECKPOINT_EVERY
    return 1 if guess < 1 else (most if guess > most else guess)


cdef void cursor_seek(Cursor* cursor, const View* view, uint64_t ms, uint64_t seq) noexcept nogil:
    """Move so that the next entry is the first one with an ID of at least ms-seq."""
    cdef uint32_t low = 0
    cdef uint32_t high
    cdef uint32_t middle
    cdef uint32_t tries = 0
    cdef Entry probe
    cdef Entry entry
    cdef const uint8_t* values
    if not id_less(view.first_ms, view.first_seq, ms, seq):
        cursor_start(cursor, view)
        return
    high = checkpoint_count(view.count)
    middle = likely_checkpoint(view, ms, high)
    while low < high:
        checkpoint_id(view, middle, &probe)
        if id_less(ms, seq, probe.ms, probe.seq):
            high = middle - 1
            tries += 1
            middle = high if tries < 2 else (low + high + 1) // 2
        else:
            low = middle
            tries += 1
            middle = low + 1 if tries < 2 else (low + high + 1) // 2
    cursor_checkpoint(cursor, view, low)
    entry.ms = cursor.entry.ms
    entry.seq = cursor.entry.seq
    while cursor.index < view.count:
        values = read_entry(view, cursor.at, &entry)
        if not id_less(entry.ms, entry.seq, ms, seq):
            return
        cursor.at = skip_values(values, entry.fields)
        cursor.index += 1
        cursor.entry.ms = entry.ms
        cursor.entry.seq = entry.seq


cdef void cursor_to_index(Cursor* cursor, const View* view, uint32_t index) noexcept nogil:
    """Move before the entry with this index (deleted entries counted)."""
    cursor_checkpoint(cursor, view, index // CHECKPOINT_EVERY)
    while cursor.index < index:
        cursor_next(cursor, view)


cdef bint view_find(const View* view, uint64_t ms, uint64_t seq, Entry* out) noexcept nogil:
    """Find the undeleted entry with exactly this ID; False when there is none."""
    cdef Cursor cursor
    cursor_seek(&cursor, view, ms, seq)
    if not cursor_next(&cursor, view):
        return False
    out[0] = cursor.entry
    return out.ms == ms and out.seq == seq and not out.deleted


cdef uint32_t view_live_before(const View* view, uint64_t ms, uint64_t seq) noexcept nogil:
    """The number of undeleted entries with an ID below ms-seq."""
    cdef Cursor cursor
    cdef uint32_t live = 0
    cdef uint32_t end
    cursor_seek(&cursor, view, ms, seq)
    if view.live == view.count:
        return cursor.index
    end = cursor.index
    cursor_start(&cursor, view)
    while cursor.index < end:
        cursor_next(&cursor, view)
        if not cursor.entry.deleted:
            live += 1
    return live


cdef bint view_last_live_before(const View* view, uint64_t ms, uint64_t seq,
                                Entry* out) noexcept nogil:
    """Find the last undeleted entry with an ID below ms-seq."""
    cdef Cursor cursor
    cdef bint found = False
    if view.live == view.count:
        cursor_seek(&cursor, view, ms, seq)
        if cursor.index == 0:
            return False
        cursor_to_index(&cursor, view, cursor.index - 1)
    else:
        cursor_start(&cursor, view)
    while cursor_next(&cursor, view) and id_less(cursor.entry.ms, cursor.entry.seq, ms, seq):
        if not cursor.entry.deleted:
            out[0] = cursor.entry
            found = True
    return found


cdef bint view_nth_live(const View* view, uint64_t ms, uint64_t seq, uint64_t nth,
                        Entry* out) noexcept nogil:
    """Find the nth (from 0) undeleted entry among those with an ID of at least ms-seq."""
    cdef Cursor cursor
    cursor_seek(&cursor, view, ms, seq)
    if view.live == view.count:
        if cursor.index + nth >= view.count:
            return False
        cursor_to_index(&cursor, view, <uint32_t>(cursor.index + nth))
        nth = 0
    while cursor_next(&cursor, view):
        if cursor.entry.deleted:
            continue
        if nth == 0:
            out[0] = cursor.entry
            return True
        nth -= 1
    return False


# ---------------------------------------------------------------- encoding

cdef inline Py_ssize_t write_id(char* at, uint64_t ms, uint64_t seq,
                                IdText* id_text) noexcept nogil:
    """Write an ID as a bulk string. Consecutive entries often have the same milliseconds, so the
    text of these is cached."""
    cdef char seq_text[20]
    cdef int seq_size
    cdef Py_ssize_t head
    if id_text.ms != ms or id_text.size == 0:
        if id_text.size and ms == id_text.ms + 1 and id_text.text[id_text.size - 1] != c'9':
            id_text.text[id_text.size - 1] += 1
        else:
            id_text.size = format_u64(id_text.text, ms)
        id_text.ms = ms
    if seq < 10:
        seq_text[0] = <char>(48 + seq)
        seq_size = 1
    else:
        seq_size = format_u64(seq_text, seq)
    head = write_head(at, c'$', <uint64_t>(id_text.size + 1 + seq_size))
    at += head
    memcpy(at, id_text.text, 20)
    at += id_text.size
    at[0] = c'.' if id_text.dotted else c'-'
    memcpy(at + 1, seq_text, seq_size)
    at += 1 + seq_size
    at[0] = c'\r'
    at[1] = c'\n'
    return head + id_text.size + 1 + seq_size + 2


cdef inline char* write_fields(char* to, const Entry* entry, const uint8_t** end) noexcept nogil:
    """Write names and values as bulk strings; `end` becomes the position after the values."""
    cdef const uint8_t* name = entry.names
    cdef const uint8_t* value = entry.values
    cdef uint64_t size
    cdef uint32_t _
    for _ in range(entry.fields):
        name = read_varint(name, &size)
        copy_short(to, name, size)
        name += size
        to += size
        value = read_varint(value, &size)
        to += write_head(to, c'$', size)
        copy_short(to, value, size)
        value += size
        to += size
        to[0] = c'\r'
        to[1] = c'\n'
        to += 2
    end[0] = value
    return to


cdef inline const uint8_t* put_entry(Output out, const View* view, const Entry* entry,
                                     IdText* id_text) except NULL:
    """Encode one entry in the dialect of id_text; return the position after its values."""
    cdef const uint8_t* end
    # The values cannot exceed the rest of the block. A value's length and line ends take at most 14
    # bytes.
    cdef Py_ssize_t bound = (view.entries + view.size - entry.values) + entry.names_size
    cdef char* start = out.reserve(bound + 16 * <Py_ssize_t>entry.fields + 160)
    cdef char* to = start
    if id_text.dotted:
        to += write_head(to, c'*', 1 + 2 * <uint64_t>entry.fields)
        to += write_id(to, entry.ms, entry.seq, id_text)
    else:
        memcpy(to, <const char*>b"*2\r\n", 4)
        to += 4
        to += write_id(to, entry.ms, entry.seq, id_text)
        to += write_head(to, c'*', 2 * <uint64_t>entry.fields)
    to = write_fields(to, entry, &end)
    out.size += to - start
    return end


cdef int encode_entry(Output out, const View* view, const Entry* entry, IdText* id_text) except -1:
    """Encode one entry as a reply element: flat for T commands, nested for X commands."""
    put_entry(out, view, entry, id_text)
    return 0


cdef int64_t encode_forward(Output out, const View* view, uint64_t ms, uint64_t seq,
                            uint64_t end_ms, uint64_t end_seq, uint64_t limit,
                            Py_ssize_t full_size, IdText* id_text, EntryId* last) except -1:
    """Encode up to `limit` entries with start <= ID <= end, oldest first, until `out` reaches
    full_size. Return their number; `last` becomes the ID of the last one."""
    cdef Cursor cursor
    cdef const uint8_t* at
    cdef uint64_t done = 0
    cdef uint32_t index
    cursor_seek(&cursor, view, ms, seq)
    at = cursor.at
    index = cursor.index
    while done < limit and index < view.count and out.size < full_size:
        read_entry(view, at, &cursor.entry)
        if id_less(end_ms, end_seq, cursor.entry.ms, cursor.entry.seq):
            break
        index += 1
        if cursor.entry.deleted:
            at = skip_values(cursor.entry.values, cursor.entry.fields)
            continue
        at = put_entry(out, view, &cursor.entry, id_text)
        last.ms = cursor.entry.ms
        last.seq = cursor.entry.seq
        done += 1
    return <int64_t>done


cdef inline uint32_t count_up_to(const View* view, uint64_t ms, uint64_t seq) noexcept nogil:
    """The number of entries, deleted ones included, with an ID of at most ms-seq."""
    cdef Cursor cursor
    if not id_less(ms, seq, view.last_ms, view.last_seq):
        return view.count  # what a reader of the last entries asks for
    cursor_seek(&cursor, view, ms, seq)
    if cursor_next(&cursor, view) and (cursor.entry.ms != ms or cursor.entry.seq != seq):
        return cursor.index - 1
    return cursor.index


cdef int64_t encode_backward(Output out, const View* view, uint64_t ms, uint64_t seq,
                             uint64_t end_ms, uint64_t end_seq, uint64_t limit,
                             Py_ssize_t full_size, IdText* id_text, EntryId* last) except -1:
    """Like encode_forward, newest first: decode 32 entries forward, then write them backward."""
    cdef Cursor cursor
    cdef Entry[CHECKPOINT_EVERY] group
    cdef uint64_t done = 0
    cdef uint32_t past
    cdef int held
    past = count_up_to(view, end_ms, end_seq)
    while past > 0 and done < limit and out.size < full_size:
        cursor_checkpoint(&cursor, view, (past - 1) // CHECKPOINT_EVERY)
        held = 0
        while cursor.index < past:
            cursor_next(&cursor, view)
            group[held] = cursor.entry
            held += 1
        past -= held
        while held > 0 and done < limit and out.size < full_size:
            held -= 1
            if id_less(group[held].ms, group[held].seq, ms, seq):
                return <int64_t>done
            if not group[held].deleted:
                put_entry(out, view, &group[held], id_text)
                last.ms = group[held].ms
                last.seq = group[held].seq
                done += 1
    return <int64_t>done


cdef inline const uint8_t* next_word(const uint8_t* at, Slice* word) noexcept nogil:
    """Set `word` to a word of a block; returns what follows it."""
    cdef uint64_t size
    at = read_varint(at, &size)
    word.ptr = <const char*>at
    word.size = size
    return at + size


cdef inline const uint8_t* next_name(const uint8_t* at, Slice* name) noexcept nogil:
    """As `next_word`, for a field's name, which a block has as a bulk string: without its frame."""
    cdef Py_ssize_t head = 1
    at = next_word(at, name)
    while name.ptr[head] != c'\n':
        head += 1
    name.ptr += head + 1
    name.size -= head + 3
    return at


cdef list entry_words(const Entry* entry):
    """The entry's field, value, field, value ... as bytes."""
    cdef const uint8_t* names = entry.names
    cdef const uint8_t* values = entry.values
    cdef Slice word
    cdef uint32_t _
    cdef list words = []
    for _ in range(entry.fields):
        names = next_name(names, &word)
        words.append(word.ptr[:word.size])
        values = next_word(values, &word)
        words.append(word.ptr[:word.size])
    return words


cdef void entry_slices(const Entry* entry, Slice* items) noexcept nogil:
    """The words of `entry_words` in place; `items` has space for two for each field."""
    cdef const uint8_t* names = entry.names
    cdef const uint8_t* values = entry.values
    cdef uint32_t i
    for i in range(entry.fields):
        names = next_name(names, &items[2 * i])
        values = next_word(values, &items[2 * i + 1])


cdef uint64_t listpack_names_of(const Entry* entry) noexcept nogil:
    """`listpack_names` of an entry in a block."""
    cdef const uint8_t* at = entry.names
    cdef uint64_t names = 0
    cdef Slice name
    cdef uint32_t _
    for _ in range(entry.fields):
        at = next_name(at, &name)
        names += listpack_text(<uint64_t>name.size)
    return names


cdef list view_entries(const View* view):
    """Every undeleted entry as (ms, seq, words); for tests and tools, not for the hot path."""
    cdef Cursor cursor
    cdef list entries = []
    cursor_start(&cursor, view)
    while cursor_next(&cursor, view):
        if not cursor.entry.deleted:
            entries.append((cursor.entry.ms, cursor.entry.seq, entry_words(&cursor.entry)))
    return entries


cdef list view_nodes(const View* view):
    """The entries of `view_entries`, grouped by node."""
    cdef Cursor cursor
    cdef uint32_t node, end
    cdef list entries
    cdef list nodes = []
    cursor_start(&cursor, view)
    for node in range(view.node_count):
        end = view.nodes[node] if node + 1 < view.node_count else view.count
        entries = []
        while cursor.index < end and cursor_next(&cursor, view):
            if not cursor.entry.deleted:
                entries.append((cursor.entry.ms, cursor.entry.seq, entry_words(&cursor.entry)))
        nodes.append(entries)
    return nodes


# ---------------------------------------------------------------- sealed

cdef inline uint64_t table_size(uint32_t count, uint32_t sets, uint32_t nodes) noexcept nogil:
    return 4 * (<uint64_t>checkpoint_count(count) + sets + (nodes - 1 if nodes else 0))


cdef uint64_t form_size(const Head* head) noexcept nogil:
    """The size of the disk form that begins with this header."""
    return table_size(head.count, head.set_count, head.node_count) + (
        BLOCK_HEADER_BYTES + <uint64_t>head.size)


cdef uint64_t view_disk_size(const View* view) noexcept nogil:
    """The size of the disk form."""
    return BLOCK_HEADER_BYTES + <uint64_t>view.size + table_size(
        view.count, view.set_count, view.node_count)


cdef void view_of(const Head* head, View* out) noexcept nogil:
    """Set `out` to the layout of the block that follows this header."""
    cdef const uint32_t* tables = <const uint32_t*>(head + 1)
    out.count = head.count
    out.live = head.live
    out.size = head.size
    out.set_count = head.set_count
    out.node_count = head.node_count
    out.first_ms = head.first_ms
    out.first_seq = head.first_seq
    out.last_ms = head.last_ms
    out.last_seq = head.last_seq
    out.checkpoints = tables
    out.sets = tables + checkpoint_count(head.count)
    out.nodes = out.sets + head.set_count
    out.entries = <const uint8_t*>tables + table_size(
        head.count, head.set_count, head.node_count)


cdef const char* form_fault(const Head* head, Py_ssize_t size) noexcept nogil:
    """The fault in the header of a disk form of which `size` bytes are present, or NULL. The
    checksum and the entries are not checked."""
    if size < BLOCK_HEADER_BYTES:
        return b"it is shorter than its header"
    if head.magic[0] != c'M' or head.magic[1] != c'B':
        return b"its first bytes are not 'MB'"
    if head.version != FORMAT_VERSION:
        return b"its format is not known to this version"
    if head.count == 0:
        return b"it has no entries"
    if form_size(head) > <uint64_t>size:
        return b"it is longer than what is there"
    return NULL


cdef Head* new_head(Block owner, uint64_t data_size) except NULL:
    """Allocate a block with data_size bytes after its header; bytes beyond that read as zeros."""
    cdef uint64_t size = BLOCK_HEADER_BYTES + data_size
    cdef Head* head = <Head*>malloc(size + SLACK)
    if head == NULL:
        raise MemoryError(f"no memory for a block of {size} bytes")
    memset(<char*>head + size, 0, SLACK)
    head.owner = <PyObject*>owner
    owner.head = head
    return head


cdef class Block:
    """A sealed block: its disk form (header, tables, entries) in contiguous memory."""

    def __init__(self) -> None:
        raise TypeError("a block comes from OpenBlock.freeze, Block.from_bytes or Block.unpack")

    def __dealloc__(self):
        free(self.head)

    @property
    def count(self) -> int:
        """The number of entries, including deleted ones."""
        return self.head.count

    @property
    def live(self) -> int:
        """The number of undeleted entries."""
        return self.head.live

    cdef Py_ssize_t data_size(self) noexcept:
        """The size of tables and entries."""
        return form_size(self.head) - BLOCK_HEADER_BYTES

    cdef Block without(self, uint64_t ms, uint64_t seq):
        """A copy in which this entry is deleted; None when no undeleted entry has this ID."""
        cdef View view
        cdef Cursor cursor
        cdef const uint8_t* at
        cdef Block copy
        view_of(self.head, &view)
        cursor_seek(&cursor, &view, ms, seq)
        at = cursor.at
        if not cursor_next(&cursor, &view) or cursor.entry.deleted:
            return None
        if cursor.entry.ms != ms or cursor.entry.seq != seq:
            return None
        copy = self.copy()
        copy.mark(at - <const uint8_t*>self.head)
        return copy

    cdef Block without_all(self, list ids):
        """A copy in which the undeleted entries with these IDs (ms, seq), sorted, are deleted."""
        cdef View view
        cdef Cursor cursor
        cdef const uint8_t* at
        cdef Py_ssize_t done = 0
        cdef Block copy = self.copy()
        view_of(self.head, &view)
        cursor_start(&cursor, &view)
        while done < len(ids):
            at = cursor.at
            if not cursor_next(&cursor, &view):
                break
            if not cursor.entry.deleted and (cursor.entry.ms, cursor.entry.seq) == ids[done]:
                copy.mark(at - <const uint8_t*>self.head)
                done += 1
        return copy

    cdef inline void mark(self, Py_ssize_t at) noexcept:
        """Delete the entry whose head is at this byte. Only for a copy that is not shared yet."""
        (<uint8_t*>self.head)[at] |= DELETED
        self.head.live -= 1

    cdef Block copy(self):
        cdef Block made = Block.__new__(Block)
        memcpy(new_head(made, self.data_size()), self.head, form_size(self.head))
        made.head.owner = <PyObject*>made
        return made

    @property
    def first_id(self) -> tuple[int, int]:
        """The ID of the first entry written, deleted or not."""
        return self.head.first_ms, self.head.first_seq

    @property
    def last_id(self) -> tuple[int, int]:
        """The ID of the last entry written, deleted or not."""
        return self.head.last_ms, self.head.last_seq

    @property
    def size_bytes(self) -> int:
        """The size of the disk form."""
        return form_size(self.head)

    def to_bytes(self) -> bytes:
        """The disk form (docs/formats.md): header with CRC-32, tables, entries."""
        cdef bytes whole = PyBytes_FromStringAndSize(NULL, form_size(self.head))
        self.write(PyBytes_AS_STRING(whole))
        return whole

    cdef int write(self, char* at) except -1:
        """Write the disk form to `at`, which must have enough space."""
        cdef Py_ssize_t size = self.write_unsealed(at)
        (<Head*>at).crc32 = crc32(PyMemoryView_FromMemory(at, size, PyBUF_READ))
        return 0

    cdef Py_ssize_t write_unsealed(self, char* at) noexcept:
        """Write the disk form without its checksum, which stays 0; return its size."""
        cdef Py_ssize_t size = form_size(self.head)
        memcpy(at, self.head, size)
        (<Head*>at).owner = NULL
        (<Head*>at).crc32 = 0
        return size

    @staticmethod
    def pack(blocks, Py_ssize_t bytes_max, Py_ssize_t entries_max):
        """The concatenated disk forms of these blocks: at least the first block, and up to the
        block that reaches bytes_max bytes or entries_max entries. Returns (bytes, blocks, entries,
        undeleted entries)."""
        cdef Py_ssize_t taken = 0
        cdef Py_ssize_t size = 0
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t live = 0
        cdef Block block
        cdef bytes whole
        cdef char* at
        while taken < len(blocks) and (taken == 0 or (size < bytes_max and count < entries_max)):
            block = blocks[taken]
            size += form_size(block.head)
            count += block.head.count
            live += block.head.live
            taken += 1
        whole = PyBytes_FromStringAndSize(NULL, size)
        at = PyBytes_AS_STRING(whole)
        for block in blocks[:taken]:
            block.write(at)
            at += form_size(block.head)
        return whole, taken, count, live

    @staticmethod
    def from_bytes(data) -> Block:
        """Read a disk form that fills `data`; ValueError names the fault."""
        cdef const uint8_t[::1] raw = data
        cdef const Head* head = sound_head(&raw[0], raw.shape[0])
        cdef Py_ssize_t size = form_size(head)
        whole = memoryview(data)
        if size != raw.shape[0]:
            raise ValueError(f"a block of {size} bytes does not fill {raw.shape[0]}")
        if crc32(whole[8:], crc32(bytes(4), crc32(whole[:4]))) != head.crc32:
            raise ValueError("block checksum does not match")
        return read_block(head, size)

    @staticmethod
    def unpack(data, Py_ssize_t at, Py_ssize_t count):
        """Read `count` contiguous disk forms in `data` from byte `at` on: (blocks, the byte after
        them). BlockError at the first invalid one. The checksums of blocks are not checked, because
        a chunk of a snapshot has its own."""
        cdef const uint8_t[::1] raw = data
        cdef list blocks = []
        cdef const Head* head
        cdef Py_ssize_t _
        for _ in range(count):
            try:
                head = sound_head(&raw[at], raw.shape[0] - at)
                blocks.append(read_block(head, form_size(head)))
            except ValueError as error:
                raise BlockError(at, str(error)) from None
            at += form_size(head)
        return blocks, at

    def check(self) -> None:
        """Check every length and offset; ValueError names the first invalid one."""
        cdef View view
        view_of(self.head, &view)
        check_view(&view)

    def encoded_entries(self, list ids not None, first_kept) -> list:
        """The undeleted entries with these ascending IDs (ms, seq), as RESP; None for an entry that
        does not exist or is below first_kept."""
        cdef Output out = Output()
        cdef View view
        cdef Cursor cursor
        cdef IdText id_text
        cdef uint64_t ms, seq
        cdef int steps
        cdef bint here
        cdef list found = []
        id_text.size = 0
        id_text.dotted = False
        view_of(self.head, &view)
        cursor_start(&cursor, &view)
        here = cursor_next(&cursor, &view)
        for entry_id in ids:
            ms, seq = entry_id
            steps = 32  # beyond this distance, search
            while here and id_less(cursor.entry.ms, cursor.entry.seq, ms, seq):
                if steps == 0:
                    cursor_seek(&cursor, &view, ms, seq)
                steps -= 1
                here = cursor_next(&cursor, &view)
            if (not here or cursor.entry.ms != ms or cursor.entry.seq != seq or cursor.entry.deleted
                    or entry_id < first_kept):
                found.append(None)
                continue
            encode_entry(out, &view, &cursor.entry, &id_text)
            found.append(out.take())
        return found

    def entries(self) -> list[tuple[int, int, list[bytes]]]:
        """Every undeleted entry as (ms, seq, [field, value, ...])."""
        cdef View view
        view_of(self.head, &view)
        return view_entries(&view)

    @property
    def node_count(self) -> int:
        """The number of nodes, the units of `~`, including nodes whose entries are all deleted."""
        return self.head.node_count

    def nodes(self) -> list[list[tuple[int, int, list[bytes]]]]:
        """The undeleted entries of each node, in the form of `entries`."""
        cdef View view
        view_of(self.head, &view)
        return view_nodes(&view)


cdef const Head* sound_head(const uint8_t* data, Py_ssize_t size) except NULL:
    """The header of the disk form at the beginning of these bytes; ValueError when it is
    invalid."""
    cdef const Head* head = <const Head*>data
    cdef const char* fault = form_fault(head, size)
    if fault != NULL:
        raise ValueError(fault_text(fault, 0, 0))
    return head


cdef Block read_block(const Head* form, Py_ssize_t size):
    """Make a block from its disk form."""
    cdef Block block = Block.__new__(Block)
    cdef Head* head = new_head(block, size - BLOCK_HEADER_BYTES)
    memcpy(head, form, size)
    head.crc32 = 0
    head.zero = 0
    head.owner = <PyObject*>block
    block.check()
    return block


cdef const char* view_at(const uint8_t* data, Py_ssize_t size, View* out,
                         Py_ssize_t* length) noexcept nogil:
    """Set `out` to the View of the disk form at the beginning of `data`, without a copy, and
    `length` to its size; or return the fault. Checksum and entries are not checked: `find_fault`
    checks the entries."""
    cdef const Head* head = <const Head*>data
    cdef const char* fault = form_fault(head, size)
    if fault != NULL:
        return fault
    length[0] = form_size(head)
    view_of(head, out)
    return NULL


# ---------------------------------------------------------------- open

# Bytes that the open blocks of all streams have allocated for entries.
cdef uint64_t all_capacity_bytes = 0


def open_bytes() -> int:
    """Bytes that the open blocks of all streams have allocated for entries."""
    return all_capacity_bytes


cdef class OpenBlock:
    """The block at a stream's end, which accepts entries. Its parts are allocated when needed, so
    that a stream of one entry is small."""

    def __dealloc__(self):
        self.count_capacity(0)
        free(self.data)
        free(self.checkpoints)
        if self.sets != &self.first_set:
            free(self.sets)
        free(self.nodes)

    cdef void view(self, View* out) noexcept:
        out.entries = self.data
        out.size = self.size
        out.count = self.count
        out.live = self.live
        out.first_ms = self.first_ms
        out.first_seq = self.first_seq
        out.last_ms = self.last_ms
        out.last_seq = self.last_seq
        out.checkpoints = self.checkpoints
        out.sets = self.sets
        out.set_count = self.set_count
        out.nodes = self.nodes
        out.node_count = self.node_count

    cdef Py_ssize_t data_size(self) noexcept:
        """The data_size of the block that `freeze` would make."""
        return table_size(self.count, self.set_count, self.node_count) + self.size

    cdef void reset(self) noexcept:
        """Clear the block and keep its memory for the next entries, unless it is very large."""
        if self.capacity > 2 * BLOCK_BYTES_MAX:
            free(self.data)
            self.data = NULL
            self.count_capacity(0)
        self.size = 0
        self.count = 0
        self.live = 0
        self.set_count = 0
        self.node_count = 0
        self.last_ref = 0
        self.closed = False

    cdef bint place(self, uint64_t payload, uint32_t node_entries, uint32_t node_bytes) except -1:
        """Reserve space for an entry of this many bytes; False: the block must be sealed first.

        Nodes follow Redis' rule, so that `~` trims the same entries as in Redis: a node is full at
        node_entries entries, or when the entry would bring the size of Redis' listpack (`measure`)
        to node_bytes; 0 means no limit. After a full node, the next node begins in the same block.
        An entry larger than a node gets a block of its own.
        """
        cdef bint large = node_bytes != 0 and payload >= node_bytes
        cdef bint full
        if self.count == 0:
            self.closed = large
            self.node_count = 0  # it is 1 when an earlier call ran out of memory
            return self.start_node() == 0
        if self.node_listpack == NOT_MEASURED:
            self.measure_node()
        full = node_entries != 0 and self.count - self.node_start >= node_entries
        full = full or (node_bytes != 0 and self.node_listpack + payload >= node_bytes)
        if (self.closed or large or self.count >= BLOCK_ENTRIES_MAX
                or self.size + payload > BLOCK_BYTES_MAX or (full and self.node_count >= NODES_MAX)):
            return False
        if full:
            self.start_node()
        return True

    cdef int start_node(self) except -1:
        if self.node_count:
            if self.node_count - 1 >= self.node_capacity:
                self.nodes = <uint32_t*>grown(self.nodes, self.node_capacity + NODES_MAX, 4)
                self.node_capacity += NODES_MAX
            self.nodes[self.node_count - 1] = self.count
        self.node_count += 1
        self.node_start = self.count
        self.node_listpack = 0
        return 0

    cdef int append(self, uint64_t ms, uint64_t seq, Slice* items, Py_ssize_t count,
                    uint64_t payload) except -1:
        """Write one entry of count // 2 fields with `payload` bytes in total, after `place`
        returned True. Its ID must be above the last one."""
        cdef Py_ssize_t i
        cdef uint8_t* at
        cdef uint64_t size
        cdef uint64_t values = 0
        cdef uint32_t start = self.size
        self.reserve(payload + <uint64_t>count * 16 + 64)
        at = self.data + start
        self.before_entry(start, ms, seq)
        at = self.write_id_difference(at, ms, seq)
        at = self.write_names(at, items, count)
        for i in range(1, count, 2):
            size = <uint64_t>items[i].size
            values += listpack_text(size)
            at = write_varint(at, size)
            memcpy(at, items[i].ptr, size)
            at += size
        self.size = <uint32_t>(at - self.data)
        self.measure(self.data[start] & 31, ms, seq, listpack_names(items, count)
                     if self.is_new_to_node(self.data[start] & 31) else 0, values, count >> 1)
        self.count += 1
        self.live += 1
        self.last_ms = ms
        self.last_seq = seq
        return 0

    cdef inline bint is_new_to_node(self, uint8_t ref) noexcept:
        """Whether Redis would write the entry's names: it writes the names of a node's first entry
        only once."""
        return ref != self.node_ref or self.count == self.node_start or ref == REF_LITERAL

    cdef inline void measure(self, uint8_t ref, uint64_t ms, uint64_t seq, uint64_t names,
                             uint64_t values, uint64_t fields) noexcept:
        """Record how many bytes the next entry would add to a Redis listpack, where its names and
        values take `values` and `fields` bytes. Numbers count with the text in which they were
        sent."""
        if self.count == self.node_start:
            self.node_ref = ref
            self.node_ms = ms
            self.node_seq = seq
            # Header and end; counts of entries, deleted entries and fields; the names; a 0.
            self.node_listpack = 7 + 6 + listpack_int(fields) + <uint32_t>names
        elif names:
            self.node_listpack += listpack_int(fields) + <uint32_t>names
        # Flags, the ID's difference from the first ID, the values, and the number of elements.
        self.node_listpack += 2 + listpack_int(<int64_t>(ms - self.node_ms)) + listpack_int(
            <int64_t>(seq - self.node_seq)) + <uint32_t>values + 2

    cdef inline int reserve(self, uint64_t extra) except -1:
        cdef uint64_t wanted = self.size + extra + SLACK
        if wanted <= self.capacity:
            return 0
        # Small blocks grow by half: many streams stay small.
        if self.capacity < GROWN_BY_HALF:
            wanted = max(wanted, self.capacity + <uint64_t>(self.capacity // 2))
        elif wanted < <uint64_t>self.capacity * 2 and self.capacity < BLOCK_BYTES_MAX:
            wanted = <uint64_t>self.capacity * 2
        self.data = <uint8_t*>grown(self.data, wanted, 1)
        self.count_capacity(<uint32_t>wanted)
        return 0

    cdef inline void count_capacity(self, uint32_t capacity) noexcept:
        global all_capacity_bytes
        all_capacity_bytes += <uint64_t>capacity - <uint64_t>self.capacity
        self.capacity = capacity

    cdef inline int before_entry(self, uint32_t start, uint64_t ms, uint64_t seq) except -1:
        cdef uint32_t checkpoint
        if self.count == 0:
            self.first_ms = ms
            self.first_seq = seq
            self.last_ms = ms
            self.last_seq = seq - 1
        elif self.count % CHECKPOINT_EVERY == 0:
            checkpoint = self.count // CHECKPOINT_EVERY - 1
            if checkpoint >= self.checkpoint_capacity:
                self.checkpoints = <uint32_t*>grown(self.checkpoints, checkpoint * 2 + 4, 4)
                self.checkpoint_capacity = checkpoint * 2 + 4
            self.checkpoints[checkpoint] = start
        return 0

    cdef inline uint8_t* write_id_difference(self, uint8_t* at, uint64_t ms, uint64_t seq) noexcept:
        """Write the head byte without its set reference, and the ID's difference from the last
        ID."""
        cdef bint anchored = self.count and self.count % CHECKPOINT_EVERY == 0
        if not anchored:
            if ms == self.last_ms and seq == self.last_seq + 1:
                at[0] = FORM_NEXT_SEQ << 5
                return at + 1
            if seq == 0 and ms == self.last_ms + 1:
                at[0] = FORM_NEXT_MS << 5
                return at + 1
            if seq == 0 and ms > self.last_ms:
                at[0] = FORM_LATER_MS << 5
                return write_varint(at + 1, ms - self.last_ms)
        at[0] = FORM_ANCHOR << 5
        return write_varint(write_varint(at + 1, ms - self.first_ms), seq)

    cdef inline uint8_t* write_names(self, uint8_t* at, Slice* items, Py_ssize_t count) except NULL:
        """Put the reference to these items' field-name set into the head byte; define a new set."""
        cdef uint8_t* head = self.data + self.size
        cdef int ref = self.find_set(items, count)
        if ref >= 0:
            head[0] |= <uint8_t>ref
            self.last_ref = <uint16_t>ref
            return at
        if self.set_count >= SETS_MAX:
            head[0] |= REF_LITERAL
            return write_definition(at, items, count)
        if self.set_count >= self.set_capacity:
            self.grow_sets()
        head[0] |= <uint8_t>self.set_count
        self.sets[self.set_count] = <uint32_t>(at - self.data)
        self.last_ref = self.set_count
        self.set_count += 1
        return write_definition(at, items, count)

    cdef int grow_sets(self) except -1:
        cdef uint32_t wanted = min(<uint32_t>self.set_capacity * 4, <uint32_t>SETS_MAX)
        cdef uint32_t* sets = &self.first_set
        if self.set_capacity == 0:
            wanted = 1
        elif self.set_capacity == 1:
            sets = <uint32_t*>grown(NULL, wanted, 4)
            sets[0] = self.first_set
        else:
            sets = <uint32_t*>grown(self.sets, wanted, 4)
        self.sets = sets
        self.set_capacity = <uint16_t>wanted
        return 0

    cdef inline int find_set(self, Slice* items, Py_ssize_t count) noexcept:
        cdef int ref
        if self.set_count == 0:
            return -1
        # The first set is stored after the first entry's head byte. With very many streams, each
        # cache line that an append does not touch saves time.
        if same_names(self.data + (1 if self.last_ref == 0 else self.sets[self.last_ref]), items,
                      count):
            return self.last_ref
        for ref in range(self.set_count):
            if ref != self.last_ref and same_names(self.data + self.sets[ref], items, count):
                return ref
        return -1

    cdef bint delete(self, uint64_t ms, uint64_t seq) noexcept:
        """Mark the entry deleted; False when no undeleted entry has this id."""
        cdef View view
        cdef Cursor cursor
        cdef const uint8_t* at
        self.view(&view)
        if self.count == 0:
            return False
        cursor_seek(&cursor, &view, ms, seq)
        at = cursor.at
        if not cursor_next(&cursor, &view) or cursor.entry.deleted:
            return False
        if cursor.entry.ms != ms or cursor.entry.seq != seq:
            return False
        self.data[at - self.data] |= DELETED
        self.live -= 1
        return True

    cpdef Block freeze(self):
        """A sealed copy of the entries, of exact size."""
        cdef Block block
        cdef Head* head
        if self.count == 0:
            raise ValueError("an empty block cannot be sealed")
        block = Block.__new__(Block)
        head = new_head(block, self.data_size())
        self.write_unsealed(<char*>head)
        head.owner = <PyObject*>block
        return block

    cdef Py_ssize_t write_unsealed(self, char* at) noexcept:
        """Write the disk form without its checksum, which stays 0; return its size. Not for an
        empty block."""
        cdef Head* head = <Head*>at
        cdef uint32_t checkpoints = checkpoint_count(self.count)
        cdef uint32_t nodes = self.node_count - 1 if self.node_count else 0
        memcpy(head.magic, <const char*>b"MB", 2)
        head.version = FORMAT_VERSION
        head.zero = 0
        head.crc32 = 0
        head.count = self.count
        head.live = self.live
        head.size = self.size
        head.set_count = self.set_count
        head.node_count = self.node_count
        head.first_ms, head.first_seq = self.first_ms, self.first_seq
        head.last_ms, head.last_seq = self.last_ms, self.last_seq
        head.owner = NULL
        at = <char*>(head + 1)
        memcpy(at, self.checkpoints, 4 * checkpoints)
        at += 4 * checkpoints
        memcpy(at, self.sets, 4 * self.set_count)
        at += 4 * self.set_count
        memcpy(at, self.nodes, 4 * nodes)
        memcpy(at + 4 * nodes, self.data, self.size)
        return BLOCK_HEADER_BYTES + self.data_size()

    @staticmethod
    def reopen(Block block not None) -> OpenBlock | None:
        """An open block that continues this block, which is not modified; None when the block was
        not written by this implementation."""
        cdef View view
        view_of(block.head, &view)
        return reopened(&view)

    cdef int measure_node(self) noexcept:
        """Compute the listpack size of the last node from its entries: only before an append, because
        most streams that are loaded get no entries for a while."""
        cdef View view
        cdef Cursor cursor
        cdef uint8_t ref
        cdef uint32_t count = self.count
        cdef const uint8_t* at
        cdef uint64_t size
        cdef uint64_t names
        cdef uint64_t values
        cdef uint32_t _
        self.view(&view)
        cursor_to_index(&cursor, &view, self.node_start)
        self.count = self.node_start
        while self.count < count:
            ref = cursor.at[0] & 31
            cursor_next(&cursor, &view)
            names = values = 0
            if self.is_new_to_node(ref):
                names = listpack_names_of(&cursor.entry)
            at = cursor.entry.values
            for _ in range(cursor.entry.fields):
                at = read_varint(at, &size)
                values += listpack_text(size)
                at += size
            self.measure(ref, cursor.entry.ms, cursor.entry.seq, names, values,
                         cursor.entry.fields)
            self.count += 1
        return 0

    def __len__(self) -> int:
        return self.live

    def append_entry(self, uint64_t ms, uint64_t seq, list words not None,
                     uint32_t node_entries=100, uint32_t node_bytes=4096) -> bool:
        """Append one entry given as bytes; False when the block is full (for tests and tools)."""
        cdef Slice[64] few
        cdef Py_ssize_t i
        cdef uint64_t payload = 0
        cdef bytes word
        if len(words) > 64 or len(words) % 2 or not words:
            raise ValueError("1 to 32 fields with a value each")
        if self.count and not id_less(self.last_ms, self.last_seq, ms, seq):
            raise ValueError("ids must rise")
        for i in range(len(words)):
            word = words[i]
            few[i].ptr = word
            few[i].size = len(word)
            payload += len(word)
        if not self.place(payload, node_entries, node_bytes):
            return False
        self.append(ms, seq, few, len(words), payload)
        return True

    def delete_entry(self, uint64_t ms, uint64_t seq) -> bool:
        """Mark one entry deleted (for tests)."""
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


cdef OpenBlock reopened(const View* view):
    """An open block that continues a block, whose entries were checked; None when the block was not
    written by this implementation."""
    cdef OpenBlock made = OpenBlock.__new__(OpenBlock)
    cdef uint32_t checkpoints = checkpoint_count(view.count)
    cdef uint32_t nodes = view.node_count - 1
    if view.set_count and view.sets[0] != 1:
        return None  # appending expects the first set there
    made.data = <uint8_t*>grown(NULL, view.size + SLACK, 1)
    memcpy(made.data, view.entries, view.size)
    memset(made.data + view.size, 0, SLACK)
    made.count_capacity(view.size + SLACK)
    if checkpoints:
        made.checkpoints = <uint32_t*>grown(NULL, checkpoints, 4)
        memcpy(made.checkpoints, view.checkpoints, 4 * checkpoints)
        made.checkpoint_capacity = checkpoints
    if view.set_count:
        made.sets = &made.first_set if view.set_count == 1 else (
            <uint32_t*>grown(NULL, view.set_count, 4))
        memcpy(made.sets, view.sets, 4 * view.set_count)
    if nodes:
        made.nodes = <uint32_t*>grown(NULL, nodes, 4)
        memcpy(made.nodes, view.nodes, 4 * nodes)
        made.node_start = view.nodes[nodes - 1]
    made.set_count = made.set_capacity = <uint16_t>view.set_count
    made.node_count = <uint16_t>view.node_count
    made.node_capacity = <uint16_t>nodes
    made.size = view.size
    made.count, made.live = view.count, view.live
    made.first_ms, made.first_seq = view.first_ms, view.first_seq
    made.last_ms, made.last_seq = view.last_ms, view.last_seq
    made.node_listpack = NOT_MEASURED
    return made


def seal_forms(bytes forms not None) -> None:
    """Put the checksums into contiguous disk forms that `write_unsealed` wrote, in place. Only for
    bytes without another reference."""
    cdef char* at = PyBytes_AS_STRING(forms)
    cdef char* end = at + len(forms)
    cdef Py_ssize_t size
    while at < end:
        size = form_size(<Head*>at)
        (<Head*>at).crc32 = crc32(PyMemoryView_FromMemory(at, size, PyBUF_READ))
        at += size


cdef void* grown(void* memory, uint64_t items, uint64_t item_size) except NULL:
    cdef void* moved = realloc(memory, items * item_size)
    if moved == NULL:
        raise MemoryError(f"no memory for {items * item_size} bytes of a block")
    return moved


cdef inline bint same_names(const uint8_t* definition, Slice* items,
                            Py_ssize_t count) noexcept nogil:
    cdef uint64_t fields
    cdef uint64_t size
    cdef uint64_t i
    cdef Slice* item
    definition = read_varint(definition, &fields)
    if fields * 2 != <uint64_t>count:
        return False
    definition = read_varint(definition, &size)
    for i in range(fields):
        item = &items[2 * i]
        definition = read_varint(definition, &size)
        if bulk_size(item.size) != size:
            return False
        if memcmp(definition + (size - <uint64_t>item.size - 2), item.ptr, item.size) != 0:
            return False
        definition += size
    return True


cdef uint8_t* write_definition(uint8_t* at, Slice* items, Py_ssize_t count) noexcept nogil:
    cdef uint64_t names_size = 0
    cdef uint64_t size
    cdef Py_ssize_t i
    cdef uint8_t[10] scratch
    for i in range(0, count, 2):
        size = bulk_size(items[i].size)
        names_size += size + (write_varint(scratch, size) - scratch)
    at = write_varint(at, <uint64_t>count // 2)
    at = write_varint(at, names_size)
    for i in range(0, count, 2):
        at = write_varint(at, bulk_size(items[i].size))
        at += write_bulk(<char*>at, items[i].ptr, items[i].size)
    return at


def bulk_size_of(Py_ssize_t size) -> int:
    """The size of a RESP bulk string with this many bytes of content (for tests)."""
    return bulk_size(size)


def verdicts(data) -> tuple[bool, str | None]:
    """The results of `fits` and `first_fault` for a disk form (for tests)."""
    cdef const uint8_t[::1] raw = data
    cdef const Head* head = sound_head(&raw[0], raw.shape[0])
    cdef View view
    cdef uint32_t entry
    view_of(head, &view)
    cdef const char* fault = first_fault(&view, &entry)
    return fits(&view), None if fault == NULL else fault_text(fault, entry, view.count)
