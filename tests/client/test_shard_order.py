"""The order of shards and their children, without a server."""

from __future__ import annotations

import pytest

from millstream.client import ID, Shard
from millstream.client.core.shard_order import Servers, ShardOrder
from millstream.client.core.shards import ShardState
from millstream.client.core.token import Place


def test_a_token_visits_each_earlier_split_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walks = []
    walk = ShardOrder._unfinished

    def counted(lineage: ShardOrder, name: str) -> tuple[str, ...]:
        walks.append(name)
        return walk(lineage, name)

    monkeypatch.setattr(ShardOrder, "_unfinished", counted)
    servers = Servers("server", None)
    lineage = ShardOrder(("s0",), servers)
    lineage.add(ShardState.at(Shard("s0"), servers.of(Shard("s0")), Place(ID(0), 1)))
    for n in range(1, 50):
        parent = lineage.states[f"s{n - 1}"]
        parent.ended, parent.fetched = True, ID(n)
        lineage.set_children(parent, {"children": [f"s{n}"]})
        lineage.infos[f"s{n}"] = {"incarnation": n + 1, "parents": [f"s{n - 1}"]}
        lineage.settle()
        for _ in range(5):
            assert lineage.token().done == {"s0": (f"s{n}",)}
    assert walks == ["s0"] * 49
