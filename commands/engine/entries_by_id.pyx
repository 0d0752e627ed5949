# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Entries of a stream that are named one by one: found quickly, and answered in slices.

A consumer's history and what XAUTOCLAIM hands over are not ranges, but their ids rise. So each is
looked for from where the one before was found, which costs a step instead of a search; and a long
reply keeps its ids and the blocks that hold them, which never change, and is encoded as the client
takes it, like a long range.
"""

from libc.stdint cimport uint64_t

from millstream.commands.engine.delivery cimport Ids
from millstream.commands.runtime.replies cimport SLICE_BYTES, Encodable, Sliced
from millstream.encoding cimport Output, put_null_array
from millstream.ids cimport EntryId, id_less
from millstream.storage.blocks.block cimport (
    cursor_next, cursor_seek, cursor_start, encode_entry, view_of,
)
from millstream.storage.blocks.skiplist cimport block_at, no_place, same_place
from millstream.storage.streams.stream cimport Stream

cdef enum:
    # An entry further on than this is searched for.
    STEPS_MAX = 32


cdef Finder finder_of(Stream stream):
    cdef Finder made = Finder.__new__(Finder)
    made.stream = stream
    made.here = made.walk.valid = False
    made.last.ms = made.last.seq = 0
    return made


cdef class Finder:
    """Undeleted entries of a stream by id, quickest while ids rise; nothing may change the stream
    meanwhile. What was found is `walk.cursor.entry` in `walk.view`."""

    cdef bint find(self, uint64_t ms, uint64_t seq) noexcept:
        cdef int steps = STEPS_MAX
        if not self.here or id_less(ms, seq, self.last.ms, self.last.seq):
            self.restart(ms, seq)
        self.last.ms = ms
        self.last.seq = seq
        while self.here and id_less(
                self.walk.cursor.entry.ms, self.walk.cursor.entry.seq, ms, seq):
            if steps == 0:
                self.restart(ms, seq)
                break
            steps -= 1
            self.here = self.stream.walk_next(&self.walk)
        return self.here and self.walk.cursor.entry.ms == ms and self.walk.cursor.entry.seq == seq

    cdef bint restart(self, uint64_t ms, uint64_t seq) noexcept:
        self.stream.walk_start(&self.walk, ms, seq)
        self.here = self.stream.walk_next(&self.walk)
        return self.here


cdef Chosen choice_of(Stream stream):
    cdef Chosen made = Chosen.__new__(Chosen)
    made.ids = Ids.__new__(Ids)
    made.blocks = []
    made.place = no_place()
    made.with_tail = False
    made.head.ms = stream.head_ms
    made.head.seq = stream.head_seq
    return made


cdef class Chosen(Encodable):
    """An array of entries whose ids rise, those that are gone as [id, null]. It stays what it is
    whatever happens to the stream after the last `add`."""

    cdef int add(self, Finder finder, uint64_t ms, uint64_t seq) except -1:
        """The entry at which the finder stands."""
        self.ids.add(ms, seq)
        if finder.walk.in_tail:
            if not self.with_tail:
                self.with_tail = True
                self.blocks.append(finder.stream.tail.freeze())
        elif not same_place(finder.walk.place, self.place):
            self.place = finder.walk.place
            self.blocks.append(block_at(self.place))
        return 0

    cdef int add_gone(self, uint64_t ms, uint64_t seq) except -1:
        return self.ids.add(ms, seq)

    cdef int encode(self, Output out, int resp) except -1:
        cdef SlicedChosen sliced = self.put_off(resp)
        sliced.fill(out, out.size + SLICE_BYTES)
        if sliced.next < self.ids.count:
            self.remainder = sliced
        return 0

    cdef Sliced rest(self):
        return self.remainder

    cpdef Sliced put_off(self, int resp):
        """All of the entries, to go out in slices; the array's head is the maker's."""
        cdef SlicedChosen made = SlicedChosen.__new__(SlicedChosen)
        made.ids = self.ids
        made.next = 0
        made.blocks = self.blocks
        made.blocks.reverse()
        made.block = None
        made.id_text.size = 0
        made.id_text.dotted = False
        made.head = self.head
        made.resp = resp
        return made


cdef class SlicedChosen(Sliced):
    """What is left of a Chosen: the blocks still to be looked into, the next one last."""

    def next_slice(self) -> bytes:
        cdef Output out = Output()
        self.fill(out, SLICE_BYTES)
        return out.take()

    cdef int fill(self, Output out, Py_ssize_t full_size) except -1:
        cdef EntryId wanted
        while self.next < self.ids.count and out.size < full_size:
            wanted = self.ids.items[self.next]
            self.next += 1
            if self.find(wanted.ms, wanted.seq):
                encode_entry(out, &self.view, &self.cursor.entry, &self.id_text)
            else:
                out.put_raw(b"*2\r\n", 4)
                out.put_id(wanted.ms, wanted.seq, False)
                put_null_array(out, self.resp)
        return 0

    cdef bint find(self, uint64_t ms, uint64_t seq) except -1:
        cdef int steps = STEPS_MAX
        if id_less(ms, seq, self.head.ms, self.head.seq):
            return False  # evicted, though its block holds it still
        while self.block is None or id_less(self.view.last_ms, self.view.last_seq, ms, seq):
            if not self.blocks:
                return False
            self.next_block()
        while id_less(self.cursor.entry.ms, self.cursor.entry.seq, ms, seq):
            if steps == 0:
                cursor_seek(&self.cursor, &self.view, ms, seq)
            steps -= 1
            if not cursor_next(&self.cursor, &self.view):
                return False
        return (self.cursor.entry.ms == ms and self.cursor.entry.seq == seq
                and not self.cursor.entry.deleted)

    cdef int next_block(self) except -1:
        self.block = self.blocks.pop()
        view_of(self.block.head, &self.view)
        cursor_start(&self.cursor, &self.view)
        cursor_next(&self.cursor, &self.view)
        return 0
