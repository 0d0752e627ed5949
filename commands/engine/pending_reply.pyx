# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Pending entries between two ids as a reply (XPENDING), long ones in slices.

With a least idle time or a consumer very many may have to be looked at for a few, and how many
there are stands before them. So what is not found quickly is looked for in turns, only to be
counted, and then encoded as the client takes it. In the meantime the chunks of that moment are
shared with the group, as a snapshot does; those in which nothing was found are released.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint32_t, uint64_t

from millstream.commands.engine.delivery cimport idle_of, put_idle
from millstream.commands.runtime.replies cimport SLICE_BYTES, Encodable, Sliced
from millstream.encoding cimport ArrayHead, Output
from millstream.entry_id cimport id_less
from millstream.storage.streams.group cimport (
    IDLE, Chunk, Consumer, Group, Pending, PendingAt, deliveries_of,
)

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    # Records looked at before the reply is put off; in a turn to count; in a turn for a slice.
    LOOKS_AT_ONCE = 5000
    LOOKS_TO_COUNT = 50000
    LOOKS_TO_SEND = 200000
    # What it costs to pass by a chunk, in records.
    SKIPPED_LOOKS = 10


def pending_range(Group group not None, start, end, int64_t limit, int64_t min_idle_ms,
                  uint64_t now_ms, Consumer owner=None):
    """The pending entries with start <= id <= end, (ms, seq) each, at most `limit`; with an owner
    only that consumer's."""
    cdef PendingRange made = PendingRange.__new__(PendingRange)
    made.group = group
    made.start.ms, made.start.seq = start
    made.end.ms, made.end.seq = end
    made.limit = max(limit, 0)
    made.min_idle_ms = min_idle_ms
    made.now_ms = now_ms
    made.latest_ms = MAX if min_idle_ms <= 0 else max(<int64_t>now_ms - min_idle_ms, 0)
    made.consumers = group.members()
    made.large_counts = group.large_counts()
    made.owner = owner
    return made


cdef class PendingRange(Encodable):
    """[[id, consumer, idle ms, deliveries], ...] in id order; an entry without an owner has an empty
    name, and what XNACK released has been idle for -1. Encode it before anything changes the group."""

    cdef int encode(self, Output out, int resp) except -1:
        cdef Search search
        cdef ArrayHead head
        if self.is_empty():
            return out.put_head(c'*', 0)
        out.begin_array(&head, min(self.limit, self.group.pending_count))
        self.begin(&search)
        self.group.first_at_least(self.start.ms, self.start.seq, &search.at)
        self.look(&search, self.group.pendings.chunks, self.group.pendings.chunk_count, LOOKS_AT_ONCE, out,
                  PY_SSIZE_T_MAX)
        self.group.pendings.work_counter += search.looks
        if search.over:
            return out.end_array(&head, search.found)
        out.size = head.at
        self.is_long = True
        return 0

    cdef Sliced rest(self):
        return self.put_off() if self.is_long else None

    cdef bint is_empty(self) noexcept:
        """Whether it takes no look to know that there is nothing."""
        return self.limit == 0 or self.group.idle_bound() > self.latest_ms or (
            self.owner is not None and self.owner.pending == 0)

    cdef bint takes_all(self) noexcept:
        return self.owner is None and self.min_idle_ms <= 0

    cdef int begin(self, Search* search) noexcept:
        search.at.chunk = search.at.index = 0
        search.found = search.looks = 0
        search.unmet = MAX if self.owner is None else self.owner.pending
        search.over = False
        return 0

    cdef int look(self, Search* search, Chunk** chunks, uint32_t count, uint64_t looks,
                  Output out, Py_ssize_t full_size) except -1:
        """Continue a search for about `looks` steps; what is found is encoded until `out` is
        full."""
        cdef const Chunk* chunk
        looks += search.looks
        while not search.over and search.looks < looks and out.size < full_size:
            if search.at.chunk >= count:
                search.over = True
                break
            chunk = chunks[search.at.chunk]
            if chunk != NULL:
                self.look_into(search, chunk, looks, out, full_size)
                if search.over or search.at.index < chunk.used:
                    break
            search.at.chunk += 1
            search.at.index = 0
        return 0

    cdef int look_into(self, Search* search, const Chunk* chunk, uint64_t looks, Output out,
                       Py_ssize_t full_size) except -1:
        """`look` in the chunk where the search stands; without `out` all that is found there is
        only counted."""
        cdef const Pending* record
        cdef uint32_t i = search.at.index
        if chunk.bounds[IDLE] > self.latest_ms:
            search.looks += SKIPPED_LOOKS
            i = chunk.used
        while i < chunk.used:
            record = &chunk.items[i]
            if search.found == self.limit or search.unmet == 0 or id_less(
                    self.end.ms, self.end.seq, record.ms, record.seq):
                search.over = True
                break
            if out is not None and (out.size >= full_size or search.looks >= looks):
                break
            i += 1
            search.looks += 1
            if self.owner is not None:
                if record.consumer != self.owner.index:
                    continue
                search.unmet -= 1
            if self.is_idle(record):
                search.found += 1
                if out is not None:
                    self.put_row(out, record)
        search.at.index = i
        return 0

    cdef inline bint is_idle(self, const Pending* record) noexcept:
        cdef int64_t idle_ms
        if self.min_idle_ms <= 0:
            return True
        idle_ms = idle_of(record, self.now_ms)
        return idle_ms >= self.min_idle_ms or idle_ms < 0

    cdef int put_row(self, Output out, const Pending* record) except -1:
        cdef Consumer owner = self.consumers[record.consumer]
        out.put_raw(b"*4\r\n", 4)
        out.put_id(record.ms, record.seq, False)
        out.put_bulk_bytes(b"" if owner is None else owner.name)
        put_idle(out, idle_of(record, self.now_ms))
        return out.put_head(c':', deliveries_of(record, self.large_counts))

    cdef Sliced put_off(self):
        """All of it, to go out in slices; the group may change meanwhile."""
        cdef SlicedPending made = SlicedPending.__new__(SlicedPending)
        cdef PendingAt at
        made.asked = self
        self.begin(&made.search)
        self.group.first_at_least(self.start.ms, self.start.seq, &at)
        made.first_index = made.search.at.index = at.index
        made.shared = self.group.share_chunks(at.chunk, self.chunks_from(at))
        made.counting = True
        self.is_long = False
        self.consumers = list(self.consumers)
        if self.large_counts is not None:
            self.large_counts = dict(self.large_counts)
        self.group = None
        return made

    cdef uint32_t chunks_from(self, PendingAt at) noexcept:
        """How many chunks, from that of the first record on, may have to be looked into."""
        cdef PendingAt last
        cdef uint32_t place
        cdef uint64_t found = 0
        self.group.first_at_least(self.end.ms, self.end.seq, &last)
        if self.takes_all() and self.limit < self.group.pending_count:
            for place in range(at.chunk, last.chunk):
                found += self.group.pendings.chunks[place].used
                if found >= self.limit + at.index:
                    return place + 1 - at.chunk
        return last.chunk + 1 - at.chunk


cdef class SlicedPending(Sliced):
    """A long PendingRange as it was: first it is counted, then it goes out."""

    def prepare(self) -> bool:
        cdef uint64_t looks = self.search.looks + LOOKS_TO_COUNT
        while self.counting and self.search.looks < looks:
            self.count_chunk()
        return self.counting

    cdef int count_chunk(self) except -1:
        """Count what is found in the next chunk, and release the chunk when that is nothing."""
        cdef uint64_t before = self.search.found
        cdef const Chunk* chunk
        if self.search.at.chunk >= self.shared.count:
            self.search.over = True
        else:
            chunk = self.shared.chunks[self.search.at.chunk]
            if not self.count_whole(chunk):
                self.asked.look_into(&self.search, chunk, 0, None, 0)
            if self.search.found == before:
                self.shared.release(self.search.at.chunk)
            self.search.at.chunk += 1
            self.search.at.index = 0
        if self.search.over:
            self.begin_sending()
        return 0

    cdef bint count_whole(self, const Chunk* chunk) noexcept:
        """Count a chunk of which everything is wanted, without a look at its records."""
        cdef uint64_t count = chunk.used - self.search.at.index
        cdef const Pending* last = &chunk.items[chunk.used - 1]
        if not self.asked.takes_all() or self.search.found + count > self.asked.limit or id_less(
                self.asked.end.ms, self.asked.end.seq, last.ms, last.seq):
            return False
        self.search.found += count
        self.search.looks += SKIPPED_LOOKS
        return True

    cdef int begin_sending(self) except -1:
        cdef uint32_t place
        for place in range(self.search.at.chunk, self.shared.count):
            self.shared.release(place)
        self.counting = False
        self.asked.limit = self.search.found
        self.search.at.chunk = 0
        self.search.at.index = self.first_index
        self.search.found = 0
        self.search.unmet = MAX
        self.search.over = False
        self.head_due = True
        return 0

    def next_slice(self) -> bytes:
        cdef Output out = Output()
        cdef uint32_t place = self.search.at.chunk
        if self.head_due:
            self.head_due = False
            out.put_head(c'*', self.asked.limit)
        self.asked.look(&self.search, self.shared.chunks, self.shared.count, LOOKS_TO_SEND, out,
                        SLICE_BYTES)
        while place < self.search.at.chunk:
            self.shared.release(place)
            place += 1
        return out.take()
