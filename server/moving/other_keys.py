"""The keys of an AOF that have no place here: lists, hashes, and strings that a command has changed
in a way that this server cannot repeat.

A report names them by type. Which keys there are follows from the commands: a list whose last item
was removed is still counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from millstream.commands.later.foreign import foreign_keys
from millstream.storage.dump.rdb_file import Passed, library_name
from millstream.storage.dump.skipping import OTHER_TYPES

Place = tuple[int, bytes]  # database and key

_DB_OPTION = b"db"


@dataclass(slots=True)
class OtherKey:
    """A key of another type, with the bytes that were passed over for it."""

    what: str
    size_bytes: int = 0


class OtherKeys:
    """The keys of other types after the requests that were noted. `tell_passed` gets what belongs
    to no key."""

    def __init__(self, tell_passed: Callable[[Passed], None]) -> None:
        self._tell_passed = tell_passed
        self._keys: dict[Place, OtherKey] = {}
        self._changes: dict[bytes, Callable[[int, Sequence[bytes]], None]] = {
            b"del": self._remove, b"unlink": self._remove, b"rename": self._rename,
            b"renamenx": self._rename, b"copy": self._copy, b"move": self._move,
            b"flushdb": self._flush, b"flushall": self._flush, b"swapdb": self._swap,
            b"restore": self._restore, b"restore-asking": self._restore,
            b"function": self._function,
        }  # fmt: skip

    def left(self, has: Callable[[Place], bool]) -> Iterator[tuple[Place, OtherKey]]:
        """The keys in the order in which they were made, without those that `has` a value now."""
        for place, key in self._keys.items():
            if not has(place):
                yield place, key

    def __contains__(self, place: Place) -> bool:
        return place in self._keys

    def add(self, place: Place, passed: Passed) -> None:
        """Add a key of an RDB."""
        self._keys[place] = OtherKey(passed.what, passed.size_bytes)

    def note(self, database: int, words: Sequence[bytes]) -> None:
        """Note a request that runs in this database."""
        name = words[0].lower()
        change = self._changes.get(name)
        if change is not None:
            change(database, words)
            return
        found = foreign_keys(name, words)
        if found is None:
            return
        for key in found.keys:
            if found.replaces:
                self._keys.pop((database, key), None)
            self._make(found.kind, (database, key), words)

    def _make(self, what: str, place: Place, words: Sequence[bytes]) -> None:
        key = self._keys.setdefault(place, OtherKey(what))
        key.size_bytes += sum(map(len, words))

    # ------------------------------------------------------------ keys that change

    def _remove(self, database: int, words: Sequence[bytes]) -> None:
        for key in words[1:]:
            self._keys.pop((database, key), None)

    def _put(self, source: Place, target: Place, *, keeps: bool) -> None:
        """Move or copy a key; the target may be of any type before and after."""
        key = self._keys.get(source)
        self._keys.pop(target, None)
        if key is None:
            return
        if not keeps:
            del self._keys[source]
        self._keys[target] = OtherKey(key.what, key.size_bytes)

    def _rename(self, database: int, words: Sequence[bytes]) -> None:
        if len(words) > 2 and words[1] != words[2]:
            self._put((database, words[1]), (database, words[2]), keeps=False)

    def _copy(self, database: int, words: Sequence[bytes]) -> None:
        there = database
        for option, number in pairwise(words[3:]):
            if option.lower() == _DB_OPTION and number.isdigit():
                there = int(number)
        if len(words) > 2 and (database, words[1]) != (there, words[2]):
            self._put((database, words[1]), (there, words[2]), keeps=True)

    def _move(self, database: int, words: Sequence[bytes]) -> None:
        if len(words) > 2 and words[2].isdigit():
            self._put((database, words[1]), (int(words[2]), words[1]), keeps=False)

    def _flush(self, database: int, words: Sequence[bytes]) -> None:
        everywhere = words[0].lower() == b"flushall"
        self._keys = {
            place: key
            for place, key in self._keys.items()
            if not everywhere and place[0] != database
        }

    def _swap(self, database: int, words: Sequence[bytes]) -> None:
        if len(words) > 2 and words[1].isdigit() and words[2].isdigit():
            one, other = int(words[1]), int(words[2])
            places = {one: other, other: one}
            self._keys = {
                (places.get(number, number), name): key
                for (number, name), key in self._keys.items()
            }

    def _restore(self, database: int, words: Sequence[bytes]) -> None:
        if len(words) < 4:
            return
        kind = words[3][0] if words[3] else 0
        self._keys.pop((database, words[1]), None)
        if kind in OTHER_TYPES:
            what = OTHER_TYPES[kind].partition(" ")[2].replace("sorted set", "zset")
            self._make(what, (database, words[1]), words)

    def _function(self, database: int, words: Sequence[bytes]) -> None:
        if len(words) > 2 and words[1].lower() == b"load":
            self._tell_passed(Passed("functions", library_name(words[-1]), len(words[-1])))
