"""A stream's place as a small dict for `json`.

    {"v": 1, "shards": {"orders:0": {"at": "1795170387725.3", "in": 1838511447146496}}}

| in the entry of a shard | |
|---|---|
| `at` | the ID after which to continue |
| `in` | the incarnation of the key that `at` belongs to; absent if it is not known |
| `fresh` | true while nothing was read yet: what is evicted before the first read is not lost |
| `end`, `children` | the final ID of a sealed shard, and the names of the shards after it |
| `done` | for a shard that was read to its end: which shards it continues in now |
| `parents` | with `done`, if the shard was read before shards that it continues: those shards |

`keys`, next to `shards`, has what their parents call those children that have a name of their own.
`since` is the place of a time that the stream began at, until every shard has passed it: nothing
below it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.client.errors import InvalidPosition
from millstream.client.ids import BEGINNING, ID

VERSION = 1


@dataclass(frozen=True, slots=True)
class Place:
    """The progress in a shard."""

    at: ID
    incarnation: int | None = None
    fresh: bool = False
    end: ID | None = None
    children: tuple[str, ...] = ()

    def dump(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"at": str(self.at)}
        if self.incarnation is not None:
            entry["in"] = self.incarnation
        if self.fresh:
            entry["fresh"] = True
        if self.end is not None:
            entry["end"] = str(self.end)
            entry["children"] = list(self.children)
        return entry

    @classmethod
    def load(cls, name: str, entry: Mapping[str, Any]) -> Place:
        check(set(entry) <= {"at", "in", "fresh", "end", "children"}, name, "unknown members")
        incarnation = entry.get("in")
        check(incarnation is None or type(incarnation) is int, name, "'in' is not a number")
        check(isinstance(entry.get("fresh", False), bool), name, "'fresh' is not a boolean")
        check(("end" in entry) == ("children" in entry), name, "'end' goes with 'children'")
        return cls(
            read_place(name, entry.get("at")),
            incarnation,
            entry.get("fresh", False),
            read_place(name, entry["end"]) if "end" in entry else None,
            read_names(name, entry.get("children", [])),
        )


@dataclass(frozen=True, slots=True)
class Token:
    """The places of shards that are still read, and what became of those that were read."""

    places: Mapping[str, Place]
    done: Mapping[str, tuple[str, ...]]
    early: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For shards that are done although a shard before them is not: those before."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """For shards with a name of their own: what their parents call them."""
    since: ID = BEGINNING

    def names(self) -> set[str]:
        return {*self.places, *self.done}

    def children(self, name: str) -> tuple[str, ...]:
        """The shards after this one, as far as the token knows."""
        if name in self.done:
            return self.done[name]
        return self.places[name].children if name in self.places else ()

    def dump(self) -> dict[str, Any]:
        shards: dict[str, Any] = {name: place.dump() for name, place in self.places.items()}
        for name, names in self.done.items():
            shards[name] = {"done": list(names)}
            if name in self.early:
                shards[name]["parents"] = list(self.early[name])
        keys = {"keys": dict(self.keys)} if self.keys else {}
        since = {"since": str(self.since)} if self.since > BEGINNING else {}
        return {"v": VERSION, "shards": shards, **keys, **since}

    @classmethod
    def load(cls, token: Mapping[Any, Any]) -> Token:
        """Check and read a token; InvalidPosition if it is not one."""
        version = token.get("v")
        if type(version) is not int:
            raise InvalidPosition("the token is malformed: it has no version 'v'")
        if version != VERSION:
            raise InvalidPosition(
                f"the token has version {version}; this client reads versions {VERSION} and 2"
            )
        shards = token.get("shards")
        if not isinstance(shards, Mapping) or not shards:
            raise InvalidPosition("the token is malformed: it has no map of 'shards'")
        if not set(token) <= {"v", "shards", "keys", "since"}:
            raise InvalidPosition("the token is malformed: it has unknown members")
        places: dict[str, Place] = {}
        done: dict[str, tuple[str, ...]] = {}
        early: dict[str, tuple[str, ...]] = {}
        for name, entry in shards.items():
            check(isinstance(name, str), name, "a name must be text")
            check(isinstance(entry, Mapping), name, "its entry is not a map")
            if "done" not in entry:
                places[name] = Place.load(name, entry)
                continue
            check(set(entry) <= {"done", "parents"}, name, "unknown members")
            done[name] = read_names(name, entry["done"])
            if "parents" in entry:
                early[name] = read_names(name, entry["parents"])
        since = read_place("since", token["since"]) if "since" in token else BEGINNING
        return cls(places, done, early, read_keys(token.get("keys", {})), since)


def check(holds: bool, name: object, fault: str) -> None:
    if not holds:
        raise InvalidPosition(f"the token is malformed at the shard {name!r}: {fault}")


def read_place(name: str, value: object) -> ID:
    check(isinstance(value, str), name, "an ID is missing or not text")
    try:
        return ID.parse(str(value))
    except InvalidPosition as error:
        raise InvalidPosition(f"the token is malformed at the shard {name!r}: {error}") from None


def read_keys(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(
        isinstance(word, str) for pair in value.items() for word in pair
    ):
        raise InvalidPosition("the token is malformed: 'keys' is not a map of texts")
    return dict(value)


def read_names(name: str, value: object) -> tuple[str, ...]:
    check(
        isinstance(value, list | tuple) and all(isinstance(child, str) for child in value),
        name,
        "the names of other shards are not a list of texts",
    )
    return tuple(value)  # type: ignore[arg-type]
