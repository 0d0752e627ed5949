"""Positions of streams: the offsets that Spark keeps in its checkpoint.

A position is the ID of the last entry read, with two values that reveal lost entries later: the
number of entries added up to that ID, and the incarnation of the stream. As JSON: `{"streams":
{"sensor:7": {"id": "17-0", "added": 12, "incarnation": 3}}}`. More than `PLAIN_MAX` streams are
packed (`packing`): `{"streams": [1, 20000, "...", "..."]}`.

The first batch of a query starts at the result of `initialOffset`. If the process dies during that
batch, Spark requests the initial offset again, and *latest* has changed since. Therefore the end of
the first batch also contains its beginning, as `"from"`.

A batch that is repeated after a crash must have the same rows in the same partitions, because the
sink identifies a row by its position. Therefore the end of a batch also contains its division, as
`"divided"`. Options that changed before the restart apply from the next batch on.

Keys that are not UTF-8 become lone surrogates, which JSON preserves as escapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millstream.ids import parse
from millstream.pipeline.selection import time_ms

Id = tuple[int, int]

LARGEST = (1 << 64) - 1
FIRST: Id = (0, 0)
# Offsets of up to this number of streams are readable, in Spark's pages and in the checkpoint.
PLAIN_MAX = 100


class PositionError(ValueError):
    """Invalid offsets. The text says which."""


class Position(NamedTuple):
    """The last entry read of one stream; `added` entries had been added up to it (None:
    unknown)."""

    id: Id
    added: int | None
    incarnation: int

    def is_ahead_of(self, added: int) -> bool:
        """True if more entries had been added up to this position than the stream has ever had. If
        so, the stream is an older copy of the stream that was read."""
        return self.added is not None and self.added > added


Positions = dict[bytes, Position]


class Division(NamedTuple):
    """The division of entries into partitions: the options `minPartitions` and
    `maxEntriesPerPartition`; 0 means the planner's default. `by_slot`: 1 if streams are in the
    order of their slots in a cluster, so that most tasks read from one node."""

    partitions_min: int = 0
    entries_max: int = 0
    by_slot: int = 0


BEST = Division()


@dataclass
class Offset:
    """The position of each stream at the end of a batch. `is_initial`: no batch has ended here;
    `begin`: where the first batch began; `division`: how this batch is divided."""

    streams: Positions
    is_initial: bool = False
    begin: Positions | None = field(default=None)
    division: Division = BEST

    def to_json(self) -> dict[str, Any]:
        """The text that Spark stores. Equal offsets must give equal texts, because Spark compares
        the texts."""
        made: dict[str, Any] = {"streams": _to_json(self.streams)}
        if self.is_initial:
            made["initial"] = True
        if self.begin is not None:
            made["from"] = _to_json(self.begin)
        if self.division != BEST:
            made["divided"] = list(self.division if self.division.by_slot else self.division[:2])
        return made

    @classmethod
    def from_json(cls, made: Mapping[str, Any]) -> Offset:
        """PositionError when the value is not an offset of this source."""
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
    """The ID of a text with either separator. ValueError when the text is not an ID."""
    return parse(text.encode() if isinstance(text, str) else text)


def named_positions(text: str) -> dict[bytes, Id | str]:
    """Parse the option `startingOffsets` or `endingOffsets`: for each key an ID, `"earliest"`,
    `"latest"` or an object with an `id`, as in a checkpoint; or a whole offset of a checkpoint."""
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
    """Parse the option `startingOffsetsByTimestamp` or `endingOffsetsByTimestamp`: for each key
    milliseconds since 1970, or a time in ISO 8601."""
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
    """True for a whole offset, and not positions with a stream named `streams`."""
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
        from millstream.pipeline.packing import pack  # imports numpy

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
    from millstream.pipeline.packing import PackError, unpack

    try:
        keys, rows = unpack(made)
    except PackError as error:
        raise PositionError(f"an offset of the checkpoint cannot be read: {error}") from error
    return {
        key: Position((ms, seq), added, incarnation)
        for key, (ms, seq, added, incarnation) in zip(keys, rows, strict=True)
    }
