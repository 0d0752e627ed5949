"""Replies as IDs, records, rows and dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.client.core.words import Key, text
from millstream.client.ids import ID, read_id
from millstream.client.records import Record, RecordReader
from millstream.client.rows import Redriven, Row, Scheduled, WriterPosition


def read_id_or_none(reply: str | bytes | None) -> ID | None:
    return None if reply is None else read_id(reply)


def record_reader(key: Key) -> Any:
    """A reader of entries; a null, for entries that no longer exist, stays None."""
    shard = text(key)

    def read(reply: list[Any] | None) -> list[Record[Any] | None]:
        entries = reply or []
        found = iter(RecordReader().read(shard, [e for e in entries if e is not None]))
        return [None if entry is None else next(found) for entry in entries]

    return read


def read_row(row: Sequence[Any]) -> Row[Any]:
    key, prev, following, entries, ended, incarnation = row
    found = record_reader(key)(entries)
    return Row(key, read_id(prev), read_id(following), found, bool(ended), incarnation)


def read_map(reply: Any) -> dict[str, Any]:
    """A map: a dict in RESP3, a flat list in RESP2."""
    if not isinstance(reply, Mapping):
        reply = dict(zip(reply[::2], reply[1::2], strict=True))
    return {text(name): value for name, value in reply.items()}


def read_map_or_none(reply: Any) -> dict[str, Any] | None:
    return None if reply is None else read_map(reply)


INFO_IDS = [
    "first-id",
    "last-id",
    "max-evicted-id",
    "handed-out-id",
    "oldest-reservation",
    "promised-id",
    "held-id",
]


def read_info(reply: Any) -> dict[str, Any] | None:
    if reply is None:
        return None
    found = read_map(reply)
    for name in INFO_IDS:
        if name in found:
            found[name] = read_id_or_none(found[name])
    if found.get("policy") is not None:
        found["policy"] = read_policy(found["policy"])
    found["sealed"] = bool(found.get("sealed"))
    return found


def read_blocks(reply: Any) -> dict[str, Any] | None:
    """A page of TBLOCKS. Blocks are bytes, even on a connection that decodes replies."""
    if reply is None:
        return None
    found = read_map(reply)
    for name in ("first-id", "last-id", "next-id", "max-evicted-id"):
        found[name] = read_id_or_none(found[name])
    found["blocks"] = [
        block if isinstance(block, bytes) else block.encode("utf-8", "surrogateescape")
        for block in found["blocks"]
    ]
    return found


def read_policy(reply: Any) -> dict[str, Any] | None:
    if reply is None:
        return None
    return {
        name: text(value) if isinstance(value, bytes) else value
        for name, value in read_map(reply).items()
    }


def read_writers(reply: list[Any]) -> list[WriterPosition[Any]]:
    return [
        WriterPosition(name, read_id(position), read_id(last), open_ids, read_id_or_none(oldest))
        for name, position, last, open_ids, oldest in reply
    ]


def read_redriven(reply: list[Any]) -> Redriven:
    last, *numbers = reply
    return Redriven(None if last is None else read_id(last), *map(int, numbers))


def read_scheduled(reply: list[Any]) -> list[Scheduled[Any]]:
    return [
        Scheduled(read_id(ticket), name, dict(zip(words[::2], words[1::2], strict=True)))
        for ticket, name, *words in reply
    ]


def read_reply(reply: Any, read: Any = None, **_: Any) -> Any:
    """A callback of redis-py for the replies of a command of NAMES."""
    return reply if read is None else read(reply)
