"""How far streams have been read: the offsets that Spark keeps in its checkpoint.

A position is the id of the last entry read and the facts by which a reader can notice later that
something is missing: how many entries had been added up to that id, and which incarnation of the
stream it was. As JSON: `{"streams": {"sensor:7": {"id": "17-0", "added": 12, "incarnation": 3}}}`.
More than `PLAIN_MAX` streams are packed (`packing`): `{"streams": [1, 20000, "...", "..."]}`.

The first batch of a query starts where `initialOffset` said. When the process dies in the middle of
that batch, Spark asks for the initial offset a second time, and *latest* is somewhere else by then.
So the end of the first batch also holds the beginning, as `"from"`.

A batch that is repeated after a crash must have the same rows in the same partitions, for the sink
knows a row by its place. So its end also holds how it was to be divided, as `"divided"`; options
that were changed before the restart hold from the next batch on.

Keys that are not UTF-8 become lone surrogates, which JSON writes as escapes and gives back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millstream.ids import parse
from millstream.pipeline.packing import PackError, pack, unpack
from millstream.pipeline.selection import time_ms

Id = tuple[int, int]

LARGEST = (1 << 64) - 1
FIRST: Id = (0, 0)
# Offsets of at most this many streams can be read by people, in Spark's pages and the checkpoint.
PLAIN_MAX = 100


class PositionError(ValueError):
    """Offsets that are not what they should be; says which."""


class Position(NamedTuple):
    """The last entry read of one stream; `added` entries had been added up to it (None: not
    known)."""

    id: Id
    added: int | None
    incarnation: int

    def is_ahead_of(self, added: int) -> bool:
        """Whether more had been added up to here than a stream says that it ever had: then it is an
        older copy of what was read."""
        return self.added is not None and self.added > added


Positions = dict[bytes, Position]


class Division(NamedTuple):
    """Into what partitions entries are divided, as the options `minPartitions` and
    `maxEntriesPerPartition` say it; 0: as the planner thinks best."""

    partitions_min: int = 0
    entries_max: int = 0


BEST = Division()


@dataclass
class Offset:
    """Where each stream stands at the end of a batch. `is_initial`: no batch has ended here;
    `begin`: where the first batch began; `division`: how this batch is divided."""

    streams: Positions
    is_initial: bool = False
    begin: Positions | None = field(default=None)
    division: Division = BEST

    def to_json(self) -> dict[str, Any]:
        """What Spark keeps. Equal offsets are equal texts: Spark compares those."""
        made: dict[str, Any] = {"streams": _to_json(self.streams)}
        if self.is_initial:
            made["initial"] = True
        if self.begin is not None:
            made["from"] = _to_json(self.begin)
        if self.division != BEST:
            made["divided"] = list(self.division)
        return made

    @classmethod
    def from_json(cls, made: Mapping[str, Any]) -> Offset:
        """PositionError when it is no offset of this source."""
        begin = made.get("from")
        return cls(
            _from_json(made["streams"]),
            bool(made.get("initial")),
            None if begin is None else _from_json(begin),
            Division(*made.get("divided", BEST)),
        )


def key_text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def key_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def id_text(id_: Id) -> str:
    return f"{id_[0]}-{id_[1]}"


def id_from_text(text: str | bytes) -> Id:
    """The id, whichever separator it is written with. ValueError when it is none."""
    return parse(text.encode() if isinstance(text, str) else text)


def before(id_: Id) -> Id:
    """The greatest id below this one; 0-0 is below all entries."""
    ms, seq = id_
    if seq:
        return ms, seq - 1
    return (ms - 1, LARGEST) if ms else FIRST


def named_positions(text: str) -> dict[bytes, Id | str]:
    """What a user writes as `startingOffsets` or `endingOffsets`: for each key an id, `"earliest"`
    or `"latest"`; or, out of a checkpoint, an object with an `id`, or a whole offset."""
    try:
        made = json.loads(text)
        if _is_offset(made):
            return {key: at.id for key, at in Offset.from_json(made).streams.items()}
        return {key_bytes(key): _named_position(value) for key, value in made.items()}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise PositionError(
            f'not a JSON object of keys and ids such as {{"sensor:7": "1700000000000-0"}}: {error}'
        ) from error


def named_times(text: str, is_end: bool) -> dict[bytes, int]:
    """What a user writes as `startingOffsetsByTimestamp` or `endingOffsetsByTimestamp`: for each
    key milliseconds since 1970, or a time as ISO text."""
    try:
        made = json.loads(text)
        return {key_bytes(key): _named_time(value, is_end) for key, value in made.items()}
    except (ValueError, AttributeError) as error:
        raise PositionError(
            f'not a JSON object of keys and times such as {{"sensor:7": 1700000000000}}: {error}'
        ) from error


def _named_time(value: Any, is_end: bool) -> int:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    ms = time_ms(str(value), is_end) if is_number or isinstance(value, str) else None
    if ms is None:
        raise ValueError(f"{json.dumps(value)} is not a time")
    return ms


def _is_offset(made: Any) -> bool:
    """Whether this is a whole offset, and not a stream that is called `streams`."""
    streams = made.get("streams")
    if isinstance(streams, dict):
        return all(isinstance(at, dict) for at in streams.values())
    return isinstance(streams, list)


def _named_position(value: Any) -> Id | str:
    if value in ("earliest", "latest"):
        return str(value)
    return id_from_text(value["id"] if isinstance(value, dict) else value)


def _to_json(positions: Positions) -> dict[str, Any] | list[Any]:
    if len(positions) > PLAIN_MAX:
        keys = tuple(sorted(positions))
        ats = [positions[key] for key in keys]
        return pack(keys, [(*at.id, at.added, at.incarnation) for at in ats])
    return {
        key_text(key): {"id": id_text(at.id), "added": at.added, "incarnation": at.incarnation}
        for key, at in sorted(positions.items())
    }


def _from_json(made: Mapping[str, Any] | Sequence[Any]) -> Positions:
    if isinstance(made, Mapping):
        return {
            key_bytes(key): Position(id_from_text(at["id"]), at["added"], at["incarnation"])
            for key, at in made.items()
        }
    try:
        keys, rows = unpack(made)
    except PackError as error:
        raise PositionError(f"an offset of the checkpoint cannot be read: {error}") from error
    return {
        key: Position((ms, seq), added, incarnation)
        for key, (ms, seq, added, incarnation) in zip(keys, rows, strict=True)
    }
