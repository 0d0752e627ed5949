"""The map of the slots: which shard owns which of them. On one machine, it is the file
cluster.json.

Each shard of one machine has one node, whose data directory is a folder next to the file. Shard i
of N, from 0, ends at slot floor(16384 (i+1) / N - 0.5), as redis-cli distributes them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from millstream.errors import StartError
from millstream.server.config.cluster_directives import MAP_NAME
from millstream.server.config.file_replacement import replace_file
from millstream.storage.files.manifest import NODES_BACKUP_NAME
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS

_VERSION = 1
_ID = re.compile("[0-9a-f]{40}")


class Shard(NamedTuple):
    """A shard: its name, its number from 1, its ID, the ID of its node, and the slots that it owns,
    as ranges in order."""

    name: str
    number: int
    id: str
    node: str
    ranges: tuple[tuple[int, int], ...]

    @property
    def folder(self) -> str:
        """The folder of the node's data, next to the file."""
        return f"{self.number:04}"

    def slots(self) -> Iterator[int]:
        for first, last in self.ranges:
            yield from range(first, last + 1)


class SlotMap(NamedTuple):
    """The shards in the order of their numbers. The epoch counts the changes of the map; the term
    is that of all shards, whose nodes have no replicas that could take over."""

    epoch: int
    term: int
    shards: tuple[Shard, ...]

    def owners(self) -> list[Shard | None]:
        """The owner of each slot; None where there is none."""
        found: list[Shard | None] = [None] * CLUSTER_SLOTS
        for shard in self.shards:
            for slot in shard.slots():
                found[slot] = shard
        return found

    def indices(self) -> list[int]:
        """The index of each slot's owner in `shards`; 0 where there is none."""
        return [0 if owner is None else owner.number - 1 for owner in self.owners()]


def new_map(count: int) -> SlotMap:
    """A map of this number of shards, with new IDs."""
    return SlotMap(
        1,
        1,
        tuple(
            Shard(f"s{number}", number, new_id(), new_id(), (pair,))
            for number, pair in enumerate(even_ranges(count), start=1)
        ),
    )


def even_ranges(count: int) -> list[tuple[int, int]]:
    """The first and last slot of each of `count` shards, which share all slots."""
    ends = [last_slot(number, count) for number in range(count)]
    firsts = [0, *(end + 1 for end in ends[:-1])]
    return list(zip(firsts, ends, strict=True))


def last_slot(number: int, count: int) -> int:
    """The last slot of shard `number`, from 0, of `count` shards."""
    return (2 * CLUSTER_SLOTS * (number + 1) - count) // (2 * count)


def slot_count(shards: Iterable[Shard]) -> int:
    return sum(last + 1 - first for shard in shards for first, last in shard.ranges)


def new_id() -> str:
    return os.urandom(20).hex()


def write_map(folder: Path, found: SlotMap) -> None:
    """Write the file as a whole; OSError if that fails."""
    rows = sorted((*pair, shard.name) for shard in found.shards for pair in shard.ranges)
    document = {
        "version": _VERSION,
        "epoch": found.epoch,
        "ranges": rows,
        "shards": {
            shard.name: {
                "id": shard.id, "node": shard.node, "directory": shard.folder, "term": found.term,
            }
            for shard in found.shards
        },
    }  # fmt: skip
    replace_file(folder / MAP_NAME, (json.dumps(document, indent=1) + "\n").encode(), mode=0o644)


def read_map(folder: Path) -> SlotMap | None:
    """The map in a folder; None if it has none. StartError if the file cannot be used."""
    path = folder / MAP_NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise StartError(f"cannot read {path}: {problem.strerror}") from None
    try:
        document = json.loads(text)
        if document["version"] != _VERSION:
            raise StartError(
                f"{path} has version {document['version']}, which this program does not know"
            )
        return _checked(_map_of(document))
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise StartError(
            f"{path} is damaged ({type(problem).__name__}: {problem}): restore it from a copy"
        ) from None


def _map_of(document: dict[str, Any]) -> SlotMap:
    ranges: dict[str, list[tuple[int, int]]] = {name: [] for name in document["shards"]}
    for first, last, name in document["ranges"]:
        ranges[name].append((int(first), int(last)))
    shards = [
        Shard(name, int(row["directory"]), row["id"], row["node"], tuple(sorted(ranges[name])))
        for name, row in document["shards"].items()
    ]
    terms = {int(row["term"]) for row in document["shards"].values()}
    shards.sort(key=lambda shard: shard.number)
    return SlotMap(int(document["epoch"]), max(terms), tuple(shards))


def _checked(found: SlotMap) -> SlotMap:
    """ValueError if this cannot be a map."""
    if [shard.number for shard in found.shards] != list(range(1, len(found.shards) + 1)):
        raise ValueError("the directories of the shards are not numbered from 0001 on")
    taken: set[int] = set()
    for shard in found.shards:
        for name in (shard.id, shard.node):
            if not _ID.fullmatch(name):
                raise ValueError(f"{name!r} is not an ID of 40 hexadecimal digits")
        for first, last in shard.ranges:
            slots = set(range(first, last + 1))
            if not 0 <= first <= last < CLUSTER_SLOTS or slots & taken:
                raise ValueError(
                    f"the slots {first} to {last} are wrong, or are those of two shards"
                )
            taken |= slots
    return found


def refuse_backup(folder: Path) -> None:
    """StartError if this is the backup of a cluster: a start would add empty data to it."""
    if (folder / NODES_BACKUP_NAME).exists():
        raise StartError(
            f"{folder} is the backup of a cluster: copy it with `millstream cluster restore "
            f"{folder} OUT`, and start the copy"
        )


def refuse_nodes(folder: Path) -> None:
    """StartError if this is a directory of nodes, or the backup of one."""
    refuse_backup(folder)
    slot_map = read_map(folder)
    if slot_map is not None:
        count = len(slot_map.shards)
        raise StartError(
            f"{folder} is a directory of {count} nodes: start them with `millstream serve "
            f"--shards {count}`"
        )
