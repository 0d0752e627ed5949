"""The keys of a database that expire, by their expiry time."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from operator import itemgetter

NEVER = 2**64 - 1
_STALE_MIN = 1000
_MOVED_AT_ONCE = 4


class ExpiryQueue:
    """The earliest expiry of the keys in `expiries`, a dict from a key to unix milliseconds.

    A heap has a pair (time, key) for each of these keys, at its expiry or earlier: a postponed
    expiry, as by every EXPIRE of a session, changes only the dict. The pair moves to the key's time
    when it is the first one. A removed expiry leaves its pair until then. When most pairs are
    stale, the others move to a new heap, a few with each new pair, so no call takes long.
    """

    def __init__(self, expiries: dict[bytes, int]) -> None:
        self._expiries = expiries
        self._heap: list[tuple[int, bytes]] = []
        self._old_heap: list[tuple[int, bytes]] = []

    @property
    def heaps(self) -> list[list[tuple[int, bytes]]]:
        """The pairs, for a caller that frees them."""
        return [self._heap, self._old_heap]

    def note(self, key: bytes, at_ms: int) -> bool:
        """Set the expiry of a key; return whether the earliest one may have changed."""
        before_ms = self._expiries.get(key, NEVER)
        self._expiries[key] = at_ms
        if at_ms >= before_ms:
            return False
        heappush(self._heap, (at_ms, key))
        if self._old_heap:
            self._move_some()
        elif len(self._heap) > _STALE_MIN + 2 * len(self._expiries):
            self._heap, self._old_heap = [], self._heap
            self._move_some()
        return True

    def earliest(self) -> tuple[int, bytes] | None:
        """The earliest expiry and its key; None when no key expires."""
        return min(filter(None, map(self._first, self.heaps)), default=None)

    def pass_over(self) -> None:
        """Remove the pair that `earliest` returned; the key keeps its expiry."""
        heappop(min(filter(None, self.heaps), key=itemgetter(0)))

    def note_again(self, key: bytes) -> None:
        """Add a pair for a key whose pair was passed over, if it still has an expiry."""
        if key in self._expiries:
            heappush(self._heap, (self._expiries[key], key))

    def _first(self, heap: list[tuple[int, bytes]]) -> tuple[int, bytes] | None:
        """The first pair of a heap, after those that are stale."""
        while heap:
            noted_ms, key = heap[0]
            at_ms = self._expiries.get(key, 0)
            if at_ms == noted_ms:
                return heap[0]
            if at_ms < noted_ms:
                heappop(heap)
            else:
                heapreplace(heap, (at_ms, key))
        return None

    def _move_some(self) -> None:
        """Move the last pairs of the old heap, which stays a heap without them."""
        for noted_ms, key in reversed(self._old_heap[-_MOVED_AT_ONCE:]):
            at_ms = self._expiries.get(key, 0)
            if at_ms >= noted_ms:
                heappush(self._heap, (at_ms, key))
        del self._old_heap[-_MOVED_AT_ONCE:]
