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

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from millstream.encoding cimport Slice, format_u64
from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.block cimport view_at
from millstream.storage.blocks.layout cimport Entry, View, read_entry, read_varint
from millstream.storage.blocks.block_check cimport fault_text, find_fault

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
    # Arrow's offsets are 32 bits wide and signed.
    BUFFER_BYTES_MAX = 0x7fffffff
    # Writable bytes after the written ones, because short copies use whole vectors.
    SLACK = 64
    LAYOUTS_MAX = 64
    SETS_IN_BLOCK_MAX = 31
    # Internal failures; every other result is a fault of the bytes.
    DONE = 0
    FULL = 1
    FAILED = -1


class Kind(IntEnum):
    """What a column contains for each entry, and the buffers that `Decoder.take` returns for it.

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


# ---------------------------------------------------------------- memory

cdef bint grow(Heap* heap, size_t extra) noexcept nogil:
    """Ensure space for `extra` more bytes and the slack. False when out of memory, or above the
    limit of Arrow's offsets."""
    cdef size_t wanted = heap.size + extra
    cdef void* moved
    if wanted > BUFFER_BYTES_MAX:
        return False
    if wanted < heap.expected:
        wanted = heap.expected
    elif wanted < 2 * heap.capacity:
        wanted = 2 * heap.capacity
    if wanted < 1024:
        wanted = 1024
    moved = realloc(heap.data, wanted + SLACK)
    if moved == NULL:
        return False
    heap.data = <uint8_t*>moved
    heap.capacity = wanted
    return True


cdef inline bint reserve(Heap* heap, size_t extra) noexcept nogil:
    if heap.size + extra < heap.capacity:  # never true for a heap without memory
        return True
    return grow(heap, extra)


cdef inline void push_offset(Texts* texts) noexcept nogil:
    """Record the end of the text that was just written; the space is reserved."""
    (<int32_t*>(texts.offsets.data + texts.offsets.size))[0] = <int32_t>texts.data.size
    texts.offsets.size += 4


cdef inline bint begin_offsets(Heap* offsets) noexcept nogil:
    """Arrow's offsets begin with a 0."""
    if offsets.size:
        return True
    if not reserve(offsets, 4):
        return False
    (<int32_t*>offsets.data)[0] = 0
    offsets.size = 4
    return True


cdef inline bint put_text(Texts* texts, const uint8_t* source, uint64_t size,
                          const uint8_t* limit) noexcept nogil:
    """Append one text. Short texts are copied in whole vectors, which reads past their end but not
    past `limit`."""
    cdef uint8_t* to
    if not reserve(&texts.offsets, 4) or not reserve(&texts.data, size):
        return False
    to = texts.data.data + texts.data.size
    if size <= 16 and limit - source >= 16:
        memcpy(to, source, 16)
    elif size <= 32 and limit - source >= 32:
        memcpy(to, source, 32)
    else:
        memcpy(to, source, size)
    texts.data.size += size
    push_offset(texts)
    return True


cdef class Buffer:
    """The memory of a column, available without a copy: `memoryview(buffer)`."""

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)

    def __len__(self) -> int:
        return self.size


cdef Buffer handed_over(Heap* heap):
    """Move the heap's memory to a Buffer. The heap is then empty and expects about the same size
    again."""
    cdef Buffer buffer = Buffer.__new__(Buffer)
    if heap.data == NULL and not grow(heap, 1):
        raise MemoryError("no memory for a column")
    buffer.data = heap.data
    buffer.size = <Py_ssize_t>heap.size
    heap.expected = heap.size + heap.size // 16
    heap.data = NULL
    heap.size = heap.capacity = 0
    return buffer


cdef void free_column(Column* column) noexcept nogil:
    free(column.values.data)
    free(column.valid.data)
    free(column.names.offsets.data)
    free(column.names.data.data)
    free(column.texts.offsets.data)
    free(column.texts.data.data)


cdef void free_layout(Layout* layout) noexcept nogil:
    free(layout.names)
    free(layout.column)
    free(layout.in_map)
    free(layout.kept_ends)
    free(layout.kept_names)
    memset(layout, 0, sizeof(Layout))


# ---------------------------------------------------------------- numbers

cdef inline bint put_ids(Column* column, const EntryId* ids, Py_ssize_t count) noexcept nogil:
    """Append IDs as `ms-seq`. Consecutive entries often have the same milliseconds, so the text of
    these is cached."""
    cdef char[24] text
    cdef int text_size = 0
    cdef uint64_t text_ms = 0
    cdef Py_ssize_t i
    cdef char* to
    cdef Texts* texts = &column.texts
    if not reserve(&texts.offsets, 4 * count) or not reserve(&texts.data, 41 * count):
        return False
    for i in range(count):
        if text_size == 0 or ids[i].ms != text_ms:
            text_ms = ids[i].ms
            text_size = format_u64(text, text_ms)
            text[text_size] = c'-'
            text_size += 1
        to = <char*>texts.data.data + texts.data.size
        memcpy(to, text, 24)
        to += text_size
        texts.data.size += text_size
        if ids[i].seq < 10:
            to[0] = <char>(48 + ids[i].seq)
            texts.data.size += 1
        else:
            texts.data.size += format_u64(to, ids[i].seq)
        push_offset(texts)
    return True


cdef inline bint put_keys(Column* column, const uint8_t* key, Py_ssize_t key_size,
                          Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t _
    cdef Texts* texts = &column.texts
    if not reserve(&texts.offsets, 4 * count) or not reserve(&texts.data, key_size * count):
        return False
    for _ in range(count):
        memcpy(texts.data.data + texts.data.size, key, key_size)
        texts.data.size += key_size
        push_offset(texts)
    return True


cdef inline bint put_times(Column* column, const EntryId* ids, Py_ssize_t count) noexcept nogil:
    """Append milliseconds as microseconds; null where the microseconds do not fit 64 bits."""
    cdef Py_ssize_t i
    cdef int64_t* to
    cdef uint8_t* valid
    cdef bint fits
    if not reserve(&column.values, 8 * count) or not reserve(&column.valid, count):
        return False
    to = <int64_t*>(column.values.data + column.values.size)
    valid = column.valid.data + column.valid.size
    for i in range(count):
        fits = ids[i].ms <= <uint64_t>(INT64_MAX // 1000)
        to[i] = <int64_t>(ids[i].ms * 1000) if fits else 0
        valid[i] = fits
        column.nulls += not fits
    column.values.size += 8 * count
    column.valid.size += count
    return True


cdef inline bint put_integers(Column* column, const EntryId* ids, Py_ssize_t count, bint of_seq,
                              bint* fits) noexcept nogil:
    cdef Py_ssize_t i
    cdef int64_t* to
    cdef uint64_t number
    cdef uint64_t every = 0
    if not reserve(&column.values, 8 * count):
        return False
    to = <int64_t*>(column.values.data + column.values.size)
    for i in range(count):
        number = ids[i].seq if of_seq else ids[i].ms
        every |= number
        to[i] = <int64_t>number
    column.values.size += 8 * count
    fits[0] = not every >> 63
    return True


cdef inline bint put_decimals(Column* column, const EntryId* ids, Py_ssize_t count,
                              bint of_seq) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint64_t* to
    if not reserve(&column.values, 16 * count):
        return False
    to = <uint64_t*>(column.values.data + column.values.size)
    for i in range(count):
        to[2 * i] = ids[i].seq if of_seq else ids[i].ms
        to[2 * i + 1] = 0
    column.values.size += 16 * count
    return True


# ---------------------------------------------------------------- single fields

cdef inline bint fill_nulls(Column* column, Py_ssize_t row) noexcept nogil:
    """Append nulls up to `row` to the column of a field; only entries that have the field write to
    the column."""
    cdef Py_ssize_t missing = row - column.filled
    cdef Py_ssize_t _
    if missing <= 0:
        return True
    if (not begin_offsets(&column.texts.offsets)
            or not reserve(&column.texts.offsets, 4 * missing)
            or not reserve(&column.valid, missing)):
        return False
    for _ in range(missing):
        push_offset(&column.texts)
    memset(column.valid.data + column.valid.size, 0, missing)
    column.valid.size += missing
    column.nulls += missing
    column.filled = row
    return True


cdef inline bint put_field(Column* column, Py_ssize_t row, const uint8_t* value, uint64_t size,
                           const uint8_t* limit) noexcept nogil:
    if not begin_offsets(&column.texts.offsets) or not fill_nulls(column, row):
        return False
    if not reserve(&column.valid, 1):
        return False
    if not put_text(&column.texts, value, size, limit):
        return False
    column.valid.data[column.valid.size] = 1
    column.valid.size += 1
    column.filled = row + 1
    return True


cdef bint pack_bits(Heap* valid) noexcept nogil:
    """Convert a byte per row to a bit per row, in place."""
    cdef size_t rows = valid.size
    cdef size_t i
    cdef uint8_t byte = 0
    for i in range(rows):
        byte |= <uint8_t>(valid.data[i] << (i & 7))
        if i & 7 == 7 or i == rows - 1:
            valid.data[i >> 3] = byte
            byte = 0
    valid.size = (rows + 7) >> 3
    return True


# ---------------------------------------------------------------- the decoder

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
        self.layouts = <Layout*>calloc(LAYOUTS_MAX, sizeof(Layout))
        self.seen = <const uint8_t**>calloc(SETS_IN_BLOCK_MAX, sizeof(void*))
        self.seen_layout = <int*>calloc(SETS_IN_BLOCK_MAX, sizeof(int))
        self.field_names = <Slice*>calloc(max(self.column_count, 1), sizeof(Slice))
        if (self.columns == NULL or self.layouts == NULL or self.seen == NULL
                or self.seen_layout == NULL or self.field_names == NULL):
            raise MemoryError("no memory for a decoder")
        for i in range(self.column_count):
            self.columns[i].kind = self.wanted[i][0]
            self.field_names[i].ptr = PyBytes_AS_STRING(self.wanted[i][1])
            self.field_names[i].size = len(self.wanted[i][1])
            if self.columns[i].kind in (KIND_MAP, KIND_LIST):
                if self.fields_column >= 0:
                    raise ValueError("a decoder has one column of all fields")
                self.fields_column = i
            self.wants_values |= self.columns[i].kind >= KIND_MAP
            self.wants_walk |= self.columns[i].kind != KIND_KEY

    def __dealloc__(self):
        cdef int i
        if self.columns:
            for i in range(self.column_count):
                free_column(&self.columns[i])
        if self.layouts:
            for i in range(LAYOUTS_MAX):
                free_layout(&self.layouts[i])
        free(self.columns)
        free(self.layouts)
        free(self.seen)
        free(self.seen_layout)
        free(self.field_names)
        free(self.ids)

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

    def add_pieces(self, data, list keys not None, const int64_t[::1] offsets,
                   const int64_t[::1] lengths, Py_ssize_t at, Py_ssize_t end, Py_ssize_t done,
                   first, last) -> tuple[int, int]:
        """Like `add`, for many pieces of `data`, each with its own key: piece i has lengths[i]
        bytes at offsets[i]. Adds the pieces from number `at` up to `end` (exclusive); `done` bytes
        of the first one were processed before.

        Returns (end, 0), or the point at which the batch became full: the piece, and the number of
        its bytes that were processed. If so, take the batch and continue there. Raises PieceError
        where `add` raises ValueError.
        """
        cdef const uint8_t[::1] raw = data
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
        """Whether the number of the block's entries is enough: only the key is requested, all
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
        self.seen_count = 0
        entry.ms = view.first_ms
        entry.seq = view.first_seq - 1
        for index in range(view.count):
            values = at = read_entry(view, at, &entry)
            if index < self.resume_at or entry.deleted or id_less(
                    entry.ms, entry.seq, first.ms, first.seq):
                at = self.skip(at, entry.fields)
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
                    layout = self.layout_of(names, entry.fields, entry.names_size)
                    if layout == NULL:
                        return self.failed(b"there is no memory for its field names")
                at = self.add_values(layout, values, limit, self.rows + count)
                if at == NULL:
                    return self.failed(b"its fields do not fit into a column of 2 GiB")
                self.row_bytes += at - values
            else:
                at = self.skip(at, entry.fields)
            self.row_bytes += key_size
            self.ids[count].ms = entry.ms
            self.ids[count].seq = entry.seq
            count += 1
        self.resume_at = 0
        taken[0] = count
        return DONE

    cdef inline const uint8_t* skip(self, const uint8_t* at, uint32_t fields) noexcept nogil:
        cdef uint64_t size
        cdef uint32_t _
        for _ in range(fields):
            at = read_varint(at, &size) + size
        return at

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

    # ------------------------------------------------------------ field names

    cdef Layout* layout_of(self, const uint8_t* names, uint32_t fields,
                           uint32_t size) noexcept nogil:
        """The columns of a field-name set. The cache is searched by its position in this block,
        then by its bytes, because blocks of a stream mostly have the same fields."""
        cdef int i
        cdef Layout* layout
        for i in range(self.seen_count):
            if self.seen[i] == names:
                return &self.layouts[self.seen_layout[i]]
        layout = self.find_layout(names, fields, size)
        if layout != NULL and self.seen_count < SETS_IN_BLOCK_MAX:
            self.seen[self.seen_count] = names
            self.seen_layout[self.seen_count] = <int>(layout - self.layouts)
            self.seen_count += 1
        return layout

    cdef Layout* find_layout(self, const uint8_t* names, uint32_t fields,
                             uint32_t size) noexcept nogil:
        cdef int i
        cdef Layout* layout
        for i in range(self.layout_count):
            layout = &self.layouts[i]
            if (layout.fields == fields and layout.names_size == size
                    and memcmp(layout.names, names, size) == 0):
                return layout
        if self.layout_count < LAYOUTS_MAX:
            i = self.layout_count
            self.layout_count += 1
        else:
            i = self.layout_next
            self.layout_next = (i + 1) % LAYOUTS_MAX
            self.seen_count = 0  # they may point to the layout that is removed
        layout = &self.layouts[i]
        free_layout(layout)
        layout.names = <uint8_t*>malloc(size + 1)
        layout.column = <int*>malloc(fields * sizeof(int))
        layout.in_map = <uint8_t*>malloc(fields)
        layout.kept_ends = <uint32_t*>malloc((<size_t>fields + 1) * 4)
        layout.kept_names = <uint8_t*>malloc(size + 1)
        if (layout.names == NULL or layout.column == NULL or layout.in_map == NULL
                or layout.kept_ends == NULL or layout.kept_names == NULL):
            free_layout(layout)
            return NULL
        memcpy(layout.names, names, size)
        layout.fields = fields
        layout.names_size = size
        if not self.describe(layout):
            free_layout(layout)
            return NULL
        return layout

    cdef bint describe(self, Layout* layout) noexcept nogil:
        """Determine the column of each field. The loop runs from the last field to the first,
        because the last one of fields with the same name counts. A table of names makes this linear
        for entries with very many fields."""
        cdef uint32_t slots = 16
        cdef uint32_t i, slot
        cdef uint64_t size
        cdef const uint8_t** starts
        cdef uint32_t* sizes
        cdef uint32_t* table
        cdef const uint8_t* at = layout.names
        cdef bint again
        cdef bint keep_all = self.fields_column >= 0 and (
            self.columns[self.fields_column].kind == KIND_LIST)
        while slots < 2 * <uint64_t>layout.fields:
            slots *= 2
        starts = <const uint8_t**>malloc(layout.fields * sizeof(void*))
        sizes = <uint32_t*>malloc(layout.fields * 4)
        table = <uint32_t*>calloc(slots, 4)
        if starts == NULL or sizes == NULL or table == NULL:
            free(starts)
            free(sizes)
            free(table)
            return False
        for i in range(layout.fields):
            at = read_varint(at, &size)
            starts[i] = name_in(at, size, &sizes[i])
            at += size
        i = layout.fields
        while i > 0:
            i -= 1
            slot = hash_of(starts[i], sizes[i]) & (slots - 1)
            again = False
            while table[slot]:
                if sizes[table[slot] - 1] == sizes[i] and memcmp(
                        starts[table[slot] - 1], starts[i], sizes[i]) == 0:
                    again = True
                    break
                slot = (slot + 1) & (slots - 1)
            table[slot] = table[slot] if again else i + 1
            layout.column[i] = -1 if again else self.column_named(starts[i], sizes[i])
            layout.in_map[i] = keep_all or not again
        layout.kept_fields = 0
        layout.kept_ends[0] = 0
        for i in range(layout.fields):
            if layout.in_map[i]:
                memcpy(layout.kept_names + layout.kept_ends[layout.kept_fields], starts[i],
                       sizes[i])
                layout.kept_fields += 1
                layout.kept_ends[layout.kept_fields] = (
                    layout.kept_ends[layout.kept_fields - 1] + sizes[i])
        free(starts)
        free(sizes)
        free(table)
        return True

    cdef int column_named(self, const uint8_t* name, Py_ssize_t size) noexcept nogil:
        """The column of the field with this name; -1 if there is none."""
        cdef int i
        for i in range(self.column_count):
            if (self.columns[i].kind == KIND_FIELD and self.field_names[i].size == size
                    and memcmp(self.field_names[i].ptr, name, size) == 0):
                return i
        return -1


cdef inline const uint8_t* name_in(const uint8_t* bulk, uint64_t bulk_size,
                                   uint32_t* size) noexcept nogil:
    """The field name in its bulk string, which is valid: `$3 CR LF abc CR LF`."""
    cdef const uint8_t* at = bulk
    while at[0] != c'\n':
        at += 1
    size[0] = <uint32_t>(bulk + bulk_size - at - 3)
    return at + 1


cdef inline uint32_t hash_of(const uint8_t* text, uint32_t size) noexcept nogil:
    """FNV-1a."""
    cdef uint32_t value = 2166136261
    cdef uint32_t i
    for i in range(size):
        value = (value ^ text[i]) * <uint32_t>16777619
    return value


# ---------------------------------------------------------------- text

cdef inline bint is_ascii(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    cdef uint8_t every = 0
    cdef Py_ssize_t i
    for i in range(size):
        every |= at[i]
    return every < 128


cdef bint is_utf8(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Whether these bytes are valid UTF-8: shortest form, no surrogates."""
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t more, k
    cdef uint8_t head
    while i < size:
        head = at[i]
        i += 1
        if head < 0x80:
            continue
        if head < 0xc2 or head > 0xf4:
            return False
        more = 1 if head < 0xe0 else (2 if head < 0xf0 else 3)
        if size - i < more:
            return False
        for k in range(more):
            if at[i + k] & 0xc0 != 0x80:
                return False
        if ((head == 0xe0 and at[i] < 0xa0) or (head == 0xed and at[i] >= 0xa0)
                or (head == 0xf0 and at[i] < 0x90) or (head == 0xf4 and at[i] >= 0x90)):
            return False
        i += more
    return True


def not_utf8(offsets, data) -> list[int]:
    """The indexes of the texts of a column (its two buffers) that are not UTF-8; mostly none."""
    cdef const uint8_t[::1] raw = data
    cdef const uint8_t[::1] raw_offsets = offsets
    cdef Py_ssize_t count = raw_offsets.shape[0] // 4 - 1
    cdef const int32_t* at = <const int32_t*>&raw_offsets[0]
    cdef Py_ssize_t i
    cdef bint fine
    cdef list found = []
    if raw.shape[0] == 0:
        return found
    with nogil:
        fine = is_ascii(&raw[0], raw.shape[0])
    if fine:
        return found
    for i in range(count):
        if not is_utf8(&raw[0] + at[i], at[i + 1] - at[i]):
            found.append(i)
    return found
