"""The streams whose policies will evict something for its age, by the moment at which they do.

Very many streams may have a limit of age, and each has its own next moment. So moments are rounded
up to half a second: a page holds all that is due in it, and noting a stream or taking it costs the
same whatever their number. A place is a key, not a stream: what is stored there when its moment
comes may be another stream.
"""

from __future__ import annotations

from sortedcontainers import SortedDict  # type: ignore[import-untyped]

NEVER = 2**64 - 1
# The promise is to trim within a second after the moment; the rest of it is for full turns.
PAGE_MS = 500

Place = tuple[int, bytes]  # database and key


class RetentionSchedule:
    """Places by the moment, in unix milliseconds, from which their policies evict something."""

    def __init__(self) -> None:
        # Places are in dicts, not in sets, so that the order of trims does not depend on hashes.
        self._pages: SortedDict[int, dict[Place, None]] = SortedDict()

    def note(self, moment_ms: int, db: int, key: bytes) -> int:
        """Note a place; returns the moment it is noted for, rounded up to a page."""
        if moment_ms > NEVER - 2 * PAGE_MS:
            return NEVER
        page_ms = -(-moment_ms // PAGE_MS) * PAGE_MS
        page = self._pages.get(page_ms)
        if page is None:
            page = self._pages[page_ms] = {}
        page[db, key] = None
        return page_ms

    def next(self) -> int:
        """The earliest moment that may have a place, NEVER when nothing is noted."""
        return self._pages.keys()[0] if self._pages else NEVER

    def take(self, now_ms: int) -> Place | None:
        """Remove and return the next place whose moment has come; None when there is none."""
        while self.next() <= now_ms:
            page_ms, page = self._pages.peekitem(0)
            place: Place | None = page.popitem()[0] if page else None
            if not page:
                del self._pages[page_ms]
            if place is not None:
                return place
        return None

    def forget(self, page_ms: int, db: int, key: bytes) -> None:
        """Forget a place noted for this moment (`note`)."""
        page = self._pages.get(page_ms)
        if page is not None:
            page.pop((db, key), None)
            if not page:
                del self._pages[page_ms]

    def forget_database(self, db: int) -> None:
        """Forget all places of a database; takes as long as there are places."""
        for page_ms, page in list(self._pages.items()):
            kept = {place: None for place in page if place[0] != db}
            if kept:
                self._pages[page_ms] = kept
            else:
                del self._pages[page_ms]

    def __len__(self) -> int:
        return sum(map(len, self._pages.values()))
