"""The values in the store of a cluster, as JSON objects.

| name | record |
|---|---|
| `config` | Format: the version of these formats |
| `map` | SlotRanges: which shard owns which slots |
| `shard/s1` | ShardRecord |
| `lease/s1` | Holder: the primary, while it has its lease |
| `node/ID` | NodeRecord: a node that runs; bound to its lease |
| `secret` | no record: the text with which nodes log in at each other |
| `election/s1` | Holder: a candidate; bound to its lease |
| `change/s1` | ShardChange: an order to the primary; bound to the lease of who gives it |
| `move/ID` | MoveRecord: slots that move to another shard |
| `lock/backup` | no record: a backup is made, and no slot is handed over; bound to its lease |
| `users` | no record: the lines of an aclfile |

Unknown fields are ignored, so that later versions can add some.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from millstream.server.config.store_directives import SHARD_NAME
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS
from millstream.storage.keyspace.slot_ranges import checked_ranges

VERSION = 1
CONFIG, MAP, USERS, SECRET = "config", "map", "users", "secret"
SHARD, LEASE, NODE, ELECTION = "shard/", "lease/", "node/", "election/"
CHANGE, MOVE = "change/", "move/"
LOCK = "lock/"
BACKUP_LOCK = LOCK + "backup"
TERM_MAX = (1 << 63) - 1
MEMBERS_MAX = 16
TEXT_MAX = 300  # letters
MOVED_RANGES_MAX = 1024  # of one move
NODE_ID = re.compile("[0-9a-f]{40}")


class RecordError(Exception):
    """A value in the store is wrong; the text names it."""


class Format(NamedTuple):
    """The version of the formats."""

    version: int


class SlotRanges(NamedTuple):
    """First slot, last slot and shard of each range, in order. The epoch counts the changes."""

    epoch: int
    ranges: tuple[tuple[int, int, str], ...]


class ShardRecord(NamedTuple):
    """A shard: its ID; the term and its primary ("": none was chosen yet); the IDs of its members;
    how many members it is to have, and how many in addition to the primary must have a write."""

    id: str
    term: int
    primary: str
    members: tuple[str, ...]
    size: int
    durable: int


class ShardChange(NamedTuple):
    """Nodes that are to join and to leave a shard, or ""."""

    add: str
    remove: str


class Step(StrEnum):
    """The state of a move; the last three are its ends."""

    PLANNED = "planned"
    COPYING = "copying"
    HANDING = "handing"
    MOVED = "moved"
    DONE = "done"
    CANCELED = "canceled"
    FAILED = "failed"


class MoveRecord(NamedTuple):
    """A move of slots, as ranges in order, from one shard to another. `terms` are those of the two
    shards when its step was written. `reason` says why it has failed, why its last hand-over
    has, or why the copy waits; `retries` counts the hand-overs that have failed. Times are those of
    the clock in ms; 0: not yet. `is_forced`: an operator says that the target is lost, and the
    source serves the slots again without its answer."""

    slots: tuple[tuple[int, int], ...]
    source: str
    target: str
    step: Step
    created_ms: int
    terms: tuple[int, int] = (0, 0)
    reason: str = ""
    retries: int = 0
    begun_ms: int = 0
    handed_ms: int = 0
    moved_ms: int = 0
    ended_ms: int = 0
    is_forced: bool = False


class Holder(NamedTuple):
    """The primary with the lease, or a candidate, and its term."""

    node: str
    term: int


class NodeRecord(NamedTuple):
    """A node: the address at which others reach it; the shard of which it is a member, or "".
    `is_ahead`: it has seen a later state of the store, and ignores this one."""

    host: str
    port: int
    tls_port: int
    hostname: str
    zone: str
    version: str
    shard: str
    is_ahead: bool = False


Record = TypeVar(
    "Record", Format, SlotRanges, ShardRecord, ShardChange, MoveRecord, Holder, NodeRecord
)


def encode(
    record: Format | SlotRanges | ShardRecord | ShardChange | MoveRecord | Holder | NodeRecord,
) -> bytes:
    return json.dumps(record._asdict(), separators=(",", ":")).encode()


def decode(kind: type[Record], data: bytes, name: str) -> Record:
    """The record of this kind in a value with this name. RecordError if it is wrong."""
    return _DECODERS[kind](_Fields(name, data))  # type: ignore[no-any-return]


# The fields of each kind


def _format(fields: _Fields) -> Format:
    version = fields.number("version", 1)
    if version != VERSION:
        raise RecordError(
            f"{fields.name} in etcd has version {version}, which this program does not know"
        )
    return Format(version)


def _slot_ranges(fields: _Fields) -> SlotRanges:
    ranges = []
    after = 0
    for row in fields.items("ranges", CLUSTER_SLOTS):
        if not (isinstance(row, list) and list(map(type, row)) == [int, int, str]):
            raise fields.wrong("ranges")
        first, last, shard = row
        if not (after <= first <= last < CLUSTER_SLOTS and _fits(SHARD_NAME, shard)):
            raise fields.wrong("ranges")
        after = last + 1
        ranges.append((first, last, shard))
    return SlotRanges(fields.number("epoch", 1), tuple(ranges))


def _shard(fields: _Fields) -> ShardRecord:
    members = fields.items("members", MEMBERS_MAX)
    primary = fields.text("primary")
    if not all(_fits(NODE_ID, one) for one in members) or len(set(members)) < len(members):
        raise fields.wrong("members")
    if primary and primary not in members:
        raise fields.wrong("primary")
    size = fields.number("size", 1, MEMBERS_MAX)
    return ShardRecord(
        fields.matching("id", NODE_ID),
        fields.number("term", 0),
        primary,
        tuple(members),
        size,
        fields.number("durable", 0, size - 1),
    )


def _change(fields: _Fields) -> ShardChange:
    nodes = fields.text("add"), fields.text("remove")
    for field, node in zip(("add", "remove"), nodes, strict=True):
        if node and not _fits(NODE_ID, node):
            raise fields.wrong(field)
    return ShardChange(*nodes)


def _move(fields: _Fields) -> MoveRecord:
    rows = fields.items("slots", MOVED_RANGES_MAX)
    if not all(isinstance(row, list) and list(map(type, row)) == [int, int] for row in rows):
        raise fields.wrong("slots")
    try:
        slots = checked_ranges(rows)
    except ValueError:
        raise fields.wrong("slots") from None
    terms = fields.items("terms", 2)
    if [type(term) for term in terms] != [int, int]:
        raise fields.wrong("terms")
    step = fields.text("step")
    if step not in list(Step):
        raise fields.wrong("step")
    return MoveRecord(
        slots,
        fields.matching("source", SHARD_NAME),
        fields.matching("target", SHARD_NAME),
        Step(step),
        fields.number("created_ms", 0),
        (terms[0], terms[1]),
        fields.text("reason"),
        **{
            name: fields.number(name, 0)
            for name in ("retries", "begun_ms", "handed_ms", "moved_ms", "ended_ms")
        },
        is_forced=fields.flag("is_forced"),
    )


def _holder(fields: _Fields) -> Holder:
    return Holder(fields.matching("node", NODE_ID), fields.number("term", 0))


def _node(fields: _Fields) -> NodeRecord:
    return NodeRecord(
        fields.text("host"),
        fields.number("port", 0, 65535),
        fields.number("tls_port", 0, 65535),
        fields.text("hostname"),
        fields.text("zone"),
        fields.text("version"),
        fields.text("shard"),
        fields.flag("is_ahead"),
    )


_DECODERS: dict[type, Callable[[_Fields], Any]] = {
    Format: _format, SlotRanges: _slot_ranges, ShardRecord: _shard,
    ShardChange: _change, MoveRecord: _move, Holder: _holder,
    NodeRecord: _node,
}  # fmt: skip


class _Fields:
    """The fields of a record; RecordError names the value and the field."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise RecordError(f"{name} in etcd is no JSON object")
        self._found: dict[str, Any] = found

    def wrong(self, field: str) -> RecordError:
        if field not in self._found:
            return RecordError(f"{self.name} in etcd has no {field}")
        shown = json.dumps(self._found[field])[:80]
        return RecordError(f"{self.name} in etcd has a wrong {field}: {shown}")

    def number(self, field: str, least: int, most: int = TERM_MAX) -> int:
        found = self._found.get(field)
        if type(found) is not int or not least <= found <= most:
            raise self.wrong(field)
        return found

    def flag(self, field: str) -> bool:
        """False without the field: earlier versions do not write it."""
        found = self._found.get(field, False)
        if not isinstance(found, bool):
            raise self.wrong(field)
        return found

    def text(self, field: str) -> str:
        found = self._found.get(field)
        if not isinstance(found, str) or len(found) > TEXT_MAX or not found.isprintable():
            raise self.wrong(field)
        return found

    def matching(self, field: str, form: re.Pattern[str]) -> str:
        found = self._found.get(field)
        if not isinstance(found, str) or not _fits(form, found):
            raise self.wrong(field)
        return found

    def items(self, field: str, most: int) -> list[Any]:
        found = self._found.get(field)
        if not isinstance(found, list) or len(found) > most:
            raise self.wrong(field)
        return found


def _fits(form: re.Pattern[str], text: object) -> bool:
    return isinstance(text, str) and form.fullmatch(text) is not None
