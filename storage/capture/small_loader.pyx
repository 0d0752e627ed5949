# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Loads the small streams of a snapshot from their rows (`small_rows`) and a chunk with their blocks.

Blocks are checked: no sequence of bytes leads out of the chunk.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t

from millstream.entry_id cimport id_less
from millstream.storage.blocks.block cimport read_block, sound_head
from millstream.storage.blocks.block_check cimport check_view
from millstream.storage.blocks.layout cimport Head, View, form_size, view_live_before, view_of
from millstream.storage.blocks.skiplist cimport SkipList
from millstream.storage.capture.small_rows cimport (
    HAS_BLOCK, HAS_EXPIRY, HAS_FIRST_KEPT, IS_OPEN, Reader, Row, Section, name_of, number,
    pending_size, read_row, retry_pairs, signed_number, text,
)
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.group cimport Group
from millstream.storage.groups.group_snapshot cimport load_pending, load_retry_pairs
from millstream.storage.groups.retry_pairs cimport checked_pairs
from millstream.storage.keyspace.keyspace_core cimport DatabaseCore, KeyspaceCore
from millstream.storage.streams.stream cimport Stream
from millstream.storage.streams.stream_groups cimport all_groups

from millstream.errors import BlockError


cdef Group load_group(Reader* r, uint64_t now_ms):
    cdef bytes name = name_of(r, number(r))
    cdef Group group = Group(name, number(r), number(r))
    cdef Consumer member
    cdef uint64_t size, i, count
    cdef list pairs
    group.gap_floor_ms = number(r)
    group.gap_floor_seq = number(r)
    group.entries_read = signed_number(r)
    group.set_ttl(number(r), now_ms)
    count = number(r)
    for i in range(count):
        size = number(r)
        if size == 0:
            group.pending.skip_number()
            continue
        name = name_of(r, size - 1)
        if group.pending.consumer(name) is not None:
            raise ValueError(f"group {group.name!r} has consumer {name!r} twice")
        member = Consumer(name, <uint32_t>(i + 1), signed_number(r), signed_number(r))
        group.pending.add_member(member)
    if count:
        group.pending.free_numbers()
    pairs = retry_pairs(r)
    if len(pairs) > 1:
        load_retry_pairs(group, checked_pairs(pairs, group.name))
    size = pending_size(r)
    load_pending(group, text(r, size), 0, size)
    return group


cdef class SmallLoader:
    """Puts the streams of a section into a keyspace, some at a time. `entries` is what a reader
    sees of those that were loaded, `key` the key that is being loaded."""

    def __init__(self, bytes section not None, chunk not None):
        self.section = Section(section)
        self.chunk = chunk

    @property
    def chunk_number(self) -> int | None:
        """The number of the chunk with the blocks; None when no stream has one."""
        return self.section.chunk_number()

    def step(self, keyspace not None, Py_ssize_t most) -> int:
        """Load up to `most` streams; return their number, 0 at the end. ValueError when a row is
        malformed or does not fit its block, BlockError when a block is."""
        cdef Reader* r = &self.section.r
        cdef Row row
        cdef Stream stream
        cdef Group group
        cdef Py_ssize_t done = 0
        cdef uint64_t _
        cdef KeyspaceCore space = keyspace
        cdef DatabaseCore database
        cdef uint64_t now_ms = space.steady_ms
        cdef list databases = space.databases
        while done < most and r.at < r.end:
            read_row(r, &row)
            self.key = PyBytes_FromStringAndSize(row.key, row.key_size)
            if row.db >= <uint64_t>len(databases):
                raise ValueError(
                    f"it belongs to database {row.db}; there are {len(databases)}")
            stream = self.load_stream(&row)
            space.incarnation = max(space.incarnation, row.incarnation)
            for _ in range(row.groups):
                stream.load_group(load_group(r, now_ms))
            database = databases[row.db]
            if not database.put_new(self.key, stream):
                (<object>database).put(self.key, stream)
            if row.flags & HAS_EXPIRY:
                (<object>database).note_expiry(self.key, row.expires_ms)
            for group in all_groups(stream.group_set) if row.groups else ():
                space.schedule(database.index, self.key, group)
            self.entries += stream.length
            done += 1
        if done == 0 and <Py_ssize_t>self.section.offset != self.chunk.shape[0]:
            raise ValueError("its section does not have all blocks of the chunk")
        return done

    cdef Stream load_stream(self, Row* row):
        cdef Stream stream = Stream(row.incarnation)
        stream.last_ms, stream.last_seq = row.last_id[0], row.last_id[1]
        stream.head_ms, stream.head_seq = row.first_kept[0], row.first_kept[1]
        stream.max_evicted_ms, stream.max_evicted_seq = row.max_evicted[0], row.max_evicted[1]
        stream.max_deleted_ms, stream.max_deleted_seq = row.max_deleted[0], row.max_deleted[1]
        stream.entries_added = row.entries_added
        stream.entries_evicted = row.entries_evicted
        stream.entries_deleted = row.entries_deleted
        if row.flags & HAS_BLOCK:
            self.load_block(stream, row)
        return stream

    cdef int load_block(self, Stream stream, Row* row) except -1:
        cdef Py_ssize_t at = self.section.offset
        cdef Py_ssize_t left = self.chunk.shape[0] - at
        cdef const Head* head
        cdef View view
        if left <= 0:
            raise ValueError("its block is beyond the end of the chunk")
        try:
            head = sound_head(&self.chunk[at], left)
            view_of(head, &view)
            check_view(&view)
        except ValueError as error:
            raise BlockError(at, str(error)) from None
        if (form_size(head) != row.form_size or head.live != row.live
                or head.first_ms != row.first_id[0] or head.first_seq != row.first_id[1]
                or head.last_ms != row.newest_id[0] or head.last_seq != row.newest_id[1]):
            raise ValueError("the index says otherwise of its block")
        if row.flags & HAS_FIRST_KEPT:
            stream.head_gone = view_live_before(&view, stream.head_ms, stream.head_seq)
        if stream.head_gone != row.hidden or head.live <= stream.head_gone:
            raise ValueError("its hidden entries do not fit its block")
        if id_less(stream.last_ms, stream.last_seq, head.last_ms, head.last_seq):
            raise ValueError("its last id is below its last entry")
        if not (row.flags & IS_OPEN and stream.resume_tail(&view)):
            stream.sealed = SkipList.__new__(SkipList)
            stream.sealed.push(read_block(head, form_size(head)))
        stream.length = head.live - stream.head_gone
        self.section.offset += row.form_size
        return 0
