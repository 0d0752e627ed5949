from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from millstream.entry_id cimport EntryId


cdef struct Heap:
    uint8_t* data
    size_t size
    size_t capacity
    size_t expected


cdef struct Texts:
    Heap offsets
    Heap data


cdef struct Column:
    int kind
    Py_ssize_t filled
    int64_t nulls
    Heap values
    Heap valid
    Texts names
    Texts texts


cdef class Buffer:
    cdef uint8_t* data
    cdef Py_ssize_t size


cdef bint grow(Heap* heap, size_t extra) noexcept nogil
cdef Buffer handed_over(Heap* heap)
cdef void free_column(Column* column) noexcept nogil
cdef bint put_ids(Column* column, const EntryId* ids, Py_ssize_t count) noexcept nogil
cdef bint put_keys(Column* column, const uint8_t* key, Py_ssize_t key_size,
                   Py_ssize_t count) noexcept nogil
cdef bint put_times(Column* column, const EntryId* ids, Py_ssize_t count) noexcept nogil
cdef bint put_integers(Column* column, const EntryId* ids, Py_ssize_t count, bint of_seq,
                       bint* fits) noexcept nogil
cdef bint put_decimals(Column* column, const EntryId* ids, Py_ssize_t count,
                       bint of_seq) noexcept nogil
cdef bint pack_bits(Heap* valid) noexcept nogil


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
