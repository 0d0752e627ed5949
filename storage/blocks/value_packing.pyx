# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Packs a block when it is sealed.

A column is the values of one field of one field-name set. The first entries of the block show how
each column is packed best: values that are repeated become words of the block's dictionary,
hexadecimal digits take half a byte, and a prefix that all values share becomes a word. All other
values stay as they are. A field-name set that only one entry has loses its number, and its names
their frames. IDs and deletion flags do not change. A reader decodes one value at a time, and can skip
the values of an entry at once.
"""

from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memmove, memset

from millstream.encoding cimport Slice, write_bulk
from millstream.storage.blocks.block cimport Block, new_head
from millstream.storage.blocks.layout cimport (
    AS_HEX, AS_TEXT, AS_WORD, AS_WORD_AND_TEXT, BLOCK_BYTES_MAX, CHECKPOINT_EVERY,
    FORMAT_VERSION_PACKED, FORM_ANCHOR, FORM_LATER_MS, REF_LITERAL, REF_PLAIN, SETS_MAX,
    WORD_BYTES_MAX, Cursor, Entry, Head, View, bulk_size, checkpoint_count, cursor_next,
    cursor_start, hex_digits, next_name, read_entry, read_varint, skip_values,
    table_size, view_of, write_varint,
)

cdef enum:
    # Smaller entries are not packed: reading them takes longer, and there is little to save.
    ENTRY_BYTES_MIN = 32
    ENTRIES_MIN = 8
    CHECKPOINTS_MAX = 64  # of a block with the most bytes
    SAMPLE_ENTRIES = 32
    COLUMNS_MAX = 64
    WORDS_MAX = 256
    SAMPLE_WORDS_MAX = 512
    SLOTS = 1024
    HEX_MIN = 16
    PREFIX_MIN = 4
    # A column gets no words if few of the values were seen before; this many are looked at first.
    TRIED_VALUES = 16
    SETS_MANY = 8  # in a block with fewer sets, their uses are not counted
    FRAME_BYTES = 6  # what the name of a numbered set takes in addition
    SAVED_PART = 16  # a block is packed if that saves more than a sixteenth


cdef struct Word:
    const uint8_t* at
    uint64_t head  # the first eight bytes
    uint64_t end  # the last eight bytes; 0 if there are fewer
    uint32_t size


cdef struct PackedColumn:
    uint32_t how
    uint32_t seen
    uint32_t repeated
    uint64_t size  # of all values
    uint64_t repeated_size
    bint is_hex
    const uint8_t* prefix
    uint32_t prefix_size
    uint32_t prefix_word


cdef struct Packer:
    PackedColumn[COLUMNS_MAX] columns
    uint32_t column_count
    # The number of each set's first column plus 1; 0: the set was not met yet.
    uint32_t[SETS_MAX] first_columns
    uint32_t[SETS_MAX] uses
    uint8_t[SETS_MAX] numbers  # the new numbers of the sets
    uint32_t set_count
    Word[SAMPLE_WORDS_MAX] words
    uint32_t word_count
    uint32_t word_limit
    # Each is the number of a word plus 1; 0: free.
    uint16_t[SLOTS] slots
    uint32_t[CHECKPOINTS_MAX] checkpoints
    uint32_t[SETS_MAX] sets
    # A value takes at most one byte more than unpacked, an entry at most three. Names do not grow.
    uint8_t[4 * BLOCK_BYTES_MAX] entries


# Blocks are packed one at a time, by the thread that has the interpreter.
cdef Packer packer


# ---------------------------------------------------------------- words

cdef inline int find_word(Packer* self, const uint8_t* at, uint32_t size, bint* is_new) noexcept:
    """The number of a word of at least one byte, which is added if it is new; -1 if there is no
    place for it. At least eight bytes can be read."""
    cdef uint64_t head, end, hash
    cdef uint32_t slot
    cdef Word* word
    memcpy(&head, at, 8)
    if size >= 8:
        memcpy(&end, at + size - 8, 8)
    else:
        head <<= 64 - 8 * size
        end = 0
    hash = (head ^ (end * 0x9E3779B97F4A7C15ULL) ^ size) * 0xBF58476D1CE4E5B9ULL
    slot = <uint32_t>((hash ^ (hash >> 32)) & (SLOTS - 1))
    is_new[0] = False
    while self.slots[slot]:
        word = &self.words[self.slots[slot] - 1]
        # Up to 16 bytes, head and end are the whole word.
        if word.head == head and word.end == end and word.size == size and (
                size <= 16 or memcmp(word.at, at, size) == 0):
            return self.slots[slot] - 1
        slot = (slot + 1) & (SLOTS - 1)
    if self.word_count >= self.word_limit:
        return -1
    is_new[0] = True
    word = &self.words[self.word_count]
    word.at = at
    word.size = size
    word.head = head
    word.end = end
    self.word_count += 1
    self.slots[slot] = <uint16_t>self.word_count
    return <int>self.word_count - 1


cdef void forget_words(Packer* self, uint32_t limit) noexcept:
    self.word_count = 0
    self.word_limit = limit
    memset(self.slots, 0, sizeof(self.slots))


# ---------------------------------------------------------------- hexadecimal digits

cdef inline uint64_t nibbles_of(uint64_t eight) noexcept nogil:
    """The nibbles of eight digits, one in each byte, if they are digits."""
    return ((eight & 0x0F0F0F0F0F0F0F0FULL) + 9 * ((eight >> 6) & 0x0101010101010101ULL)
            ) & 0x0F0F0F0F0F0F0F0FULL


cdef inline uint32_t join_nibbles(uint64_t nibbles) noexcept nogil:
    nibbles = ((nibbles << 4) | (nibbles >> 8)) & 0x00FF00FF00FF00FFULL
    nibbles = (nibbles | (nibbles >> 8)) & 0x0000FFFF0000FFFFULL
    return <uint32_t>(nibbles | (nibbles >> 16))


cdef bint pack_hex(const uint8_t* at, uint64_t size, uint8_t* to) noexcept nogil:
    """Write an even number of digits 0 to 9 and a to f, two in a byte; False if other characters
    are among them. Writes up to three bytes more."""
    cdef uint64_t eight, nibbles
    cdef uint64_t wrong = 0
    cdef uint64_t i
    cdef uint32_t four
    for i in range(size // 8):
        memcpy(&eight, at + 8 * i, 8)
        nibbles = nibbles_of(eight)
        # Any other character is not what these nibbles are as digits.
        wrong |= hex_digits(nibbles) ^ eight
        four = join_nibbles(nibbles)
        memcpy(to + 4 * i, &four, 4)
    if size & 7:
        memcpy(&eight, at + (size & ~<uint64_t>7), 8)
        eight &= ((<uint64_t>1) << (8 * (size & 7))) - 1
        eight |= 0x3030303030303030ULL << (8 * (size & 7))
        nibbles = nibbles_of(eight)
        wrong |= hex_digits(nibbles) ^ eight
        four = join_nibbles(nibbles)
        memcpy(to + 4 * (size // 8), &four, 4)
    return wrong == 0


# ---------------------------------------------------------------- columns

cdef int first_column(Packer* self, uint32_t ref, uint32_t fields) noexcept:
    """The number of the first column of a set; -1 if there are too many columns."""
    cdef uint32_t i
    if self.first_columns[ref] == 0:
        if fields > COLUMNS_MAX - self.column_count:
            return -1
        memset(&self.columns[self.column_count], 0, fields * sizeof(PackedColumn))
        for i in range(self.column_count, self.column_count + fields):
            self.columns[i].is_hex = True
        self.first_columns[ref] = self.column_count + 1
        self.column_count += fields
    return <int>self.first_columns[ref] - 1


cdef inline void sample_value(Packer* self, PackedColumn* column, const uint8_t* at,
                              uint32_t size) noexcept:
    cdef uint32_t i
    cdef bint is_new
    cdef uint8_t[8] digits
    if column.seen == 0:
        column.prefix = at
        column.prefix_size = min(size, <uint32_t>WORD_BYTES_MAX)
    elif column.prefix_size:
        i = 0
        while i < column.prefix_size and i < size and column.prefix[i] == at[i]:
            i += 1
        column.prefix_size = i
    column.seen += 1
    column.size += size
    # The ends are enough here: each value is looked at when it is packed.
    if column.is_hex and (size < HEX_MIN or size & 1 or not pack_hex(at, 16, digits)
                          or not pack_hex(at + size - 16, 16, digits)):
        column.is_hex = False
    if 2 <= size <= WORD_BYTES_MAX and (
            column.seen < TRIED_VALUES or column.repeated * 8 >= column.seen):
        if find_word(self, at, size, &is_new) >= 0 and not is_new:
            column.repeated += 1
            column.repeated_size += size


cdef uint64_t choose(PackedColumn* column, uint64_t parts) noexcept:
    """Choose how a column is packed; return about how many bytes of the sample that saves. The
    block has `parts` times as many entries, whose words are mostly those of the sample."""
    cdef uint64_t prefixes
    cdef uint64_t words = column.repeated_size
    cdef uint64_t new_words = 8 * <uint64_t>(column.seen - column.repeated) // parts
    cdef uint64_t best = 0
    column.how = AS_TEXT
    if column.is_hex:
        column.how = AS_HEX
        best = column.size // 2
    if column.prefix_size >= PREFIX_MIN and column.seen > 1:
        prefixes = <uint64_t>column.seen * (column.prefix_size - 1)
        if prefixes > best:
            column.how = AS_WORD_AND_TEXT
            best = prefixes
    if words > new_words and words - new_words > best:
        column.how = AS_WORD
        best = words - new_words
    return best


cdef inline bint is_alone(Packer* self, uint32_t ref) noexcept:
    """True if the names of an entry are in the packed entry and not in the table of sets."""
    return ref >= REF_PLAIN or self.uses[ref] == 1


cdef void count_uses(Packer* self, const View* view) noexcept:
    """Count the entries of each field-name set, if there are many sets."""
    cdef Cursor cursor
    cdef uint32_t i, ref
    for i in range(view.set_count):
        self.uses[i] = 0 if view.set_count >= SETS_MANY else view.count
    if view.set_count < SETS_MANY:
        return
    cursor_start(&cursor, view)
    while cursor.index < view.count:
        ref = cursor.at[0] & 31
        cursor_next(&cursor, view)
        if ref < REF_PLAIN:
            self.uses[ref] += 1


cdef bint sample(Packer* self, const View* view) noexcept:
    """Look at the first entries and choose how each column is packed; False if there is too little
    to save."""
    cdef Entry entry
    cdef const uint8_t* at = view.entries
    cdef uint64_t size
    cdef uint64_t saved = 0
    cdef int column
    cdef uint32_t i, ref, _
    entry.ms, entry.seq = view.first_ms, view.first_seq
    count_uses(self, view)
    forget_words(self, SAMPLE_WORDS_MAX)
    memset(self.first_columns, 0, sizeof(self.first_columns))
    self.column_count = 0
    for _ in range(min(view.count, <uint32_t>SAMPLE_ENTRIES)):
        ref = at[0] & 31
        at = read_entry(view, at, &entry)
        if is_alone(self, ref):
            at = skip_values(view, at, entry.fields)
            if ref < REF_PLAIN:
                saved += FRAME_BYTES * <uint64_t>entry.fields
            continue
        column = first_column(self, ref, entry.fields)
        if column < 0:
            return False
        for i in range(entry.fields):
            at = read_varint(at, &size)
            sample_value(self, &self.columns[column + <int>i], at, <uint32_t>size)
            at += size
    for i in range(self.column_count):
        saved += choose(&self.columns[i], 1 + view.count // SAMPLE_ENTRIES)
    return saved * SAVED_PART > <uint64_t>(at - view.entries)


# ---------------------------------------------------------------- packing

cdef inline uint8_t* put_text(uint8_t* to, const uint8_t* at, uint64_t size) noexcept nogil:
    if size <= 16:
        memcpy(to, at, 16)
    else:
        memcpy(to, at, size)
    return to + size


cdef inline uint8_t* put_value(Packer* self, PackedColumn* column, uint8_t* to,
                               const uint8_t* at, uint64_t size) noexcept:
    cdef int word
    cdef bint is_new
    cdef uint8_t* after
    if column.how == AS_WORD and 2 <= size <= WORD_BYTES_MAX:
        word = find_word(self, at, <uint32_t>size, &is_new)
        if word >= 0:
            return write_varint(to, (<uint64_t>word << 2) | AS_WORD)
    elif column.how == AS_WORD_AND_TEXT and size >= column.prefix_size and memcmp(
            at, column.prefix, column.prefix_size) == 0:
        to = write_varint(to, (<uint64_t>column.prefix_word << 2) | AS_WORD_AND_TEXT)
        size -= column.prefix_size
        return put_text(write_varint(to, size), at + column.prefix_size, size)
    elif column.how == AS_HEX and size and size & 1 == 0:
        after = write_varint(to, (size >> 1 << 2) | AS_HEX)
        if pack_hex(at, size, after):
            return after + (size >> 1)
    return put_text(write_varint(to, (size << 2) | AS_TEXT), at, size)


cdef inline const uint8_t* after_id(const uint8_t* at) noexcept nogil:
    """The position after the head and the ID of an entry."""
    cdef uint64_t number
    cdef uint32_t form = (at[0] >> 5) & 3
    at += 1
    if form >= FORM_LATER_MS:
        at = read_varint(at, &number)
    if form == FORM_ANCHOR:
        at = read_varint(at, &number)
    return at


cdef uint8_t* put_plain_names(uint8_t* to, const Entry* entry) noexcept nogil:
    """Write the definition of a numbered set as one without a number."""
    cdef const uint8_t* at = entry.names
    cdef uint8_t* start
    cdef uint8_t* after
    cdef Slice name
    cdef uint64_t size
    cdef uint32_t _
    to = write_varint(to, entry.fields)
    start = after = to + 1
    for _ in range(entry.fields):
        at = next_name(at, False, &name)
        after = write_varint(after, <uint64_t>name.size)
        memcpy(after, name.ptr, name.size)
        after += name.size
    size = after - start
    if size >= 128:
        memmove(start + (1 if size < 16384 else 2), start, size)
    return write_varint(to, size) + size


cdef Py_ssize_t pack_entries(Packer* self, const View* view) noexcept:
    """Pack all entries; return their size, or -1 if that is not possible."""
    cdef Entry entry
    cdef const uint8_t* at = view.entries
    cdef const uint8_t* names
    cdef uint8_t* to = self.entries
    cdef uint8_t* start
    cdef uint8_t* after
    cdef uint64_t size
    cdef int column
    cdef uint32_t defined = 0
    cdef uint32_t i, index, ref
    cdef bint is_new
    self.set_count = 0
    forget_words(self, WORDS_MAX)
    for i in range(self.column_count):
        if self.columns[i].how == AS_WORD_AND_TEXT:
            self.columns[i].prefix_word = <uint32_t>find_word(
                self, self.columns[i].prefix, self.columns[i].prefix_size, &is_new)
    entry.ms, entry.seq = view.first_ms, view.first_seq
    for index in range(view.count):
        if index and index % CHECKPOINT_EVERY == 0:
            self.checkpoints[index // CHECKPOINT_EVERY - 1] = <uint32_t>(to - self.entries)
        ref = at[0] & 31
        names = after_id(at)
        start = to
        memcpy(to, at, names - at)
        to += names - at
        at = read_entry(view, at, &entry)
        column = 0
        if ref == REF_LITERAL:
            return -1
        if not is_alone(self, ref):
            column = first_column(self, ref, entry.fields)
            if column < 0:
                return -1
            if ref == defined:
                self.numbers[ref] = <uint8_t>self.set_count
                self.sets[self.set_count] = <uint32_t>(to - self.entries)
                self.set_count += 1
            start[0] = (start[0] & 0xE0) | self.numbers[ref]
        if ref == REF_PLAIN or (ref == defined and not is_alone(self, ref)):
            memcpy(to, names, at - names)
            to += at - names
        elif is_alone(self, ref):
            start[0] = (start[0] & 0xE0) | REF_PLAIN
            to = put_plain_names(to, &entry)
        defined += ref == defined
        start = to + 1  # most sizes take one byte
        after = start
        for i in range(entry.fields):
            at = read_varint(at, &size)
            if is_alone(self, ref):
                after = put_text(write_varint(after, (size << 2) | AS_TEXT), at, size)
            else:
                after = put_value(self, &self.columns[column + <int>i], after, at, size)
            at += size
        size = after - start
        if size >= 128:
            memmove(start + (1 if size < 16384 else 2), start, size)
        to = write_varint(to, size) + size
    return to - self.entries


cdef uint64_t dictionary_size(Packer* self) noexcept:
    cdef uint64_t size = 4 + 2 * <uint64_t>self.word_count
    cdef uint32_t i
    for i in range(self.word_count):
        size += bulk_size(self.words[i].size)
    return size


cdef uint8_t* write_dictionary(Packer* self, uint8_t* to) noexcept:
    cdef uint16_t number = <uint16_t>self.word_count
    cdef uint8_t* start = to
    cdef uint8_t* table = to + 2
    cdef uint32_t i
    memcpy(to, &number, 2)
    to += 4 + 2 * <size_t>self.word_count
    for i in range(self.word_count + 1):
        number = <uint16_t>(to - start)
        memcpy(table + 2 * <size_t>i, &number, 2)
        if i < self.word_count:
            to += write_bulk(<char*>to, <const char*>self.words[i].at, self.words[i].size)
    return to


cdef Block packed_block(const View* view):
    """A sealed block with these entries, after which SLACK bytes can be read, and packed values;
    None if that would not be much smaller."""
    cdef uint64_t size, words_size
    cdef Py_ssize_t entries_size
    cdef Block block
    cdef Head* head
    cdef uint8_t* at
    if (view.words != NULL or view.size > BLOCK_BYTES_MAX or view.count < ENTRIES_MIN
            or view.size < ENTRY_BYTES_MIN * view.count or not sample(&packer, view)):
        return None
    entries_size = pack_entries(&packer, view)
    if entries_size < 0:
        return None
    words_size = dictionary_size(&packer)
    size = words_size + <uint64_t>entries_size
    if size * SAVED_PART >= <uint64_t>view.size * (SAVED_PART - 1):
        return None
    block = Block.__new__(Block)
    head = new_head(block, table_size(view.count, packer.set_count, view.node_count) + size)
    memcpy(head.magic, <const char*>b"MB", 2)
    head.version = FORMAT_VERSION_PACKED
    head.own_names = 0
    head.crc32 = 0
    head.count, head.live = view.count, view.live
    head.size = <uint32_t>size
    head.set_count = <uint16_t>packer.set_count
    head.node_count = <uint16_t>view.node_count
    head.first_ms, head.first_seq = view.first_ms, view.first_seq
    head.last_ms, head.last_seq = view.last_ms, view.last_seq
    head.owner = <PyObject*>block
    at = <uint8_t*>(head + 1)
    memcpy(at, packer.checkpoints, 4 * checkpoint_count(view.count))
    at += 4 * checkpoint_count(view.count)
    memcpy(at, packer.sets, 4 * packer.set_count)
    at += 4 * packer.set_count
    if view.node_count > 1:
        memcpy(at, view.nodes, 4 * (view.node_count - 1))
        at += 4 * (view.node_count - 1)
    memcpy(write_dictionary(&packer, at), packer.entries, <size_t>entries_size)
    return block


def packed(Block block not None) -> Block | None:
    """A copy of a block with packed values; None if that would not be much smaller."""
    cdef View view
    view_of(block.head, &view)
    return packed_block(&view)
