"""The idempotence window: which messages of its producers a stream has already accepted (XADD
IDMP).

A producer names itself and each of its messages. The stream keeps the newest names of every
producer for some seconds, with the ID of the entry. A name is removed when its time has passed or
when its producer has sent `maxsize` newer names. `find` ignores names that are too old even if they
were not removed yet, so no timer is needed, and an effect that records a name needs no clock.
Adding a name also removes producers that have long been silent, and names of the producer that has
been silent longest if there are more than PRODUCERS_MAX. The size therefore grows with the messages
within the window, not with the number of producers over time.

A snapshot shares the names instead of copying them. While the snapshot holds them, a producer's
names are copied before they change.

The window is created when a stream first needs it: a stream without producers has none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Any
from weakref import ref

DURATION_S = 100
DURATION_S_MAX = 86_400
MAXSIZE = 100
MAXSIZE_MAX = 10_000
PRODUCERS_MAX = 10_000
_U64_MAX = 2**64 - 1
# Estimates for MEMORY USAGE: an item of a dictionary and its objects.
_NAME_BYTES = 260
_PRODUCER_BYTES = 400

EntryId = tuple[int, int]
# The entry's ID, and the unix milliseconds at which the name's time begins.
Seen = tuple[int, int, int]
Names = OrderedDict[bytes, Seen]

_PACKED_NAMES = 500  # packed in one step; a snapshot's thread pauses between steps


class Window:
    """The names that a stream keeps. `added` and `duplicates` count since the stream was
    created."""

    __slots__ = ("_own", "_shares", "added", "duplicates", "duration_s", "maxsize", "producers")

    def __init__(self, duration_s: int = DURATION_S, maxsize: int = MAXSIZE) -> None:
        self.duration_s = duration_s
        self.maxsize = maxsize
        self.added = 0
        self.duplicates = 0
        # Ordered by the last addition, newest last; the names of each producer, too.
        self.producers: OrderedDict[bytes, Names] = OrderedDict()
        self._shares: list[ref[SharedWindow]] = []
        self._own: set[bytes] = set()  # producers whose names are not shared with the last snapshot

    def find(self, producer: bytes, name: bytes, now_ms: int) -> EntryId | None:
        """The ID of the entry for a producer's message of this name; None if unknown."""
        names = self.producers.get(producer)
        seen = None if names is None else names.get(name)
        if seen is None or self._is_over(seen, now_ms):
            return None
        return seen[:2]

    def add(self, producer: bytes, name: bytes, entry_id: EntryId, at_ms: int) -> None:
        """Keep a name for the window's duration from at_ms on."""
        self.put(producer, name, entry_id, at_ms)
        self.trim(producer, at_ms)

    def put(self, producer: bytes, name: bytes, entry_id: EntryId, at_ms: int) -> None:
        """The part of `add` that can fail; a failure leaves no new name. The name must be unknown
        (`find`)."""
        names = self._names_to_change(producer)
        try:
            # If the clock went back: a name must not expire before older names.
            since_ms = max(at_ms, next(reversed(names.values()))[2]) if names else at_ms
            names.pop(name, None)
            names[name] = (*entry_id, since_ms)
        finally:
            if not names:
                del self.producers[producer]

    def put_back(self, producer: bytes, name: bytes) -> None:
        """Undo `put`: the entry could not be appended."""
        names = self.producers[producer]
        del names[name]
        if not names:
            del self.producers[producer]

    def trim(self, producer: bytes, at_ms: int) -> None:
        """The rest of `add`: update the counts and enforce the bounds."""
        names = self.producers[producer]
        while len(names) > self.maxsize:
            names.popitem(last=False)
        self.producers.move_to_end(producer)
        if len(self.producers) > PRODUCERS_MAX:
            self.producers.popitem(last=False)
        self.added += 1
        self._drop_silent(at_ms)

    def _names_to_change(self, producer: bytes) -> Names:
        """A producer's names, copied first if a snapshot holds them."""
        names = self.producers.get(producer)
        if self._shares:
            self._shares = [share for share in self._shares if share() is not None]
        if names is None:
            names = self.producers[producer] = OrderedDict()
        elif self._shares and producer not in self._own:
            names = self.producers[producer] = names.copy()
        if self._shares:
            self._own.add(producer)
        return names

    def configure(self, duration_s: int, maxsize: int) -> None:
        """Set the bounds; a change removes all names."""
        if (duration_s, maxsize) != (self.duration_s, self.maxsize):
            self.producers.clear()
        self.duration_s = duration_s
        self.maxsize = maxsize

    def is_blank(self) -> bool:
        """True if the window equals a new one with the default bounds."""
        facts = (self.duration_s, self.maxsize, self.added, self.duplicates)
        return facts == (DURATION_S, MAXSIZE, 0, 0) and not self.producers

    def expire(self, now_ms: int) -> None:
        """Remove every name whose time has passed."""
        for producer, names in list(self.producers.items()):
            over = []
            for name, seen in names.items():
                if not self._is_over(seen, now_ms):
                    break  # no later name has expired, either
                over.append(name)
            if len(over) == len(names):
                del self.producers[producer]
            elif over:
                names = self._names_to_change(producer)
                for name in over:
                    del names[name]

    def tracked(self) -> tuple[int, int]:
        """The numbers of producers and of names."""
        return len(self.producers), sum(map(len, self.producers.values()))

    def _is_over(self, seen: Seen, now_ms: int) -> bool:
        return seen[2] + self.duration_s * 1000 <= now_ms

    def _drop_silent(self, now_ms: int) -> None:
        while self.producers:
            producer, names = next(iter(self.producers.items()))
            if not self._is_over(next(reversed(names.values())), now_ms):
                return
            del self.producers[producer]

    @property
    def memory_bytes(self) -> int:
        """An estimate of the memory used."""
        producers, names = self.tracked()
        return 200 + producers * _PRODUCER_BYTES + names * _NAME_BYTES

    def dump(self) -> dict[str, Any]:
        """The window as msgpack-able values (docs/formats.md, idempotence)."""
        return self._facts() | {
            "producers": [
                [producer, [[name, *seen] for name, seen in names.items()]]
                for producer, names in self.producers.items()
            ],
        }

    def share(self) -> SharedWindow:
        """A point-in-time view of the window, to be packed later."""
        shared = SharedWindow(self._facts(), list(self.producers.items()))
        self._shares.append(ref(shared))
        self._own.clear()
        return shared

    def _facts(self) -> dict[str, Any]:
        return {
            "duration_s": self.duration_s,
            "maxsize": self.maxsize,
            "added": self.added,
            "duplicates": self.duplicates,
        }

    @classmethod
    def load(cls, meta: dict[str, Any]) -> Window:
        """Make a window from the result of `dump`; ValueError when it is malformed."""
        window = cls(meta["duration_s"], meta["maxsize"])
        window.added, window.duplicates = meta["added"], meta["duplicates"]
        bounds = (
            (window.duration_s, 1, DURATION_S_MAX),
            (window.maxsize, 1, MAXSIZE_MAX),
            (window.added, 0, _U64_MAX),
            (window.duplicates, 0, _U64_MAX),
        )
        if not all(isinstance(number, int) and a <= number <= b for number, a, b in bounds):
            raise ValueError("the bounds or counters of its idempotence window are malformed")
        for producer, rows in meta["producers"]:
            names: OrderedDict[bytes, Seen] = OrderedDict()
            for name, ms, seq, at_ms in rows:
                names[name] = (ms, seq, at_ms)
            window.producers[producer] = names
            window._check(producer, len(rows))
        if len(window.producers) != len(meta["producers"]):
            raise ValueError("a producer appears twice in its idempotence window")
        return window

    def _check(self, producer: bytes, count: int) -> None:
        names = self.producers[producer]
        numbers = [number for seen in names.values() for number in seen]
        if not (
            0 < len(names) == count <= self.maxsize
            and all(isinstance(name, bytes) for name in (producer, *names))
            and all(isinstance(number, int) and 0 <= number <= _U64_MAX for number in numbers)
        ):
            raise ValueError(f"what producer {producer!r} has sent is malformed")

    def check(self) -> None:
        """Raise ValueError when the window is inconsistent."""
        for producer, names in self.producers.items():
            self._check(producer, len(names))


class SharedWindow:
    """A point-in-time view of a window, for a snapshot."""

    __slots__ = ("__weakref__", "facts", "producers")

    def __init__(self, facts: dict[str, Any], producers: list[tuple[bytes, Names]]) -> None:
        self.facts = facts
        self.producers = producers

    def packed(self) -> Iterator[bytes]:
        """The result of Window.dump as msgpack in small parts, on any thread."""
        import msgpack  # type: ignore[import-untyped]

        packer = msgpack.Packer()
        yield packer.pack_map_header(len(self.facts) + 1)
        for name, value in self.facts.items():
            yield packer.pack(name) + packer.pack(value)
        yield packer.pack("producers") + packer.pack_array_header(len(self.producers))
        for producer, names in self.producers:
            yield packer.pack_array_header(2) + packer.pack(producer)
            yield packer.pack_array_header(len(names))
            rows = ([name, *seen] for name, seen in names.items())
            while some := list(islice(rows, _PACKED_NAMES)):
                yield b"".join(map(packer.pack, some))
