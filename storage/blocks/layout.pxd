# The layout of a block in memory. What decodes an entry is inline: every reader of entries calls it.
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from millstream.encoding cimport Slice


cdef enum:
    FORMAT_VERSION = 1
    FORMAT_VERSION_PLAIN = 2  # of blocks with SETS_MAX sets: they may have entries with REF_PLAIN
    FORMAT_VERSION_PACKED = 3  # its values are packed, and a dictionary comes before its entries
    BLOCK_HEADER_BYTES = 64
    # Readable bytes after the entries, because short copies may read past the end.
    SLACK = 32
    CHECKPOINT_EVERY = 32
    BLOCK_BYTES_MAX = 65536  # a block is sealed after this many bytes
    SETS_MAX = 30
    # An entry's first byte: the deletion flag, the encoding of its ID, its field-name set.
    DELETED = 0x80
    FORM_NEXT_SEQ = 0
    FORM_NEXT_MS = 1
    FORM_LATER_MS = 2
    FORM_ANCHOR = 3
    # Sets without a number, in the entry itself: the names as they are, or as bulk strings. The
    # latter are only in blocks of earlier versions.
    REF_PLAIN = 30
    REF_LITERAL = 31
    # The two low bits of the number before a packed value say how it is stored: as it is; as a word
    # of the dictionary; as hexadecimal digits, two in a byte; as a word and the text after it.
    AS_TEXT = 0
    AS_WORD = 1
    AS_HEX = 2
    AS_WORD_AND_TEXT = 3
    # No word is longer. With its frame as a bulk string it has at most WORD_FORM_MAX bytes.
    WORD_BYTES_MAX = 64
    WORD_FORM_MAX = 71


# A block's first 64 bytes. They are the same in memory and on the disk except for three numbers:
# `crc32` is computed when the block is written to a file; `owner`, the Block that owns these bytes,
# and `own_names`, a note of `entry_filter`, are 0 on the disk.
cdef struct Head:
    char[2] magic
    uint8_t version
    uint8_t own_names
    uint32_t crc32
    uint32_t count
    uint32_t live
    uint32_t size
    uint16_t set_count
    uint16_t node_count
    uint64_t first_ms
    uint64_t first_seq
    uint64_t last_ms
    uint64_t last_seq
    PyObject* owner


cdef struct View:
    const uint8_t* entries
    uint32_t size
    uint32_t count
    uint32_t live
    uint64_t first_ms
    uint64_t first_seq
    uint64_t last_ms
    uint64_t last_seq
    const uint32_t* checkpoints
    const uint32_t* sets
    uint32_t set_count
    const uint32_t* nodes
    uint32_t node_count
    # The dictionary of packed values, NULL if they are not packed, and its size.
    const uint8_t* words
    uint32_t words_size


cdef struct Entry:
    uint64_t ms
    uint64_t seq
    bint deleted
    bint plain  # whether its names are without the frame of a bulk string
    uint32_t fields
    uint32_t names_size
    const uint8_t* names
    const uint8_t* values


# A packed value: its size when unpacked, the word with its frame, and the bytes after the word.
cdef struct Packed:
    uint32_t how
    uint32_t word_size
    const uint8_t* word
    const uint8_t* rest
    uint64_t rest_size
    uint64_t size


cdef struct Cursor:
    const uint8_t* at
    uint32_t index
    Entry entry


cdef inline const uint8_t* read_varint(const uint8_t* at, uint64_t* out) noexcept nogil:
    cdef uint64_t value = at[0]
    cdef int shift = 7
    if value < 128:
        out[0] = value
        return at + 1
    value &= 127
    at += 1
    while at[0] >= 128 and shift < 63:
        value |= (<uint64_t>(at[0] & 127)) << shift
        shift += 7
        at += 1
    out[0] = value | ((<uint64_t>at[0]) << shift)
    return at + 1


cdef inline uint8_t* write_varint(uint8_t* at, uint64_t value) noexcept nogil:
    while value >= 128:
        at[0] = <uint8_t>((value & 127) | 128)
        at += 1
        value >>= 7
    at[0] = <uint8_t>value
    return at + 1


cdef inline uint32_t read_u16(const uint8_t* at) noexcept nogil:
    cdef uint16_t number
    memcpy(&number, at, 2)
    return number


cdef inline uint32_t word_start(const uint8_t* words, uint32_t word) noexcept nogil:
    """Where a word of a dictionary starts. The word after the last one starts at the end of the
    dictionary."""
    return read_u16(words + 2 + 2 * <size_t>word)


cdef inline uint64_t bulk_size(Py_ssize_t size) noexcept nogil:
    """The size of a bulk string whose content has `size` bytes."""
    cdef uint64_t total = <uint64_t>size + 6
    while size >= 10:
        size //= 10
        total += 1
    return total


cdef inline uint32_t checkpoint_count(uint32_t count) noexcept nogil:
    return 0 if count == 0 else (count - 1) // CHECKPOINT_EVERY


cdef inline uint64_t table_size(uint32_t count, uint32_t sets, uint32_t nodes) noexcept nogil:
    return 4 * (<uint64_t>checkpoint_count(count) + sets + (nodes - 1 if nodes else 0))


cdef inline void view_of(const Head* head, View* out) noexcept nogil:
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
    out.words = NULL
    if head.version == FORMAT_VERSION_PACKED:
        out.words = out.entries
        out.words_size = word_start(out.words, read_u16(out.words))
        out.entries += out.words_size
        out.size -= out.words_size


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
    entry.plain = ref == REF_PLAIN
    definition = at if ref >= REF_PLAIN else view.entries + view.sets[ref]
    entry.names = read_varint(definition, &number)
    entry.fields = <uint32_t>number
    entry.names = read_varint(entry.names, &number)
    entry.names_size = <uint32_t>number
    entry.values = entry.names + number if definition == at else at
    return entry.values


cdef inline const uint8_t* skip_values(const View* view, const uint8_t* at,
                                       uint32_t fields) noexcept nogil:
    cdef uint64_t size
    cdef uint32_t _
    if view.words != NULL:
        at = read_varint(at, &size)
        return at + size
    for _ in range(fields):
        at = read_varint(at, &size)
        at += size
    return at


cdef inline void cursor_start(Cursor* cursor, const View* view) noexcept nogil:
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


cdef inline bint cursor_next(Cursor* cursor, const View* view) noexcept nogil:
    """Move to the next entry, deleted or not; False at the end."""
    if cursor.index >= view.count:
        return False
    read_entry(view, cursor.at, &cursor.entry)
    cursor.at = skip_values(view, cursor.entry.values, cursor.entry.fields)
    cursor.index += 1
    return True


cdef inline const uint8_t* next_word(const uint8_t* at, Slice* word) noexcept nogil:
    """Set `word` to a word of a block; return the position after it."""
    cdef uint64_t size
    at = read_varint(at, &size)
    word.ptr = <const char*>at
    word.size = size
    return at + size


cdef inline uint32_t word_frame(uint32_t form_size) noexcept nogil:
    """The bytes before a word's text: `$`, one or two digits, CRLF."""
    return 4 if form_size < 16 else 5


cdef inline const uint8_t* next_packed(const View* view, const uint8_t* at,
                                       Packed* out) noexcept nogil:
    """Set `out` to a packed value; return the position after it."""
    cdef uint64_t number
    cdef uint32_t start
    at = read_varint(at, &number)
    out.how = number & 3
    number >>= 2
    out.size = 0
    if out.how == AS_WORD or out.how == AS_WORD_AND_TEXT:
        start = word_start(view.words, <uint32_t>number)
        out.word = view.words + start
        out.word_size = word_start(view.words, <uint32_t>number + 1) - start
        out.size = out.word_size - word_frame(out.word_size) - 2
        if out.how == AS_WORD:
            return at
        at = read_varint(at, &number)
    out.rest = at
    out.rest_size = number
    out.size += 2 * number if out.how == AS_HEX else number
    return at + number


cdef inline uint64_t hex_digits(uint64_t nibbles) noexcept nogil:
    """Eight nibbles, one in each byte, as digits 0 to 9 and a to f."""
    cdef uint64_t letters = ((nibbles + 0x0606060606060606ULL) >> 4) & 0x0101010101010101ULL
    return nibbles + 0x3030303030303030ULL + 39 * letters


cdef inline uint64_t spread_nibbles(uint64_t four) noexcept nogil:
    """The nibbles of four bytes, one in each byte, those of the lowest byte first, its high one
    before its low one."""
    four = (four | (four << 16)) & 0x0000FFFF0000FFFFULL
    four = (four | (four << 8)) & 0x00FF00FF00FF00FFULL
    return ((four >> 4) & 0x000F000F000F000FULL) | ((four & 0x000F000F000F000FULL) << 8)


cdef inline const uint8_t* next_name(const uint8_t* at, bint plain, Slice* name) noexcept nogil:
    """Like `next_word`, for a field's name, which a block stores as a bulk string unless it is
    `plain`: only its content."""
    cdef Py_ssize_t head = 1
    at = next_word(at, name)
    if plain:
        return at
    while name.ptr[head] != c'\n':
        head += 1
    name.ptr += head + 1
    name.size -= head + 3
    return at


cdef uint64_t form_size(const Head* head) noexcept nogil
cdef uint64_t view_disk_size(const View* view) noexcept nogil
cdef void cursor_seek(Cursor* cursor, const View* view, uint64_t ms, uint64_t seq) noexcept nogil
cdef void cursor_to_index(Cursor* cursor, const View* view, uint32_t index) noexcept nogil
cdef bint view_find(const View* view, uint64_t ms, uint64_t seq, Entry* out) noexcept nogil
cdef uint32_t view_live_before(const View* view, uint64_t ms, uint64_t seq) noexcept nogil
cdef bint view_last_live_before(const View* view, uint64_t ms, uint64_t seq, Entry* out) noexcept nogil
cdef bint view_nth_live(const View* view, uint64_t ms, uint64_t seq, uint64_t nth, Entry* out) noexcept nogil
cdef char* unpack_value(char* to, const Packed* value) noexcept nogil


# Space for one unpacked value. Its owner frees `bytes`.
cdef struct ValueSpace:
    char* bytes
    Py_ssize_t size

cdef const char* unpacked_value(ValueSpace* space, const Packed* value) except NULL
cdef list entry_words(const View* view, const Entry* entry)
cdef object entry_slices(const View* view, const Entry* entry, Slice* items)
