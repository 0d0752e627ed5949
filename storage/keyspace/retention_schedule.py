"""The streams that have work at a time of day: their policies evict entries for their age, or their
scheduled entries are due.

Very many streams may have such work, each at its own time. Times are rounded up to a page: half a
second for policies, a millisecond for scheduled entries. A page contains all streams that are due
in it, so adding and taking a stream costs the same for any number of streams. A place is a key, not
a stream: when its time comes, the key may have another stream.
"""

from __future__ import annotations

from typing import Any

NEVER = 2**64 - 1
# Trimming is documented to happen within a second; the rest of the second is for busy ticks.
PAGE_MS = 500

Place = tuple[int, bytes]  # database and key


class RetentionSchedule:
    """Places by the time, in unix milliseconds, from which they have work."""

    def __init__(self, page_ms: int = PAGE_MS) -> None:
        self._page_ms = page_ms
        # Places are in dicts, not in sets, so that the order of trims does not depend on hashes.
        # A SortedDict from the first place on: a start without places does not load it.
        self._pages: Any = {}

    def note(self, moment_ms: int, db: int, key: bytes) -> int:
        """Add a place; return its time, rounded up to a page."""
        if moment_ms > NEVER - 2 * self._page_ms:
            return NEVER
        page_ms = -(-moment_ms // self._page_ms) * self._page_ms
        page = self._pages.get(page_ms)
        if page is None:
            if not self._pages:
                from sortedcontainers import SortedDict  # type: ignore[import-untyped]

                self._pages = SortedDict()
            page = self._pages[page_ms] = {}
        page[db, key] = None
        return page_ms

    def next(self) -> int:
        """The earliest time that may have a place; NEVER when there is none."""
        earliest_ms: int = self._pages.keys()[0] if self._pages else NEVER
        return earliest_ms

    def pop_due(self, now_ms: int) -> Place | None:
        """Remove and return the next place that is due; None when there is none."""
        while self.next() <= now_ms:
            page_ms, page = self._pages.peekitem(0)
            place: Place | None = page.popitem()[0] if page else None
            if not page:
                del self._pages[page_ms]
            if place is not None:
                return place
        return None

    def forget(self, page_ms: int, db: int, key: bytes) -> None:
        """Remove a place with the time that `note` returned."""
        page = self._pages.get(page_ms)
        if page is not None:
            page.pop((db, key), None)
            if not page:
                del self._pages[page_ms]

    def forget_database(self, db: int) -> None:
        """Remove all places of a database; the time is linear in the number of all places."""
        for page_ms, page in list(self._pages.items()):
            kept = {place: None for place in page if place[0] != db}
            if kept:
                self._pages[page_ms] = kept
            else:
                del self._pages[page_ms]

    def __len__(self) -> int:
        return sum(map(len, self._pages.values()))
