"""Which of its producers' messages a stream has already taken (XADD IDMP).

A producer names itself and each of its messages; the stream remembers the newest names of every
producer, for some seconds, with the id the entry got. Two bounds hold: a name is forgotten when its
time is over or when its producer has sent `maxsize` newer ones. Whatever a question would find too
old is not there, whether or not it was already removed, so no timer is needed and an effect that
records a name needs no clock. Adding a name also removes producers that have long been silent,
and of the one that has been so longest when there are more than PRODUCERS_MAX: what is kept grows
with what was sent within the window, not with how many producers ever were.

A snapshot shares the names instead of copying them; from then on a producer's are copied before
they change, for as long as the snapshot holds them.

Plain Python, and made for a stream only when it is needed: a stream without producers has none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Any
from weakref import ref

import msgpack  # type: ignore[import-untyped]

DURATION_S = 100
DURATION_S_MAX = 86_400
MAXSIZE = 100
MAXSIZE_MAX = 10_000
PRODUCERS_MAX = 10_000
_U64_MAX = 2**64 - 1
# Estimates, for MEMORY USAGE: a dictionary's place and the objects in it.
_NAME_BYTES = 260
_PRODUCER_BYTES = 400

EntryId = tuple[int, int]
# The entry's id, and the unix milliseconds from which the name's time runs.
Seen = tuple[int, int, int]
Names = OrderedDict[bytes, Seen]

_PACKED_NAMES = 500  # packed at once by one who may have to rest between


class Window:
    """The names a stream remembers. `added` and `duplicates` count over the stream's whole life."""

    __slots__ = ("_own", "_shares", "added", "duplicates", "duration_s", "maxsize", "producers")

    def __init__(self, duration_s: int = DURATION_S, maxsize: int = MAXSIZE) -> None:
        self.duration_s = duration_s
        self.maxsize = maxsize
        self.added = 0
        self.duplicates = 0
        # The producer that added something last stands at the end; so do the names of each.
        self.producers: OrderedDict[bytes, Names] = OrderedDict()
        self._shares: list[ref[SharedWindow]] = []
        self._own: set[bytes] = set()  # producers whose names were not there at the last share

    def find(self, producer: bytes, name: bytes, now_ms: int) -> EntryId | None:
        """The id of the entry that a producer's message of this name became, None if not known."""
        names = self.producers.get(producer)
        seen = None if names is None else names.get(name)
        if seen is None or self._is_over(seen, now_ms):
            return None
        return seen[:2]

    def add(self, producer: bytes, name: bytes, entry_id: EntryId, at_ms: int) -> None:
        """Remember a name for the window's duration from at_ms on."""
        self.put(producer, name, entry_id, at_ms)
        self.trim(producer, at_ms)

    def put(self, producer: bytes, name: bytes, entry_id: EntryId, at_ms: int) -> None:
        """The part of `add` that can fail, and then leaves no new name. The name must not be known
        (`find`)."""
        names = self._names_to_change(producer)
        try:
            # A clock that went back: no name may be over before those that were there before it.
            since_ms = max(at_ms, next(reversed(names.values()))[2]) if names else at_ms
            names.pop(name, None)
            names[name] = (*entry_id, since_ms)
        finally:
            if not names:
                del self.producers[producer]

    def put_back(self, producer: bytes, name: bytes) -> None:
        """The entry that the name was `put` for could not be made."""
        names = self.producers[producer]
        del names[name]
        if not names:
            del self.producers[producer]

    def trim(self, producer: bytes, at_ms: int) -> None:
        """The rest of `add`: count, and keep the bounds."""
        names = self.producers[producer]
        while len(names) > self.maxsize:
            names.popitem(last=False)
        self.producers.move_to_end(producer)
        if len(self.producers) > PRODUCERS_MAX:
            self.producers.popitem(last=False)
        self.added += 1
        self._drop_silent(at_ms)

    def _names_to_change(self, producer: bytes) -> Names:
        """A producer's names, which no snapshot holds."""
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
        """Set the bounds; other ones than before make it forget every name."""
        if (duration_s, maxsize) != (self.duration_s, self.maxsize):
            self.producers.clear()
        self.duration_s = duration_s
        self.maxsize = maxsize

    def is_blank(self) -> bool:
        """Whether it is as one that was just made, with the default bounds."""
        facts = (self.duration_s, self.maxsize, self.added, self.duplicates)
        return facts == (DURATION_S, MAXSIZE, 0, 0) and not self.producers

    def expire(self, now_ms: int) -> None:
        """Remove every name whose time is over."""
        for producer, names in list(self.producers.items()):
            over = []
            for name, seen in names.items():
                if not self._is_over(seen, now_ms):
                    break  # nor is any after it
                over.append(name)
            if len(over) == len(names):
                del self.producers[producer]
            elif over:
                names = self._names_to_change(producer)
                for name in over:
                    del names[name]

    def tracked(self) -> tuple[int, int]:
        """How many producers and how many names are kept."""
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
        """An estimate of the memory it takes."""
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
        """The window as it is now: made at once, put into words later."""
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
        """Make a window of what `dump` gave; ValueError when it is malformed."""
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
        """Raise ValueError when anything does not fit together."""
        for producer, names in self.producers.items():
            self._check(producer, len(names))


class SharedWindow:
    """A window at one moment, as a snapshot holds it."""

    __slots__ = ("__weakref__", "facts", "producers")

    def __init__(self, facts: dict[str, Any], producers: list[tuple[bytes, Names]]) -> None:
        self.facts = facts
        self.producers = producers

    def packed(self) -> Iterator[bytes]:
        """What Window.dump gives, as msgpack in small parts, on any thread."""
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
