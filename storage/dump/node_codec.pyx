# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The entries of a node of Redis' stream format, from its listpack into the blocks of a log.

A listpack is a sequence of texts and numbers, each followed by its length. Nothing is believed:
each length is compared with the bytes that are left, counts and IDs with what was read before. A
node that is not as Redis writes it is a PayloadError; the log then has a part of its entries.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from cpython.bytes cimport PyBytes_AS_STRING

from millstream.encoding cimport Output, Slice, format_u64
from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.block cimport Block
from millstream.storage.blocks.layout cimport (
    BLOCK_BYTES_MAX, Cursor, View, cursor_next, cursor_start, entry_slices, view_of,
)
from millstream.storage.blocks.skiplist cimport SkipList
from millstream.storage.log.entry_log cimport EntryLog

from millstream.errors import PayloadError

cdef enum:
    HEADER_BYTES = 6
    END = 0xFF
    COUNT_UNKNOWN = 0xFFFF  # more elements than the header can count
    DELETED = 1
    SAME_FIELDS = 2
    FLAGS_MAX = 3
    # A few bytes of LZF can expand to hundreds of fields, which need memory while they are read.
    FIELDS_MAX_ = 1 << 20
    ELEMENT_MIN_BYTES = 2

FIELDS_MAX = FIELDS_MAX_
MALFORMED = "a node has a malformed element"


cdef class NodeReader:
    """Appends the entries of nodes to a log that has no other user yet. `first_ms` and `first_seq` are
    the ID of the first one."""

    def __init__(self, EntryLog log not None):
        self.log = log

    def __dealloc__(self):
        free(self.items)
        free(self.digits)

    def step(self, uint64_t ms, uint64_t seq, bytes listpack not None, uint64_t most) -> bool:
        """Read the node with this key and listpack, or continue it: about `most` elements. False
        at its end. PayloadError when the node is not as Redis writes it."""
        cdef uint64_t until
        if not self.in_node:
            self.begin(ms, seq, listpack)
        until = self.elements + most
        while self.at < self.end:
            if self.elements >= until:
                return True
            self.next_entry()
        self.in_node = False
        self.finish()
        return False

    cdef int begin(self, uint64_t ms, uint64_t seq, bytes listpack) except -1:
        """Read the head of a node, up to its first entry."""
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(listpack)
        cdef Py_ssize_t size = len(listpack)
        cdef uint32_t size_bytes
        cdef uint16_t count
        cdef uint64_t i
        if size <= HEADER_BYTES or data[size - 1] != END:
            raise PayloadError("a node is not a listpack")
        memcpy(&size_bytes, data, 4)
        memcpy(&count, data + 4, 2)
        if <Py_ssize_t>size_bytes != size:
            raise PayloadError("the length of a node differs from the length in its header")
        self.listpack = listpack
        self.at = data + HEADER_BYTES
        self.end = data + size - 1
        self.node_ms = ms
        self.node_seq = seq
        self.stated = count
        self.elements = 0
        self.appended = 0
        self.live = self.next_count()
        self.deleted = self.next_count()
        self.names = self.next_fields(1)
        self.reserve(self.names)
        for i in range(self.names):
            # The digits of names stay until the node ends: they come before those of values.
            self.next_text(&self.items[2 * i], self.digits + NUMBER_TEXT_BYTES * i)
        if self.next_number() != 0:
            raise PayloadError("the names of a node's first entry have no end")
        self.in_node = True
        return 0

    cdef int finish(self) except -1:
        self.listpack = None
        if self.deleted or self.appended != self.live or (
                self.stated != COUNT_UNKNOWN and self.stated != self.elements):
            raise PayloadError("a node counts other entries than it has")
        return 0

    cdef int next_entry(self) except -1:
        cdef uint64_t before = self.elements
        cdef Element flags
        cdef uint64_t ms_more, seq_more, i, fields, own
        cdef Slice* own_items
        self.next_element(&flags)
        if flags.text.ptr != NULL or not 0 <= flags.number <= FLAGS_MAX:
            raise PayloadError("an entry has unknown flags")
        ms_more = <uint64_t>self.next_number()
        seq_more = <uint64_t>self.next_number()
        if flags.number & SAME_FIELDS:
            for i in range(self.names):
                self.next_text(&self.items[2 * i + 1],
                               self.digits + NUMBER_TEXT_BYTES * (self.names + i))
            fields = self.names
            own_items = self.items
        else:
            own = self.next_fields(2)
            # The names of the node stay before those of the entry.
            self.reserve(self.names + own)
            own_items = self.items + 2 * self.names
            for i in range(2 * own):
                self.next_text(&own_items[i],
                               self.digits + NUMBER_TEXT_BYTES * (2 * self.names + i))
            fields = own
        before = self.elements - before
        if self.next_number() != <int64_t>before:
            raise PayloadError("an entry counts other elements than it has")
        if flags.number & DELETED:
            self.deleted -= 1
            return 0
        return self.append_items(own_items, fields, ms_more, seq_more)

    cdef int append_items(self, Slice* items, uint64_t fields, uint64_t ms_more,
                          uint64_t seq_more) except -1:
        """Append an entry with this difference from the key of its node."""
        cdef EntryId entry_id = EntryId(self.node_ms + ms_more, self.node_seq + seq_more)
        cdef EntryLog log = self.log
        cdef bint begins = self.appended == 0
        if id_less(entry_id.ms, entry_id.seq, self.node_ms, self.node_seq):
            raise PayloadError("the ID of an entry is below the ID of its node")
        if not id_less(log.last_ms, log.last_seq, entry_id.ms, entry_id.seq):
            raise PayloadError("the IDs of entries do not increase")
        if log.length == 0:
            self.first_ms = entry_id.ms
            self.first_seq = entry_id.seq
        if begins and log.has_tail() and (
                log.tail.size + <uint64_t>len(self.listpack) > BLOCK_BYTES_MAX):
            log.seal()  # the node does not fit into the open block
        # A limit of one entry begins a new node; no limit continues the node.
        log.append(entry_id, items, <Py_ssize_t>(2 * fields), 1 if begins else 0, 0)
        self.appended += 1
        return 0

    # ------------------------------------------------------------ elements

    cdef int next_element(self, Element* out) except -1:
        """Read the next element."""
        cdef const uint8_t* at = self.at
        cdef uint64_t left = <uint64_t>(self.end - at)
        cdef uint8_t kind
        cdef uint64_t size, width
        cdef uint32_t long_size
        cdef int16_t two
        cdef int32_t four
        if left < ELEMENT_MIN_BYTES:
            raise PayloadError("a node ends within an entry")
        kind = at[0]
        out.text.ptr = NULL
        size = 1
        if kind < 0x80:
            out.number = kind
        elif kind < 0xC0:
            out.text.ptr = <const char*>(at + 1)
            out.text.size = kind & 0x3F
            size = 1 + <uint64_t>out.text.size
        elif kind < 0xE0:
            out.number = <int64_t>(kind & 0x1F) << 8 | at[1]
            if out.number >= 4096:
                out.number -= 8192
            size = 2
        elif kind < 0xF0:
            out.text.ptr = <const char*>(at + 2)
            out.text.size = <Py_ssize_t>(kind & 0x0F) << 8 | at[1]
            size = 2 + <uint64_t>out.text.size
        elif kind == 0xF0:
            if left < 5:
                raise PayloadError(MALFORMED)
            memcpy(&long_size, at + 1, 4)
            out.text.ptr = <const char*>(at + 5)
            out.text.size = long_size
            size = 5 + <uint64_t>long_size
        elif kind <= 0xF4:
            width = 8 if kind == 0xF4 else kind - 0xEF
            size = 1 + width
            if left < size:
                raise PayloadError(MALFORMED)
            if width == 8:
                memcpy(&out.number, at + 1, 8)
            elif width == 4:
                memcpy(&four, at + 1, 4)
                out.number = four
            elif width == 3:
                four = <int32_t>(<uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24)
                out.number = four >> 8
            else:
                memcpy(&two, at + 1, 2)
                out.number = two
        else:
            raise PayloadError(MALFORMED)
        if size >= left:  # at least one byte of its length follows
            raise PayloadError(MALFORMED)
        self.elements += 1
        if size < 128:
            if at[size] != size:
                raise PayloadError(MALFORMED)
            self.at = at + size + 1
            return 0
        return self.long_back_length(at + size, size)

    cdef int long_back_length(self, const uint8_t* at, uint64_t size) except -1:
        """Check the length that follows an element of more than 127 bytes: seven bits in each byte,
        all bytes but the first marked. Redis uses one more byte for the largest number that would
        fit, and refuses any other width."""
        cdef int width = 2 + (size >= 16383) + (size >= 2097151) + (size >= 268435455)
        cdef int i
        cdef uint8_t expected
        if self.end - at < width:
            raise PayloadError(MALFORMED)
        for i in range(width):
            expected = <uint8_t>(size >> (7 * (width - 1 - i)) & 127)
            if at[i] != (expected if i == 0 else expected | 128):
                raise PayloadError(MALFORMED)
        self.at = at + width
        return 0

    cdef int64_t next_number(self) except? -0x7f7f7f7f7f7f:
        cdef Element element
        self.next_element(&element)
        if element.text.ptr != NULL:
            raise PayloadError("a node has a text where a number belongs")
        return element.number

    cdef int64_t next_count(self) except? -0x7f7f7f7f7f7f:
        cdef int64_t count = self.next_number()
        if count < 0:
            raise PayloadError("a node has a count below 0")
        return count

    cdef uint64_t next_fields(self, uint64_t each) except? 0:
        """A number of fields, each of which has `each` elements."""
        cdef uint64_t fields = <uint64_t>self.next_count()
        if fields == 0:
            raise PayloadError("an entry has no fields")
        if fields > FIELDS_MAX_:
            raise PayloadError(f"an entry has {fields} fields, more than {FIELDS_MAX_}")
        if fields * each * ELEMENT_MIN_BYTES > <uint64_t>(self.end - self.at):
            raise PayloadError("an entry has more fields than there are")
        return fields

    cdef int next_text(self, Slice* out, char* digits) except -1:
        """Read an element as a text; `digits` has room for those of a number."""
        cdef Element element
        cdef uint64_t number
        self.next_element(&element)
        out[0] = element.text
        if element.text.ptr == NULL:
            out.ptr = digits
            number = <uint64_t>element.number
            if element.number < 0:
                digits[0] = c'-'
                digits += 1
                number = 0 - number
            out.size = digits - out.ptr + format_u64(digits, number)
        return 0

    cdef int reserve(self, uint64_t fields) except -1:
        """Memory for the names and values of as many fields. The items of names that were read are
        kept, and so are their digits."""
        cdef Slice* items
        cdef char* digits
        cdef uint64_t capacity = max(fields, 2 * self.capacity, <uint64_t>8)
        if fields <= self.capacity:
            return 0
        items = <Slice*>realloc(self.items, 2 * capacity * sizeof(Slice))
        if items == NULL:
            raise MemoryError("no memory for the fields of an entry")
        self.items = items
        digits = <char*>realloc(self.digits, 2 * capacity * NUMBER_TEXT_BYTES)
        if digits == NULL:
            raise MemoryError("no memory for the fields of an entry")
        if digits != self.digits:
            self.move_digits(digits)
        self.digits = digits
        self.capacity = capacity
        return 0

    cdef void move_digits(self, char* digits) noexcept:
        """The digits have another address: correct the names that refer to them."""
        cdef uint64_t i
        cdef const char* start = PyBytes_AS_STRING(self.listpack)
        cdef const char* end = start + len(self.listpack)
        for i in range(self.names if self.in_node else 0):
            if not start <= self.items[2 * i].ptr < end:
                self.items[2 * i].ptr = digits + NUMBER_TEXT_BYTES * i


cpdef list take_sealed(EntryLog log):
    """Take the sealed blocks out of a log, all but the last, which decides how the next is packed.
    The log still counts their entries."""
    cdef SkipList sealed = SkipList.__new__(SkipList)
    cdef list blocks = list(log.sealed)
    sealed.push(blocks.pop())
    log.sealed = sealed
    return blocks


cdef inline char* put_be64(char* at, uint64_t number) noexcept nogil:
    cdef int i
    for i in range(8):
        at[i] = <char>(number >> (56 - 8 * i))
    return at + 8


cdef inline char* put_be32(char* at, uint64_t number) noexcept nogil:
    cdef int i
    for i in range(4):
        at[i] = <char>(number >> (24 - 8 * i))
    return at + 4


def digest_form(Block block not None) -> bytes:
    """The undeleted entries of a block as the digest of a stream's entries has them: milliseconds
    and sequence number in 8 bytes each, the number of fields in 4, and each name and value after its
    length in 4; the highest byte first."""
    cdef View view
    cdef Cursor cursor
    cdef Output out = Output()
    cdef Slice* items = NULL
    cdef uint64_t capacity = 0
    cdef uint64_t size, i
    cdef char* at
    view_of(block.head, &view)
    cursor_start(&cursor, &view)
    try:
        while cursor_next(&cursor, &view):
            if cursor.entry.deleted:
                continue
            if cursor.entry.fields > capacity:
                capacity = 2 * <uint64_t>cursor.entry.fields
                free(items)
                items = <Slice*>realloc(NULL, 2 * capacity * sizeof(Slice))
                if items == NULL:
                    raise MemoryError("no memory for the fields of an entry")
            # The result keeps unpacked values alive.
            _ = entry_slices(&view, &cursor.entry, items)
            size = 20
            for i in range(2 * <uint64_t>cursor.entry.fields):
                size += 4 + <uint64_t>items[i].size
            at = out.reserve(<Py_ssize_t>size)
            at = put_be64(put_be64(at, cursor.entry.ms), cursor.entry.seq)
            at = put_be32(at, cursor.entry.fields)
            for i in range(2 * <uint64_t>cursor.entry.fields):
                at = put_be32(at, <uint64_t>items[i].size)
                memcpy(at, items[i].ptr, items[i].size)
                at += items[i].size
            out.size += <Py_ssize_t>size
    finally:
        free(items)
    return out.take()
