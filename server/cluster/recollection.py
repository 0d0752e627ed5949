"""The knowledge of a node of its cluster in etcd, as JSON: the reply to CLUSTER SEEN."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from millstream.commands.admin.cluster_peers import LastFrame
from millstream.server.cluster.membership import Member
from millstream.server.cluster.store.records import SECRET
from millstream.server.cluster.store.seen_store import contents_of
from millstream.server.cluster.store_recovery import NodeAnswer


def describe(
    member: Member, cluster: str, revision: int, values: Mapping[str, str] | None, now_ms: int
) -> bytes:
    """`values` are those that the node keeps; None: it has seen none. The secret of the nodes is
    left out."""
    last = member.data.standing()
    kept = None if values is None else {n: text for n, text in values.items() if n != SECRET}
    found = {
        "cluster": cluster,
        "node": member.id,
        "revision": revision,
        "values": kept,
        "promised": member.data.promised,
        "last": None if last is None else list(last),
        "leads": member.led_term if member.may_confirm(now_ms) else 0,
        "epoch": 0 if member.moves is None else member.moves.data.epoch,
        "confirming": member.data.confirming_members(),
    }
    return json.dumps(found).encode()


def answer_of(reply: bytes, cluster: str, address: str) -> NodeAnswer:
    """ValueError if this is not the answer of a node of this cluster."""
    try:
        found: dict[str, Any] = json.loads(reply)
        if found["cluster"] != cluster:
            raise ValueError(f"it is a node of the cluster {found['cluster']}")
        values, last = found["values"], found["last"]
        return NodeAnswer(
            str(found["node"]),
            address,
            None if values is None else contents_of(int(found["revision"]), values),
            int(found["promised"]),
            None if last is None else LastFrame(int(last[0]), str(last[1]), int(last[2])),
            int(found["leads"]),
            int(found["confirming"]),
            int(found.get("epoch", 0)),
        )
    except (KeyError, TypeError, AttributeError, IndexError, RecursionError) as problem:
        raise ValueError(f"its answer cannot be read: {type(problem).__name__}") from None
