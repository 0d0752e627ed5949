# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The layout of a block, and how to read it: find an entry, count entries, and decode one.

docs/formats.md has the byte layout. The functions on View, Cursor and Entry, here and inline in
`layout.pxd`, are the only readers of the layout. They do not validate the bytes: data from files
goes through `block.Block.from_bytes` or `block.Block.unpack`, where `block_check` first checks every
length.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Realloc
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from millstream.encoding cimport Slice
from millstream.entry_id cimport id_less
from millstream.storage.blocks.layout cimport CHECKPOINT_EVERY, Cursor, Entry, Head, View


# ---------------------------------------------------------------- the header

cdef uint64_t form_size(const Head* head) noexcept nogil:
    """The size of the disk form that begins with this header."""
    return table_size(head.count, head.set_count, head.node_count) + (
        BLOCK_HEADER_BYTES + <uint64_t>head.size)


cdef uint64_t view_disk_size(const View* view) noexcept nogil:
    """The size of the disk form."""
    return BLOCK_HEADER_BYTES + <uint64_t>view.size + table_size(
        view.count, view.set_count, view.node_count) + (0 if view.words == NULL else view.words_size)


# ---------------------------------------------------------------- finding

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
        cursor.at = skip_values(view, values, entry.fields)
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


# ---------------------------------------------------------------- the words of an entry

cdef char* unpack_value(char* to, const Packed* value) noexcept nogil:
    """Write the `value.size` bytes of a value; return the position after them."""
    cdef uint32_t frame
    cdef uint64_t at = 0
    cdef uint64_t digits
    cdef uint8_t byte
    if value.how == AS_HEX:
        while at + 4 <= value.rest_size:
            digits = 0
            memcpy(&digits, value.rest + at, 4)
            digits = hex_digits(spread_nibbles(digits))
            memcpy(to, &digits, 8)
            to += 8
            at += 4
        while at < value.rest_size:
            byte = value.rest[at]
            digits = hex_digits((byte >> 4) | (<uint64_t>(byte & 15) << 8))
            memcpy(to, &digits, 2)
            to += 2
            at += 1
        return to
    if value.how != AS_TEXT:
        frame = word_frame(value.word_size)
        memcpy(to, value.word + frame, value.word_size - frame - 2)
        to += value.word_size - frame - 2
    if value.how != AS_WORD:
        memcpy(to, value.rest, value.rest_size)
        to += value.rest_size
    return to


cdef const char* unpacked_value(ValueSpace* space, const Packed* value) except NULL:
    """The bytes of a value: where they are, or in the space, which the next call uses again."""
    cdef Py_ssize_t size
    cdef char* made
    if value.how == AS_TEXT:
        return <const char*>value.rest
    if value.how == AS_WORD:
        return <const char*>value.word + word_frame(value.word_size)
    size = <Py_ssize_t>value.size + SLACK
    if size > space.size:
        made = <char*>PyMem_Realloc(space.bytes, 2 * size)
        if made == NULL:
            raise MemoryError("no memory for a packed value")
        space.bytes = made
        space.size = 2 * size
    unpack_value(space.bytes, value)
    return space.bytes


cdef list entry_words(const View* view, const Entry* entry):
    """The entry's field, value, field, value ... as bytes."""
    cdef const uint8_t* names = entry.names
    cdef const uint8_t* values = entry.values
    cdef uint64_t size
    cdef Packed value
    cdef Slice word
    cdef bytes unpacked
    cdef uint32_t _
    cdef list words = []
    if view.words != NULL:
        values = read_varint(values, &size)
    for _ in range(entry.fields):
        names = next_name(names, entry.plain, &word)
        words.append(word.ptr[:word.size])
        if view.words != NULL:
            values = next_packed(view, values, &value)
            unpacked = PyBytes_FromStringAndSize(NULL, value.size)
            unpack_value(PyBytes_AS_STRING(unpacked), &value)
            words.append(unpacked)
        else:
            values = next_word(values, &word)
            words.append(word.ptr[:word.size])
    return words


cdef object entry_slices(const View* view, const Entry* entry, Slice* items):
    """Set `items`, which has space for two for each field, to the words of `entry_words`. They are
    valid as long as the block and the returned object."""
    cdef const uint8_t* names = entry.names
    cdef const uint8_t* values = entry.values
    cdef list words
    cdef bytes word
    cdef uint32_t i
    if view.words != NULL:
        words = entry_words(view, entry)
        for i in range(2 * entry.fields):
            word = words[i]
            items[i].ptr = PyBytes_AS_STRING(word)
            items[i].size = len(word)
        return words
    for i in range(entry.fields):
        names = next_name(names, entry.plain, &items[2 * i])
        values = next_word(values, &items[2 * i + 1])
    return None
