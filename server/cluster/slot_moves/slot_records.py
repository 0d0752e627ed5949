"""The records that only the links of moving slots send (`replication/records`).

| record | payload |
|---|---|
| SLOT_PIECE | effects: a part of a slot as it was after the frame of this number |
| FRAME | the effects of a frame on the slots that are complete; perhaps none |
| SLOTS_COPIED | a frame and a slot: the slots up to this one are complete, as after this frame |
| SLOTS_BEAT | the bytes of frames that are not acknowledged yet; -1: not known |
| SLOTS_LEFT | the number of the frame with LEAVE, and the round in which it was asked for |
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from millstream.server.replication.records import LinkError, RecordKind, encode

_COPIED = struct.Struct("<QI")
_BEAT = struct.Struct("<q")
_LEFT = struct.Struct("<QQ")


class Place(NamedTuple):
    """The state of a copy: all frames up to `number`, in this line of history of the source, and
    the slots up to `slot` (-1: none)."""

    history: str
    number: int
    slot: int


class Complete(NamedTuple):
    number: int
    slot: int


class Left(NamedTuple):
    """The number of the frame with LEAVE, and the round in which it was asked for."""

    number: int
    round: int


def encode_copied(number: int, slot: int, term: int) -> bytes:
    return encode(0, RecordKind.SLOTS_COPIED, _COPIED.pack(number, slot), term)


def encode_missing(missing_bytes: int | None, term: int) -> bytes:
    missing = -1 if missing_bytes is None else missing_bytes
    return encode(0, RecordKind.SLOTS_BEAT, _BEAT.pack(missing), term)


def encode_left(left: Left, term: int) -> bytes:
    return encode(0, RecordKind.SLOTS_LEFT, _LEFT.pack(*left), term)


def _unpack(form: struct.Struct, payload: bytes) -> Sequence[int]:
    if len(payload) != form.size:
        raise LinkError(f"a record about slots of {len(payload)} bytes")
    return form.unpack(payload)


def parse_copied(payload: bytes) -> Complete:
    return Complete(*_unpack(_COPIED, payload))


def parse_missing(payload: bytes) -> int | None:
    [missing] = _unpack(_BEAT, payload)
    return None if missing < 0 else missing


def parse_left(payload: bytes) -> Left:
    return Left(*_unpack(_LEFT, payload))
