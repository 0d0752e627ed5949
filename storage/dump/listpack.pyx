# cython: language_level=3, cdivision=True, initializedcheck=False
"""Streams' entries and pending entries as they stand in a dump of Redis.

Redis keeps the entries of one node of a stream in a listpack, a row of texts and numbers. The first
entry's names stand at its head, once; ids are differences to the node's key. Reading checks every
length, count and id: what comes in may be anything. A node stays a node in both directions, so that
trimming with `~` evicts afterwards what it would have evicted before.

The pending entries of a group come in id order, without their owners; each consumer then names its
own. Both are loops over millions of records, and so are compiled.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from millstream.encoding cimport Output, Slice
from millstream.ids cimport format_u64, id_less
from millstream.storage.blocks.block cimport (
    Block, Cursor, Entry, View, cursor_next, cursor_start, read_varint, view_of,
)
from millstream.storage.streams.group cimport Pending
from millstream.storage.streams.stream cimport Stream

from millstream.errors import PayloadError

cdef enum:
    HEADER_BYTES = 6
    END_BYTE = 0xff
    # More elements than the header can count.
    COUNT_UNKNOWN = 0xffff
    FLAG_DELETED = 1
    FLAG_SAME_FIELDS = 2
    NUMBER_TEXT = 21
    # A node that would bring an open block over this many bytes begins another one, so that it is
    # not torn apart (storage/blocks/block seals at the same size).
    BLOCK_BYTES = 65536
    # The widths of a pending record's fields.
    DELIVERIES_MAX = 0xffffff
    GLOBAL_PENDING_MIN = 25
    ID_BYTES = 16
    # Fields of an entry. A few bytes of LZF can stand for hundreds of them, and each takes 74 bytes
    # while it is read.
    FIELDS_MAX = 1 << 20
    STEP_MIN_MS = 100

cdef uint64_t TIME_MAX = 0xffffffffffffULL
cdef uint64_t FIRST_DELIVERY_MAX = 0x7fffffffffffULL


# ---------------------------------------------------------------- one element

# A text where `text` is given, else a number.
cdef struct Element:
    const uint8_t* text
    Py_ssize_t size
    int64_t number


cdef inline int back_size(uint64_t size) noexcept nogil:
    """Bytes of the length that stands after an element of this size. From two bytes on, Redis takes
    one more for the largest number that would fit, and refuses a length of another width."""
    if size <= 127:
        return 1
    if size < 16383:
        return 2
    if size < 2097151:
        return 3
    return 4 if size < 268435455 else 5


cdef inline void write_back(uint8_t* at, uint64_t size) noexcept nogil:
    """The length after an element, to be read from its end: seven bits a byte, all but the first of
    them marked."""
    cdef int i
    for i in range(back_size(size) - 1, -1, -1):
        at[i] = <uint8_t>((size & 127) | (128 if i else 0))
        size >>= 7


cdef inline const uint8_t* text_of(const uint8_t* at, const uint8_t* end, Py_ssize_t head,
                                   uint64_t size, Element* out) noexcept nogil:
    if <uint64_t>(end - at) < <uint64_t>head + size:
        return NULL
    out.text = at + head
    out.size = <Py_ssize_t>size
    return at + head + size


cdef const uint8_t* read_content(const uint8_t* at, const uint8_t* end,
                                 Element* out) noexcept nogil:
    """One element without the length after it; NULL when there is none."""
    cdef uint8_t kind = at[0]
    cdef Py_ssize_t left = end - at
    cdef int16_t short_number
    cdef int32_t number
    cdef uint32_t size
    out.text = NULL
    if kind < 0x80:
        out.number = kind
        return at + 1
    if kind < 0xc0:
        return text_of(at, end, 1, kind & 0x3f, out)
    if kind < 0xe0:
        if left < 2:
            return NULL
        out.number = ((kind & 0x1f) << 8) | at[1]
        if out.number >= 4096:
            out.number -= 8192
        return at + 2
    if kind < 0xf0:
        if left < 2:
            return NULL
        return text_of(at, end, 2, ((kind & 0x0f) << 8) | at[1], out)
    if kind == 0xf0:
        if left < 5:
            return NULL
        memcpy(&size, at + 1, 4)
        return text_of(at, end, 5, size, out)
    if kind == 0xf1 and left >= 3:
        memcpy(&short_number, at + 1, 2)
        out.number = short_number
        return at + 3
    if kind == 0xf2 and left >= 4:
        out.number = at[1] | (at[2] << 8) | (<int64_t><int8_t>at[3] * 65536)
        return at + 4
    if kind == 0xf3 and left >= 5:
        memcpy(&number, at + 1, 4)
        out.number = number
        return at + 5
    if kind == 0xf4 and left >= 9:
        memcpy(&out.number, at + 1, 8)
        return at + 9
    return NULL


cdef const uint8_t* read_element(const uint8_t* at, const uint8_t* end,
                                 Element* out) noexcept nogil:
    """One element; returns what follows, NULL when the bytes up to `end` are none."""
    cdef uint8_t[5] back
    cdef const uint8_t* after
    cdef int size
    if at >= end:
        return NULL
    after = read_content(at, end, out)
    if after == NULL:
        return NULL
    size = back_size(<uint64_t>(after - at))
    if end - after < size:
        return NULL
    write_back(back, <uint64_t>(after - at))
    return after + size if memcmp(back, after, size) == 0 else NULL


cdef int format_number(char* to, int64_t number) noexcept nogil:
    if number >= 0:
        return format_u64(to, <uint64_t>number)
    to[0] = c'-'
    return 1 + format_u64(to + 1, 0 - <uint64_t>number)


# ---------------------------------------------------------------- reading a node

cdef class Words:
    """Names and values of an entry, as the block takes them; numbers become text of their own."""

    cdef Slice* items
    cdef char* texts
    cdef Py_ssize_t capacity

    def __dealloc__(self):
        PyMem_Free(self.items)
        PyMem_Free(self.texts)

    cdef int reserve(self, Py_ssize_t count) except -1:
        cdef Slice* items
        cdef char* texts
        if count <= self.capacity:
            return 0
        items = <Slice*>PyMem_Realloc(self.items, count * sizeof(Slice))
        if items == NULL:
            raise MemoryError("no memory for an entry's fields")
        self.items = items
        texts = <char*>PyMem_Realloc(self.texts, count * NUMBER_TEXT)
        if texts == NULL:
            raise MemoryError("no memory for an entry's fields")
        self.texts = texts
        self.capacity = count
        return 0

    cdef inline void put(self, Py_ssize_t i, const Element* element) noexcept:
        if element.text != NULL:
            self.items[i].ptr = <const char*>element.text
            self.items[i].size = element.size
            return
        self.items[i].ptr = self.texts + i * NUMBER_TEXT
        self.items[i].size = format_number(self.texts + i * NUMBER_TEXT, element.number)


cdef class NodeReader:
    """Reads nodes one after another into a stream that nothing else has yet.

    `begin` takes a node's key and listpack, `read` then reads entries of some elements, until it
    answers that there are none left. PayloadError says that they are not what Redis writes; the
    stream is then to be thrown away.
    """

    cdef readonly Stream stream
    cdef Words names
    cdef Words words
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef uint64_t elements
    # Fields of the node's first entry, and of the entry read last.
    cdef Py_ssize_t name_count
    cdef Py_ssize_t field_count
    # The node: its key, its bytes, and what it says that it has and what was found.
    cdef bytes listpack
    cdef uint64_t ms
    cdef uint64_t seq
    cdef uint32_t counted
    cdef uint64_t live
    cdef uint64_t deleted
    cdef uint64_t live_found
    cdef uint64_t deleted_found

    def __init__(self, Stream stream not None):
        self.stream = stream
        self.names = Words()
        self.words = Words()

    def begin(self, uint64_t ms, uint64_t seq, bytes listpack not None) -> None:
        self.listpack = listpack
        self.ms = ms
        self.seq = seq
        self.counted = self.open(listpack)
        self.live = self.next_count()
        self.deleted = self.next_count()
        self.live_found = self.deleted_found = 0
        self.read_names(self.names, self.next_count(), 1)
        self.name_count = self.field_count
        if self.next_number() != 0:
            raise PayloadError("a node's first entry has no end")

    def read(self, uint64_t most_elements) -> bool:
        """Read entries until they have most_elements elements; False when none is left."""
        cdef uint64_t enough = self.elements + most_elements
        while self.at < self.end:
            if self.elements >= enough:
                return True
            if self.read_entry(self.ms, self.seq, self.live_found == 0, len(self.listpack)):
                self.live_found += 1
            else:
                self.deleted_found += 1
        if self.live_found != self.live or self.deleted_found != self.deleted or (
                self.counted != COUNT_UNKNOWN and self.counted != self.elements):
            raise PayloadError("a node counts other entries than it has")
        return False

    cdef uint32_t open(self, bytes listpack) except? 0:
        """Begin with a listpack; returns how many elements its header tells."""
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(listpack)
        cdef Py_ssize_t size = len(listpack)
        cdef uint32_t told
        if size <= HEADER_BYTES or data[size - 1] != END_BYTE:
            raise PayloadError("a node is no listpack")
        memcpy(&told, data, 4)
        if told != size:
            raise PayloadError("a node has another length than it says")
        self.at = data + HEADER_BYTES
        self.end = data + size - 1
        self.elements = 0
        return data[4] | (data[5] << 8)

    cdef int next(self, Element* out) except -1:
        self.at = read_element(self.at, self.end, out)
        if self.at == NULL:
            raise PayloadError("a node has a malformed element")
        self.elements += 1
        return 0

    cdef int64_t next_number(self) except? -1:
        cdef Element element
        self.next(&element)
        if element.text != NULL:
            raise PayloadError("a node has a text where a number belongs")
        return element.number

    cdef uint64_t next_count(self) except? 0xffffffffffffffff:
        cdef int64_t number = self.next_number()
        if number < 0:
            raise PayloadError("a node has a count below 0")
        return <uint64_t>number

    cdef int read_names(self, Words names, uint64_t fields, int step) except -1:
        """Read `fields` texts or numbers, and put one in each `step` places."""
        cdef Element element
        cdef uint64_t i
        if fields == 0 or fields > <uint64_t>(self.end - self.at) // (2 * step):
            raise PayloadError("an entry has more fields than there are")
        if fields > FIELDS_MAX:
            raise PayloadError(f"an entry has {fields} fields, more than {<int>FIELDS_MAX}")
        names.reserve(<Py_ssize_t>fields * step)
        for i in range(fields * step):
            self.next(&element)
            names.put(<Py_ssize_t>i, &element)
        self.field_count = <Py_ssize_t>fields
        return 0

    cdef bint read_entry(self, uint64_t ms, uint64_t seq, bint is_first,
                         Py_ssize_t node_bytes) except -1:
        """Read an entry of the node with key ms-seq, and append it unless it is deleted: whether it
        was not."""
        cdef int64_t flags = self.next_number()
        cdef uint64_t entry_ms = ms + <uint64_t>self.next_number()
        cdef uint64_t entry_seq = seq + <uint64_t>self.next_number()
        cdef uint64_t before = self.elements - 3
        if flags < 0 or flags > (FLAG_DELETED | FLAG_SAME_FIELDS):
            raise PayloadError("an entry has unknown flags")
        if flags & FLAG_SAME_FIELDS:
            self.read_values()
        else:
            self.read_names(self.words, self.next_count(), 2)
        if <uint64_t>self.next_number() != self.elements - 1 - before:
            raise PayloadError("an entry counts other elements than it has")
        if flags & FLAG_DELETED:
            return False
        if id_less(entry_ms, entry_seq, ms, seq):
            raise PayloadError("an entry's id is below its node's")
        self.append(entry_ms, entry_seq, is_first, node_bytes)
        return True

    cdef int read_values(self) except -1:
        """The values of an entry that has the names of the node's first one."""
        cdef Element element
        cdef Py_ssize_t i
        self.words.reserve(2 * self.name_count)
        for i in range(self.name_count):
            self.next(&element)
            self.words.items[2 * i] = self.names.items[i]
            self.words.put(2 * i + 1, &element)
        self.field_count = self.name_count
        return 0

    cdef int append(self, uint64_t ms, uint64_t seq, bint is_first, Py_ssize_t node_bytes) except -1:
        cdef Stream stream = self.stream
        if not id_less(stream.last_ms, stream.last_seq, ms, seq):
            raise PayloadError("the ids of entries do not rise")
        if is_first and stream.tail is not None and stream.tail.count and (
                stream.tail.size + node_bytes > BLOCK_BYTES):
            stream.seal()
        # One entry a node begins a node here, any number goes on with it.
        stream.append(ms, seq, self.words.items, 2 * self.field_count, 1 if is_first else 0, 0)
        return 0


# ---------------------------------------------------------------- writing a node

cdef int put_number(Output out, int64_t number) except -1:
    """A number as Redis encodes it: as short as it can be."""
    cdef uint8_t* at = <uint8_t*>out.reserve(16)
    cdef uint32_t low = <uint32_t>(<uint64_t>number & 0xffffffff)
    cdef int size
    if 0 <= number <= 127:
        at[0] = <uint8_t>number
        size = 1
    elif -4096 <= number <= 4095:
        at[0] = <uint8_t>(0xc0 | ((number >> 8) & 0x1f))
        at[1] = <uint8_t>(number & 255)
        size = 2
    elif -32768 <= number <= 32767:
        at[0] = 0xf1
        memcpy(at + 1, &low, 2)
        size = 3
    elif -8388608 <= number <= 8388607:
        at[0] = 0xf2
        memcpy(at + 1, &low, 3)
        size = 4
    elif -2147483648 <= number <= 2147483647:
        at[0] = 0xf3
        memcpy(at + 1, &low, 4)
        size = 5
    else:
        at[0] = 0xf4
        memcpy(at + 1, &number, 8)
        size = 9
    write_back(at + size, <uint64_t>size)
    out.size += size + 1
    return 0


cdef bint is_number(const uint8_t* text, Py_ssize_t size, int64_t* out) noexcept nogil:
    """Whether a text is what its number is written as."""
    cdef uint64_t value = 0
    cdef uint64_t most = INT64_MAX
    cdef Py_ssize_t i = 0
    if size == 0 or size > 20:
        return False
    if text[0] == c'-':
        i = 1
        most += 1
        if size == 1:
            return False
    if text[i] == c'0' and size > 1:
        return False
    while i < size:
        if text[i] < 48 or text[i] > 57 or value > most // 10:
            return False
        value = value * 10 + (text[i] - 48)
        i += 1
    if value > most:
        return False
    out[0] = <int64_t>(0 - value) if text[0] == c'-' else <int64_t>value
    return True


cdef int put_text(Output out, const uint8_t* text, Py_ssize_t size) except -1:
    """A name or value; one that is a number is encoded as one."""
    cdef int64_t number
    cdef uint8_t* at
    cdef int head
    cdef uint32_t long_size = <uint32_t>size
    if is_number(text, size, &number):
        return put_number(out, number)
    at = <uint8_t*>out.reserve(size + 16)
    if size < 64:
        at[0] = <uint8_t>(0x80 | size)
        head = 1
    elif size < 4096:
        at[0] = <uint8_t>(0xe0 | (size >> 8))
        at[1] = <uint8_t>(size & 255)
        head = 2
    else:
        at[0] = 0xf0
        memcpy(at + 1, &long_size, 4)
        head = 5
    memcpy(at + head, text, size)
    write_back(at + head + size, <uint64_t>(head + size))
    out.size += head + size + back_size(<uint64_t>(head + size))
    return 0


cdef const uint8_t* next_name(const uint8_t* at, const uint8_t** text, uint64_t* size) noexcept nogil:
    """The name at `at`, which stands there as a RESP bulk string; returns what follows it."""
    cdef uint64_t whole
    cdef uint64_t head = 1
    at = read_varint(at, &whole)
    while at[head] != c'\n':
        head += 1
    text[0] = at + head + 1
    size[0] = whole - head - 3
    return at + whole


cdef class NodeWriter:
    """The nodes of a block as listpacks, those that have an entry which is neither deleted nor below
    the first one kept. Deleted entries are left out.

    `next_node` answers (ms, seq, listpack), None at the end; ms-seq is the id of the first entry.
    """

    cdef Block block
    cdef View view
    cdef Cursor cursor
    cdef uint64_t kept_ms
    cdef uint64_t kept_seq
    cdef uint32_t node
    cdef Entry first
    cdef uint64_t elements

    def __init__(self, Block block not None, uint64_t kept_ms, uint64_t kept_seq):
        self.block = block
        view_of(block.head, &self.view)
        cursor_start(&self.cursor, &self.view)
        self.kept_ms = kept_ms
        self.kept_seq = kept_seq

    def live_nodes(self) -> int:
        """How many nodes are still to come."""
        cdef Cursor start = self.cursor
        cdef uint32_t node = self.node
        cdef uint32_t found = 0
        if self.node == 0 and self.is_untouched():
            return self.view.node_count
        while self.node < self.view.node_count:
            found += self.count_live(self.next_end()) > 0
        self.cursor = start
        self.node = node
        return found

    cdef inline uint32_t next_end(self) noexcept:
        """Go on to the next node; returns the index of the first entry after it."""
        self.node += 1
        if self.node < self.view.node_count:
            return self.view.nodes[self.node - 1]
        return self.view.count

    def next_node(self) -> tuple[int, int, bytes] | None:
        cdef Cursor start
        cdef uint32_t end
        cdef uint64_t live
        while self.node < self.view.node_count:
            end = self.next_end()
            start = self.cursor
            live = self.count_live(end)
            if live:
                self.cursor = start
                return self.first.ms, self.first.seq, self.listpack(end, live)
        return None

    cdef inline bint is_untouched(self) noexcept:
        """Whether every entry of the block is live."""
        return self.view.live == self.view.count and not id_less(
            self.view.first_ms, self.view.first_seq, self.kept_ms, self.kept_seq)

    cdef inline bint is_live(self) noexcept:
        return not self.cursor.entry.deleted and not id_less(
            self.cursor.entry.ms, self.cursor.entry.seq, self.kept_ms, self.kept_seq)

    cdef uint64_t count_live(self, uint32_t end) noexcept:
        """The number of live entries before the one with this index, and note the first. The cursor
        moves, it does not matter where to."""
        cdef uint64_t live = 0
        if self.is_untouched():
            cursor_next(&self.cursor, &self.view)
            self.first = self.cursor.entry
            return end - self.cursor.index + 1
        while self.cursor.index < end:
            cursor_next(&self.cursor, &self.view)
            if self.is_live():
                if live == 0:
                    self.first = self.cursor.entry
                live += 1
        return live

    cdef bytes listpack(self, uint32_t end, uint64_t live):
        """The entries up to this index, of which `live` are live."""
        cdef Output out = Output()
        cdef uint32_t size
        cdef uint32_t counted
        out.reserve(HEADER_BYTES)
        out.size += HEADER_BYTES
        self.elements = 0
        self.put_number(out, <int64_t>live)
        self.put_number(out, 0)
        self.put_number(out, self.first.fields)
        self.put_names(out)
        self.put_number(out, 0)
        while self.cursor.index < end:
            cursor_next(&self.cursor, &self.view)
            if self.is_live():
                self.put_entry(out)
        out.reserve(1)[0] = <char>END_BYTE
        out.size += 1
        if out.size > 0xffffffff:
            raise PayloadError("ERR a node of this stream is too long for Redis' dump format")
        size = <uint32_t>out.size
        counted = COUNT_UNKNOWN if self.elements > COUNT_UNKNOWN else <uint32_t>self.elements
        memcpy(out.buf, &size, 4)
        memcpy(out.buf + 4, &counted, 2)
        return out.take()

    cdef inline int put_number(self, Output out, int64_t number) except -1:
        self.elements += 1
        return put_number(out, number)

    cdef int put_names(self, Output out) except -1:
        cdef const uint8_t* at = self.first.names
        cdef const uint8_t* name
        cdef uint64_t size
        cdef uint32_t _
        for _ in range(self.first.fields):
            at = next_name(at, &name, &size)
            put_text(out, name, <Py_ssize_t>size)
        self.elements += self.first.fields
        return 0

    cdef int put_entry(self, Output out) except -1:
        """The entry at which the cursor stands."""
        cdef const Entry* entry = &self.cursor.entry
        cdef uint64_t before
        cdef bint same = entry.fields == self.first.fields and (
            entry.names_size == self.first.names_size and (
                entry.names == self.first.names
                or memcmp(entry.names, self.first.names, entry.names_size) == 0))
        before = self.elements
        self.put_number(out, FLAG_SAME_FIELDS if same else 0)
        self.put_number(out, <int64_t>(entry.ms - self.first.ms))
        self.put_number(out, <int64_t>(entry.seq - self.first.seq))
        if not same:
            self.put_number(out, entry.fields)
        self.put_values(out, entry, not same)
        return self.put_number(out, <int64_t>(self.elements - before))

    cdef int put_values(self, Output out, const Entry* entry, bint with_names) except -1:
        cdef const uint8_t* names = entry.names
        cdef const uint8_t* values = entry.values
        cdef const uint8_t* name
        cdef uint64_t size
        cdef uint32_t _
        for _ in range(entry.fields):
            if with_names:
                names = next_name(names, &name, &size)
                put_text(out, name, <Py_ssize_t>size)
            values = read_varint(values, &size)
            put_text(out, values, <Py_ssize_t>size)
            values += size
        self.elements += entry.fields * (2 if with_names else 1)
        return 0


# ---------------------------------------------------------------- pending entries

cdef inline uint64_t swapped(uint64_t number) noexcept nogil:
    """The bytes of a number in the other order."""
    cdef uint64_t turned = 0
    cdef int _
    for _ in range(8):
        turned = (turned << 8) | (number & 255)
        number >>= 8
    return turned


cdef inline void read_id(const uint8_t* at, uint64_t* ms, uint64_t* seq) noexcept nogil:
    memcpy(ms, at, 8)
    memcpy(seq, at + 8, 8)
    ms[0] = swapped(ms[0])
    seq[0] = swapped(seq[0])


cdef inline void write_id(uint8_t* at, uint64_t ms, uint64_t seq) noexcept nogil:
    ms = swapped(ms)
    seq = swapped(seq)
    memcpy(at, &ms, 8)
    memcpy(at + 8, &seq, 8)


cdef const uint8_t* read_length(const uint8_t* at, const uint8_t* end, uint64_t* out) noexcept nogil:
    """A length as dumps have it; NULL when there is none."""
    cdef uint8_t kind
    cdef uint64_t number = 0
    cdef int size
    if at >= end:
        return NULL
    kind = at[0]
    at += 1
    if kind < 0x40:
        out[0] = kind
        return at
    if kind < 0x80:
        if at >= end:
            return NULL
        out[0] = ((kind & 0x3f) << 8) | at[0]
        return at + 1
    size = 4 if kind == 0x80 else (8 if kind == 0x81 else 0)
    if size == 0 or end - at < size:
        return NULL
    while size:
        number = (number << 8) | at[0]
        at += 1
        size -= 1
    out[0] = number
    return at


cdef Py_ssize_t write_length(uint8_t* at, uint64_t number) noexcept nogil:
    cdef int size = 8 if number >> 32 else 4
    cdef int i
    if number < 64:
        at[0] = <uint8_t>number
        return 1
    if number < 16384:
        at[0] = <uint8_t>(0x40 | (number >> 8))
        at[1] = <uint8_t>(number & 255)
        return 2
    at[0] = 0x80 if size == 4 else 0x81
    for i in range(size, 0, -1):
        at[i] = <uint8_t>(number & 255)
        number >>= 8
    return size + 1


cpdef int64_t shifted_ms(int64_t moment_ms, int64_t by_ms) noexcept:
    """A moment of one clock on another, which is ahead by `by_ms`. 0 and -1 stand for no moment."""
    return moment_ms if moment_ms <= 0 else max(moment_ms + by_ms, 1)


cpdef int64_t ahead_ms(int64_t wall_ms, int64_t steady_ms) noexcept:
    """How far the wall clock is ahead of the steady clock. Less than STEP_MIN_MS is no step of the
    wall clock: the two were read one after the other. Without this a moment would be shown now as
    one millisecond, now as the next."""
    cdef int64_t ahead = wall_ms - steady_ms
    return ahead if ahead >= STEP_MIN_MS or ahead <= -STEP_MIN_MS else 0


cdef class PendingReader:
    """The pending entries of one group, read from a dump, whose times are of the wall clock; that is
    ahead of the steady clock by `wall_ahead_ms`.

    The data end at `end`. `read` takes the group's own entries, `give` those that a consumer names,
    `release` those without an owner; all answer where the data go on. `records` is what Group.load
    takes, `large_counts` too.
    """

    cdef bytes data
    cdef Py_ssize_t end
    cdef Pending* items
    cdef Py_ssize_t count
    cdef Py_ssize_t owned
    cdef int64_t wall_ahead_ms
    cdef readonly list large_counts

    def __init__(self, bytes data not None, Py_ssize_t end, int64_t wall_ahead_ms):
        self.data = data
        self.end = end
        self.wall_ahead_ms = wall_ahead_ms
        self.large_counts = []

    def __dealloc__(self):
        PyMem_Free(self.items)

    def read(self, Py_ssize_t at, uint64_t count) -> int:
        cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(self.data)
        cdef const uint8_t* end = start + self.end
        cdef const uint8_t* here = start + at
        cdef Pending* record
        cdef Pending* before
        if count > <uint64_t>((end - here) // GLOBAL_PENDING_MIN):
            raise PayloadError("a group has more pending entries than there are")
        self.items = <Pending*>PyMem_Malloc((count + 1) * sizeof(Pending))
        if self.items == NULL:
            raise MemoryError("no memory for pending entries")
        for self.count in range(<Py_ssize_t>count):
            record = &self.items[self.count]
            before = record - 1
            here = self.read_record(here, end, record)
            if self.count and not id_less(before.ms, before.seq, record.ms, record.seq):
                raise PayloadError("the pending entries of a group do not rise")
        self.count = <Py_ssize_t>count
        return here - start

    cdef const uint8_t* read_record(self, const uint8_t* at, const uint8_t* end,
                                    Pending* record) except NULL:
        cdef uint64_t ms, seq, deliveries
        cdef int64_t delivered_ms
        if end - at < GLOBAL_PENDING_MIN:
            raise PayloadError("a pending entry is cut off")
        read_id(at, &ms, &seq)
        memcpy(&delivered_ms, at + ID_BYTES, 8)
        at = read_length(at + ID_BYTES + 8, end, &deliveries)
        if at == NULL or deliveries > <uint64_t>INT64_MAX or delivered_ms < 0:
            raise PayloadError("a pending entry has a malformed time or count")
        delivered_ms = shifted_ms(min(delivered_ms, <int64_t>TIME_MAX), -self.wall_ahead_ms)
        memset(record, 0, sizeof(Pending))
        record.ms = ms
        record.seq = seq
        record.first_delivery_ms = min(<uint64_t>delivered_ms, FIRST_DELIVERY_MAX)
        record.last_delivery_ms = min(<uint64_t>delivered_ms, TIME_MAX)
        record.deliveries = <uint32_t>min(deliveries, <uint64_t>DELIVERIES_MAX)
        if deliveries >= DELIVERIES_MAX:
            self.large_counts.append([ms, seq, deliveries])
        return at

    cdef const uint8_t* ids_at(self, Py_ssize_t at, uint64_t count) except NULL:
        if count > <uint64_t>((self.end - at) // ID_BYTES):
            raise PayloadError("a consumer has more pending entries than there are")
        return <const uint8_t*>PyBytes_AS_STRING(self.data) + at

    def give(self, Py_ssize_t at, uint64_t count, uint32_t consumer) -> int:
        """The `count` entries named at `at` are this consumer's; they rise."""
        cdef const uint8_t* here = self.ids_at(at, count)
        cdef Py_ssize_t place = 0
        cdef uint64_t i
        for i in range(count):
            place = self.find(here + i * ID_BYTES, place)
            if self.items[place].consumer:
                raise PayloadError("two consumers own a pending entry")
            self.items[place].consumer = consumer
            place += 1
        self.owned += <Py_ssize_t>count
        return at + <Py_ssize_t>count * ID_BYTES

    def release(self, Py_ssize_t at, uint64_t count) -> int:
        """The `count` entries named at `at`, in any order, have no owner."""
        cdef const uint8_t* here = self.ids_at(at, count)
        cdef Py_ssize_t place
        cdef uint64_t i
        for i in range(count):
            place = self.find(here + i * ID_BYTES, 0)
            if self.items[place].consumer or self.items[place].policy:
                raise PayloadError("a released entry is owned, or named twice")
            self.items[place].policy = 1  # seen; `records` takes it away
        self.owned += <Py_ssize_t>count
        return at + <Py_ssize_t>count * ID_BYTES

    cdef Py_ssize_t find(self, const uint8_t* at, Py_ssize_t low) except -1:
        """The place of the record with the id at `at`, which is at `low` or after it."""
        cdef uint64_t ms, seq
        cdef Py_ssize_t high = self.count
        cdef Py_ssize_t middle
        read_id(at, &ms, &seq)
        while low < high:
            middle = (low + high) // 2
            if id_less(self.items[middle].ms, self.items[middle].seq, ms, seq):
                low = middle + 1
            else:
                high = middle
        if low == self.count or self.items[low].ms != ms or self.items[low].seq != seq:
            raise PayloadError("a consumer owns an entry that is not pending in its group")
        return low

    def records(self) -> bytes:
        """Every record; each must be a consumer's or released."""
        cdef Py_ssize_t i
        if self.owned != self.count:
            raise PayloadError("a pending entry has no owner")
        for i in range(self.count):
            self.items[i].policy = 0
        return PyBytes_FromStringAndSize(<char*>self.items, self.count * sizeof(Pending))


def pending_of_group(bytes records not None, list large_counts not None,
                     int64_t wall_ahead_ms) -> bytes:
    """A group's pending records (storage/streams/group) as a dump has them, without their number.
    Their times are of the wall clock, which is ahead of the steady clock by `wall_ahead_ms`."""
    cdef const Pending* items = <const Pending*><char*>records
    cdef Py_ssize_t count = len(records) // <Py_ssize_t>sizeof(Pending)
    cdef bytes found = PyBytes_FromStringAndSize(NULL, count * (ID_BYTES + 8 + 9))
    cdef uint8_t* start = <uint8_t*><char*>found
    cdef uint8_t* at = start
    cdef dict large = {(ms, seq): number for ms, seq, number in large_counts}
    cdef uint64_t deliveries
    cdef int64_t delivered_ms
    cdef Py_ssize_t i
    for i in range(count):
        write_id(at, items[i].ms, items[i].seq)
        delivered_ms = shifted_ms(items[i].last_delivery_ms, wall_ahead_ms)
        memcpy(at + ID_BYTES, &delivered_ms, 8)
        deliveries = items[i].deliveries
        if deliveries == DELIVERIES_MAX:
            deliveries = large.get((items[i].ms, items[i].seq), DELIVERIES_MAX)
        at += ID_BYTES + 8
        at += write_length(at, deliveries)
    return found[:at - start]


def ids_by_consumer(bytes records not None, Py_ssize_t consumers) -> list[bytes]:
    """The ids of a group's pending records as a dump has them, by the number of their consumer:
    those without an owner first."""
    cdef const Pending* items = <const Pending*><char*>records
    cdef Py_ssize_t count = len(records) // <Py_ssize_t>sizeof(Pending)
    cdef bytes sorted_ids = PyBytes_FromStringAndSize(NULL, count * ID_BYTES)
    cdef uint8_t* to = <uint8_t*><char*>sorted_ids
    cdef Py_ssize_t* ends = <Py_ssize_t*>PyMem_Malloc((consumers + 1) * sizeof(Py_ssize_t))
    cdef Py_ssize_t i
    cdef list found = []
    if ends == NULL:
        raise MemoryError("no memory to sort pending entries")
    try:
        memset(ends, 0, (consumers + 1) * sizeof(Py_ssize_t))
        for i in range(count):
            ends[items[i].consumer + 1] += 1
        for i in range(consumers):
            ends[i + 1] += ends[i]
        for i in range(count):  # `ends` holds where each consumer's begin, and moves on to its end
            write_id(to + ends[items[i].consumer] * ID_BYTES, items[i].ms, items[i].seq)
            ends[items[i].consumer] += 1
        start = 0
        for i in range(consumers):
            found.append(sorted_ids[start * ID_BYTES:ends[i] * ID_BYTES])
            start = ends[i]
    finally:
        PyMem_Free(ends)
    return found
