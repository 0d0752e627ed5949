# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The rows of small streams in a snapshot (docs/formats.md, small streams): reading a section.

Rows are checked while they are read: no sequence of bytes leads out of the section.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t

from millstream.storage.groups.pending cimport Pending

# No section of maps begins with this byte: msgpack does not use it.
cdef uint8_t MARK_BYTE = 0xC1


def section_head(chunk) -> bytes:
    """The beginning of a section of small streams whose blocks are in this chunk; None: no stream
    has one."""
    cdef char[NUMBER_BYTES_MAX + 1] head
    cdef uint64_t after = 0 if chunk is None else chunk + 1
    head[0] = <char>MARK_BYTE
    return PyBytes_FromStringAndSize(head, put_number(head + 1, after) - head)


cdef uint64_t number(Reader* r) except? 0xffffffffffffffff:
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while r.at < r.end and shift < 64:
        byte = r.at[0]
        r.at += 1
        if shift == 63 and byte > 1:
            break
        value |= <uint64_t>(byte & 127) << shift
        if byte < 128:
            return value
        shift += 7
    raise ValueError("a number of a small stream does not end")


cdef int64_t signed_number(Reader* r) except? -1:
    cdef uint64_t value = number(r)
    return <int64_t>(value >> 1) ^ -<int64_t>(value & 1)


cdef const char* text(Reader* r, uint64_t size) except NULL:
    """`size` bytes at the reader's position."""
    cdef const char* at = <const char*>r.at
    if size > <uint64_t>(r.end - r.at):
        raise ValueError("a part of a small stream is longer than what is there")
    r.at += size
    return at


cdef bytes name_of(Reader* r, uint64_t size):
    return PyBytes_FromStringAndSize(text(r, size), size)


cdef int two_numbers(Reader* r, uint64_t* pair) except -1:
    pair[0] = number(r)
    pair[1] = number(r)
    return 0


cdef int read_row(Reader* r, Row* row) except -1:
    """Read a row up to its groups."""
    row.db = number(r)
    row.key_size = number(r)
    row.key = text(r, row.key_size)
    row.flags = <uint8_t>text(r, 1)[0]
    row.incarnation = number(r)
    row.entries_added = number(r)
    row.entries_evicted = number(r)
    row.entries_deleted = number(r)
    row.first_kept[0] = row.first_kept[1] = row.hidden = 0
    row.max_evicted[0] = row.max_evicted[1] = row.max_deleted[0] = row.max_deleted[1] = 0
    row.form_size = row.live = row.groups = 0
    row.newest_id[0] = row.newest_id[1] = 0
    row.expires_ms = number(r) if row.flags & HAS_EXPIRY else 0
    if row.flags & HAS_FIRST_KEPT:
        two_numbers(r, row.first_kept)
        row.hidden = number(r)
    if row.flags & HAS_EVICTED:
        two_numbers(r, row.max_evicted)
    if row.flags & HAS_DELETED:
        two_numbers(r, row.max_deleted)
    if row.flags & HAS_BLOCK:
        row.form_size = number(r)
        row.live = number(r)
        two_numbers(r, row.first_id)
        two_numbers(r, row.newest_id)
        row.newest_id[0] += row.first_id[0]
    row.last_id = row.newest_id
    if row.flags & HAS_LAST_ID:
        two_numbers(r, row.last_id)
    if row.flags & HAS_GROUPS:
        row.groups = number(r)
    if row.hidden > row.live:
        raise ValueError("a small stream hides more entries than it has")
    return 0


cdef class Section:
    """A section of small streams."""
    def __cinit__(self, bytes section not None):
        self.data = section
        self.r.at = <const uint8_t*>PyBytes_AS_STRING(section)
        self.r.end = self.r.at + PyBytes_GET_SIZE(section)
        if text(&self.r, 1)[0] != <char>MARK_BYTE:
            raise ValueError("a section of small streams begins with another byte")
        self.chunk_after = number(&self.r)

    cdef object chunk_number(self):
        return self.chunk_after - 1 if self.chunk_after else None


def is_small_section(bytes section not None) -> bool:
    """True if an unpacked section has rows of small streams, not an array of maps."""
    return PyBytes_GET_SIZE(section) > 0 and <uint8_t>PyBytes_AS_STRING(section)[0] == MARK_BYTE


def chunk_of(bytes section not None) -> int | None:
    """The number of the chunk with the blocks of a section of small streams; None: no chunk."""
    cdef Section of = Section(section)
    return of.chunk_number()


def small_rows(bytes section not None) -> list:
    """A section of small streams as rows of KeyRecord's fields; ValueError when it is malformed."""
    cdef Section of = Section(section)
    cdef Row row
    cdef list found = []
    cdef list pieces
    while of.r.at < of.r.end:
        read_row(&of.r, &row)
        pieces = []
        if row.flags & HAS_BLOCK:
            if of.chunk_after == 0:
                raise ValueError("a small stream has a block, and its section has no chunk")
            pieces.append([of.chunk_after - 1, of.offset, row.form_size, 1, row.live, row.first_id[0],
                           row.first_id[1], row.newest_id[0], row.newest_id[1]])
            of.offset += row.form_size
        found.append([row.db, PyBytes_FromStringAndSize(row.key, row.key_size), "stream",
                      meta_of(&of.r, &row), None, pieces])
    return found


cdef dict meta_of(Reader* r, Row* row):
    """A row as the map of a stream."""
    cdef uint64_t _
    cdef dict meta = {
        "length": row.live - row.hidden,
        "last_id": [row.last_id[0], row.last_id[1]],
        "first_kept": [row.first_kept[0], row.first_kept[1]],
        "max_evicted": [row.max_evicted[0], row.max_evicted[1]],
        "max_deleted": [row.max_deleted[0], row.max_deleted[1]],
        "entries_added": row.entries_added,
        "entries_evicted": row.entries_evicted,
        "entries_deleted": row.entries_deleted,
        "incarnation": row.incarnation,
        "groups": [group_map(r) for _ in range(row.groups)],
        "producers": {},
        "open": row.flags & IS_OPEN != 0,
    }
    if row.flags & HAS_EXPIRY:
        meta["expires_ms"] = row.expires_ms
    return meta


cdef dict group_map(Reader* r):
    cdef uint64_t size
    cdef uint64_t _
    cdef dict made = {
        "name": name_of(r, number(r)),
        "offset": [number(r), number(r)],
        "gap_floor": [number(r), number(r)],
        "entries_read": signed_number(r),
        "ttl_ms": number(r),
    }
    cdef list consumers = [None]
    for _ in range(number(r)):
        size = number(r)
        consumers.append(
            [name_of(r, size - 1), signed_number(r), signed_number(r)] if size else None)
    made["consumers"] = consumers
    made["policies"] = retry_pairs(r)
    made["large_counts"] = []
    size = pending_size(r)
    made["pending"] = name_of(r, size)
    return made


cdef list retry_pairs(Reader* r):
    cdef uint64_t _
    cdef list pairs = [None]
    for _ in range(number(r)):
        pairs.append([number(r), number(r)] if number(r) else None)
    return pairs


cdef uint64_t pending_size(Reader* r) except? 0xffffffffffffffff:
    cdef uint64_t count = number(r)
    if count > <uint64_t>(r.end - r.at) // sizeof(Pending):
        raise ValueError("pending entries of a small stream are longer than what is there")
    return count * sizeof(Pending)
