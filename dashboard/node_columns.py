"""The columns of the table of nodes, after the one with their addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from millstream.dashboard import shown
from millstream.node_figures import NodeFigures, ranges_text


class NodeColumn(NamedTuple):
    """A column; one of text is on the left."""

    title: str
    text: Callable[[NodeFigures], str]
    is_text: bool = False


def _memory(row: NodeFigures) -> str:
    most = row.memory_max_bytes
    return shown.size(row.memory_bytes) + (f" of {shown.size(most)}" if most else "")


def _rate(row: NodeFigures) -> str:
    return shown.rate(row.commands_per_s)


def _lag(row: NodeFigures) -> str:
    return "-" if row.is_primary else shown.size(row.lag_bytes)


NODE_COLUMNS = (
    NodeColumn("Role", lambda row: "primary" if row.is_primary else "replica", is_text=True),
    NodeColumn("Shard", lambda row: str(row.node.shard or "-")),
    NodeColumn("Slots", lambda row: ranges_text(row.node.ranges) or "-", is_text=True),
    NodeColumn("Memory", _memory),
    NodeColumn("Clients", lambda row: shown.count(row.clients)),
    NodeColumn("Commands", _rate),
    NodeColumn("Replication lag", _lag),
    NodeColumn("Term", lambda row: shown.count(row.term)),
)
