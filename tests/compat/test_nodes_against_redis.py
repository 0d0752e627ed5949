"""Ends of nodes, compared with redis-server: `~` trims the same entries, by entries and by
bytes. Values are no integers: Redis packs those, and here they count as the text they were sent as.
"""

from __future__ import annotations

import random

import pytest
from tests.support.client import RawClient
from tests.support.resp import Map, Reply
from tests.support.server import Server

from millstream.commands.xstream.xinfo import COUNTED_NODES

NAMES = ["n", "name", "level", "x" * 63, "y" * 64, "z" * 130]
SIZES = [0, 1, 5, 20, 62, 63, 64, 65, 100, 125, 126, 127, 300, 1000, 4000, 4090, 4200]


def entries_to_add(chance: random.Random) -> list[list[str]]:
    """XADDs of a few kinds of entries whose ids rise in steps of many sizes."""
    kinds = [chance.sample(NAMES, chance.randint(1, 4)) for _ in range(chance.randint(1, 3))]
    sizes = chance.sample(SIZES, 3)
    ms, seq = chance.choice([1, 10**6, 1_790_000_000_000]), chance.choice([0, 0, 7, 10**10])
    words = []
    for _ in range(chance.randint(50, 400)):
        if chance.random() < 0.8:
            ms, seq = ms + chance.choice([1, 1, 3, 150, 5000, 10**5, 10**8]), chance.choice([0, 1])
        else:
            seq += chance.choice([1, 1, 200])
        names = kinds[0] if chance.random() < 0.8 else chance.choice(kinds)
        fields = [word for name in names for word in (name, "v" * chance.choice(sizes))]
        words.append(["XADD", "s", f"{ms}-{seq}", *fields])
    return words


def nodes(client: RawClient) -> tuple[int, Reply | None]:
    """The number of nodes of the stream, and Redis' radix tree of them (up to that number)."""
    info = client.call("XINFO", "STREAM", "s")
    pairs = info if isinstance(info, Map) else zip(info[::2], info[1::2], strict=True)  # type: ignore[index]
    fields = dict(pairs)
    keys, tree = fields[b"radix-tree-keys"], fields[b"radix-tree-nodes"]
    assert isinstance(keys, int)
    return keys, tree if keys < COUNTED_NODES else None


@pytest.mark.parametrize("seed", range(20))
def test_nodes_end_where_redis_ends_them(server: Server, redis_server: Server, seed: int) -> None:
    chance = random.Random(seed)
    words = entries_to_add(chance)
    settings = [chance.choice([100, 10, 0]), chance.choice([4096, 4096, 512])]
    keeps = [chance.randint(0, len(words)) for _ in range(6)]
    reload_at = chance.randint(1, len(words))
    seen = []
    for where in (server, redis_server):
        with where.client() as client:
            for name, value in zip(("entries", "bytes"), settings, strict=True):
                client.call("CONFIG", "SET", f"stream-node-max-{name}", str(value))
            try:
                client.pipeline(words[:reload_at])
                if where is server:
                    client.call("DEBUG", "RELOAD")  # the open node is measured again
                client.pipeline(words[reload_at:])
                replies = [nodes(client)]
                for keep in sorted(keeps, reverse=True):
                    replies += [client.call("XTRIM", "s", "MAXLEN", "~", str(keep), "LIMIT", "0")]
                    replies += [nodes(client)]
            finally:
                client.call("CONFIG", "SET", "stream-node-max-entries", "100")
                client.call("CONFIG", "SET", "stream-node-max-bytes", "4096")
        seen.append(replies)
    assert seen[0] == seen[1], settings
