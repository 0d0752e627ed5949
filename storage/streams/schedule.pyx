# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The entries of a stream that are appended at a later time.

A scheduled entry has a ticket: the time at which it is due, and a number that counts the schedules
of its stream. Entries are in the order of their tickets, in pages of up to PAGE_ENTRIES. Their names
and values are packed in one bytes object each.

A snapshot or a long reply shows one moment: it shares whole pages, and a shared page is copied
before it changes. Scheduled entries themselves never change.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport UINT64_MAX as NEVER, uint8_t, uint64_t
from libc.string cimport memcpy

cimport cython

from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId, id_less
from millstream.ids cimport make_id
from millstream.storage.blocks.layout cimport read_varint, write_varint
from millstream.storage.blocks.open_block cimport payload_of

from millstream.storage.blocks.lazyfree import TO_FREE, discard_items, is_deferring

cdef enum:
    PAGE_ENTRIES = 512
    NUMBER_BYTES_MAX = 10
    # An estimate of the memory of an entry besides `size_of`, and of a name in the dictionary.
    OBJECT_BYTES = 84
    NAME_BYTES = 130


# ---------------------------------------------------------------- entries

@cython.no_gc
@cython.freelist(256)
cdef class Scheduled:
    """An entry that is due at some time."""

    @property
    def due_ms(self) -> int:
        """The time at which it is due, in Unix milliseconds."""
        return self.ticket.ms

    @property
    def number(self) -> int:
        return self.ticket.seq

    @property
    def size_bytes(self) -> int:
        """Its size as `stream-scheduled-max-bytes` counts it."""
        return size_of(self)

    @property
    def fields(self) -> list:
        """Its names and values."""
        cdef Py_ssize_t count = word_count(self)
        cdef object space = bytearray(count * sizeof(Slice))
        cdef Slice* items = <Slice*><char*>(<bytearray>space)
        cdef Py_ssize_t i
        words_of(self, items)
        return [items[i].ptr[:items[i].size] for i in range(count)]

    @property
    def reply(self) -> list:
        """Its ticket, its name, its names and values."""
        return [make_id(self.ticket.ms, self.ticket.seq, True), self.name or b"", *self.fields]


cdef int varint_size(uint64_t number) noexcept:
    cdef int size = 1
    while number >= 128:
        number >>= 7
        size += 1
    return size


cdef Scheduled make_scheduled(EntryId ticket, bytes name, Slice* items, Py_ssize_t count):
    """An entry with these names and values. name: None for none."""
    cdef Scheduled made = Scheduled.__new__(Scheduled)
    cdef Py_ssize_t size = varint_size(count) + <Py_ssize_t>payload_of(items, count)
    cdef uint8_t* at
    cdef Py_ssize_t i
    for i in range(count):
        size += varint_size(items[i].size)
    made.ticket = ticket
    made.name = name
    made.words = PyBytes_FromStringAndSize(NULL, size)
    at = write_varint(<uint8_t*>PyBytes_AS_STRING(made.words), count)
    for i in range(count):
        at = write_varint(at, items[i].size)
        memcpy(at, items[i].ptr, items[i].size)
        at += items[i].size
    return made


cdef Py_ssize_t word_count(Scheduled entry) noexcept:
    cdef uint64_t count
    read_varint(<const uint8_t*>PyBytes_AS_STRING(entry.words), &count)
    return count


cdef Py_ssize_t words_of(Scheduled entry, Slice* items) noexcept:
    """Set `items`, which has space for `word_count` views, to the names and values."""
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(entry.words)
    cdef uint64_t count, size, i
    at = read_varint(at, &count)
    for i in range(count):
        at = read_varint(at, &size)
        items[i].ptr = <const char*>at
        items[i].size = size
        at += size
    return count


cdef uint64_t size_of(Scheduled entry) noexcept:
    """The size of an entry as `stream-scheduled-max-bytes` counts it."""
    return (TICKET_BYTES + <uint64_t>PyBytes_GET_SIZE(entry.words)
            + (0 if entry.name is None else <uint64_t>PyBytes_GET_SIZE(entry.name)))


# ---------------------------------------------------------------- the schedule

@cython.no_gc
cdef class Page:
    """Entries in the order of their tickets."""


cdef Page make_page(list items, uint64_t epoch):
    cdef Page made = Page.__new__(Page)
    made.items = items
    made.epoch = epoch
    return made


cdef Py_ssize_t place_in(list items, EntryId ticket) noexcept:
    """The number of entries with lower tickets."""
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = len(items)
    cdef Py_ssize_t middle
    cdef Scheduled entry
    while low < high:
        middle = (low + high) // 2
        entry = <Scheduled>items[middle]
        if id_less(entry.ticket.ms, entry.ticket.seq, ticket.ms, ticket.seq):
            low = middle + 1
        else:
            high = middle
    return low


@cython.no_gc
cdef class Schedule:
    """The scheduled entries of one stream. `last_number` is the number of the last ticket."""

    def __cinit__(self):
        self.pages = []
        self.by_name = {}
        self.noted_ms = NEVER

    def __dealloc__(self):
        if is_deferring() and len(self.pages) > 1:
            TO_FREE.append(_Pages(self.pages))
            discard_items(self.by_name)

    def __len__(self) -> int:
        return self.count

    cdef Scheduled first(self):
        """The entry that is due first; None when there is none."""
        return None if not self.pages else <Scheduled>(<Page>self.pages[0]).items[0]

    @property
    def next_due_ms(self) -> int:
        """The time at which the first entry is due; NEVER when there is none."""
        cdef Scheduled entry = self.first()
        return NEVER if entry is None else entry.ticket.ms

    cdef Py_ssize_t page_at(self, EntryId ticket) noexcept:
        """The first page whose last ticket is not below this one, or the number of pages."""
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = len(self.pages)
        cdef Py_ssize_t middle
        cdef list items
        cdef Scheduled entry
        while low < high:
            middle = (low + high) // 2
            items = (<Page>self.pages[middle]).items
            entry = <Scheduled>items[len(items) - 1]
            if id_less(entry.ticket.ms, entry.ticket.seq, ticket.ms, ticket.seq):
                low = middle + 1
            else:
                high = middle
        return low

    cdef Page own_page(self, Py_ssize_t at):
        """A page that will change: a shared one is copied first."""
        cdef Page page = <Page>self.pages[at]
        if page.epoch != self.epoch:
            page.items = list(page.items)
            page.epoch = self.epoch
        return page

    # ------------------------------------------------------------ adding and removing

    cdef int prepare_removal(self, Scheduled entry) except -1:
        """Copy the page of an entry if it is shared, so that its removal needs no memory."""
        self.own_page(self.page_at(entry.ticket))
        return 0

    cdef int add(self, Scheduled entry) except -1:
        """Add an entry. Another one with the same name stays, without a name, until the caller
        removes it."""
        self.insert(entry)
        if entry.name is not None:
            try:
                self.by_name[entry.name] = entry
            except BaseException:
                self.take_out(entry)
                raise
        self.count += 1
        self.size_bytes += size_of(entry)
        self.last_number = max(self.last_number, entry.ticket.seq)
        return 0

    cdef int insert(self, Scheduled entry) except -1:
        cdef Py_ssize_t at = self.page_at(entry.ticket)
        cdef Page page
        cdef list later
        if at == len(self.pages):
            # Above all others.
            if at == 0 or len((<Page>self.pages[at - 1]).items) >= PAGE_ENTRIES:
                self.pages.append(make_page([entry], self.epoch))
                return 0
            at -= 1
        page = self.own_page(at)
        if len(page.items) >= PAGE_ENTRIES:
            later = page.items[PAGE_ENTRIES // 2:]
            self.pages.insert(at + 1, make_page(later, self.epoch))
            del page.items[PAGE_ENTRIES // 2:]
            if not is_before(entry, <Scheduled>later[0]):
                page = <Page>self.pages[at + 1]
        page.items.insert(place_in(page.items, entry.ticket), entry)
        return 0

    cdef int remove(self, Scheduled entry) except -1:
        """Remove an entry of this schedule."""
        self.take_out(entry)
        if entry.name is not None and self.by_name.get(entry.name) is entry:
            del self.by_name[entry.name]
        self.count -= 1
        self.size_bytes -= size_of(entry)
        return 0

    cdef int take_out(self, Scheduled entry) except -1:
        cdef Py_ssize_t at = self.page_at(entry.ticket)
        cdef Page page = self.own_page(at)
        del page.items[place_in(page.items, entry.ticket)]
        if not page.items:
            del self.pages[at]
        return 0

    cdef Scheduled find(self, EntryId ticket):
        """The entry with a ticket; None when there is none."""
        cdef Py_ssize_t at = self.page_at(ticket)
        cdef Scheduled entry
        cdef list items
        if at == len(self.pages):
            return None
        items = (<Page>self.pages[at]).items
        entry = <Scheduled>items[place_in(items, ticket)]
        return entry if entry.ticket.ms == ticket.ms and entry.ticket.seq == ticket.seq else None

    cdef Scheduled named(self, bytes name):
        """The entry with a name; None when there is none."""
        return self.by_name.get(name)

    # ------------------------------------------------------------ Python's view

    def put(self, uint64_t due_ms, uint64_t number, bytes name, list fields not None) -> None:
        """Add an entry, for callers in Python; ValueError when the ticket or the name exists.
        name: None for none."""
        cdef object space = bytearray(len(fields) * sizeof(Slice))
        cdef Slice* items = <Slice*><char*>(<bytearray>space)
        cdef EntryId ticket = EntryId(due_ms, number)
        cdef Py_ssize_t i
        cdef bytes word
        for i in range(len(fields)):
            word = fields[i]
            items[i].ptr = word
            items[i].size = len(word)
        if number == 0 or self.find(ticket) is not None:
            raise ValueError(f"ticket {due_ms}.{number} is zero or exists twice")
        if name is not None and name in self.by_name:
            raise ValueError(f"name {name!r} exists twice")
        self.add(make_scheduled(ticket, name, items, len(fields)))

    def entry(self, uint64_t due_ms, uint64_t number) -> Scheduled | None:
        """`find` for callers in Python."""
        return self.find(EntryId(due_ms, number))

    def entry_named(self, bytes name not None) -> Scheduled | None:
        """`named` for callers in Python."""
        return self.named(name)

    def cancel(self, Scheduled entry not None) -> None:
        """`remove` for callers in Python."""
        self.remove(entry)

    def between(self, tuple start not None, tuple end not None, uint64_t limit) -> list:
        """The entries whose tickets, (ms, number), are from start to end, at most `limit`, as lists
        of up to PAGE_ENTRIES. Changes of the schedule do not change these lists."""
        cdef EntryId first, last
        cdef Py_ssize_t low, high
        cdef list items
        cdef list found = []
        cdef Scheduled entry
        first.ms, first.seq = start
        last.ms, last.seq = end
        cdef Py_ssize_t at = self.page_at(first)
        cdef bint shares = False
        while at < len(self.pages) and limit:
            items = (<Page>self.pages[at]).items
            low = place_in(items, first)
            high = place_in(items, last)
            if high < len(items):
                entry = <Scheduled>items[high]
                high += entry.ticket.ms == last.ms and entry.ticket.seq == last.seq
            if high <= low:
                break
            if <uint64_t>(high - low) > limit:
                high = low + <Py_ssize_t>limit
            if low == 0 and high == len(items):
                shares = True
                found.append(items)
            else:
                found.append(items[low:high])
            limit -= high - low
            at += 1
        self.epoch += shares
        return found

    def share(self) -> list:
        """All entries at this moment, as lists."""
        return self.between((0, 0), (NEVER, NEVER), NEVER)

    @property
    def memory_bytes(self) -> int:
        """An estimate of the memory used."""
        return 200 + self.size_bytes + OBJECT_BYTES * self.count + NAME_BYTES * len(self.by_name)


cdef bint is_before(Scheduled entry, Scheduled other) noexcept:
    return id_less(entry.ticket.ms, entry.ticket.seq, other.ticket.ms, other.ticket.seq)


class _Pages:
    """The pages of a removed schedule, which are freed one by one."""

    def __init__(self, pages) -> None:
        self._pages = pages

    def free_step(self, most: int) -> bool:
        for _ in range(min(max(1, most // PAGE_ENTRIES), len(self._pages))):
            self._pages.pop()
        return len(self._pages) > 0
