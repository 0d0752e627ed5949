# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What a stream is told to keep, and a calendar of the streams whose entries come of age.

Very many streams may have a limit of age, and each has its own next moment. So the calendar rounds
moments up to pages of half a second: a page holds whatever falls due in it, one heap holds the
pages, and noting a stream or taking it costs the same however many there are. A place is a key, not
a stream: who takes one looks at what is there then.
"""

from libc.stdint cimport UINT64_MAX as NEVER, uint64_t

from heapq import heappop, heappush

cdef enum:
    # A promise is to trim within a second of being due; the rest of it is for turns that are full.
    PAGE_MS = 500


cdef class Policy:
    """The limits of one stream, 0 for none; it never changes, another takes its place.

    max_len counts entries, max_age_ms is against an id's milliseconds, max_bytes is what
    `retention.kept_bytes` says. exact: to the entry, else whole blocks only.
    """

    def __init__(self, uint64_t max_len=0, uint64_t max_age_ms=0, uint64_t max_bytes=0,
                 bint exact=False):
        self.max_len = max_len
        self.max_age_ms = max_age_ms
        self.max_bytes = max_bytes
        self.exact = exact
        self.looked_at_ms = NEVER

    def is_limit(self) -> bool:
        """Whether it limits anything."""
        return self.max_len > 0 or self.max_age_ms > 0 or self.max_bytes > 0

    def dump(self) -> list:
        """As in a stream's map (docs/formats.md)."""
        return [self.max_len, self.max_age_ms, self.max_bytes, self.exact]

    @staticmethod
    def load(row) -> Policy:
        """What `dump` gave; ValueError when a number is none that it can have given."""
        try:
            return Policy(*row)
        except OverflowError as error:
            raise ValueError(f"the policy {row} is out of range") from error


cdef class Calendar:
    """Places (db, key) by the moment, in unix milliseconds, from which they are to be looked at."""

    def __init__(self):
        self.pages = {}
        self.moments = []

    cdef uint64_t note(self, uint64_t moment_ms, int db, bytes key) except? 0:
        """Note a place; returns the moment it is noted for, rounded up to a page."""
        cdef uint64_t page_ms
        if moment_ms > NEVER - 2 * PAGE_MS:
            return NEVER
        page_ms = (moment_ms + PAGE_MS - 1) // PAGE_MS * PAGE_MS
        page = self.pages.get(page_ms)
        if page is None:
            page = self.pages[page_ms] = {}
            heappush(self.moments, page_ms)
        page[db, key] = None  # a dict, so that the sequence of trims does not hang on hashes
        return page_ms

    cdef uint64_t next(self) noexcept:
        """The earliest moment, NEVER when nothing is noted."""
        return self.moments[0] if self.moments else NEVER

    cdef tuple take(self, uint64_t now_ms):
        """The next place whose moment has come; None when there is none."""
        cdef uint64_t page_ms
        while self.moments:
            page_ms = self.moments[0]
            if page_ms > now_ms:
                return None
            page = self.pages[page_ms]
            place = page.popitem()[0] if page else None
            if not page:
                del self.pages[page_ms]
                heappop(self.moments)
            if place is not None:
                return place
        return None

    cdef int forget(self, uint64_t page_ms, int db, bytes key) except -1:
        """A place noted for this moment (`note`) is gone. An emptied page stays until its time: there
        is one each half second at most."""
        page = self.pages.get(page_ms)
        if page is not None and page.pop((db, key), self) is None and not page:
            self.pages[page_ms] = {}  # a large one gives its room back
        return 0

    cdef int forget_database(self, int db) except -1:
        """All places of a database are gone; takes as long as there are places."""
        for page_ms, page in self.pages.items():
            self.pages[page_ms] = {place: None for place in page if place[0] != db}
        return 0

    def add(self, uint64_t moment_ms, int db, bytes key not None) -> int:
        """`note` for tests."""
        return self.note(moment_ms, db, key)

    def take_due(self, uint64_t now_ms) -> tuple[int, bytes] | None:
        """`take` for tests."""
        return self.take(now_ms)

    @property
    def next_ms(self) -> int | None:
        """The earliest moment noted."""
        return self.moments[0] if self.moments else None

    def __len__(self) -> int:
        return sum(map(len, self.pages.values()))
