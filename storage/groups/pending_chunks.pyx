# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The pending entries of a group as records in ID order, in chunks of up to 64.

A search goes first to the floors of the chunks, then to one chunk. A snapshot shares the chunks instead
of copying them: while a SharedPending holds a chunk, the chunk is copied before it changes.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport UINT64_MAX as NEVER, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove
cimport cython

from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.prefetch cimport LINE_BYTES, fetch_line
from millstream.storage.groups.due_index cimport chunk_bounds, leave_heaps, note_moved, set_bound
from millstream.storage.groups.pending cimport (
    ABSENT, CHUNK_MAX, FLOOR_WORDS, HOLDERS_MAX, KINDS, Chunk, Pending, PendingAt, Pendings,
    floors_of, heap_of,
)

from millstream.storage.blocks.lazyfree import discard_pending, is_deferring

cdef enum:
    # The number of records around a guess that are checked first.
    NEAR = 3
    # The first chunk of a group begins small, since most groups of very many have little pending.
    CHUNK_FIRST = 1
    # If a deleted group has more chunks, they are freed later.
    FREED_AT_ONCE = 256

# Groups in which nothing was ever pending share it. Constant.
cdef Pendings NOTHING_PENDING
NOTHING_PENDING.count = NOTHING_PENDING.unowned = NOTHING_PENDING.waiting = 0
NOTHING_PENDING.chunks = NULL
NOTHING_PENDING.only = NULL
NOTHING_PENDING.chunk_count = NOTHING_PENDING.chunk_capacity = 0
NOTHING_PENDING.retry_times = NULL
NOTHING_PENDING.has_gone = False
NOTHING_PENDING.limit = 0


cdef Pendings* nothing_pending() noexcept:
    return &NOTHING_PENDING


cdef Chunk* resized(Chunk* chunk, uint32_t capacity) except NULL:
    cdef Chunk* moved = <Chunk*>realloc(chunk, sizeof(Chunk) + (capacity - 1) * sizeof(Pending))
    cdef int kind
    if moved == NULL:
        raise MemoryError("no memory for pending entries")
    if chunk == NULL:
        moved.used = 0
        moved.holders = 1
        for kind in range(KINDS):
            moved.bounds[kind] = NEVER
            moved.heap_at[kind] = ABSENT
    moved.capacity = <uint8_t>capacity
    return moved


cdef Chunk* copied(const Chunk* chunk) except NULL:
    """A copy of a chunk with one holder."""
    cdef Chunk* copy = resized(NULL, chunk.capacity)
    memcpy(copy, chunk, sizeof(Chunk) + (chunk.used - 1) * sizeof(Pending))
    copy.holders = 1
    return copy


cdef inline void release_chunk(Chunk* chunk) noexcept:
    chunk.holders -= 1
    if chunk.holders == 0:
        free(chunk)


cdef inline uint32_t search_near(const char* ids, size_t stride, uint32_t count, uint32_t guess,
                                 EntryId wanted) noexcept nogil:
    """The index of the first ID of at least `wanted` among `count` ascending IDs that are `stride`
    bytes apart. The search starts at a guess and uses growing steps."""
    cdef const EntryId* entry
    cdef uint32_t low = 0
    cdef uint32_t high = count
    cdef uint32_t step = NEAR
    cdef uint32_t middle = min(guess, count - 1)
    while low < high:
        entry = <const EntryId*>(ids + middle * stride)
        if id_less(entry.ms, entry.seq, wanted.ms, wanted.seq):
            low = middle + 1
            middle = low + step
        else:
            high = middle
            middle = high - step if high > step else 0
        if step < count:
            step *= 4
        if middle < low or middle >= high:
            middle = (low + high) // 2
    return low


cdef inline uint32_t proportional_index(uint64_t ms, uint64_t start, uint64_t end,
                                        uint32_t count) noexcept nogil:
    """The number of the part that contains ms, if the time from start to end is divided into
    `count` equal parts; the nearest part if ms is outside. This is a guess: the result may be
    `count`."""
    if ms <= start:
        return 0
    if ms >= end:
        return count - 1
    return <uint32_t>(<double>(ms - start) / <double>(end - start) * count)


cdef Pending* record_at(Pendings* pendings, PendingAt* at) noexcept:
    """The record at a place, or the next one when the place is a chunk's end."""
    while at.chunk < pendings.chunk_count and at.index >= pendings.chunks[at.chunk].used:
        at.chunk += 1
        at.index = 0
    if at.chunk >= pendings.chunk_count:
        return NULL
    return &pendings.chunks[at.chunk].items[at.index]


cdef Pending* first_pending(Pendings* pendings, EntryId entry_id, PendingAt* at) noexcept:
    """The first record with at least this ID; `at` becomes its place, or the place
    where it would be."""
    cdef Chunk* chunk
    cdef uint32_t part
    at.chunk = at.index = 0
    if pendings.chunk_count == 0:
        return NULL
    at.chunk = chunk_with(pendings, entry_id)
    chunk = pendings.chunks[at.chunk]
    part = part_of(pendings, at.chunk, entry_id.ms)
    fetch_chunk(pendings, chunk, part)
    at.index = search_near(<const char*>chunk.items, sizeof(Pending), chunk.used,
                           part * chunk.used // CHUNK_MAX, entry_id)
    if at.index < chunk.used:
        return &chunk.items[at.index]
    if at.chunk + 1 < pendings.chunk_count:
        return &pendings.chunks[at.chunk + 1].items[0]
    return NULL


cdef inline uint32_t chunk_with(Pendings* pendings, EntryId entry_id) noexcept:
    """The chunk to which an ID belongs: the last one whose floor is not above it, else the
    first."""
    cdef uint32_t last = pendings.chunk_count - 1
    cdef const EntryId* floors = floors_of(pendings)
    cdef uint32_t found
    if last == 0:
        return 0
    found = proportional_index(entry_id.ms, floors[0].ms, floors[last].ms, last + 1)
    found = search_near(<const char*>floors, sizeof(EntryId), last + 1, found, entry_id)
    if found > last or id_less(entry_id.ms, entry_id.seq, floors[found].ms, floors[found].seq):
        return found - 1 if found else 0
    return found


cdef inline uint32_t part_of(Pendings* pendings, uint32_t place, uint64_t ms) noexcept:
    """The part, of CHUNK_MAX equal parts of a chunk's time, that contains this time. It is
    computed from the floors and gives a record's likely position."""
    cdef const EntryId* floors = floors_of(pendings)
    if place + 1 == pendings.chunk_count:
        return 0
    return proportional_index(ms, floors[place].ms, floors[place + 1].ms, CHUNK_MAX)


cdef inline void fetch_chunk(Pendings* pendings, const Chunk* chunk, uint32_t part) noexcept:
    """Prefetch the bytes of a chunk that a search in this part will read, because in a large
    group each of them is a cache miss. The fill of the chunk is not in the cache yet, so an
    average chunk is assumed."""
    cdef uint64_t index = part * pendings.count // pendings.chunk_count // CHUNK_MAX
    cdef const char* at = <const char*>&chunk.items[index]
    cdef int i
    fetch_line(chunk)
    for i in range(-1, 3):
        fetch_line(at + i * LINE_BYTES)


cdef Pending* find_pending(Pendings* pendings, EntryId entry_id, PendingAt* at) noexcept:
    cdef Pending* record = first_pending(pendings, entry_id, at)
    if record == NULL or record.ms != entry_id.ms or record.seq != entry_id.seq:
        return NULL
    return record_at(pendings, at)


cdef Pending* next_pending(Pendings* pendings, PendingAt* at) noexcept:
    """Advance `at` to the next record and return it."""
    record_at(pendings, at)
    at.index += 1
    return record_at(pendings, at)


cdef Pending* advance_pending(Pendings* pendings, PendingAt* at, EntryId entry_id) noexcept:
    """Like first_pending, but from `at` on: for ascending IDs."""
    cdef Pending* record
    while at.chunk + 1 < pendings.chunk_count and not id_less(
            entry_id.ms, entry_id.seq, pendings.chunks[at.chunk + 1].items[0].ms,
            pendings.chunks[at.chunk + 1].items[0].seq):
        at.chunk += 1
        at.index = 0
    record = record_at(pendings, at)
    while record != NULL and id_less(record.ms, record.seq, entry_id.ms, entry_id.seq):
        record = next_pending(pendings, at)
    return record


cdef uint64_t count_pending(Pendings* pendings, EntryId start, EntryId end) noexcept:
    """The number of records with start <= ID <= end. The time is linear in the number of chunks
    in between."""
    cdef PendingAt at
    cdef PendingAt past
    cdef uint64_t count = pendings.count
    cdef Pending* record
    if count == 0 or id_less(end.ms, end.seq, start.ms, start.seq):
        return 0
    first_pending(pendings, start, &at)
    record = first_pending(pendings, end, &past)
    if record != NULL and record.ms == end.ms and record.seq == end.seq:
        record_at(pendings, &past)
        past.index += 1
    count -= at.index
    while at.chunk:
        at.chunk -= 1
        count -= pendings.chunks[at.chunk].used
    count += past.index
    while past.chunk < pendings.chunk_count:
        count -= pendings.chunks[past.chunk].used
        past.chunk += 1
    return count


cdef uint64_t count_up_to(Pendings* pendings, PendingAt at, EntryId entry_id) noexcept:
    """The number of records from a place on up to this ID."""
    cdef uint64_t count = 0
    cdef Chunk* chunk
    while at.chunk < pendings.chunk_count:
        chunk = pendings.chunks[at.chunk]
        if id_less(entry_id.ms, entry_id.seq, chunk.items[chunk.used - 1].ms,
                   chunk.items[chunk.used - 1].seq):
            while not id_less(entry_id.ms, entry_id.seq, chunk.items[at.index].ms,
                              chunk.items[at.index].seq):
                at.index += 1
                count += 1
            return count
        count += chunk.used - at.index
        at.chunk += 1
        at.index = 0
    return count


cdef Chunk* insert_record(Pendings* pendings, PendingAt* at, const Pending* record) except NULL:
    """Insert a record at its place; returns its chunk, whose bounds do not include it yet."""
    cdef Chunk* chunk
    if pendings.chunk_count == 0:
        insert_chunk(pendings, 0)
    chunk = chunk_with_space(pendings, at)
    if at.index == 0:
        lower_floor(pendings, at.chunk, record)
    memmove(&chunk.items[at.index + 1], &chunk.items[at.index],
            (chunk.used - at.index) * sizeof(Pending))
    chunk.items[at.index] = record[0]
    chunk.used += 1
    pendings.count += 1
    return chunk


cdef int erase_record(Pendings* pendings, PendingAt* at) except -1:
    """Remove the record at `at`, whose chunk is not shared."""
    cdef Chunk* chunk = pendings.chunks[at.chunk]
    pendings.count -= 1
    if chunk.used == 1:
        return drop_chunk(pendings, at.chunk)
    chunk.used -= 1
    memmove(&chunk.items[at.index], &chunk.items[at.index + 1],
            (chunk.used - at.index) * sizeof(Pending))
    return merge_small(pendings, at.chunk)


cdef Chunk* chunk_with_space(Pendings* pendings, PendingAt* at) except NULL:
    """The chunk for a new record at `at`, not shared and with space for the record."""
    cdef Chunk* chunk = own_chunk(pendings, at.chunk)
    if chunk.used == CHUNK_MAX:
        return split_chunk(pendings, at)
    if chunk.used == chunk.capacity:
        return resize_chunk(pendings, at.chunk, chunk.capacity * 2)
    return chunk


cdef void lower_floor(Pendings* pendings, uint32_t place, const Pending* first) noexcept:
    """Lower the floor of a chunk for a new first record."""
    cdef EntryId* floor
    if pendings.chunk_capacity == 1:
        return
    floor = &floors_of(pendings)[place]
    if id_less(first.ms, first.seq, floor.ms, floor.seq):
        floor.ms = first.ms
        floor.seq = first.seq


cdef Chunk* split_chunk(Pendings* pendings, PendingAt* at) except NULL:
    """Split a full chunk. At the end of the list, the new chunk is empty."""
    cdef Chunk* chunk = pendings.chunks[at.chunk]
    cdef Chunk* added
    cdef uint32_t kept = CHUNK_MAX // 2
    if at.chunk + 1 == pendings.chunk_count and at.index == chunk.used:
        insert_chunk(pendings, at.chunk + 1)
        at.chunk += 1
        at.index = 0
        return pendings.chunks[at.chunk]
    insert_chunk(pendings, at.chunk + 1)
    added = pendings.chunks[at.chunk + 1]
    memcpy(added.items, &chunk.items[kept], (CHUNK_MAX - kept) * sizeof(Pending))
    added.used = CHUNK_MAX - kept
    lower_floor(pendings, at.chunk + 1, added.items)
    chunk.used = kept
    chunk_bounds(pendings, chunk)
    chunk_bounds(pendings, added)
    if at.index > kept:
        at.chunk += 1
        at.index -= kept
    return pendings.chunks[at.chunk]


cdef int insert_chunk(Pendings* pendings, uint32_t place) except -1:
    """Insert an empty chunk at a place, and ensure space for it in every heap."""
    cdef Chunk* made
    cdef EntryId* floors
    if pendings.chunk_count == pendings.chunk_capacity:
        grow_chunks(pendings, max(<uint32_t>1, pendings.chunk_capacity * 2))
    made = resized(NULL, CHUNK_FIRST if pendings.chunk_count == 0 else CHUNK_MAX)
    memmove(&pendings.chunks[place + 1], &pendings.chunks[place],
            (pendings.chunk_count - place) * sizeof(Chunk*))
    pendings.chunks[place] = made
    if pendings.chunk_capacity > 1:
        floors = floors_of(pendings)
        memmove(&floors[place + 1], &floors[place], (pendings.chunk_count - place) * sizeof(EntryId))
        floors[place].ms = floors[place].seq = NEVER
    pendings.chunk_count += 1
    return 0


cdef int grow_chunks(Pendings* pendings, uint32_t wanted) except -1:
    """Get space for `wanted` chunks, and for each of them in every heap."""
    cdef Chunk** chunks
    cdef EntryId* floors
    cdef int kind
    if wanted == 1:
        pendings.chunks = &pendings.only
        pendings.chunk_capacity = 1
        return 0
    chunks = <Chunk**>malloc(wanted * (1 + FLOOR_WORDS + KINDS) * sizeof(Chunk*))
    if chunks == NULL:
        raise MemoryError("no memory for pending entries")
    floors = <EntryId*>(chunks + wanted)
    memcpy(chunks, pendings.chunks, pendings.chunk_count * sizeof(Chunk*))
    if pendings.chunk_capacity > 1:
        memcpy(floors, floors_of(pendings), pendings.chunk_count * sizeof(EntryId))
    elif pendings.chunk_count:
        floors[0].ms = chunks[0].items[0].ms
        floors[0].seq = chunks[0].items[0].seq
    for kind in range(KINDS):
        memcpy(chunks + <size_t>wanted * (1 + FLOOR_WORDS + kind), heap_of(pendings, kind),
               pendings.heap_counts[kind] * sizeof(Chunk*))
    free_table(pendings)
    pendings.chunks = chunks
    pendings.chunk_capacity = wanted
    return 0


cdef inline void free_table(Pendings* pendings) noexcept:
    if pendings.chunk_capacity > 1:
        free(pendings.chunks)


cdef Chunk* own_chunk(Pendings* pendings, uint32_t place) except NULL:
    """The chunk at a place, for a change: it is copied first if a snapshot holds it."""
    cdef Chunk* chunk = pendings.chunks[place]
    cdef Chunk* copy
    if chunk.holders == 1:
        return chunk
    copy = copied(chunk)
    pendings.chunks[place] = copy
    note_moved(pendings, copy)
    release_chunk(chunk)
    return copy


cdef Chunk* resize_chunk(Pendings* pendings, uint32_t place, uint32_t capacity) except NULL:
    """Resize the chunk at a place, which is not shared, to `capacity` records."""
    cdef Chunk* moved = resized(pendings.chunks[place], capacity)
    pendings.chunks[place] = moved
    note_moved(pendings, moved)
    return moved


cdef uint32_t place_of(Pendings* pendings, Chunk* chunk) noexcept:
    cdef PendingAt at
    first_pending(pendings, EntryId(chunk.items[0].ms, chunk.items[0].seq), &at)
    return at.chunk


cdef int drop_chunk(Pendings* pendings, uint32_t place) noexcept:
    cdef Chunk* chunk = pendings.chunks[place]
    leave_heaps(pendings, chunk)
    release_chunk(chunk)
    pendings.chunk_count -= 1
    memmove(&pendings.chunks[place], &pendings.chunks[place + 1],
            (pendings.chunk_count - place) * sizeof(Chunk*))
    if pendings.chunk_capacity > 1:
        memmove(&floors_of(pendings)[place], &floors_of(pendings)[place + 1],
                (pendings.chunk_count - place) * sizeof(EntryId))
    return 0


cdef int merge_small(Pendings* pendings, uint32_t place) except -1:
    """Join a chunk that is less than a third full with a neighbour that has space, so that few
    remaining records do not need a chunk each. Otherwise release its unused memory."""
    if pendings.chunks[place].used * 3 >= CHUNK_MAX:
        return 0
    try:
        if place and join_next(pendings, place - 1):
            return 0
        if place + 1 < pendings.chunk_count and join_next(pendings, place):
            return 0
        shrink_chunk(pendings, place)
    except MemoryError:
        pass  # the chunk keeps its size
    return 0


cdef int shrink_chunk(Pendings* pendings, uint32_t place) except -1:
    cdef Chunk* chunk = pendings.chunks[place]
    if chunk.used * 4 <= chunk.capacity and chunk.capacity > CHUNK_FIRST:
        resize_chunk(pendings, place, chunk.capacity // 2)
    return 0


cdef bint join_next(Pendings* pendings, uint32_t place) except -1:
    """Move the next chunk's records into the chunk at a place; False when the joined chunk
    would be so full that the next delivery might split it again."""
    cdef Chunk* next_one = pendings.chunks[place + 1]
    cdef Chunk* chunk = pendings.chunks[place]
    cdef uint32_t total = chunk.used + next_one.used
    cdef uint32_t wanted
    cdef int kind
    if total * 4 > CHUNK_MAX * 3 or chunk.holders > 1:
        return False
    if chunk.capacity < total:
        wanted = chunk.capacity
        while wanted < total:
            wanted *= 2
        chunk = resize_chunk(pendings, place, wanted)
    memcpy(&chunk.items[chunk.used], next_one.items, next_one.used * sizeof(Pending))
    chunk.used = total
    for kind in range(KINDS):
        if next_one.bounds[kind] < chunk.bounds[kind]:
            set_bound(pendings, chunk, kind, next_one.bounds[kind])
    drop_chunk(pendings, place + 1)
    return True


cdef int close_gaps(Pendings* pendings) except -1:
    """Remove empty chunks and join small neighbours, in one pass."""
    cdef uint32_t i
    cdef uint32_t kept = 0
    cdef Chunk* chunk
    cdef Chunk* last
    cdef int kind
    for i in range(pendings.chunk_count):
        chunk = pendings.chunks[i]
        if chunk.used == 0:
            release_chunk(chunk)
            continue
        last = pendings.chunks[kept - 1] if kept else NULL
        if last != NULL and (last.used + chunk.used) * 4 <= CHUNK_MAX * 3 and (
                last.used + chunk.used <= last.capacity and last.holders == 1):
            memcpy(&last.items[last.used], chunk.items, chunk.used * sizeof(Pending))
            last.used += chunk.used
            for kind in range(KINDS):
                if chunk.bounds[kind] < last.bounds[kind]:
                    set_bound(pendings, last, kind, chunk.bounds[kind])
            leave_heaps(pendings, chunk)
            release_chunk(chunk)
            continue
        pendings.chunks[kept] = chunk
        if pendings.chunk_capacity > 1:
            floors_of(pendings)[kept] = floors_of(pendings)[i]
        kept += 1
    pendings.chunk_count = kept
    return 0


cdef int copy_chunks(Pendings* pendings, Pendings* other) except -1:
    """Copies of the chunks of another group, with the same places in the heaps."""
    cdef Chunk* chunk
    cdef Chunk* copy
    cdef uint32_t i
    cdef int kind
    if other.chunk_count == 0:
        return 0
    grow_chunks(pendings, other.chunk_count)
    for i in range(other.chunk_count):
        chunk = other.chunks[i]
        copy = copied(chunk)
        pendings.chunks[i] = copy
        if pendings.chunk_capacity > 1:
            floors_of(pendings)[i] = floors_of(other)[i]
        pendings.chunk_count += 1
        for kind in range(KINDS):
            if copy.heap_at[kind] != ABSENT:
                heap_of(pendings, kind)[copy.heap_at[kind]] = copy
    for kind in range(KINDS):
        pendings.heap_counts[kind] = other.heap_counts[kind]
    return 0


cdef SharedPending share_chunks(Pendings* pendings, uint32_t place, uint32_t count):
    """A shared view of `count` chunks from a place on."""
    cdef SharedPending shared = SharedPending.__new__(SharedPending)
    cdef Chunk* chunk
    cdef uint32_t i
    if count == 0:
        return shared
    shared.chunks = <Chunk**>malloc(count * sizeof(Chunk*))
    if shared.chunks == NULL:
        raise MemoryError("no memory to share pending entries")
    for i in range(count):
        chunk = pendings.chunks[place + i]
        if chunk.holders == HOLDERS_MAX:
            chunk = copied(chunk)
        else:
            chunk.holders += 1
        shared.chunks[i] = chunk
        shared.count += 1
    return shared


cdef Pendings* allocated(Pendings* pendings) except NULL:
    """The same pending entries, or new ones in place of those that all groups share."""
    cdef Pendings* made
    if pendings != &NOTHING_PENDING:
        return pendings
    made = <Pendings*>calloc(1, sizeof(Pendings))
    if made == NULL:
        raise MemoryError("no memory for pending entries")
    return made


cdef int free_pendings(Pendings* pendings) noexcept:
    cdef uint32_t i
    cdef SharedPending later
    if pendings == &NOTHING_PENDING:
        return 0
    if pendings.chunk_count > FREED_AT_ONCE and is_deferring():
        later = SharedPending.__new__(SharedPending)
        later.take_over(pendings)
        discard_pending(later)
    for i in range(pendings.chunk_count):
        release_chunk(pendings.chunks[i])
    free_table(pendings)
    free(pendings.retry_times)
    free(pendings)
    return 0


@cython.no_gc
cdef class SharedPending:
    """A point-in-time view of a group's pending entries, for a snapshot or a long reply. bytes()
    returns them in the documented form, on any thread, and lets other threads run meanwhile.
    """

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.count):
            self.release(i)
        free(self.chunks)

    cdef int take_over(self, Pendings* gone) except -1:
        """Take over the chunks of a deleted group."""
        self.chunks = <Chunk**>malloc(gone.chunk_count * sizeof(Chunk*))
        if self.chunks == NULL:
            raise MemoryError("no memory to free pending entries later")
        memcpy(self.chunks, gone.chunks, gone.chunk_count * sizeof(Chunk*))
        self.count = gone.chunk_count
        gone.chunk_count = 0
        return 0

    def free_step(self, uint64_t most) -> bool:
        """Release about `most` chunks; False when none is left."""
        while most and self.count:
            self.count -= 1
            self.release(self.count)
            most -= 1
        return self.count > 0

    cdef void release(self, uint32_t place) noexcept:
        """Release a chunk; its place becomes NULL."""
        if self.chunks[place] != NULL:
            release_chunk(self.chunks[place])
            self.chunks[place] = NULL

    @property
    def chunk_count(self) -> int:
        return self.count

    def __bytes__(self) -> bytes:
        return self.part(0, self.count)

    def part(self, uint32_t start, uint32_t most) -> bytes:
        """The records of at most this number of chunks, from one on."""
        cdef uint32_t end = min(self.count, start + most)
        cdef uint64_t records = 0
        cdef bytes packed
        cdef char* at
        cdef uint32_t i, k
        cdef size_t size_bytes
        for i in range(start, end):
            records += self.chunks[i].used
        packed = PyBytes_FromStringAndSize(NULL, records * sizeof(Pending))
        at = PyBytes_AS_STRING(packed)
        with nogil:
            for i in range(start, end):
                size_bytes = self.chunks[i].used * sizeof(Pending)
                memcpy(at, self.chunks[i].items, size_bytes)
                for k in range(self.chunks[i].used):
                    (<Pending*>at)[k].gone = 0
                at += size_bytes
        return packed
