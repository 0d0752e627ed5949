"""The keys of a database that expire, by their expiry time."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

NEVER = 2**64 - 1
_EMPTY_MOMENTS_MIN = 1000


class ExpiryQueue:
    """Keys by their expiry time, in unix milliseconds.

    `keys` maps a time to its key, or to a dict if there are several keys. Keys that get their
    expiry together often have the same time; the dict makes adding and removing independent of
    their number. `_moments` is a heap of the times: adding a key takes a quarter of the time of a
    SortedDict. A time without keys stays in the heap until it is the first or most times have no
    keys.
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
        """The earliest time with a key; NEVER when there is none."""
        while self._moments and self._moments[0] not in self.keys:
            heappop(self._moments)
        return self._moments[0] if self._moments else NEVER

    def key_at(self, at_ms: int) -> bytes:
        """A key that expires at this time."""
        there = self.keys[at_ms]
        if not isinstance(there, dict):
            return there
        # The last one, because only popitem finds an item without skipping removed ones.
        key, _ = there.popitem()
        there[key] = None
        return key
