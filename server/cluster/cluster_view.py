"""The contents of the store, as a node uses them: the records with their versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from millstream.server.cluster.store.records import (
    BACKUP_LOCK,
    CHANGE,
    CONFIG,
    ELECTION,
    LEASE,
    MAP,
    MOVE,
    NODE,
    SHARD,
    Format,
    Holder,
    MoveRecord,
    NodeRecord,
    RecordError,
    ShardChange,
    ShardRecord,
    SlotRanges,
    decode,
)
from millstream.server.cluster.store.store import Contents

Record = TypeVar("Record", Holder, MoveRecord, NodeRecord, ShardChange, ShardRecord)


class Found(NamedTuple, Generic[Record]):
    """A record of the store, its version, and the lease with which it ends, or 0."""

    record: Record
    version: int
    lease: int


class ClusterView(NamedTuple):
    """The records by the names of shards, and by the IDs of nodes and of moves. `holders`: the
    leases of the primaries; `candidates`: the elections; `changes`: orders to change the members;
    `map_version`: that of the map; `is_backed_up`: a backup is made at this moment."""

    revision: int
    map: SlotRanges
    shards: Mapping[str, Found[ShardRecord]]
    nodes: Mapping[str, Found[NodeRecord]]
    holders: Mapping[str, Found[Holder]]
    candidates: Mapping[str, Found[Holder]]
    changes: Mapping[str, Found[ShardChange]]
    moves: Mapping[str, Found[MoveRecord]]
    map_version: int
    is_backed_up: bool

    def shard_of(self, node: str) -> str | None:
        """The name of the shard that a node is a member of."""
        for name, found in self.shards.items():
            if node in found.record.members:
                return name
        return None


def addresses_after(
    known: Mapping[str, NodeRecord], view: ClusterView, shards: Iterable[ShardRecord]
) -> dict[str, NodeRecord]:
    """The records of the nodes that run, and the last known ones of members of these shards that do
    not: they may run without the store."""
    members = {node for shard in shards for node in shard.members}
    last = {node: record for node, record in known.items() if node in members}
    return last | {node: found.record for node, found in view.nodes.items()}


def view_of(contents: Contents) -> ClusterView:
    """Decode all records. RecordError for one that is wrong, and if there is no cluster."""
    values = contents.values
    if CONFIG not in values:
        raise RecordError(
            "etcd has no cluster with this name: check the name, or make the cluster with "
            "`millstream cluster init`, with --from-nodes if etcd has lost its data"
        )
    decode(Format, values[CONFIG].data, CONFIG)
    if MAP not in values:
        raise RecordError(f"{MAP} is missing in etcd")
    return ClusterView(
        contents.revision,
        decode(SlotRanges, values[MAP].data, MAP),
        _found(contents, SHARD, ShardRecord),
        _found(contents, NODE, NodeRecord),
        _found(contents, LEASE, Holder),
        _found(contents, ELECTION, Holder),
        _found(contents, CHANGE, ShardChange),
        _found(contents, MOVE, MoveRecord),
        values[MAP].version,
        BACKUP_LOCK in values,
    )


def _found(contents: Contents, kind: str, record: type[Record]) -> dict[str, Found[Record]]:
    found = {}
    for name, value in sorted(contents.values.items()):
        if name.startswith(kind):
            decoded = decode(record, value.data, name)
            found[name.removeprefix(kind)] = Found(decoded, value.version, value.lease)
    return found


def by_number(shard: str) -> tuple[int, str]:
    """The key by which names of shards are sorted: s10 comes after s9."""
    return len(shard), shard
