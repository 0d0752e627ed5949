# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""How far each producer of a stream has come (TAPPENDONCE): one number a producer.

A job may have a producer for each of its partitions and start a new one every day, so there may be
100,000 on a stream. A dict that remembers who was silent longest costs twice as much, and stops the
server for milliseconds when it grows or is copied. Here a producer is 24 bytes in pages of 128, a
place of 8 bytes in a table of hashes, and its name. Slots link the producers in the order of their
last appends, so the one to forget is found at once.

A snapshot and a copied stream share the pages; from then on a page is copied before it changes, for
as long as another holds it. Names are bytes objects for the sake of their hash, whose secret keeps
anybody from choosing names that all fall into one place.

An append and its number must happen together or not at all: `reserve` does all that can fail, and
`note`, behind the append, cannot.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.object cimport PyObject_Hash
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy
cimport cython

import msgpack

cdef enum:
    PAGE_SLOTS = 128
    PAGE_FIRST = 4
    PLACES_FIRST = 8
    PACKED_PRODUCERS = 500  # packed at once by one who may have to rest between
    # For MEMORY USAGE: what a bytes object takes beside its text, and this object.
    NAME_OVERHEAD = 41
    OBJECT_BYTES = 112

cdef uint64_t U64_MAX = 0xffffffffffffffffULL
NO_MEMORY = "no memory for a producer"


cdef inline uint32_t hash_of(bytes name) except? 0:
    cdef uint64_t whole = <uint64_t>PyObject_Hash(name)
    return <uint32_t>(whole ^ (whole >> 32))


cdef inline size_t page_bytes(uint32_t capacity) noexcept:
    return sizeof(Page) + (capacity - 1) * sizeof(Producer)


cdef void release(Page* page) noexcept:
    """One holder less; the last one frees it and its names."""
    cdef uint32_t i
    page.holders -= 1
    if page.holders:
        return
    for i in range(page.capacity):
        if page.items[i].name != NULL:
            Py_DECREF(<object>page.items[i].name)
    free(page)


cdef Page* copied(Page* page) except NULL:
    cdef Page* made = <Page*>malloc(page_bytes(page.capacity))
    cdef uint32_t i
    if made == NULL:
        raise MemoryError(NO_MEMORY)
    memcpy(made, page, page_bytes(page.capacity))
    made.holders = 1
    for i in range(made.capacity):
        if made.items[i].name != NULL:
            Py_INCREF(<object>made.items[i].name)
    return made


cdef Page** held_pages(Page** pages, uint32_t count) except NULL:
    """The same pages for one holder more."""
    cdef Page** made = <Page**>malloc(max(1, count) * sizeof(Page*))
    cdef uint32_t i
    if made == NULL:
        raise MemoryError(NO_MEMORY)
    for i in range(count):
        made[i] = pages[i]
        made[i].holders += 1
    return made


@cython.no_gc
cdef class SharedProducers:
    """The producers at one moment, as a snapshot holds them."""

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.page_count):
            release(self.pages[i])
        free(self.pages)

    cdef inline Producer* at(self, uint32_t slot) noexcept:
        return &self.pages[slot // PAGE_SLOTS].items[slot % PAGE_SLOTS]

    def packed(self):
        """What Producers.dump gives, as msgpack in small parts, on any thread."""
        cdef uint32_t slot = self.oldest
        cdef list parts = []
        packer = msgpack.Packer()
        yield packer.pack_map_header(self.count)
        while slot != NOT_THERE:
            parts.append(packer.pack(<object>self.at(slot).name))
            parts.append(packer.pack(self.at(slot).seq))
            slot = self.at(slot).newer
            if slot == NOT_THERE or len(parts) >= 2 * PACKED_PRODUCERS:
                yield b"".join(parts)
                parts.clear()


@cython.no_gc
cdef class Producers:
    """The last number of each producer, and who was silent longest."""

    def __cinit__(self):
        self.oldest = self.newest = self.free = NOT_THERE

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.page_count):
            release(self.pages[i])
        free(self.pages)
        free(self.places)

    def __len__(self) -> int:
        return self.count

    cdef inline Producer* at(self, uint32_t slot) noexcept:
        return &self.pages[slot // PAGE_SLOTS].items[slot % PAGE_SLOTS]

    # ------------------------------------------------------------ asking

    cdef bytes name_of(self, const char* text, Py_ssize_t size):
        """A name as bytes; the object of the one that appended last is used again, for that is mostly
        the one that appends next."""
        cdef bytes known
        if self.newest != NOT_THERE:
            known = <bytes>self.at(self.newest).name
            if len(known) == size and memcmp(PyBytes_AS_STRING(known), text, size) == 0:
                return known
        return text[:size]

    cdef uint32_t find(self, bytes name) except? 0xffffffff:
        """A producer's slot, NOT_THERE when it is not known."""
        cdef uint32_t hash
        cdef uint32_t at
        cdef uint32_t slot
        if self.places == NULL:
            return NOT_THERE
        if self.newest != NOT_THERE and self.at(self.newest).name == <PyObject*>name:
            return self.newest
        hash = hash_of(name)
        at = hash & self.place_mask
        while self.places[at].slot:
            slot = self.places[at].slot - 1
            if self.places[at].hash == hash and <bytes>self.at(slot).name == name:
                return slot
            at = (at + 1) & self.place_mask
        return NOT_THERE

    cdef bint has_sent(self, bytes name, uint64_t seq) except -1:
        """Whether the producer's number is this one or a later one."""
        cdef uint32_t slot = self.find(name)
        return slot != NOT_THERE and seq <= self.at(slot).seq

    # ------------------------------------------------------------ noting

    cdef uint32_t reserve(self, bytes name) except? 0xffffffff:
        """Do all of `note` that may fail; returns the producer's slot, a free one for a new one."""
        cdef uint32_t slot = self.find(name)
        if slot == NOT_THERE:
            if (self.count + 1) * 3 > (self.place_mask + 1) * 2 or self.places == NULL:
                self.add_places()
            if self.free == NOT_THERE:
                self.add_slots()
            slot = self.free
        else:
            self.own(self.at(slot).older)
            self.own(self.at(slot).newer)
        self.own(slot)
        self.own(self.newest)
        return slot

    cdef void note(self, uint32_t slot, bytes name, uint64_t seq) noexcept:
        """Set the number of the producer for which `reserve` has just given this slot."""
        cdef Producer* producer = self.at(slot)
        if producer.name == NULL:
            self.free = producer.newer
            Py_INCREF(name)
            producer.name = <PyObject*>name
            self.put_place(hash_of(name), slot)
            self.count += 1
            self.names_bytes += <uint64_t>len(name)
            self.link_newest(slot)
        elif slot != self.newest:
            self.unlink(producer)
            self.link_newest(slot)
        producer.seq = seq

    cdef int own(self, uint32_t slot) except -1:
        """Nobody else holds the page of this slot any more."""
        cdef uint32_t number = slot // PAGE_SLOTS
        cdef Page* page
        if slot == NOT_THERE or self.pages[number].holders == 1:
            return 0
        page = copied(self.pages[number])
        release(self.pages[number])
        self.pages[number] = page
        return 0

    cdef void unlink(self, Producer* producer) noexcept:
        if producer.older == NOT_THERE:
            self.oldest = producer.newer
        else:
            self.at(producer.older).newer = producer.newer
        if producer.newer == NOT_THERE:
            self.newest = producer.older
        else:
            self.at(producer.newer).older = producer.older

    cdef void link_newest(self, uint32_t slot) noexcept:
        cdef Producer* producer = self.at(slot)
        producer.older = self.newest
        producer.newer = NOT_THERE
        if self.newest == NOT_THERE:
            self.oldest = slot
        else:
            self.at(self.newest).newer = slot
        self.newest = slot

    # ------------------------------------------------------------ room

    cdef int add_slots(self) except -1:
        """More free slots: the first page grows until it is full, then there are more."""
        if self.page_count == 1 and self.pages[0].capacity < PAGE_SLOTS:
            return self.grow_page()
        return self.add_page(PAGE_SLOTS if self.page_count else PAGE_FIRST)

    cdef int grow_page(self) except -1:
        """Twice as many slots in the only page."""
        cdef uint32_t before = self.pages[0].capacity
        cdef Page* page
        self.own(0)
        page = <Page*>realloc(self.pages[0], page_bytes(2 * before))
        if page == NULL:
            raise MemoryError(NO_MEMORY)
        self.pages[0] = page
        page.capacity = 2 * before
        self.free_slots(page, before)
        return 0

    cdef int add_page(self, uint32_t capacity) except -1:
        cdef uint32_t wanted = 2 * self.page_capacity + 1
        cdef Page** moved
        cdef Page* page
        if self.page_count == self.page_capacity:
            moved = <Page**>realloc(self.pages, wanted * sizeof(Page*))
            if moved == NULL:
                raise MemoryError(NO_MEMORY)
            self.pages = moved
            self.page_capacity = wanted
        page = <Page*>malloc(page_bytes(capacity))
        if page == NULL:
            raise MemoryError(NO_MEMORY)
        page.holders = 1
        page.capacity = capacity
        self.pages[self.page_count] = page
        self.page_count += 1
        self.free_slots(page, 0)
        return 0

    cdef void free_slots(self, Page* page, uint32_t start) noexcept:
        """Put the slots of the last page from `start` on into the list of free ones."""
        cdef uint32_t i
        cdef uint32_t first = (self.page_count - 1) * PAGE_SLOTS
        for i in range(page.capacity, start, -1):
            page.items[i - 1].name = NULL
            page.items[i - 1].newer = self.free
            self.free = first + i - 1

    cdef int add_places(self) except -1:
        """Twice as many places for names; they stay at most two thirds full."""
        cdef Place* before = self.places
        cdef uint32_t size = 0 if before == NULL else self.place_mask + 1
        cdef uint32_t wanted = 2 * size if size else PLACES_FIRST
        cdef Place* made = <Place*>calloc(wanted, sizeof(Place))
        cdef uint32_t i
        if made == NULL:
            raise MemoryError(NO_MEMORY)
        self.places = made
        self.place_mask = wanted - 1
        for i in range(size):
            if before[i].slot:
                self.put_place(before[i].hash, before[i].slot - 1)
        free(before)
        return 0

    cdef void put_place(self, uint32_t hash, uint32_t slot) noexcept:
        cdef uint32_t at = hash & self.place_mask
        while self.places[at].slot:
            at = (at + 1) & self.place_mask
        self.places[at].hash = hash
        self.places[at].slot = slot + 1

    cdef void take_place(self, uint32_t hash, uint32_t slot) noexcept:
        """Empty a place, and move up those behind it that would no longer be found."""
        cdef uint32_t at = hash & self.place_mask
        cdef uint32_t next_one
        cdef uint32_t home
        while self.places[at].slot != slot + 1:
            at = (at + 1) & self.place_mask
        next_one = (at + 1) & self.place_mask
        while self.places[next_one].slot:
            home = self.places[next_one].hash & self.place_mask
            # It may move to `at` unless its home lies behind that.
            if ((next_one - home) & self.place_mask) >= ((next_one - at) & self.place_mask):
                self.places[at] = self.places[next_one]
                at = next_one
            next_one = (next_one + 1) & self.place_mask
        self.places[at].slot = 0

    # ------------------------------------------------------------ forgetting

    cpdef bytes drop_oldest(self):
        """Forget the producer whose last append is longest ago; returns its name."""
        cdef bytes name
        if self.count == 0:
            raise IndexError("no producer to forget")
        name = <bytes>self.at(self.oldest).name
        self.remove(self.oldest)
        return name

    cpdef bint drop(self, bytes name) except -1:
        """Forget a producer; False when it is not known."""
        cdef uint32_t slot = self.find(name)
        if slot == NOT_THERE:
            return False
        self.remove(slot)
        return True

    cdef int remove(self, uint32_t slot) except -1:
        cdef Producer* producer
        cdef bytes name
        self.own(self.at(slot).older)
        self.own(self.at(slot).newer)
        self.own(slot)
        producer = self.at(slot)
        name = <bytes>producer.name
        self.unlink(producer)
        self.take_place(hash_of(name), slot)
        self.count -= 1
        self.names_bytes -= <uint64_t>len(name)
        producer.name = NULL
        producer.newer = self.free
        self.free = slot
        Py_DECREF(name)
        return 0

    # ------------------------------------------------------------ copies

    cpdef SharedProducers share(self):
        """The producers as they are now, in time that hardly depends on how many there are."""
        cdef SharedProducers made = SharedProducers.__new__(SharedProducers)
        made.pages = held_pages(self.pages, self.page_count)
        made.page_count = self.page_count
        made.oldest = self.oldest
        made.count = self.count
        return made

    cpdef Producers copy(self):
        """Producers of their own, which share the pages until one of both changes."""
        cdef Producers made = Producers.__new__(Producers)
        cdef size_t size = (self.place_mask + 1) * sizeof(Place)
        if self.places != NULL:
            made.places = <Place*>malloc(size)
            if made.places == NULL:
                raise MemoryError(NO_MEMORY)
            memcpy(made.places, self.places, size)
            made.place_mask = self.place_mask
        made.pages = held_pages(self.pages, self.page_count)
        made.page_count = made.page_capacity = self.page_count
        made.oldest = self.oldest
        made.newest = self.newest
        made.free = self.free
        made.count = self.count
        made.names_bytes = self.names_bytes
        return made

    # ------------------------------------------------------------ Python's view

    def seq_of(self, bytes name not None) -> int | None:
        """A producer's last number; None when it is not known."""
        cdef uint32_t slot = self.find(name)
        return None if slot == NOT_THERE else self.at(slot).seq

    def put(self, bytes name not None, uint64_t seq) -> None:
        """Set a producer's last number: it is then the last to be forgotten."""
        self.note(self.reserve(name), name, seq)

    def dump(self) -> dict[bytes, int]:
        """Names and numbers, the one that was silent longest first (docs/formats.md, producers)."""
        cdef uint32_t slot = self.oldest
        cdef dict rows = {}
        while slot != NOT_THERE:
            rows[<bytes>self.at(slot).name] = self.at(slot).seq
            slot = self.at(slot).newer
        return rows

    @staticmethod
    def load(rows) -> Producers:
        """Make what `dump` gave into producers again; ValueError when it is malformed."""
        cdef Producers made = Producers()
        if not isinstance(rows, dict):
            raise ValueError("its producers are not a map")
        for name, seq in rows.items():
            if not isinstance(name, bytes) or not isinstance(seq, int) or not 0 <= seq <= U64_MAX:
                raise ValueError(f"what its producer {name!r} has sent is malformed")
            made.put(name, seq)
        return made

    @property
    def memory_bytes(self) -> int:
        """An estimate of the memory it takes; shared pages count for each who shares them."""
        cdef uint32_t i
        total = OBJECT_BYTES + self.names_bytes + self.count * NAME_OVERHEAD
        total += 0 if self.places == NULL else (self.place_mask + 1) * sizeof(Place)
        for i in range(self.page_count):
            total += page_bytes(self.pages[i].capacity) + sizeof(Page*)
        return total

    def check(self) -> None:
        """Raise AssertionError when links, places or counts are wrong."""
        cdef uint32_t slot
        cdef uint32_t before = NOT_THERE
        cdef uint32_t free_ones = 0
        cdef uint32_t i
        cdef uint32_t slots = 0
        names = 0
        seen = 0
        slot = self.oldest
        while slot != NOT_THERE:
            assert self.at(slot).older == before
            assert self.find(<bytes>self.at(slot).name) == slot
            names += len(<bytes>self.at(slot).name)
            seen += 1
            before = slot
            slot = self.at(slot).newer
        assert before == self.newest
        assert seen == self.count and names == self.names_bytes
        slot = self.free
        while slot != NOT_THERE:
            assert self.at(slot).name == NULL
            free_ones += 1
            slot = self.at(slot).newer
        for i in range(self.page_count):
            slots += self.pages[i].capacity
        assert slots == self.count + free_ones
        if self.places != NULL:
            assert sum(self.places[i].slot != 0 for i in range(self.place_mask + 1)) == self.count
