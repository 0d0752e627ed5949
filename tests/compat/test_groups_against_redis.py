"""Consumer groups compared with a real redis-server 7.0: the same conversation, reply by reply.

Left out is what later versions answer differently: the lag of trimmed streams, a wait that ends
with its group (7.0 has words of its own there), more entries read than there were, and fields that
7.0 does not have.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.client import RawClient
from tests.support.resp import Error, Map, Reply, show
from tests.support.server import Server

# `name: words` speaks as another client; `name:` alone reads what it was sent meanwhile, and
# `name, blocks: words` is a client that waits.
CONVERSATIONS: dict[str, str] = {
    "reading and acknowledging": """
        XADD s 1-1 a 1 b 2
        XADD s 2-1 a 3
        XADD s 3-1 c 4
        XADD s 4-1 d 5
        XADD s 5-1 d 6
        XGROUP CREATE s g 0
        XINFO GROUPS s
        XREADGROUP GROUP g alice COUNT 2 STREAMS s >
        XINFO GROUPS s
        XREADGROUP GROUP g bob COUNT 1 NOACK STREAMS s >
        XREADGROUP GROUP g bob COUNT -1 STREAMS s >
        XREADGROUP GROUP g bob STREAMS s >
        XREADGROUP GROUP g alice STREAMS s 0
        XREADGROUP GROUP g alice COUNT 1 STREAMS s 0-0
        XREADGROUP GROUP g alice STREAMS s 1-1
        XREADGROUP GROUP g alice STREAMS s 1
        XREADGROUP GROUP g alice STREAMS s 18446744073709551615-18446744073709551615
        XREADGROUP GROUP g alice STREAMS s 18446744073709551615-18446744073709551614
        XREADGROUP GROUP g carol STREAMS s s 0 >
        XPENDING s g
        XPENDING s g - + 10
        XINFO GROUPS s
        XINFO CONSUMERS s g
        XDEL s 1-1 4-1
        XREADGROUP GROUP g alice STREAMS s 0
        XREADGROUP GROUP g bob STREAMS s 0
        XPENDING s g - + 10
        XACK s g 1-1 2-1 3-1
        XACK s g 4-1 4-1
        XPENDING s g
        XINFO STREAM s
        XINFO CONSUMERS s g
    """,
    "groups and consumers": """
        XGROUP CREATE s g 0
        XGROUP CREATE s g $ MKSTREAM
        XGROUP CREATE s g $ MKSTREAM
        XGROUP CREATE s h 5-5 MKSTREAM ENTRIESREAD 0
        XGROUP CREATE s i 0 entriesread 0
        XGROUP CREATE s j 0 MKSTREAM MKSTREAM MKSTREAM MKSTREAM
        XGROUP CREATE s j 0 ENTRIESREAD
        XGROUP CREATE s j + MKSTREAM
        XGROUP CREATE s "" 0
        XINFO GROUPS s
        XGROUP CREATECONSUMER s g zoe
        XGROUP CREATECONSUMER s g alf
        XGROUP CREATECONSUMER s g zoe
        XGROUP CREATECONSUMER s g
        XGROUP CREATECONSUMER s no x
        XINFO CONSUMERS s g
        XADD s 1-1 a 1
        XADD s 2-1 a 2
        XADD s 3-1 a 3
        XREADGROUP GROUP g zoe COUNT 2 STREAMS s >
        XREADGROUP GROUP g alf STREAMS s >
        XGROUP SETID s g 1-1
        XINFO GROUPS s
        XREADGROUP GROUP g alf COUNT 1 STREAMS s >
        XPENDING s g - + 10
        XPENDING s g
        XGROUP SETID s g - ENTRIESREAD 0
        XINFO GROUPS s
        XGROUP SETID s g +
        XGROUP SETID s g $ ENTRIESREAD 3
        XINFO GROUPS s
        XGROUP SETID s g x
        XGROUP SETID s g 0 FOO
        XGROUP SETID s g 0 ENTRIESREAD x
        XGROUP SETID s g 0 ENTRIESREAD -2
        XGROUP SETID s g 0 ENTRIESREAD 1 ENTRIESREAD 2
        XINFO GROUPS s
        XGROUP SETID s no 0
        XGROUP SETID no g 0
        XGROUP DELCONSUMER s g alf
        XGROUP DELCONSUMER s g alf
        XGROUP DELCONSUMER s no alf
        XGROUP DELCONSUMER no g alf
        XPENDING s g - + 10
        XINFO CONSUMERS s g
        XGROUP DESTROY s g
        XGROUP DESTROY s g
        XPENDING s g
        XGROUP DESTROY s
        XGROUP
        XGROUP FOO
    """,
    "pending entries": """
        XADD s 1-1 a 1
        XADD s 1-2 a 2
        XADD s 2-1 a 3
        XADD s 2-2 a 4
        XADD s 3-1 a 5
        XGROUP CREATE s g 0
        XREADGROUP GROUP g bob COUNT 2 STREAMS s >
        XREADGROUP GROUP g alice COUNT 2 STREAMS s >
        XREADGROUP GROUP g bob STREAMS s >
        XPENDING s g
        XPENDING s g - + 3
        XPENDING s g 1 2 10
        XPENDING s g 1-2 2-1 10
        XPENDING s g (1-2 (2-2 10
        XPENDING s g 3 1 10
        XPENDING s g - + 10 bob
        XPENDING s g - + 1 alice
        XPENDING s g - + 10 carol
        XPENDING s g - + 10 bob more
        XPENDING s g - + 10 bob more words
        XPENDING s g - + 10 bob more words here
        XPENDING s g IDLE 0 - + 10 alice
        XPENDING s g IDLE -1 - + 10
        XPENDING s g IDLE 100000000 - + 10
        XPENDING s g idle 1 - +
        XPENDING s g IDLE 1 - + 10 alice more
        XPENDING s g - (0-0 10
        XPENDING s g (18446744073709551615-18446744073709551615 + 10
        XPENDING s g (- + 10
        XPENDING s g x + y
        XPENDING s g x + 1
        XPENDING s g - x 1
        XPENDING no g - + 1
        XPENDING s no - + 1
    """,
    "claims": """
        XADD s 1-1 a 1
        XADD s 2-1 a 2
        XADD s 3-1 a 3
        XADD s 4-1 a 4
        SET str x
        XGROUP CREATE s g 0
        XCLAIM s g alice 0 1-1
        XCLAIM s g alice 0 1-1 FORCE
        XCLAIM s g alice 0 2-1 FORCE JUSTID
        XCLAIM s g bob 0 3-1 FORCE RETRYCOUNT 0
        XCLAIM s g bob 0 9-1 FORCE
        XPENDING s g - + 10
        XCLAIM s g bob 0 1-1 1-1 2-1
        XCLAIM s g bob 1000000 1-1 2-1 3-1
        XCLAIM s g alice 0 3-1 RETRYCOUNT -5
        XCLAIM s g alice 0 3-1 1-1 JUSTID retrycount 7
        XCLAIM s g alice -5 2-1 IDLE 1000 TIME 5 force
        XPENDING s g - + 10
        XPENDING s g
        XCLAIM s g alice 0 1-1 2 x-1 JUSTID
        XCLAIM s g alice 0 JUSTID
        XCLAIM s g alice 0 IDLE 1
        XCLAIM s g alice 0 1-1 LASTID
        XCLAIM s g alice 0 1-1 IDLE z
        XCLAIM s g alice 0 1-1 TIME z
        XCLAIM s g alice 0 1-1 RETRYCOUNT z
        XCLAIM s g alice 0 1-1 LASTID z
        XCLAIM s g alice 0 1-1 LASTID 3-5
        XINFO GROUPS s
        XCLAIM s g alice 0 1-1 LASTID 2-5
        XINFO GROUPS s
        XREADGROUP GROUP g alice STREAMS s >
        XCLAIM s no alice z 1-1
        XCLAIM no g alice z 1-1
        XCLAIM str g alice z 1-1
        XCLAIM s g alice z 1-1
        XDEL s 2-1 4-1
        XCLAIM s g bob 0 2-1 3-1 4-1
        XPENDING s g - + 10
        XINFO CONSUMERS s g
        XACK s g 1-1 3-1
        XPENDING s g
    """,
    "claims in order": """
        XADD s 1-1 a 1
        XADD s 2-1 a 2
        XADD s 3-1 a 3
        XADD s 4-1 a 4
        XADD s 5-1 a 5
        SET str x
        XGROUP CREATE s g 0
        XREADGROUP GROUP g alice STREAMS s >
        XAUTOCLAIM s g bob 0 0
        XAUTOCLAIM s g carol 0 0 COUNT 2
        XAUTOCLAIM s g carol 0 3-1 COUNT 2 JUSTID
        XAUTOCLAIM s g carol 0 (3-1 COUNT 1
        XAUTOCLAIM s g carol 0 - count 5 count 1
        XAUTOCLAIM s g carol 0 +
        XAUTOCLAIM s g carol 0 9
        XAUTOCLAIM s g carol 1000000 0
        XAUTOCLAIM s g carol -7 0 JUSTID
        XPENDING s g - + 10
        XDEL s 1-1 2-1 4-1
        XAUTOCLAIM s g bob 1000000 0 COUNT 1
        XAUTOCLAIM s g bob 0 0 COUNT 2
        XAUTOCLAIM s g bob 0 0 JUSTID
        XPENDING s g - + 10
        XINFO CONSUMERS s g
        XAUTOCLAIM no g d z y
        XAUTOCLAIM no g d 0 y
        XAUTOCLAIM no g d 0 0 FOO
        XAUTOCLAIM no g d 0 0 COUNT
        XAUTOCLAIM no g d 0 0 COUNT 0
        XAUTOCLAIM no g d 0 0 COUNT x
        XAUTOCLAIM no g d 0 0 COUNT 576460752303423488
        XAUTOCLAIM no g d 0 0 COUNT 576460752303423487
        XAUTOCLAIM s no d 0 0
        XAUTOCLAIM str g d 0 0
        XAUTOCLAIM s g d 0 (18446744073709551615-18446744073709551615
        XAUTOCLAIM s g d
    """,
    "refused reads": """
        SET str x
        XADD s 1-1 a 1
        XGROUP CREATE s g 0
        XREADGROUP GROUP g alice STREAMS str >
        XREADGROUP GROUP g alice STREAMS s str > >
        XREADGROUP GROUP g alice STREAMS s str x >
        XREADGROUP GROUP g alice STREAMS no str > >
        XREADGROUP GROUP no alice STREAMS s x
        XREADGROUP GROUP g alice STREAMS s $
        XREADGROUP GROUP g alice STREAMS s 1-x
        XREADGROUP GROUP g alice STREAMS s -
        XREADGROUP GROUP g alice FOO STREAMS s >
        XREADGROUP GROUP g alice COUNT 1 STREAMS
        XREADGROUP GROUP g alice NOACK BLOCK 1 COUNT
        XREADGROUP COUNT 1 NOACK STREAMS s >
        XREADGROUP NOACK COUNT 1 BLOCK 0 GROUP g
        XREADGROUP GROUP g alice BLOCK x STREAMS s >
        XREADGROUP GROUP g alice BLOCK -1 STREAMS s >
        XREADGROUP GROUP g alice COUNT 9223372036854775808 STREAMS s >
        XINFO CONSUMERS s g
        XACK str g 1-1
        XACK s g 1-1 x
        XINFO STREAM str
        XINFO STREAM no
        XINFO STREAM no FOO
        XINFO STREAM s FOO
        XINFO STREAM s FULL COUNT
        XINFO GROUPS str
        XINFO GROUPS no
        XINFO GROUPS
        XINFO CONSUMERS str g
        XINFO CONSUMERS s no
        XINFO CONSUMERS s
        XINFO
        XINFO FOO
    """,
    "waiting consumers": """
        XGROUP CREATE s g $ MKSTREAM
        XGROUP CREATE t g $ MKSTREAM
        b, blocks: XREADGROUP GROUP g bob COUNT 1 BLOCK 0 STREAMS s t > >
        c, blocks: XREADGROUP GROUP g carol BLOCK 0 NOACK STREAMS t s > >
        XADD s 1-1 n 1
        b:
        XADD t 1-1 n 1
        c:
        XPENDING s g - + 10
        XPENDING t g - + 10
        b, blocks: XREADGROUP GROUP g bob COUNT 1 BLOCK 0 STREAMS s >
        c, blocks: XREADGROUP GROUP g carol COUNT 2 BLOCK 0 STREAMS s >
        XGROUP DELCONSUMER s g carol
        XADD s 2-1 n 2
        b:
        XADD s 3-1 n 3
        c:
        XINFO GROUPS s
        XINFO CONSUMERS s g
        XREADGROUP GROUP g bob BLOCK 1 STREAMS s >
        XREADGROUP GROUP g bob BLOCK 0 STREAMS s 0
    """,
    "streams that were emptied": """
        XADD s 1-1 a 1
        XADD s 2-1 a 2
        XGROUP CREATE s g 0
        XREADGROUP GROUP g alice STREAMS s >
        XTRIM s MAXLEN 0
        XREADGROUP GROUP g alice STREAMS s >
        XREADGROUP GROUP g alice STREAMS s 0
        XPENDING s g
        XINFO GROUPS s
        XINFO STREAM s
        XADD s 3-1 a 3
        XREADGROUP GROUP g bob STREAMS s >
        XINFO STREAM s
        XDEL s 3-1
        XINFO STREAM s
        XINFO CONSUMERS s g
    """,
}
LATER_FIELDS = {
    b"inactive",
    b"idmp-duration",
    b"idmp-maxsize",
    b"pids-tracked",
    b"iids-tracked",
    b"iids-added",
    b"iids-duplicates",
}
# How long ago something was, and figures of the implementation.
MASKED_FIELDS = {b"idle", b"radix-tree-keys", b"radix-tree-nodes"}


def play(server: Server, protocol: int, conversation: str) -> list[tuple[str, Reply]]:
    """Each line with its reply; lines that are not answered at once are missing."""
    clients = {"": server.client(protocol)}
    blocked = 0
    replies = []
    for line in filter(None, map(str.strip, conversation.splitlines())):
        who, colon, said = line.partition(":") if line[1:2] in (",", ":") else ("", "", line)
        name, _, blocks = who.partition(",")
        client = clients.get(name) or clients.setdefault(name, server.client(protocol))
        if said:
            client.send(*shlex.split(said))
        if blocks:
            blocked += 1
            clients[""].wait_blocked(blocked)
            continue
        blocked -= bool(colon)
        replies.append((line, client.read()))
    for client in clients.values():
        client.close()
    return replies


def masked(line: str, reply: Reply) -> str:
    """Without what differs from run to run or that only later versions answer."""
    if line.startswith("XPENDING") and isinstance(reply, list) and len(line.split()) > 3:
        return show([[*row[:2], *row[3:]] for row in reply if isinstance(row, list)])
    if line.startswith("XINFO CONSUMERS") and isinstance(reply, list):
        return "; ".join(common_fields(row) for row in reply)
    if line.startswith("XINFO STREAM") and isinstance(reply, list | Map):
        return common_fields(reply)
    return show(reply)


def common_fields(row: Reply) -> str:
    flat = [item for pair in row.pairs for item in pair] if isinstance(row, Map) else row
    assert isinstance(flat, list)
    pairs = zip(flat[::2], flat[1::2], strict=True)
    shown = [
        f"{name!r}: {'<any>' if name in MASKED_FIELDS else show(value)}"
        for name, value in pairs
        if name not in LATER_FIELDS
    ]
    return f"{type(row).__name__} {', '.join(shown)}"


@pytest.mark.parametrize("protocol", [2, 3], ids=["RESP2", "RESP3"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_same_replies(server: Server, redis_server: Server, name: str, protocol: int) -> None:
    ours = play(server, protocol, CONVERSATIONS[name])
    theirs = play(redis_server, protocol, CONVERSATIONS[name])
    different = [
        f"{line}\n  ours:  {masked(line, our)}\n  redis: {masked(line, their)}"
        for (line, our), (_, their) in zip(ours, theirs, strict=True)
        if masked(line, our) != masked(line, their)
    ]
    assert not different, "\n" + "\n".join(different)


def random_claims(seed: int) -> Iterator[str]:
    """A conversation of reads, claims, acknowledgements and deletions, without what depends on how
    fast it is held."""
    chance = random.Random(seed)
    yield "XGROUP CREATE s g 0 MKSTREAM"
    # 7.0 makes no consumer for a claim that gets nothing.
    yield from (f"XGROUP CREATECONSUMER s g {name}" for name in ("alice", "bob", "carol"))
    for number in range(1, 9):
        yield f"XADD s {number}-1 n {number}"
    for _ in range(60):
        name = chance.choice(["alice", "bob", "carol"])
        some = " ".join(f"{chance.randint(1, 13)}-1" for _ in range(chance.randint(1, 4)))
        options = " ".join(
            word
            for word in ("FORCE", "JUSTID", f"RETRYCOUNT {chance.randint(0, 5)}", "IDLE 5000000")
            if chance.random() < 0.3
        )
        idle = chance.choice([0, 0, 0, 1_000_000])
        just_id = chance.choice(["", "JUSTID"])
        yield chance.choice(
            [
                f"XREADGROUP GROUP g {name} COUNT {chance.randint(1, 3)} STREAMS s >",
                f"XREADGROUP GROUP g {name} COUNT {chance.randint(1, 3)} STREAMS s 0",
                f"XCLAIM s g {name} {idle} {some} {options}",
                f"XCLAIM s g {name} {idle} {some} LASTID {chance.randint(1, 9)}",
                f"XAUTOCLAIM s g {name} {idle} {chance.randint(0, 9)} "
                f"COUNT {chance.randint(1, 4)} {just_id}",
                f"XACK s g {some}",
                f"XDEL s {chance.randint(1, 8)}-1",
                f"XADD s {chance.randint(9, 12)}-1 n x",
                f"XGROUP SETID s g {chance.randint(0, 9)}",
            ]
        )
        yield "XPENDING s g - + 100"
    yield "XPENDING s g"
    yield "XINFO CONSUMERS s g"


@pytest.mark.parametrize("seed", range(25))
def test_claims_played_at_random(server: Server, redis_server: Server, seed: int) -> None:
    lines = list(random_claims(seed))
    conversation = "\n".join(lines)
    ours = play(server, 2 + seed % 2, conversation)
    theirs = play(redis_server, 2 + seed % 2, conversation)
    for number, ((line, our), (_, their)) in enumerate(zip(ours, theirs, strict=True)):
        assert masked(line, our) == masked(line, their), "\n".join([*lines[:number], line])


@pytest.mark.parametrize("ending", ["XGROUP DESTROY s g", "DEL s", "FLUSHALL", "SET s x"])
def test_a_wait_ends_with_an_error_where_redis_ends_it_so(
    server: Server, redis_server: Server, ending: str
) -> None:
    for where in (server, redis_server):
        with where.client() as client, where.client() as waiting:
            client.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
            waiting.send(*shlex.split("XREADGROUP GROUP g alice BLOCK 0 STREAMS s >"))
            client.wait_blocked(1)
            assert not isinstance(client.call(*ending.split()), Error)
            assert isinstance(waiting.read(), Error)
            client.wait_blocked(0)


def delivery_times(client: RawClient) -> list[object]:
    """The delivery time of each pending entry, as XINFO STREAM FULL shows it."""
    described = client.call("XINFO", "STREAM", "s", "FULL", "COUNT", "0")
    assert isinstance(described, Map)
    groups: Any = dict(described.pairs)[b"groups"]
    return [row[2] for row in dict(groups[0].pairs)[b"pending"]]


def test_the_times_of_claims_are_those_that_were_sent(server: Server, redis_server: Server) -> None:
    with server.client(3) as ours, redis_server.client(3) as theirs:
        seconds, micros = (int(part) for part in ours.call("TIME"))  # type: ignore[arg-type, union-attr]
        sent = [0, 1, *(seconds * 1000 + micros // 1000 - age_ms for age_ms in range(0, 200, 2))]
        for client in (ours, theirs):
            for number in range(len(sent)):
                client.call("XADD", "s", f"{number + 1}-0", "f", "v")
            client.call("XGROUP", "CREATE", "s", "g", "0")
            client.call("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "s", ">")
            for number, sent_ms in enumerate(sent):
                claim = ["XCLAIM", "s", "g", "bob", "0", f"{number + 1}-0"]
                client.call(*claim, "TIME", str(sent_ms), "JUSTID")
        assert delivery_times(ours) == sent
        assert delivery_times(theirs) == sent
