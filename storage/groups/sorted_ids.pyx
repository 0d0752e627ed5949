# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""A set of entry IDs in ID order, in chunks of up to CHUNK_IDS."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove
cimport cython

from millstream.entry_id cimport EntryId, id_less


cdef inline uint32_t place_in(const IdChunk* chunk, EntryId at) noexcept:
    """The number of IDs in a chunk that are below an ID."""
    cdef uint32_t low = 0
    cdef uint32_t high = chunk.used
    cdef uint32_t middle
    while low < high:
        middle = (low + high) // 2
        if id_less(chunk.items[middle].ms, chunk.items[middle].seq, at.ms, at.seq):
            low = middle + 1
        else:
            high = middle
    return low


@cython.no_gc
cdef class SortedIds:
    """Two adjacent chunks are together more than half of one, so the memory stays in proportion to the
    number of IDs."""

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.count):
            free(self.chunks[i])
        free(self.chunks)

    cdef uint32_t chunk_of(self, EntryId at) noexcept:
        """The number of the last chunk that begins with this ID or a lower one, else 0."""
        cdef uint32_t low = 0
        cdef uint32_t high = self.count
        cdef uint32_t middle
        cdef EntryId first
        while high - low > 1:
            middle = (low + high) // 2
            first = self.chunks[middle].items[0]
            if id_less(at.ms, at.seq, first.ms, first.seq):
                high = middle
            else:
                low = middle
        return low

    cdef IdChunk* insert_chunk(self, uint32_t number) except NULL:
        """Insert an empty chunk, which the caller must fill."""
        cdef IdChunk** moved
        cdef IdChunk* made
        cdef size_t wanted
        if self.count == self.capacity:
            wanted = 2 * <size_t>self.capacity + 2
            moved = <IdChunk**>realloc(self.chunks, wanted * sizeof(IdChunk*))
            if moved == NULL:
                raise MemoryError("no memory for the parked entries of a group")
            self.chunks = moved
            self.capacity = <uint32_t>wanted
        made = <IdChunk*>malloc(sizeof(IdChunk))
        if made == NULL:
            raise MemoryError("no memory for the parked entries of a group")
        made.used = 0
        memmove(&self.chunks[number + 1], &self.chunks[number],
                (self.count - number) * sizeof(IdChunk*))
        self.chunks[number] = made
        self.count += 1
        return made

    cdef void drop_chunk(self, uint32_t number) noexcept:
        free(self.chunks[number])
        self.count -= 1
        memmove(&self.chunks[number], &self.chunks[number + 1],
                (self.count - number) * sizeof(IdChunk*))

    cdef int add(self, EntryId at) except -1:
        """Add an ID that is not there yet. After a MemoryError nothing has changed."""
        cdef uint32_t number = self.chunk_of(at)
        cdef IdChunk* chunk = self.chunks[number] if self.count else self.insert_chunk(0)
        cdef IdChunk* later
        cdef uint32_t place = place_in(chunk, at)
        if chunk.used == CHUNK_IDS:
            later = self.insert_chunk(number + 1)
            if number + 2 < self.count or place < CHUNK_IDS:
                chunk.used = CHUNK_IDS // 2
                later.used = CHUNK_IDS - CHUNK_IDS // 2
                memcpy(later.items, &chunk.items[chunk.used], later.used * sizeof(EntryId))
            if place > chunk.used or later.used == 0:
                place -= chunk.used
                chunk = later
        memmove(&chunk.items[place + 1], &chunk.items[place], (chunk.used - place) * sizeof(EntryId))
        chunk.items[place] = at
        chunk.used += 1
        return 0

    cdef void remove(self, EntryId at) noexcept:
        """Remove an ID, if it is there."""
        cdef uint32_t number = self.chunk_of(at)
        cdef IdChunk* chunk
        cdef uint32_t place
        if self.count == 0:
            return
        chunk = self.chunks[number]
        place = place_in(chunk, at)
        if place == chunk.used or chunk.items[place].ms != at.ms or chunk.items[place].seq != at.seq:
            return
        chunk.used -= 1
        memmove(&chunk.items[place], &chunk.items[place + 1], (chunk.used - place) * sizeof(EntryId))
        if chunk.used == 0:
            self.drop_chunk(number)
            return
        if number and self.chunks[number - 1].used + chunk.used <= CHUNK_IDS // 2:
            self.join(number - 1)
        elif number + 1 < self.count and chunk.used + self.chunks[number + 1].used <= CHUNK_IDS // 2:
            self.join(number)

    cdef void join(self, uint32_t number) noexcept:
        """Move the IDs of the next chunk to a chunk."""
        cdef IdChunk* chunk = self.chunks[number]
        cdef IdChunk* later = self.chunks[number + 1]
        memcpy(&chunk.items[chunk.used], later.items, later.used * sizeof(EntryId))
        chunk.used += later.used
        self.drop_chunk(number + 1)

    cdef bint first_from(self, EntryId start, EntryId* out) noexcept:
        """Get the first ID that is not below `start`; False without one."""
        cdef uint32_t number = self.chunk_of(start)
        cdef uint32_t place
        if self.count == 0:
            return False
        place = place_in(self.chunks[number], start)
        if place == self.chunks[number].used:
            number += 1
            place = 0
            if number == self.count:
                return False
        out[0] = self.chunks[number].items[place]
        return True

    cdef uint64_t size_bytes(self) noexcept:
        """The memory that it uses."""
        return self.count * sizeof(IdChunk) + self.capacity * sizeof(IdChunk*)
