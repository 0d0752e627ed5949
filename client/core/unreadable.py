"""Dead letters: entries that no reader of a group could handle.

The server copies them to a dead letter stream, and a reader with a codec those that do not fit. A
copy has the fields of the entry, followed by facts about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from millstream.client.core.words import text
from millstream.client.errors import InvalidPosition
from millstream.client.ids import EPOCH, ID
from millstream.client.records import Record
from millstream.client.rows import DeadLetter

FIELDS = (
    *("dead_stream", "dead_id", "dead_group", "dead_consumer", "dead_deliveries"),
    *("dead_reason", "dead_text", "dead_time", "dead_hops"),
)
"""The last fields of a dead letter."""
HOPS_MAX = 8
"""As for the server: this ends cycles of dead letter streams."""
REASON_MAX_BYTES = 1024
INVALID = "invalid"
"""`dead_reason`: the entry is not what a reader expects."""


def hops_of(record: Record[Any]) -> int:
    """The number of times that a record was copied as a dead letter; 0 if it is none."""
    last = record.pairs[-len(FIELDS) :]
    if tuple(text(name) for name, _ in last) != FIELDS:
        return 0
    hops = text(last[-1][1])
    return int(hops) if hops.isascii() and hops.isdigit() else 0


def letter_of(record: Record[Any], group: str, reason: str, now_s: float) -> list[Any]:
    """The fields and values of the copy of a record that a reader does not understand."""
    why = reason.encode("utf-8", "backslashreplace")[:REASON_MAX_BYTES].decode("utf-8", "ignore")
    hops = hops_of(record)
    own: Sequence[Any] = record.pairs[: -len(FIELDS)] if hops else record.pairs
    place = f"{record.id.ms}-{record.id.seq}"
    facts = (record.shard, place, group, "", 1, INVALID, why, int(now_s * 1000), hops + 1)
    return [word for pair in (*own, *zip(FIELDS, facts, strict=True)) for word in pair]


def read_letter(entry: Record[Any]) -> DeadLetter[Any] | None:
    """The dead letter in an entry; None for another entry."""
    if not hops_of(entry):
        return None
    pairs = entry.pairs
    facts = [text(value) for _, value in pairs[-len(FIELDS) :]]
    stream, place, group, consumer, deliveries, reason, why, time_ms, hops = facts
    try:
        entry_id = ID.parse(place)
        died_at = EPOCH + timedelta(milliseconds=int(time_ms))
        numbers = int(deliveries), int(hops)
    except (InvalidPosition, ValueError, OverflowError):
        return None
    words = [place, *(word for pair in pairs[: -len(FIELDS)] for word in pair)]
    record: Record[Any] = Record(entry_id, stream, words)
    return DeadLetter(
        entry.id, record, group, consumer, numbers[0], reason, why, died_at, numbers[1]
    )
