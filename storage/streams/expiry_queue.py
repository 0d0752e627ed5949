"""The keys of a database that expire, by the moment at which they do."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

NEVER = 2**64 - 1
_EMPTY_MOMENTS_MIN = 1000


class ExpiryQueue:
    """Keys by the moment at which they expire, in unix milliseconds.

    `keys` maps a moment to its key, or to a dict of its keys where there are several: keys that
    get their expiry in one go share moments, so that adding and removing costs the same whatever
    their number. `_moments` is a heap of them: adding a key takes a quarter of the time that a
    SortedDict needs. A moment without keys stays there until it comes first or most are empty.
    """

    def __init__(self) -> None:
        self.keys: dict[int, bytes | dict[bytes, None]] = {}
        self._moments: list[int] = []

    def add(self, at_ms: int, key: bytes) -> None:
        there = self.keys.get(at_ms)
        if there is None:
            self.keys[at_ms] = key
            heappush(self._moments, at_ms)
        elif isinstance(there, dict):
            there[key] = None
        else:
            self.keys[at_ms] = {there: None, key: None}

    def remove(self, at_ms: int, key: bytes) -> None:
        there = self.keys[at_ms]
        if isinstance(there, dict):
            del there[key]
            if there:
                return
        del self.keys[at_ms]
        if len(self._moments) > _EMPTY_MOMENTS_MIN + 2 * len(self.keys):
            self._moments = list(self.keys)
            heapify(self._moments)

    def earliest_ms(self) -> int:
        """The earliest moment with a key; NEVER when there is none."""
        while self._moments and self._moments[0] not in self.keys:
            heappop(self._moments)
        return self._moments[0] if self._moments else NEVER

    def key_at(self, at_ms: int) -> bytes:
        """A key that expires at this moment."""
        there = self.keys[at_ms]
        if not isinstance(there, dict):
            return there
        # The last one: only popitem finds an item without stepping over those removed before it.
        key, _ = there.popitem()
        there[key] = None
        return key
