# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Encodes rows of Arrow batches as TAPPENDMANY requests, without a Python object per row.

The encoder reads texts, integers and times from Arrow's buffers; Arrow converts other types to
texts first. The rows of a batch are ordered by stream, so that a request names each of its streams
once. Rows of one stream keep their order and have increasing numbers or IDs.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.math cimport signbit
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from millstream.encoding cimport Output, Slice, format_u64
from millstream.entry_id cimport EntryId, id_less
from millstream.ids cimport parse_id
from millstream.storage.keyspace.cluster_slots cimport cluster_slot

from enum import IntEnum

cdef enum:
    KIND_TEXT = 0
    KIND_LONG_TEXT = 1
    KIND_INT8 = 2
    KIND_INT16 = 3
    KIND_INT32 = 4
    KIND_INT64 = 5
    KIND_TIME = 6
    KIND_MOMENT = 7
    KIND_DECIMALS = 8
    # ROWS_MAX is at most what TAPPENDMANY accepts. Requests of some hundred KB stay in the CPU
    # caches of sender and server; requests of several MB cost twice as much.
    ROWS_MAX = 5000
    REQUEST_BYTES = 262144

cdef int64_t DAY_US = 86_400_000_000
# Doubles with few decimals are formatted without the general algorithm, which is ten times slower.
cdef enum:
    DECIMALS_MAX = 6
    SCALE = 1000000


class Kind(IntEnum):
    """The contents of an Arrow column."""

    TEXT = KIND_TEXT  # strings or binary with offsets of 32 bits
    LONG_TEXT = KIND_LONG_TEXT  # with offsets of 64 bits
    INT8 = KIND_INT8
    INT16 = KIND_INT16
    INT32 = KIND_INT32
    INT64 = KIND_INT64
    TIME = KIND_TIME  # microseconds since 1970, years 0001 to 9999, without a zone
    MOMENT = KIND_MOMENT  # the same in UTC
    DECIMALS = KIND_DECIMALS  # doubles, each of which `has_few_decimals`


class RowFault(ValueError):
    """A row that cannot become an entry: its index in the encoder, and the reason."""

    def __init__(self, row: int, reason: str):
        super().__init__(reason)
        self.row = row
        self.reason = reason


cdef const uint8_t* address_of(buffer) except? NULL:
    """The address of a buffer; the caller keeps the buffer."""
    cdef Py_buffer view
    cdef const uint8_t* found
    if buffer is None:
        return NULL
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    found = <const uint8_t*>view.buf
    PyBuffer_Release(&view)
    return found


cdef class Column:
    """A column of an Arrow array: its buffers (validity and values; for texts validity, offsets and
    bytes), the index of its first row in them, and the name of its field."""

    def __init__(self, int kind, buffers, Py_ssize_t start=0, bytes name=b""):
        self.kept = tuple(buffers)
        self.kind = kind
        self.start = start
        self.valid = address_of(self.kept[0])
        if kind <= KIND_LONG_TEXT:
            self.offsets = address_of(self.kept[1])
            self.values = address_of(self.kept[2])
        else:
            self.values = address_of(self.kept[1])
        self.head = b"$%d\r\n%b\r\n" % (len(name), name)

    cdef inline bint is_there(self, Py_ssize_t row) noexcept:
        row += self.start
        return self.valid == NULL or (self.valid[row >> 3] >> (row & 7)) & 1

    cdef inline Slice text(self, Py_ssize_t row) noexcept:
        """The text of a row that is not null, in a column of texts."""
        cdef Slice found
        cdef const int32_t* ends = <const int32_t*>self.offsets
        cdef const int64_t* long_ends = <const int64_t*>self.offsets
        row += self.start
        if self.kind == KIND_TEXT:
            found.ptr = <const char*>self.values + ends[row]
            found.size = ends[row + 1] - ends[row]
        else:
            found.ptr = <const char*>self.values + long_ends[row]
            found.size = long_ends[row + 1] - long_ends[row]
        return found

    cdef int put(self, Output out, Py_ssize_t row) except -1:
        """Append the value, which is not null, as a bulk string."""
        cdef Slice found
        if self.kind <= KIND_LONG_TEXT:
            found = self.text(row)
            return out.put_bulk(found.ptr, found.size)
        row += self.start
        if self.kind == KIND_INT64:
            return put_int(out, (<const int64_t*>self.values)[row])
        if self.kind == KIND_INT32:
            return put_int(out, (<const int32_t*>self.values)[row])
        if self.kind == KIND_INT16:
            return put_int(out, (<const int16_t*>self.values)[row])
        if self.kind == KIND_INT8:
            return put_int(out, (<const int8_t*>self.values)[row])
        if self.kind == KIND_DECIMALS:
            return put_decimals(out, (<const double*>self.values)[row])
        return put_time(out, (<const int64_t*>self.values)[row], self.kind == KIND_MOMENT)

    def has_few_decimals(self, Py_ssize_t rows) -> bool:
        """True if the values are doubles with at most six decimals and fifteen digits.

        Such a decimal is the shortest text of its double, because decimals of up to fifteen digits
        all parse as different doubles. Infinities, NaN and -0.0 are excluded.
        """
        cdef const double* values = <const double*>self.values
        cdef Py_ssize_t row
        cdef double value
        for row in range(rows):
            value = values[self.start + row]
            if not self.is_there(row):
                continue
            if not -1e9 < value < 1e9 or <double>scaled_of(value) / <double>SCALE != value or (
                    value == 0 and signbit(value)):
                return False
        return True


cdef inline int put_int(Output out, int64_t number) except -1:
    cdef char[24] text
    cdef int size
    if number >= 0:
        size = format_u64(text, <uint64_t>number)
    else:
        text[0] = c'-'
        size = 1 + format_u64(text + 1, 0 - <uint64_t>number)
    return out.put_bulk(text, size)


cdef inline int64_t scaled_of(double value) noexcept nogil:
    """The value in millionths, rounded to the nearest integer."""
    value *= <double>SCALE
    return <int64_t>(value + 0.5 if value > 0 else value - 0.5)


cdef inline int put_decimals(Output out, double value) except -1:
    """Append a double that has few decimals, without trailing zeros."""
    cdef char[32] text
    cdef int64_t scaled = scaled_of(value)
    cdef int size = 0
    cdef int64_t decimals
    if scaled < 0:
        text[0] = c'-'
        size = 1
        scaled = -scaled
    size += format_u64(text + size, <uint64_t>(scaled // SCALE))
    decimals = scaled % SCALE
    if decimals:
        text[size] = c'.'
        put_digits(text + size + 1, DECIMALS_MAX, decimals)
        size += 1 + DECIMALS_MAX
        while text[size - 1] == c'0':
            size -= 1
    return out.put_bulk(text, size)


cdef inline void put_digits(char* at, int count, int64_t number) noexcept nogil:
    cdef int i
    for i in range(count - 1, -1, -1):
        at[i] = <char>(48 + number % 10)
        number //= 10


cdef inline void put_date(char* at, int64_t days) noexcept nogil:
    """Write YYYY-MM-DD of a day since 1970, in the proleptic Gregorian calendar. Years of 365.2425
    days are counted from 1 March of the year 0, so that a leap day is the last day of its year."""
    cdef int64_t since = days + 719468
    cdef int64_t era = since // 146097 if since >= 0 else (since - 146096) // 146097
    cdef int64_t of_era = since - era * 146097
    cdef int64_t year_of_era = (
        of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    cdef int64_t of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    cdef int64_t month = (5 * of_year + 2) // 153
    cdef int64_t day = of_year - (153 * month + 2) // 5 + 1
    cdef int64_t year = year_of_era + era * 400
    month = month + 3 if month < 10 else month - 9
    put_digits(at, 4, year + (month <= 2))
    at[4] = c'-'
    put_digits(at + 5, 2, month)
    at[7] = c'-'
    put_digits(at + 8, 2, day)


cdef inline int put_time(Output out, int64_t time_us, bint is_moment) except -1:
    """Append a time of the years 1 to 9999 in ISO 8601, with a Z for a moment (a time with a
    zone)."""
    cdef char[32] text
    cdef int64_t days = time_us // DAY_US
    cdef int64_t of_day
    if days * DAY_US > time_us:  # C rounds towards 0
        days -= 1
    of_day = time_us - days * DAY_US
    put_date(text, days)
    text[10] = c'T'
    put_digits(text + 20, 6, of_day % 1_000_000)
    of_day //= 1_000_000
    put_digits(text + 17, 2, of_day % 60)
    put_digits(text + 14, 2, of_day // 60 % 60)
    put_digits(text + 11, 2, of_day // 3600)
    text[13] = text[16] = c':'
    text[19] = c'.'
    text[26] = c'Z'
    return out.put_bulk(text, 26 + is_moment)


cdef class Request:
    """One request: its bytes, and its numbers of entries and streams."""


cdef class RowEncoder:
    """Makes the requests for `rows` rows: call `next` until it returns None.

    The stream is `key` or, if that is a column, the row's text in it. The entry's ID is the row's text in `ids`;
    without `ids`, the entry is number `first_seq` + row of `producer`. The fields are the `columns`
    whose value is not null. With `fields`, a column of INT32, `columns` are a column of names and a
    column of values, and `fields` has the end of each row in them. RowFault names a row that cannot
    become an entry. With `by_slot`, the streams of a request are in one slot of a cluster.
    """

    def __cinit__(self, Py_ssize_t rows, key, Column ids, columns, Column fields=None,
                  bytes producer=b"", uint64_t first_seq=0):
        cdef Column column
        self.rows = rows
        if isinstance(key, Column):
            self.keys = key
        else:
            self.key = key
        self.ids = ids
        self.columns = list(columns)
        self.fields = fields
        self.producer = producer
        self.first_seq = first_seq
        self.out = Output()
        for column in self.columns:
            self.some_nulls |= column.valid != NULL
        self.order = <int32_t*>malloc((rows + 1) * sizeof(int32_t))
        self.group_ends = <int32_t*>malloc((rows + 1) * sizeof(int32_t))
        if self.order == NULL or self.group_ends == NULL:
            raise MemoryError("no memory for the order of rows")
        self.find_groups()

    def __dealloc__(self):
        free(self.order)
        free(self.group_ends)

    def next(self) -> Request | None:
        """The next request; None when all rows are encoded."""
        cdef Request made = Request.__new__(Request)
        cdef Py_ssize_t start = self.done
        if self.done == self.rows:
            return None
        self.put_rows()
        made.entries = self.done - start
        made.streams = len(self.part_keys)
        made.data = self.whole()
        return made

    def take_back(self, Request request not None) -> None:
        """Encode the rows of the last request again: a cluster takes them only with `by_slot`."""
        self.done -= request.entries
        while self.group > 0 and self.group_ends[self.group - 1] > self.done:
            self.group -= 1

    def rows_of(self, Request request not None) -> list[int]:
        """The rows of the request that `next` returned last, in the order of its entries."""
        cdef Py_ssize_t i
        return [self.order[i] for i in range(self.done - request.entries, self.done)]

    # ------------------------------------------------------------ streams

    cdef int find_groups(self) except -1:
        """Order the rows by stream, and find the end of each stream's rows."""
        cdef Py_ssize_t i
        if self.keys is not None:
            return group_rows(self)
        for i in range(self.rows):
            self.order[i] = <int32_t>i
        self.group_ends[0] = <int32_t>self.rows
        self.groups = 1
        return 0

    cdef bytes key_at(self, Py_ssize_t row):
        cdef Slice found
        if self.keys is None:
            return self.key
        found = self.keys.text(row)
        return found.ptr[:found.size]

    # ------------------------------------------------------------ one request

    cdef int put_rows(self) except -1:
        """Write the entries of a request to `out`, one part per stream."""
        cdef Py_ssize_t rows_left = ROWS_MAX
        cdef Py_ssize_t taken
        cdef Py_ssize_t wanted
        cdef bytes key
        cdef int slot = -1
        cdef int key_slot
        self.parts = []
        self.part_keys = []
        self.words = 0
        self.out.size = 0
        while rows_left and self.done < self.rows and self.out.size < REQUEST_BYTES:
            key = self.key_at(self.order[self.done])
            if self.by_slot:
                key_slot = cluster_slot(key, len(key))
                if slot >= 0 and key_slot != slot:
                    break
                slot = key_slot
            self.part_keys.append(key)
            wanted = min(rows_left, self.group_ends[self.group] - self.done)
            taken = self.put_group(wanted)
            self.parts.append((taken, self.out.size))
            rows_left -= taken
            if self.done < self.group_ends[self.group]:
                break  # the request is full, or the next ID needs a request of its own
            self.group += 1
        return 0

    cdef Py_ssize_t put_group(self, Py_ssize_t most) except -1:
        """Write up to `most` entries of one stream, at least one; return their number."""
        cdef Py_ssize_t taken = 0
        cdef EntryId before
        cdef EntryId entry_id
        before.ms = before.seq = 0
        while taken < most and (taken == 0 or self.out.size < REQUEST_BYTES):
            if self.ids is not None:
                self.take_id(self.order[self.done], &entry_id)
                if not id_less(before.ms, before.seq, entry_id.ms, entry_id.seq):
                    break
                before = entry_id
            self.put_entry(self.order[self.done])
            taken += 1
            self.done += 1
        return taken

    cdef int take_id(self, Py_ssize_t row, EntryId* entry_id) except -1:
        cdef Slice text
        if not self.ids.is_there(row):
            raise RowFault(row, "the id is null")
        text = self.ids.text(row)
        if parse_id(text.ptr, text.size, True, 0, entry_id) < 0 or (
                entry_id.ms == 0 and entry_id.seq == 0):
            shown = text.ptr[:text.size].decode("utf-8", "backslashreplace")
            raise RowFault(row, f"{shown!r} is not an entry ID such as 1700000000000-0")
        return 0

    cdef int put_entry(self, Py_ssize_t row) except -1:
        """Write the ID or number, the count of fields, and the fields."""
        if self.ids is not None:
            self.ids.put(self.out, row)
        else:
            put_int(self.out, <int64_t>(self.first_seq + row))
        if self.fields is not None:
            return self.put_fields(row)
        return self.put_columns(row)

    cdef int put_columns(self, Py_ssize_t row) except -1:
        cdef Py_ssize_t count = len(self.columns)
        cdef Py_ssize_t i
        cdef Column column
        if self.some_nulls:
            count = 0
            for i in range(len(self.columns)):
                count += (<Column>self.columns[i]).is_there(row)
        if count == 0:
            raise RowFault(row, "there is no field that is not null")
        put_int(self.out, count)
        for i in range(len(self.columns)):
            column = <Column>self.columns[i]
            if not self.some_nulls or column.is_there(row):
                self.out.put_raw(<const char*>column.head, len(column.head))
                column.put(self.out, row)
        self.words += 2 + 2 * count
        return 0

    cdef int put_fields(self, Py_ssize_t row) except -1:
        """Write the pairs of a map or a list, except pairs with a null value."""
        cdef const int32_t* ends = <const int32_t*>self.fields.values + self.fields.start
        cdef Column names = self.columns[0]
        cdef Column values = self.columns[1]
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t i
        if self.fields.is_there(row):
            for i in range(ends[row], ends[row + 1]):
                if not names.is_there(i):
                    raise RowFault(row, "a field's name is null")
                count += values.is_there(i)
        if count == 0:
            raise RowFault(row, "there is no field that is not null")
        put_int(self.out, count)
        for i in range(ends[row], ends[row + 1]):
            if values.is_there(i):
                names.put(self.out, i)
                values.put(self.out, i)
        self.words += 2 + 2 * count
        return 0

    cdef bytes whole(self):
        """The whole request: its head, and each part after its number of entries."""
        cdef Output made = Output()
        cdef list ends = []
        cdef Py_ssize_t keys = len(self.part_keys)
        cdef bytes key
        made.put_head(c'*', 2 + keys + (2 if self.ids is None else 1) + keys + self.words)
        made.put_bulk_bytes(b"TAPPENDMANY")
        put_int(made, keys)
        for key in self.part_keys:
            made.put_bulk_bytes(key)
        if self.ids is None:
            made.put_bulk_bytes(b"PRODUCER")
            made.put_bulk_bytes(self.producer)
        else:
            made.put_bulk_bytes(b"ID")
        for taken, end in self.parts:
            put_int(made, taken)
            ends.append((made.size, end))
        return interleaved(made, self.out, ends)


cdef bytes interleaved(Output heads, Output bodies, list ends):
    """Pieces of `heads` and `bodies` alternately; `ends` has the pairs of end offsets."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, heads.size + bodies.size)
    cdef char* at = PyBytes_AS_STRING(made)
    cdef Py_ssize_t head = 0
    cdef Py_ssize_t body = 0
    cdef Py_ssize_t head_end
    cdef Py_ssize_t body_end
    for head_end, body_end in ends:
        memcpy(at, heads.buf + head, head_end - head)
        at += head_end - head
        memcpy(at, bodies.buf + body, body_end - body)
        at += body_end - body
        head = head_end
        body = body_end
    return made


# ---------------------------------------------------------------- rows by stream

cdef inline uint32_t hash_of(const char* text, Py_ssize_t size) noexcept nogil:
    cdef uint64_t mixed = <uint64_t>size
    cdef uint64_t part
    while size > 0:
        part = 0
        memcpy(&part, text, min(size, <Py_ssize_t>8))
        mixed = (mixed ^ part) * 0x9e3779b97f4a7c15ULL
        mixed ^= mixed >> 29
        text += 8
        size -= 8
    return <uint32_t>(mixed >> 32)


cdef int group_rows(RowEncoder encoder) except -1:
    """Fill `order` and `group_ends`: streams in the order of their first rows, and the rows of each
    stream in their own order."""
    cdef Py_ssize_t rows = encoder.rows
    cdef Py_ssize_t places = 16
    cdef int32_t* numbers = <int32_t*>malloc((rows + 1) * sizeof(int32_t))
    cdef int32_t* table
    try:
        while places < 2 * rows:
            places *= 2
        table = <int32_t*>calloc(places, sizeof(int32_t))
        if numbers == NULL or table == NULL:
            free(table)
            raise MemoryError("no memory for the streams of rows")
        try:
            number_streams(encoder, numbers, table, places - 1)
        finally:
            free(table)
        order_rows(encoder, numbers)
    finally:
        free(numbers)
    return 0


cdef int number_streams(RowEncoder encoder, int32_t* numbers, int32_t* table,
                        Py_ssize_t mask) except -1:
    """Give each row the number of its stream; meanwhile `order` holds the first row of each
    stream."""
    cdef Slice text
    cdef Slice other
    cdef Py_ssize_t row
    cdef Py_ssize_t at
    for row in range(encoder.rows):
        if not encoder.keys.is_there(row):
            raise RowFault(row, "the key is null")
        text = encoder.keys.text(row)
        at = hash_of(text.ptr, text.size) & mask
        while table[at]:
            other = encoder.keys.text(encoder.order[table[at] - 1])
            if other.size == text.size and memcmp(other.ptr, text.ptr, text.size) == 0:
                break
            at = (at + 1) & mask
        if table[at] == 0:
            encoder.order[encoder.groups] = <int32_t>row
            encoder.groups += 1
            table[at] = <int32_t>encoder.groups
        numbers[row] = table[at] - 1
    return 0


cdef void order_rows(RowEncoder encoder, const int32_t* numbers) noexcept:
    """Sort the rows by the numbers of their streams, in linear time."""
    cdef int32_t* ends = encoder.group_ends
    cdef Py_ssize_t row
    cdef Py_ssize_t group
    cdef int32_t before = 0
    cdef int32_t count
    for group in range(encoder.groups):
        ends[group] = 0
    for row in range(encoder.rows):
        ends[numbers[row]] += 1
    for group in range(encoder.groups):
        count = ends[group]
        ends[group] = before
        before += count
    for row in range(encoder.rows):
        encoder.order[ends[numbers[row]]] = <int32_t>row
        ends[numbers[row]] += 1
