"""The progress of each producer of a stream (TAPPENDONCE): one number per producer.

A job may have a producer for each of its partitions and start new ones every day, so a stream may
have 100,000 producers (docs/decisions/034-producers-in-a-dict.md has the cost). They are in a dict
in the order of their last appends. A plain dict keeps that order when a name is removed and
inserted again. A snapshot copies the dict, which takes a hundredth of the time of an OrderedDict.
Only finding the first item is slow after many removals; therefore the oldest producers are looked
up many at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

_U64_MAX = 2**64 - 1
_PACKED_PRODUCERS = 500  # packed in one step; a snapshot's thread pauses between steps
_SILENT_AT_ONCE = 1000
# For MEMORY USAGE: a name's object without its text, the object of a number, and this object.
_NAME_BYTES = 33
_NUMBER_BYTES = 32
_OBJECT_BYTES = 112


class Producers:
    """The last number of each producer, and the order of their last appends."""

    __slots__ = ("_aside", "_aside_seq", "_names_bytes", "_seqs", "_silent")

    def __init__(self) -> None:
        self._seqs: dict[bytes, int] = {}
        self._silent: dict[bytes, None] = {}  # the first names of _seqs, in reverse order
        self._names_bytes = 0
        # A producer, with its number, that could not be put back into _seqs for lack of memory.
        self._aside: bytes | None = None
        self._aside_seq = 0

    def __len__(self) -> int:
        return len(self._seqs) + (self._aside is not None)

    def __contains__(self, name: object) -> bool:
        return name in self._seqs or (self._aside is not None and name == self._aside)

    def has_sent(self, name: bytes, seq: int) -> bool:
        """True if the producer's number is this one or a later one."""
        if self._aside is not None:
            self._all()
        return seq <= self._seqs.get(name, -1)

    def last_seq(self, name: bytes) -> int | None:
        """The producer's last number; None if it is unknown."""
        return self._all().get(name)

    def put(self, name: bytes, seq: int) -> int | None:
        """Set a producer's last number, which makes it the newest producer. Returns the number
        before. MemoryError changes nothing."""
        if self._aside is not None:
            self._all()
        before = self._seqs.pop(name, None)
        try:
            self._seqs[name] = seq
        except MemoryError:
            if before is not None:
                self._aside, self._aside_seq = name, before
                self._silent.pop(name, None)
            raise
        if before is None:
            self._names_bytes += len(name)
        self._silent.pop(name, None)
        return before

    def put_back(self, name: bytes, before: int | None) -> None:
        """Undo `put` after a failed append: restore the number that `put` returned. Needs no
        memory."""
        if before is None:
            self.drop(name)
        else:
            self._seqs[name] = before

    def _all(self) -> dict[bytes, int]:
        """All numbers. MemoryError when there is still no memory for the producer in `_aside`."""
        if self._aside is not None:
            self._seqs[self._aside] = self._aside_seq
            self._aside = None
        return self._seqs

    def drop(self, name: bytes) -> bool:
        """Remove a producer; False when it is unknown."""
        if self._all().pop(name, None) is None:
            return False
        self._silent.pop(name, None)
        self._names_bytes -= len(name)
        return True

    def drop_oldest(self) -> bytes:
        """Remove the producer with the oldest last append; return its name."""
        if not self._all():
            raise IndexError("no producer to forget")
        if not self._silent:
            first = list(islice(self._seqs, _SILENT_AT_ONCE))
            self._silent = dict.fromkeys(reversed(first))
        name = next(reversed(self._silent))
        self.drop(name)
        return name

    def copy(self) -> Producers:
        made = Producers()
        made._seqs = self._all().copy()
        made._names_bytes = self._names_bytes
        return made

    def share(self) -> SharedProducers:
        """A copy of the current producers, to be packed later."""
        return SharedProducers(self._all().copy())

    def dump(self) -> dict[bytes, int]:
        """Names and numbers, in the order of the last appends (docs/formats.md, producers)."""
        return self._all().copy()

    @classmethod
    def load(cls, rows: Any) -> Producers:
        """Make producers from the result of `dump`; ValueError when it is malformed."""
        if not isinstance(rows, dict):
            raise ValueError("its producers are not a map")
        made = cls()
        for name, seq in rows.items():
            if not isinstance(name, bytes) or not isinstance(seq, int) or not 0 <= seq <= _U64_MAX:
                raise ValueError(f"what its producer {name!r} has sent is malformed")
            made.put(name, seq)
        return made

    @property
    def memory_bytes(self) -> int:
        """An estimate of the memory used."""
        objects = len(self._seqs) * (_NAME_BYTES + _NUMBER_BYTES)
        return _OBJECT_BYTES + sys.getsizeof(self._seqs) + objects + self._names_bytes

    def check(self) -> None:
        """Raise AssertionError when the producers are inconsistent."""
        assert sum(map(len, self._all())) == self._names_bytes
        assert list(islice(self._seqs, len(self._silent))) == list(reversed(self._silent))


class SharedProducers:
    """The producers at one moment, for a snapshot."""

    __slots__ = ("_seqs",)

    def __init__(self, seqs: dict[bytes, int]) -> None:
        self._seqs = seqs

    def packed(self) -> Iterator[bytes]:
        """The result of Producers.dump as msgpack in small parts, on any thread."""
        import msgpack  # type: ignore[import-untyped]

        packer = msgpack.Packer()
        yield packer.pack_map_header(len(self._seqs))
        rows = iter(self._seqs.items())
        while some := list(islice(rows, _PACKED_PRODUCERS)):
            yield b"".join([packer.pack(name) + packer.pack(seq) for name, seq in some])
