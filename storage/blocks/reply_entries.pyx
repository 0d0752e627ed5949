# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Entries of a block as reply elements: from the block straight into the output.

A block has field names in RESP form, so a reply copies them.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from millstream.encoding cimport Output, Slice, format_u64, write_bulk, write_head
from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.layout cimport (
    AS_TEXT, AS_WORD, CHECKPOINT_EVERY, WORD_FORM_MAX, Cursor, Entry, Packed, View,
    cursor_checkpoint, cursor_next, cursor_seek, next_packed, next_word, read_entry, read_varint,
    skip_values, unpack_value,
)


cdef inline void copy_short(char* to, const uint8_t* source, uint64_t size) noexcept nogil:
    """memcpy from a block to a reserved reply. Short texts are copied in whole vectors, which reads
    and writes up to SLACK bytes past their end."""
    if size <= 16:
        memcpy(to, source, 16)
    elif size <= 32:
        memcpy(to, source, 32)
    else:
        memcpy(to, source, size)


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


cdef char* write_plain_fields(char* to, const Entry* entry, const uint8_t** end) noexcept nogil:
    """As write_fields, for an entry whose names have no frame."""
    cdef const uint8_t* name = entry.names
    cdef const uint8_t* value = entry.values
    cdef Slice word
    cdef uint32_t _
    for _ in range(entry.fields):
        name = next_word(name, &word)
        to += write_bulk(to, word.ptr, word.size)
        value = next_word(value, &word)
        to += write_bulk(to, word.ptr, word.size)
    end[0] = value
    return to


cdef char* write_packed_fields(char* to, const View* view, const Entry* entry,
                               const uint8_t** end) noexcept nogil:
    """As write_fields, for packed values. A word of the dictionary is copied with its frame."""
    cdef const uint8_t* name = entry.names
    cdef const uint8_t* value
    cdef uint64_t size
    cdef Packed packed
    cdef Slice word
    cdef uint32_t _
    value = read_varint(entry.values, &size)
    for _ in range(entry.fields):
        if entry.plain:
            name = next_word(name, &word)
            to += write_bulk(to, word.ptr, word.size)
        else:
            name = read_varint(name, &size)
            copy_short(to, name, size)
            name += size
            to += size
        value = next_packed(view, value, &packed)
        if packed.how == AS_WORD:
            copy_short(to, packed.word, packed.word_size)
            to += packed.word_size
            continue
        to += write_head(to, c'$', packed.size)
        if packed.how == AS_TEXT:
            copy_short(to, packed.rest, packed.rest_size)
            to += packed.rest_size
        else:
            to = unpack_value(to, &packed)
        to[0] = c'\r'
        to[1] = c'\n'
        to += 2
    end[0] = value
    return to


cdef inline char* write_fields(char* to, const Entry* entry, const uint8_t** end) noexcept nogil:
    """Write names and values as bulk strings; `end` becomes the position after the values."""
    cdef const uint8_t* name = entry.names
    cdef const uint8_t* value = entry.values
    cdef uint64_t size
    cdef uint32_t _
    if entry.plain:
        return write_plain_fields(to, entry, end)
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
    # The values cannot exceed the rest of the block. The length and line ends of a value, and of a
    # plain name, take at most 14 bytes.
    cdef Py_ssize_t bound = (view.entries + view.size - entry.values) + entry.names_size
    cdef char* start
    cdef char* to
    if view.words != NULL:
        # A byte may hold two digits, and each value may have a word.
        bound = 2 * bound + WORD_FORM_MAX * <Py_ssize_t>entry.fields
    start = to = out.reserve(bound + 32 * <Py_ssize_t>entry.fields + 160)
    if id_text.dotted:
        to += write_head(to, c'*', 1 + 2 * <uint64_t>entry.fields)
        to += write_id(to, entry.ms, entry.seq, id_text)
    else:
        memcpy(to, <const char*>b"*2\r\n", 4)
        to += 4
        to += write_id(to, entry.ms, entry.seq, id_text)
        to += write_head(to, c'*', 2 * <uint64_t>entry.fields)
    if view.words != NULL:
        to = write_packed_fields(to, view, entry, &end)
    else:
        to = write_fields(to, entry, &end)
    out.size += to - start
    return end


cdef int encode_entry(Output out, const View* view, const Entry* entry, IdText* id_text) except -1:
    """Encode one entry as a reply element: flat for T commands, nested for X commands."""
    put_entry(out, view, entry, id_text)
    return 0


cdef int64_t encode_forward(Output out, const View* view, const Selection* wanted, IdText* id_text,
                            EntryId* last) except -1:
    """Encode the wanted entries of a block, oldest first. Return their number; `last` becomes the ID
    of the last one."""
    cdef Cursor cursor
    cdef const uint8_t* at
    cdef uint64_t done = 0
    cdef uint32_t index
    cursor_seek(&cursor, view, wanted.start.ms, wanted.start.seq)
    at = cursor.at
    index = cursor.index
    while done < wanted.limit and index < view.count and out.size < wanted.full_size:
        read_entry(view, at, &cursor.entry)
        if id_less(wanted.end.ms, wanted.end.seq, cursor.entry.ms, cursor.entry.seq):
            break
        index += 1
        if cursor.entry.deleted:
            at = skip_values(view, cursor.entry.values, cursor.entry.fields)
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


cdef int64_t encode_backward(Output out, const View* view, const Selection* wanted, IdText* id_text,
                             EntryId* last) except -1:
    """Like encode_forward, newest first: decode 32 entries forward, then write them backward."""
    cdef Cursor cursor
    cdef Entry[CHECKPOINT_EVERY] group
    cdef uint64_t done = 0
    cdef uint32_t past
    cdef int held
    past = count_up_to(view, wanted.end.ms, wanted.end.seq)
    while past > 0 and done < wanted.limit and out.size < wanted.full_size:
        cursor_checkpoint(&cursor, view, (past - 1) // CHECKPOINT_EVERY)
        held = 0
        while cursor.index < past:
            cursor_next(&cursor, view)
            group[held] = cursor.entry
            held += 1
        past -= held
        while held > 0 and done < wanted.limit and out.size < wanted.full_size:
            held -= 1
            if id_less(group[held].ms, group[held].seq, wanted.start.ms, wanted.start.seq):
                return <int64_t>done
            if not group[held].deleted:
                put_entry(out, view, &group[held], id_text)
                last.ms = group[held].ms
                last.seq = group[held].seq
                done += 1
    return <int64_t>done
