# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The memory of columns in the layout of Apache Arrow, and writing keys, IDs and times to it.

What is written for each value is inline in `column_buffers.pxd`.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from millstream.encoding cimport format_u64
from millstream.entry_id cimport EntryId

cdef enum:
    # Arrow's offsets are 32 bits wide and signed.
    BUFFER_BYTES_MAX = 0x7fffffff
    # Writable bytes after the written ones, because short copies use whole vectors.
    SLACK = 64


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


# ---------------------------------------------------------------- keys, IDs and times

cdef bint put_ids(Column* column, const EntryId* ids, Py_ssize_t count) noexcept nogil:
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


cdef bint put_keys(Column* column, const uint8_t* key, Py_ssize_t key_size,
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


cdef bint put_times(Column* column, const EntryId* ids, Py_ssize_t count) noexcept nogil:
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


cdef bint put_integers(Column* column, const EntryId* ids, Py_ssize_t count, bint of_seq,
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


cdef bint put_decimals(Column* column, const EntryId* ids, Py_ssize_t count,
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


# ---------------------------------------------------------------- text

cdef inline bint is_ascii(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    cdef uint8_t every = 0
    cdef Py_ssize_t i
    for i in range(size):
        every |= at[i]
    return every < 128


cdef bint is_utf8(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """True if these bytes are valid UTF-8: shortest form, no surrogates."""
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
