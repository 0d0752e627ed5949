# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Decodes blocks into columns, in the memory layout of Apache Arrow.

Reading millions of entries must not create a Python object for each. A Decoder reads the disk forms
of blocks in place, without the interpreter's lock, and writes the requested columns into buffers
that Arrow uses without a copy: keys, IDs as text, times, numbers, single fields, or all fields as a
map or a list. The module uses Arrow's layout but not its library, so a server does not need the
library.

Every block is checked (`block_check.find_fault`) before its entries are read, so no sequence of
bytes can make the decoder leave the block.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.block cimport view_at
from millstream.storage.blocks.block_check cimport fault_text, find_fault
from millstream.storage.blocks.column_buffers cimport (
    Column, Texts, begin_offsets, fill_nulls, free_column, handed_over, pack_bits, put_decimals,
    put_field, put_ids, put_integers, put_keys, put_text, put_times, reserve,
)
from millstream.storage.blocks.field_layouts cimport Layout, begin_cache, free_cache, layout_of
from millstream.storage.blocks.layout cimport (
    AS_TEXT, AS_WORD, BLOCK_BYTES_MAX, WORD_BYTES_MAX, Entry, Packed, View, next_packed, read_entry,
    read_varint, skip_values, unpack_value, word_frame,
)

from enum import IntEnum

cdef enum:
    KIND_KEY = 0
    KIND_ID = 1
    KIND_TS = 2
    KIND_INT_MS = 3
    KIND_INT_SEQ = 4
    KIND_DECIMAL_MS = 5
    KIND_DECIMAL_SEQ = 6
    KIND_MAP = 7
    KIND_LIST = 8
    KIND_FIELD = 9
    # Internal failures; every other result is a fault of the bytes.
    DONE = 0
    FULL = 1
    FAILED = -1


class Kind(IntEnum):
    """The content of a column for each entry, and the buffers that `Decoder.take` returns for it.

    An entry that has no such field, or a time that does not fit, is null.
    """

    KEY = KIND_KEY  # the stream's key: offsets, bytes
    ID = KIND_ID  # `ms-seq`: offsets, bytes
    TS = KIND_TS  # ms as microseconds, signed 64 bits: values
    INT_MS = KIND_INT_MS  # signed 64 bits, larger numbers are refused: values
    INT_SEQ = KIND_INT_SEQ
    DECIMAL_MS = KIND_DECIMAL_MS  # 128 bits, scale 0: values
    DECIMAL_SEQ = KIND_DECIMAL_SEQ
    # Row offsets, name offsets, name bytes, value offsets, value bytes.
    MAP = KIND_MAP  # the last one of fields with the same name
    LIST = KIND_LIST  # every field, in order
    FIELD = KIND_FIELD  # the last field of one name: offsets, bytes


class PieceError(ValueError):
    """A fault in one of several pieces; `piece` is its number."""

    def __init__(self, piece: int, what: str) -> None:
        super().__init__(what)
        self.piece = piece


cdef class Decoder:
    """Decodes blocks into columns: `add` runs of blocks, and `take` a batch when it is full.

    `columns` are pairs of a `Kind` and, for `Kind.FIELD`, the field's name. A batch is full at
    `rows_max` entries, or at about `bytes_max` bytes of keys, names and values.
    """

    def __cinit__(self, columns, Py_ssize_t rows_max=1 << 16, size_t bytes_max=1 << 25):
        cdef int i
        self.wanted = [(int(kind), bytes(name)) for kind, name in columns]
        self.column_count = <int>len(self.wanted)
        self.rows_max = max(rows_max, 1)
        self.bytes_max = bytes_max if bytes_max else 1
        self.fields_column = -1
        self.columns = <Column*>calloc(max(self.column_count, 1), sizeof(Column))
        self.field_names = <Slice*>calloc(max(self.column_count, 1), sizeof(Slice))
        if self.columns == NULL or self.field_names == NULL:
            raise MemoryError("no memory for a decoder")
        for i in range(self.column_count):
            self.columns[i].kind = self.wanted[i][0]
            if self.columns[i].kind == KIND_FIELD:
                self.field_names[i].ptr = PyBytes_AS_STRING(self.wanted[i][1])
                self.field_names[i].size = len(self.wanted[i][1])
            if self.columns[i].kind in (KIND_MAP, KIND_LIST):
                if self.fields_column >= 0:
                    raise ValueError("a decoder has one column of all fields")
                self.fields_column = i
            self.wants_values |= self.columns[i].kind >= KIND_MAP
            self.wants_walk |= self.columns[i].kind != KIND_KEY
        keep_all = self.fields_column >= 0 and self.columns[self.fields_column].kind == KIND_LIST
        if not begin_cache(&self.layouts, self.field_names, self.column_count, keep_all):
            raise MemoryError("no memory for a decoder")

    def __dealloc__(self):
        cdef int i
        if self.columns:
            for i in range(self.column_count):
                free_column(&self.columns[i])
        free_cache(&self.layouts)
        free(self.columns)
        free(self.field_names)
        free(self.ids)
        free(self.unpacked)

    def add(self, data, bytes key not None, first, last) -> int:
        """Add the undeleted entries with first <= ID <= last of the contiguous blocks in `data`;
        `first` and `last` are (ms, seq).

        Returns the number of bytes processed: all, unless the batch is full. If so, take the batch
        and call again with the rest of `data` and the same key and IDs; nothing is added twice.

        ValueError describes the fault of a block and the byte of `data` at which the block starts.
        The decoder cannot be used afterwards.
        """
        cdef const uint8_t[::1] raw = data
        cdef const uint8_t* at = &raw[0] if raw.shape[0] else NULL
        cdef Py_ssize_t size = raw.shape[0]
        cdef const uint8_t* key_at = <const uint8_t*>PyBytes_AS_STRING(key)
        cdef Py_ssize_t key_size = len(key)
        cdef EntryId low, high
        cdef Py_ssize_t taken
        low.ms, low.seq = first
        high.ms, high.seq = last
        with nogil:
            taken = self.add_blocks(at, size, key_at, key_size, low, high)
        if taken < 0:
            raise ValueError(self.fault_sentence())
        return taken

    def add_pieces(self, data, pieces not None, Py_ssize_t at, Py_ssize_t end, Py_ssize_t done,
                   first, last) -> tuple[int, int]:
        """Like `add`, for many pieces of `data`, each with its own key: piece i of `pieces` has the
        key keys[i], and lengths[i] bytes at offsets[i]. Adds the pieces from number `at` up to `end`
        (exclusive); `done` bytes of the first one were processed before.

        Returns (end, 0), or the point at which the batch became full: the piece, and the number of
        its bytes that were processed. If so, take the batch and continue there. Raises PieceError
        where `add` raises ValueError.
        """
        cdef const uint8_t[::1] raw = data
        cdef list keys = pieces.keys
        cdef const int64_t[::1] offsets = pieces.offsets
        cdef const int64_t[::1] lengths = pieces.lengths
        cdef Py_ssize_t size = raw.shape[0]
        cdef Py_ssize_t length, taken, key_size
        cdef const uint8_t* piece
        cdef const uint8_t* key_at
        cdef bytes key
        cdef EntryId low, high
        low.ms, low.seq = first
        high.ms, high.seq = last
        if not 0 <= at <= end <= min(len(keys), offsets.shape[0], lengths.shape[0]):
            raise IndexError("there are no such pieces")
        while at < end:
            length = lengths[at]
            if length < 0 or offsets[at] < 0 or offsets[at] > size or length > size - offsets[at]:
                raise PieceError(at, "the index has it pass the chunk's end")
            if not 0 <= done <= length:
                raise IndexError("a piece has fewer bytes")
            if done == length:
                at, done = at + 1, 0
                continue
            key = keys[at]
            key_at = <const uint8_t*>PyBytes_AS_STRING(key)
            key_size = len(key)
            piece = &raw[0] + offsets[at] + done
            with nogil:
                taken = self.add_blocks(piece, length - done, key_at, key_size, low, high)
            if taken < 0:
                raise PieceError(at, self.fault_sentence())
            if taken < length - done:
                return at, done + taken
            at, done = at + 1, 0
        return end, 0

    def take(self) -> list[tuple[int, list[Buffer | None]]]:
        """Return the batch and begin a new one: for each column its number of nulls and its
        buffers. The first buffer is the validity bitmap, None when the column has no null."""
        cdef int i
        taken = [self.take_column(i) for i in range(self.column_count)]
        self.rows = 0
        self.row_bytes = 0
        return taken

    def take_column(self, int index) -> tuple[int, list[Buffer | None]]:
        cdef Column* column = &self.columns[index]
        cdef int64_t nulls
        valid = None
        if column.kind == KIND_FIELD and not (
                begin_offsets(&column.texts.offsets) and fill_nulls(column, self.rows)):
            raise MemoryError("no memory for a column")
        nulls = column.nulls
        if nulls:
            pack_bits(&column.valid)
            valid = handed_over(&column.valid)
        column.valid.size = 0
        column.nulls = 0
        column.filled = 0
        if KIND_TS <= column.kind <= KIND_DECIMAL_SEQ:
            return nulls, [valid, handed_over(&column.values)]
        if not begin_offsets(&column.texts.offsets):
            raise MemoryError("no memory for a column")
        texts = [handed_over(&column.texts.offsets), handed_over(&column.texts.data)]
        if column.kind in (KIND_MAP, KIND_LIST):
            if not begin_offsets(&column.values) or not begin_offsets(&column.names.offsets):
                raise MemoryError("no memory for a column")
            return nulls, [valid, handed_over(&column.values), handed_over(&column.names.offsets),
                           handed_over(&column.names.data), *texts]
        return nulls, [valid, *texts]

    def fault_sentence(self) -> str:
        """The sentence for the fault that add_blocks found."""
        what = self.fault.what.decode()
        if self.fault.of_block:
            what = fault_text(self.fault.what, self.fault.entry, self.fault.count)
        return f"at byte {self.fault.offset}: {what}"

    cdef Py_ssize_t add_blocks(self, const uint8_t* data, Py_ssize_t size, const uint8_t* key,
                               Py_ssize_t key_size, EntryId first, EntryId last) noexcept nogil:
        """Return the number of bytes processed, up to the block in which the batch became full, or
        FAILED."""
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t length
        cdef View view
        cdef int outcome
        while at < size:
            self.fault.offset = at
            self.fault.what = view_at(data + at, size - at, &view, &length)
            self.fault.entry = self.fault.count = 0
            self.fault.of_block = True
            if self.fault.what != NULL:
                return FAILED
            outcome = self.add_block(&view, key, key_size, first, last, data + size)
            if outcome == FULL:
                return at
            if outcome == FAILED:
                return FAILED
            at += length
        return at

    cdef int add_block(self, const View* view, const uint8_t* key, Py_ssize_t key_size,
                       EntryId first, EntryId last, const uint8_t* limit) noexcept nogil:
        cdef Py_ssize_t taken = 0
        cdef int outcome
        if (id_less(view.last_ms, view.last_seq, first.ms, first.seq)
                or id_less(last.ms, last.seq, view.first_ms, view.first_seq)):
            return DONE
        if self.is_counted(view, key_size, first, last):
            taken = view.live
            self.row_bytes += key_size * taken
            outcome = DONE
        else:
            self.fault.what = find_fault(view, &self.fault.entry)
            self.fault.count = view.count
            if self.fault.what != NULL:
                return FAILED
            outcome = self.walk(view, key_size, first, last, limit, &taken)
            if outcome == FAILED:
                return FAILED
        if not self.put_columns(taken, key, key_size):
            return FAILED
        self.rows += taken
        return outcome

    cdef bint is_counted(self, const View* view, Py_ssize_t key_size, EntryId first,
                         EntryId last) noexcept nogil:
        """True if the number of the block's entries is enough: only the key is requested, all
        entries are selected, and they fit into the batch."""
        return (not self.wants_walk and self.resume_at == 0 and view.live <= view.count
                and not id_less(view.first_ms, view.first_seq, first.ms, first.seq)
                and not id_less(last.ms, last.seq, view.last_ms, view.last_seq)
                and self.rows + view.live <= self.rows_max
                and self.row_bytes + <size_t>key_size * view.live <= self.bytes_max)

    cdef int walk(self, const View* view, Py_ssize_t key_size, EntryId first, EntryId last,
                  const uint8_t* limit, Py_ssize_t* taken) noexcept nogil:
        """Add the values of one block's entries, and record their IDs. `resume_at` is the entry to
        begin at; when the batch becomes full, it is set to the entry to continue at."""
        cdef Entry entry
        cdef const uint8_t* at = view.entries
        cdef const uint8_t* values
        cdef uint32_t index
        cdef Py_ssize_t count = 0
        cdef Layout* layout = NULL
        cdef const uint8_t* names = NULL
        cdef void* moved
        if view.count > self.ids_capacity:
            moved = realloc(self.ids, view.count * sizeof(EntryId))
            if moved == NULL:
                return self.failed(b"there is no memory for its ids")
            self.ids = <EntryId*>moved
            self.ids_capacity = view.count
        if view.words != NULL and self.unpacked == NULL:
            # A byte may hold two digits. Copies of short texts read more.
            self.unpacked = <uint8_t*>malloc(2 * BLOCK_BYTES_MAX + WORD_BYTES_MAX)
            if self.unpacked == NULL:
                return self.failed(b"there is no memory for its values")
        self.layouts.seen_count = 0
        entry.ms = view.first_ms
        entry.seq = view.first_seq - 1
        for index in range(view.count):
            values = at = read_entry(view, at, &entry)
            if index < self.resume_at or entry.deleted or id_less(
                    entry.ms, entry.seq, first.ms, first.seq):
                at = skip_values(view, at, entry.fields)
                continue
            if id_less(last.ms, last.seq, entry.ms, entry.seq):
                break
            if self.rows + count >= self.rows_max or self.row_bytes >= self.bytes_max:
                self.resume_at = index
                taken[0] = count
                return FULL
            if self.wants_values:
                if entry.names != names:
                    names = entry.names
                    layout = layout_of(&self.layouts, &entry)
                    if layout == NULL:
                        return self.failed(b"there is no memory for its field names")
                at = self.add_packed(layout, view, values, limit, self.rows + count) if (
                    view.words != NULL) else self.add_values(
                        layout, values, limit, self.rows + count)
                if at == NULL:
                    return self.failed(b"its fields do not fit into a column of 2 GiB")
                self.row_bytes += at - values
            else:
                at = skip_values(view, at, entry.fields)
            self.row_bytes += key_size
            self.ids[count].ms = entry.ms
            self.ids[count].seq = entry.seq
            count += 1
        self.resume_at = 0
        taken[0] = count
        return DONE

    cdef inline int failed(self, const char* what) noexcept nogil:
        self.fault.what = what
        self.fault.of_block = False
        return FAILED

    cdef const uint8_t* add_values(self, Layout* layout, const uint8_t* at, const uint8_t* limit,
                                   Py_ssize_t row) noexcept nogil:
        """Write one entry's values to the columns of its layout; return the position after them, or
        NULL."""
        cdef Column* all_fields = NULL
        cdef uint64_t size
        cdef uint32_t i
        if self.fields_column >= 0:
            all_fields = &self.columns[self.fields_column]
            if not self.add_names(layout, all_fields):
                return NULL
        for i in range(layout.fields):
            at = read_varint(at, &size)
            if all_fields != NULL and layout.in_map[i]:
                if not put_text(&all_fields.texts, at, size, limit):
                    return NULL
            if layout.column[i] >= 0:
                if not put_field(&self.columns[layout.column[i]], row, at, size, limit):
                    return NULL
            at += size
        return at

    cdef const uint8_t* add_packed(self, Layout* layout, const View* view, const uint8_t* at,
                                   const uint8_t* limit, Py_ssize_t row) noexcept nogil:
        """As add_values, for packed values."""
        cdef Column* all_fields = NULL
        cdef const uint8_t* text
        cdef const uint8_t* text_limit
        cdef Packed value
        cdef uint32_t i
        at = read_varint(at, &value.size)
        if self.fields_column >= 0:
            all_fields = &self.columns[self.fields_column]
            if not self.add_names(layout, all_fields):
                return NULL
        for i in range(layout.fields):
            at = next_packed(view, at, &value)
            if layout.column[i] < 0 and (all_fields == NULL or not layout.in_map[i]):
                continue
            text_limit = limit
            if value.how == AS_TEXT:
                text = value.rest
            elif value.how == AS_WORD:
                text = value.word + word_frame(value.word_size)
            else:
                text = self.unpacked
                text_limit = <const uint8_t*>unpack_value(<char*>self.unpacked, &value)
            if all_fields != NULL and layout.in_map[i]:
                if not put_text(&all_fields.texts, text, value.size, text_limit):
                    return NULL
            if layout.column[i] >= 0:
                if not put_field(&self.columns[layout.column[i]], row, text, value.size,
                                 text_limit):
                    return NULL
            self.row_bytes += value.size
        return at

    cdef int add_names(self, Layout* layout, Column* column) noexcept nogil:
        """Write one row of all fields: its names, and its end."""
        cdef Texts* names = &column.names
        cdef uint32_t i
        cdef uint32_t size = layout.kept_ends[layout.kept_fields]
        cdef int32_t start
        cdef int32_t* to
        if (not begin_offsets(&column.values) or not begin_offsets(&names.offsets)
                or not begin_offsets(&column.texts.offsets)
                or not reserve(&column.values, 4)
                or not reserve(&names.offsets, 4 * <size_t>layout.kept_fields)
                or not reserve(&names.data, size)):
            return False
        start = <int32_t>names.data.size
        to = <int32_t*>(names.offsets.data + names.offsets.size)
        for i in range(layout.kept_fields):
            to[i] = start + <int32_t>layout.kept_ends[i + 1]
        names.offsets.size += 4 * <size_t>layout.kept_fields
        memcpy(names.data.data + names.data.size, layout.kept_names, size)
        names.data.size += size
        self.row_bytes += size
        (<int32_t*>(column.values.data + column.values.size))[0] = <int32_t>(
            names.offsets.size // 4 - 1)
        column.values.size += 4
        return True

    cdef int put_columns(self, Py_ssize_t count, const uint8_t* key,
                         Py_ssize_t key_size) noexcept nogil:
        """Write the columns that are not fields, for `count` entries whose IDs were recorded."""
        cdef Column* column
        cdef bint done = True
        cdef bint fits = True
        cdef int i
        for i in range(self.column_count):
            column = &self.columns[i]
            if column.kind == KIND_KEY:
                done = begin_offsets(&column.texts.offsets) and put_keys(
                    column, key, key_size, count)
            elif column.kind == KIND_ID:
                done = begin_offsets(&column.texts.offsets) and put_ids(column, self.ids, count)
            elif column.kind == KIND_TS:
                done = put_times(column, self.ids, count)
            elif column.kind == KIND_INT_MS or column.kind == KIND_INT_SEQ:
                done = put_integers(column, self.ids, count, column.kind == KIND_INT_SEQ, &fits)
            elif column.kind == KIND_DECIMAL_MS or column.kind == KIND_DECIMAL_SEQ:
                done = put_decimals(column, self.ids, count, column.kind == KIND_DECIMAL_SEQ)
            if not done:
                self.failed(b"it does not fit into a column of 2 GiB")
                return False
            if not fits:
                self.failed(b"an id has a number above 2^63-1, which a bigint cannot hold;"
                            b" ask for decimal(20,0)")
                return False
        return True
