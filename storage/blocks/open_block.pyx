# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The block that is being written: entries are packed here until it is full.

`freeze` then makes an exact copy, a sealed `block.Block`. An entry is packed against the entries before
it: field names are stored once per block, and an ID as the difference from the previous ID, mostly
in no byte at all. Every 32nd entry contains its whole ID, so that it can be decoded alone.
"""

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

from millstream.encoding cimport Slice, write_bulk
from millstream.storage.blocks.block cimport Block, new_head
from millstream.storage.blocks.layout cimport (
    BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, CHECKPOINT_EVERY, DELETED, FORMAT_VERSION,
    FORMAT_VERSION_PLAIN, FORM_ANCHOR, FORM_LATER_MS, FORM_NEXT_MS, FORM_NEXT_SEQ, REF_PLAIN, SETS_MAX, SLACK, Cursor, Entry, Head,
    View, bulk_size, checkpoint_count, cursor_next, cursor_seek, cursor_to_index, next_name,
    read_varint, table_size, write_varint,
)

from millstream.storage.blocks.value_packing cimport packed_block

from millstream.errors import CommandError

cdef enum:
    # After a block that packing does not make smaller, one block of sixteen is tried.
    TRIED_PART = 16
    # A block is sealed after this many nodes (the unit of approximate trimming) or entries.
    NODES_MAX = 4
    BLOCK_ENTRIES_MAX = 4096
    PAYLOAD_MAX = 0x7fffffff
    NOT_MEASURED = 0xffffffff
    GROWN_BY_HALF = 4096

# Bytes that the open blocks of all streams have allocated for entries.
cdef uint64_t all_capacity_bytes = 0


def open_bytes() -> int:
    """Bytes that the open blocks of all streams have allocated for entries."""
    return all_capacity_bytes


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


cdef uint64_t listpack_names_of(const Entry* entry) noexcept nogil:
    """`listpack_names` of an entry in a block."""
    cdef const uint8_t* at = entry.names
    cdef uint64_t names = 0
    cdef Slice name
    cdef uint32_t _
    for _ in range(entry.fields):
        at = next_name(at, entry.plain, &name)
        names += listpack_text(<uint64_t>name.size)
    return names


# ---------------------------------------------------------------- bytes

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


cdef uint8_t* write_plain_definition(uint8_t* at, Slice* items, Py_ssize_t count) noexcept nogil:
    """As write_definition, without the frames of bulk strings: more than half of a short name."""
    cdef uint64_t names_size = 0
    cdef Py_ssize_t i
    cdef uint8_t[10] scratch
    for i in range(0, count, 2):
        names_size += items[i].size + (write_varint(scratch, <uint64_t>items[i].size) - scratch)
    at = write_varint(at, <uint64_t>count // 2)
    at = write_varint(at, names_size)
    for i in range(0, count, 2):
        at = write_varint(at, <uint64_t>items[i].size)
        memcpy(at, items[i].ptr, items[i].size)
        at += items[i].size
    return at


# ---------------------------------------------------------------- the block

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
        out.words = NULL

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
        """True if Redis would write the entry's names: it writes the names of a node's first entry
        only once."""
        return ref != self.node_ref or self.count == self.node_start or ref >= REF_PLAIN

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
            head[0] |= REF_PLAIN
            return write_plain_definition(at, items, count)
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

    cdef Block seal(self, bint is_plain_before):
        """A sealed copy of the entries, packed if that makes it smaller. `is_plain_before`: the
        stream's last sealed block is not packed. The same history gives the same blocks,
        also if the stream was saved and loaded in between."""
        cdef View view
        cdef Block block = None
        cdef uint64_t mixed = (self.last_ms ^ self.last_seq) * 0x9E3779B97F4A7C15ULL
        if not is_plain_before or (mixed >> 32) % TRIED_PART == 0:
            self.view(&view)
            block = packed_block(&view)
        return self.freeze() if block is None else block

    cdef Py_ssize_t write_unsealed(self, char* at) noexcept:
        """Write the disk form without its checksum, which stays 0; return its size. Not for an
        empty block."""
        cdef Head* head = <Head*>at
        cdef uint32_t checkpoints = checkpoint_count(self.count)
        cdef uint32_t nodes = self.node_count - 1 if self.node_count else 0
        memcpy(head.magic, <const char*>b"MB", 2)
        head.version = FORMAT_VERSION if self.set_count < SETS_MAX else FORMAT_VERSION_PLAIN
        head.own_names = 0
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

    cdef bint resume(self, const View* view) except -1:
        """Continue a block, whose entries were checked, in this one, which is empty; False when the
        block was not written by this implementation."""
        cdef uint32_t checkpoints = checkpoint_count(view.count)
        cdef uint32_t nodes = view.node_count - 1
        if view.words != NULL or (view.set_count and view.sets[0] != 1):
            return False  # appending expects the first set there
        self.data = <uint8_t*>grown(NULL, view.size + SLACK, 1)
        memcpy(self.data, view.entries, view.size)
        memset(self.data + view.size, 0, SLACK)
        self.count_capacity(view.size + SLACK)
        if checkpoints:
            self.checkpoints = <uint32_t*>grown(NULL, checkpoints, 4)
            memcpy(self.checkpoints, view.checkpoints, 4 * checkpoints)
            self.checkpoint_capacity = checkpoints
        if view.set_count:
            self.sets = &self.first_set if view.set_count == 1 else (
                <uint32_t*>grown(NULL, view.set_count, 4))
            memcpy(self.sets, view.sets, 4 * view.set_count)
        if nodes:
            self.nodes = <uint32_t*>grown(NULL, nodes, 4)
            memcpy(self.nodes, view.nodes, 4 * nodes)
            self.node_start = view.nodes[nodes - 1]
        self.set_count = self.set_capacity = <uint16_t>view.set_count
        self.node_count = <uint16_t>view.node_count
        self.node_capacity = <uint16_t>nodes
        self.size = view.size
        self.count, self.live = view.count, view.live
        self.first_ms, self.first_seq = view.first_ms, view.first_seq
        self.last_ms, self.last_seq = view.last_ms, view.last_seq
        self.node_listpack = NOT_MEASURED
        return True

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
