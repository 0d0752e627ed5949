"""Tokens of streams with many shards, in little space.

    {"v": 2, "at": "1795170387725.3", "next": "orders:17", "shards": "eNql..", "places": {..}}

In strict order one ID is the place of nearly all shards: all records up to it were returned. A
shard that is idle is further, but has no entry in between, so it can continue there as well.

| member | |
|---|---|
| `at` | the ID after which the shards continue |
| `next` | the shard whose record with the ID `at` is next, if there is one: this shard, and those after it in the order of their names, continue just below `at` |
| `shards` | the names and incarnations of the shards, and `done` and `keys`, as compressed JSON in base64. It changes when a shard is replaced |
| `places` | the shards with another place: their entries as in version 1, without the incarnation. Compressed, too, if there are many |
| `since` | as in version 1 |

The token of a few shards has version 1 (see `token`), which is easier to read.
"""  # noqa: E501

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any

from millstream.client.core.merge import FETCHED, Merge
from millstream.client.core.shard_order import ShardOrder
from millstream.client.core.shards import ShardState
from millstream.client.core.token import VERSION, Place, Token, read_place
from millstream.client.errors import InvalidPosition
from millstream.client.ids import BEGINNING, ID, just_below

PACKED_VERSION = 2
PACKED_FROM = 32
"""Streams with at least this many shards have packed tokens."""
PLAIN_PLACES_MAX = 16
UNPACKED_MAX_BYTES = 2**26


class TokenPacker:
    """Makes the tokens of one stream."""

    def __init__(self, packed_from: int = PACKED_FROM) -> None:
        self.packed_from = packed_from
        self._names: list[str] = []
        self._incarnations: list[int | None] = []
        self._done: object = None
        self._keys = -1
        self._shards = ""

    def token(self, lineage: ShardOrder, merge: Merge, greatest: ID) -> dict[str, Any]:
        """The token of a stream. `greatest` is the ID of the greatest record that was returned."""
        states = lineage.states
        # The gap of a deleted shard, which its children still have to report, is rare.
        if len(states) < self.packed_from or lineage.carried:
            return lineage.token().dump()
        top = merge.heap[0] if merge.strict and merge.heap else None
        name: str | None = None
        if top is not None and top[0] >= greatest:
            # No shard has anything below its bound, and no bound is below this one.
            at, kind, name, _ = top
            if kind == FETCHED:
                name = None
            others = elsewhere(states.values(), at, name)
        else:
            bounds = [bound for s in states.values() if (bound := bound_of(s)) >= greatest]
            at = min(bounds, default=BEGINNING)
            slower = [s for s in states.values() if bound_of(s) < at]
            others = list(dict.fromkeys([*slower, *elsewhere(states.values(), at, None)]))
        found = {state.name: state.found() for state in others}
        token: dict[str, Any] = {"v": PACKED_VERSION, "at": str(at)}
        if name is not None:
            token["next"] = name
        token["shards"] = self._packed_shards(lineage)
        if found:
            places = {shard: without_incarnation(place) for shard, place in found.items()}
            token["places"] = places if len(places) <= PLAIN_PLACES_MAX else packed(places)
        passed = at > lineage.since and all(place.at > lineage.since for place in found.values())
        if not passed and lineage.since > BEGINNING:
            token["since"] = str(lineage.since)
        return token

    def _packed_shards(self, lineage: ShardOrder) -> str:
        """The part that changes only when a shard is replaced."""
        names = list(lineage.states)
        incarnations = [state.place_incarnation for state in lineage.states.values()]
        done = lineage.done_for_token()
        if (
            done is not self._done
            or len(lineage.keys) != self._keys
            or incarnations != self._incarnations
            or names != self._names
        ):
            self._names, self._incarnations = names, incarnations
            self._done, self._keys = done, len(lineage.keys)
            finished = Token({}, *done, lineage.keys).dump()
            self._shards = packed(
                {
                    "names": names,
                    "in": differences(incarnations),
                    "done": finished["shards"],
                    "keys": finished.get("keys", {}),
                }
            )
        return self._shards


def elsewhere(states: Iterable[ShardState], at: ID, following: str | None) -> list[ShardState]:
    """The shards whose place differs from that of most shards, and those that have more than a
    place. `following` is the shard whose record with the ID `at` is next."""
    below = just_below(at)
    found = [
        state
        for state in states  # in one expression, because there may be many
        if state.anchor > below
        or state.last is not None
        or state.children is not None
        or state.gaps
        or state.fresh
        or state.parents
    ]
    return [state for state in found if is_elsewhere(state, at, following)]


def is_elsewhere(state: ShardState, at: ID, following: str | None) -> bool:
    if state.last is not None:
        state.note_place()
    is_next = following is not None and state.name >= following
    if state.anchor > at or (state.anchor == at and is_next):
        return True
    return bool(state.children is not None or state.gaps or state.fresh or state.parents)


def bound_of(state: ShardState) -> ID:
    """Everything up to this ID was returned, and nothing more comes up to it."""
    return just_below(state.buffer[0].id) if state.buffer else state.fetched


def without_incarnation(place: Place) -> dict[str, Any]:
    entry = place.dump()
    entry.pop("in", None)
    return entry


def differences(numbers: list[int | None]) -> list[int | None]:
    """The first number, and each other one as the difference from the one before."""
    before = 0
    found: list[int | None] = []
    for number in numbers:
        found.append(None if number is None else number - before)
        before = before if number is None else number
    return found


def sums(numbers: list[Any]) -> list[int | None]:
    """The numbers of `differences`."""
    before = 0
    found: list[int | None] = []
    for number in numbers:
        before += number or 0
        found.append(None if number is None else before)
    return found


def packed(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"))
    return b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked(text: Any) -> Any:
    """The value of `packed`. ValueError if the text is something else."""
    if not isinstance(text, str):
        raise ValueError("it is not text")
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(b64decode(text, validate=True), UNPACKED_MAX_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not reader.eof:
        raise ValueError("it is cut off, or too long")
    return json.loads(data)


def load_token(token: Mapping[Any, Any]) -> Token:
    """Check and read a token of any version; InvalidPosition if it is not one."""
    return Token.load(plain(token) if token.get("v") == PACKED_VERSION else token)


def plain(token: Mapping[Any, Any]) -> dict[str, Any]:
    """A packed token in the form of version 1, which is checked later."""
    if not set(token) <= {"v", "at", "next", "shards", "places", "since"}:
        raise InvalidPosition("the token is malformed: it has unknown members")
    shards = unpacked_member(token, "shards")
    places = token.get("places", {})
    if isinstance(places, str):
        places = unpacked_member(token, "places")
    names, incarnations = shards.get("names"), shards.get("in")
    finished, following = shards.get("done", {}), token.get("next", "")
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or not isinstance(incarnations, list)
        or len(names) != len(incarnations)
        or not all(number is None or type(number) is int for number in incarnations)
        or not isinstance(places, Mapping)
        or not isinstance(finished, Mapping)
        or not isinstance(following, str)
        or not set(places) <= set(names)
        or not all(isinstance(entry, Mapping) for entry in places.values())
    ):
        raise InvalidPosition("the token is malformed: its shards and places are not valid")
    at = read_place("at", token.get("at"))
    below = just_below(at) if "next" in token else at
    found: dict[str, Any] = {}
    for name, incarnation in zip(names, sums(incarnations), strict=True):
        entry = dict(places.get(name, {"at": str(at if name < following else below)}))
        if incarnation is not None:
            entry["in"] = incarnation
        found[name] = entry
    since = {"since": token["since"]} if "since" in token else {}
    keys = {"keys": shards["keys"]} if shards.get("keys") else {}
    return {"v": VERSION, "shards": {**found, **finished}, **keys, **since}


def unpacked_member(token: Mapping[Any, Any], member: str) -> dict[str, Any]:
    try:
        value = unpacked(token.get(member))
    except ValueError as error:
        raise InvalidPosition(f"the token is malformed: '{member}': {error}") from None
    if not isinstance(value, dict):
        raise InvalidPosition(f"the token is malformed: '{member}' is not a map")
    return value
