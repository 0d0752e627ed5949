# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The sealed block: a packed run of entries that can be decoded alone. Streams, snapshots and replies
consist of blocks.

A Block is an exact copy of an `open_block.OpenBlock` and is never modified again (a deletion makes
another copy). Therefore a snapshot or a long reply may hold a Block while the server continues. What
is in memory is the disk form, except for the checksum.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from millstream.encoding cimport Output
from millstream.entry_id cimport id_less
from millstream.storage.blocks.block_check cimport check_view, fault_text
from millstream.storage.blocks.layout cimport (
    BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, DELETED, FORMAT_VERSION, FORMAT_VERSION_PACKED,
    FORMAT_VERSION_PLAIN, SETS_MAX, SLACK, Cursor, Head, View, cursor_next, cursor_seek,
    cursor_start, entry_words, form_size, read_u16, table_size, view_of, word_start,
)
from millstream.storage.blocks.reply_entries cimport IdText, encode_entry

from millstream.errors import BlockError
from millstream.storage.blocks.checksum import crc32


cdef const char* form_fault(const Head* head, Py_ssize_t size) noexcept nogil:
    """The fault in the header of a disk form of which `size` bytes are present, or NULL. The
    checksum and the entries are not checked."""
    if size < BLOCK_HEADER_BYTES:
        return b"it is shorter than its header"
    if head.magic[0] != c'M' or head.magic[1] != c'B':
        return b"its first bytes are not 'MB'"
    if head.version != FORMAT_VERSION and head.version != FORMAT_VERSION_PACKED and (
            head.version != FORMAT_VERSION_PLAIN or head.set_count != SETS_MAX):
        return b"its format is not known to this version"
    if head.count == 0:
        return b"it has no entries"
    if form_size(head) > <uint64_t>size:
        return b"it is longer than what is there"
    if head.version == FORMAT_VERSION_PACKED and not has_dictionary(head):
        return b"its dictionary does not fit"
    return NULL


cdef bint has_dictionary(const Head* head) noexcept nogil:
    """True if a dictionary with a whole table is at the start of the entries. Its words are not
    checked."""
    cdef const uint8_t* words = <const uint8_t*>(head + 1) + table_size(
        head.count, head.set_count, head.node_count)
    cdef uint32_t count, end
    if head.size < 4 or head.size > BLOCK_BYTES_MAX:
        return False
    count = read_u16(words)
    if 4 + 2 * count > head.size:
        return False
    end = word_start(words, count)
    return 4 + 2 * count <= end <= head.size


cdef Head* new_head(Block owner, uint64_t data_size) except NULL:
    """Allocate a block with data_size bytes after its header; bytes beyond that read as zeros."""
    cdef uint64_t size = BLOCK_HEADER_BYTES + data_size
    cdef Head* head = <Head*>malloc(size + SLACK)
    if head == NULL:
        raise MemoryError(f"no memory for a block of {size} bytes")
    memset(<char*>head + size, 0, SLACK)
    head.owner = <PyObject*>owner
    owner.head = head
    return head


cdef list view_entries(const View* view):
    """Every undeleted entry as (ms, seq, words)."""
    cdef Cursor cursor
    cdef list entries = []
    cursor_start(&cursor, view)
    while cursor_next(&cursor, view):
        if not cursor.entry.deleted:
            entries.append((cursor.entry.ms, cursor.entry.seq, entry_words(view, &cursor.entry)))
    return entries


cdef list view_nodes(const View* view):
    """The entries of `view_entries`, grouped by node."""
    cdef Cursor cursor
    cdef uint32_t node, end
    cdef list entries
    cdef list nodes = []
    cursor_start(&cursor, view)
    for node in range(view.node_count):
        end = view.nodes[node] if node + 1 < view.node_count else view.count
        entries = []
        while cursor.index < end and cursor_next(&cursor, view):
            if not cursor.entry.deleted:
                entries.append((cursor.entry.ms, cursor.entry.seq, entry_words(view, &cursor.entry)))
        nodes.append(entries)
    return nodes


cdef class Block:
    """A sealed block: its disk form (header, tables, entries) in contiguous memory."""

    def __init__(self) -> None:
        raise TypeError("a block comes from OpenBlock.freeze, Block.from_bytes or Block.unpack")

    def __dealloc__(self):
        free(self.head)

    @property
    def count(self) -> int:
        """The number of entries, including deleted ones."""
        return self.head.count

    @property
    def live(self) -> int:
        """The number of undeleted entries."""
        return self.head.live

    cdef Py_ssize_t data_size(self) noexcept:
        """The size of tables and entries."""
        return form_size(self.head) - BLOCK_HEADER_BYTES

    cdef Block without(self, uint64_t ms, uint64_t seq):
        """A copy in which this entry is deleted; None when no undeleted entry has this ID."""
        cdef View view
        cdef Cursor cursor
        cdef const uint8_t* at
        cdef Block copy
        view_of(self.head, &view)
        cursor_seek(&cursor, &view, ms, seq)
        at = cursor.at
        if not cursor_next(&cursor, &view) or cursor.entry.deleted:
            return None
        if cursor.entry.ms != ms or cursor.entry.seq != seq:
            return None
        copy = self.copy()
        copy.mark(at - <const uint8_t*>self.head)
        return copy

    cdef Block without_all(self, list ids):
        """A copy in which the undeleted entries with these IDs (ms, seq), sorted, are deleted."""
        cdef View view
        cdef Cursor cursor
        cdef const uint8_t* at
        cdef Py_ssize_t done = 0
        cdef Block copy = self.copy()
        view_of(self.head, &view)
        cursor_start(&cursor, &view)
        while done < len(ids):
            at = cursor.at
            if not cursor_next(&cursor, &view):
                break
            if not cursor.entry.deleted and (cursor.entry.ms, cursor.entry.seq) == ids[done]:
                copy.mark(at - <const uint8_t*>self.head)
                done += 1
        return copy

    cdef inline void mark(self, Py_ssize_t at) noexcept:
        """Delete the entry whose head is at this byte. Only for a copy that is not shared yet."""
        (<uint8_t*>self.head)[at] |= DELETED
        self.head.live -= 1

    cdef Block copy(self):
        cdef Block made = Block.__new__(Block)
        memcpy(new_head(made, self.data_size()), self.head, form_size(self.head))
        made.head.owner = <PyObject*>made
        return made

    @property
    def first_id(self) -> tuple[int, int]:
        """The ID of the first entry written, deleted or not."""
        return self.head.first_ms, self.head.first_seq

    @property
    def last_id(self) -> tuple[int, int]:
        """The ID of the last entry written, deleted or not."""
        return self.head.last_ms, self.head.last_seq

    @property
    def size_bytes(self) -> int:
        """The size of the disk form."""
        return form_size(self.head)

    def to_bytes(self) -> bytes:
        """The disk form (docs/formats.md): header with CRC-32, tables, entries."""
        cdef bytes whole = PyBytes_FromStringAndSize(NULL, form_size(self.head))
        self.write(PyBytes_AS_STRING(whole))
        return whole

    cdef int write(self, char* at) except -1:
        """Write the disk form to `at`, which must have enough space."""
        cdef Py_ssize_t size = self.write_unsealed(at)
        (<Head*>at).crc32 = crc32(PyMemoryView_FromMemory(at, size, PyBUF_READ))
        return 0

    cdef Py_ssize_t write_unsealed(self, char* at) noexcept:
        """Write the disk form without its checksum, which stays 0; return its size."""
        cdef Py_ssize_t size = form_size(self.head)
        memcpy(at, self.head, size)
        (<Head*>at).owner = NULL
        (<Head*>at).crc32 = 0
        (<Head*>at).own_names = 0
        return size

    @staticmethod
    def pack(blocks, Py_ssize_t bytes_max, Py_ssize_t entries_max):
        """The concatenated disk forms of these blocks: at least the first block, and up to the
        block that reaches bytes_max bytes or entries_max entries. Returns (bytes, blocks, entries,
        undeleted entries)."""
        cdef Py_ssize_t taken = 0
        cdef Py_ssize_t size = 0
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t live = 0
        cdef Block block
        cdef bytes whole
        cdef char* at
        while taken < len(blocks) and (taken == 0 or (size < bytes_max and count < entries_max)):
            block = blocks[taken]
            size += form_size(block.head)
            count += block.head.count
            live += block.head.live
            taken += 1
        whole = PyBytes_FromStringAndSize(NULL, size)
        at = PyBytes_AS_STRING(whole)
        for block in blocks[:taken]:
            block.write(at)
            at += form_size(block.head)
        return whole, taken, count, live

    @staticmethod
    def from_bytes(data) -> Block:
        """Read a disk form that fills `data`; ValueError names the fault."""
        cdef const uint8_t[::1] raw = data
        cdef const Head* head = sound_head(&raw[0], raw.shape[0])
        cdef Py_ssize_t size = form_size(head)
        whole = memoryview(data)
        if size != raw.shape[0]:
            raise ValueError(f"a block of {size} bytes does not fill {raw.shape[0]}")
        if crc32(whole[8:], crc32(bytes(4), crc32(whole[:4]))) != head.crc32:
            raise ValueError("block checksum does not match")
        return read_block(head, size)

    @staticmethod
    def unpack(data, Py_ssize_t at, Py_ssize_t count):
        """Read `count` contiguous disk forms in `data` from byte `at` on: (blocks, the byte after
        them). BlockError at the first invalid one. The checksums of blocks are not checked, because
        a chunk of a snapshot has its own."""
        cdef const uint8_t[::1] raw = data
        cdef list blocks = []
        cdef const Head* head
        cdef Py_ssize_t _
        for _ in range(count):
            try:
                head = sound_head(&raw[at], raw.shape[0] - at)
                blocks.append(read_block(head, form_size(head)))
            except ValueError as error:
                raise BlockError(at, str(error)) from None
            at += form_size(head)
        return blocks, at

    def check(self) -> None:
        """Check every length and offset; ValueError names the first invalid one."""
        cdef View view
        view_of(self.head, &view)
        check_view(&view)

    def encoded_entries(self, list ids not None, first_kept) -> list:
        """The undeleted entries with these ascending IDs (ms, seq), as RESP; None for an entry that
        does not exist or is below first_kept."""
        cdef Output out = Output()
        cdef View view
        cdef Cursor cursor
        cdef IdText id_text
        cdef uint64_t ms, seq
        cdef int steps
        cdef bint here
        cdef list found = []
        id_text.size = 0
        id_text.dotted = False
        view_of(self.head, &view)
        cursor_start(&cursor, &view)
        here = cursor_next(&cursor, &view)
        for entry_id in ids:
            ms, seq = entry_id
            steps = 32  # beyond this distance, search
            while here and id_less(cursor.entry.ms, cursor.entry.seq, ms, seq):
                if steps == 0:
                    cursor_seek(&cursor, &view, ms, seq)
                steps -= 1
                here = cursor_next(&cursor, &view)
            if (not here or cursor.entry.ms != ms or cursor.entry.seq != seq or cursor.entry.deleted
                    or entry_id < first_kept):
                found.append(None)
                continue
            encode_entry(out, &view, &cursor.entry, &id_text)
            found.append(out.take())
        return found

    def entries(self) -> list[tuple[int, int, list[bytes]]]:
        """Every undeleted entry as (ms, seq, [field, value, ...])."""
        cdef View view
        view_of(self.head, &view)
        return view_entries(&view)

    @property
    def node_count(self) -> int:
        """The number of nodes, the units of `~`, including nodes whose entries are all deleted."""
        return self.head.node_count

    def nodes(self) -> list[list[tuple[int, int, list[bytes]]]]:
        """The undeleted entries of each node, in the form of `entries`."""
        cdef View view
        view_of(self.head, &view)
        return view_nodes(&view)


cdef const Head* sound_head(const uint8_t* data, Py_ssize_t size) except NULL:
    """The header of the disk form at the beginning of these bytes; ValueError when it is
    invalid."""
    cdef const Head* head = <const Head*>data
    cdef const char* fault = form_fault(head, size)
    if fault != NULL:
        raise ValueError(fault_text(fault, 0, 0))
    return head


cdef Block read_block(const Head* form, Py_ssize_t size):
    """Make a block from its disk form."""
    cdef Block block = Block.__new__(Block)
    cdef Head* head = new_head(block, size - BLOCK_HEADER_BYTES)
    memcpy(head, form, size)
    head.crc32 = 0
    head.own_names = 0
    head.owner = <PyObject*>block
    block.check()
    return block


cdef const char* view_at(const uint8_t* data, Py_ssize_t size, View* out,
                         Py_ssize_t* length) noexcept nogil:
    """Set `out` to the View of the disk form at the beginning of `data`, without a copy, and
    `length` to its size; or return the fault. Checksum and entries are not checked: `find_fault`
    checks the entries."""
    cdef const Head* head = <const Head*>data
    cdef const char* fault = form_fault(head, size)
    if fault != NULL:
        return fault
    length[0] = form_size(head)
    view_of(head, out)
    return NULL


def seal_forms(bytes forms not None) -> None:
    """Put the checksums into contiguous disk forms that `write_unsealed` wrote, in place. Only for
    bytes without another reference."""
    cdef char* at = PyBytes_AS_STRING(forms)
    cdef char* end = at + len(forms)
    cdef Py_ssize_t size
    while at < end:
        size = form_size(<Head*>at)
        (<Head*>at).crc32 = crc32(PyMemoryView_FromMemory(at, size, PyBUF_READ))
        at += size
