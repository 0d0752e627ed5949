"""One request for several nodes: the requests that are sent, and the reply made of theirs.

Replies are merged as bytes. An error of one node is the reply as a whole. Such a request is not
atomic: the nodes run their parts at different times.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from millstream.commands.access.verdict import keys_of
from millstream.commands.table.registry import Command
from millstream.server.gateway.reply_scanner import elements_of
from millstream.server.gateway.request_policies import SPLIT_READS, response_policy
from millstream.server.protocol.resp import encode_reply
from millstream.storage.keyspace.cluster_slots import cluster_slot_of

Merge = Callable[[Sequence[bytes]], bytes]
CURSOR_DIGITS_MAX = 24  # a cursor of a node has up to 20
NULL = b"$-1\r\n", b"*-1\r\n", b"_\r\n"


class Part(NamedTuple):
    """A part of a request: its keys are in one slot of the node, or may be in several of them."""

    slot: int
    request: bytes


def split(
    row: Command, words: Sequence[bytes], node_of: Callable[[int], int]
) -> tuple[list[Part], Merge]:
    """The parts of a request with keys of several slots, and how their replies are merged. A
    request for which there is only one part is for the node of its first key, which refuses it."""
    if row.name in SPLIT_READS:
        return _split_read(row, words, node_of)
    keys = words[1:]
    parts = _grouped(keys, cluster_slot_of)
    requests = [
        Part(slot, encode_reply([words[0], *(keys[at] for at in places)]))
        for slot, places in parts.items()
    ]
    if response_policy(row) == "agg_sum":
        return requests, _summed
    return requests, partial(_placed, places=list(parts.values()), count=len(keys))


def _grouped(keys: Sequence[bytes], place: Callable[[bytes], int]) -> dict[int, list[int]]:
    """The positions of the keys of each slot or node."""
    found: dict[int, list[int]] = {}
    for at, key in enumerate(keys):
        found.setdefault(place(key), []).append(at)
    return found


def _split_read(
    row: Command, words: Sequence[bytes], node_of: Callable[[int], int]
) -> tuple[list[Part], Merge]:
    keys = [key for key, _ in keys_of(row, list(words))]
    begin = len(words) - 2 * len(keys)
    ids, options = words[begin + len(keys) :], words[:begin]
    is_by_node = "any_slots" in row.traits
    groups = _grouped(keys, lambda key: _node(key, node_of) if is_by_node else cluster_slot_of(key))
    requests = [
        Part(
            cluster_slot_of(keys[places[0]]),
            encode_reply([*options, *(keys[at] for at in places), *(ids[at] for at in places)]),
        )
        for places in groups.values()
    ]
    return requests, partial(_streams, keys=keys)


def _node(key: bytes, node_of: Callable[[int], int]) -> int:
    return node_of(cluster_slot_of(key))


def merge_of(row: Command) -> Merge:
    """The way to merge the replies of all nodes."""
    return _OF_NAME.get(row.name) or _OF_POLICY.get(response_policy(row), _first)


def merged(merge: Merge, replies: Sequence[bytes]) -> bytes:
    """The reply made of these: the first error, if there is one."""
    return next((one for one in replies if one.startswith(b"-")), None) or merge(replies)


def _first(replies: Sequence[bytes]) -> bytes:
    return replies[0]


def _summed(replies: Sequence[bytes]) -> bytes:
    return b":%d\r\n" % sum(int(reply[1:]) for reply in replies)


def _least(replies: Sequence[bytes]) -> bytes:
    """The least number, or the least of each element (WAITAOF)."""
    if replies[0][:1] != b"*":
        return b":%d\r\n" % min(int(reply[1:]) for reply in replies)
    rows = zip(*map(elements_of, replies), strict=True)
    return encode_reply([min(int(one[1:]) for one in row) for row in rows])


def _joined(replies: Sequence[bytes]) -> bytes:
    """The elements of all replies, each once."""
    found = dict.fromkeys(one for reply in replies for one in elements_of(reply))
    return b"*%d\r\n" % len(found) + b"".join(found)


def _counted(replies: Sequence[bytes]) -> bytes:
    """The sums of the numbers at the same places, after the same names (PUBSUB NUMSUB)."""
    rows = list(map(elements_of, replies))
    found = [
        column[0] if at % 2 == 0 else _summed(column)
        for at, column in enumerate(zip(*rows, strict=True))
    ]
    return b"*%d\r\n" % len(found) + b"".join(found)


def _any_full(replies: Sequence[bytes]) -> bytes:
    """Any reply that is not null (RANDOMKEY)."""
    full = [reply for reply in replies if reply not in NULL]
    return random.choice(full or replies)


_OF_POLICY: dict[str, Merge] = {"agg_sum": _summed, "agg_min": _least}
_OF_NAME: dict[str, Merge] = {
    "keys": _joined,
    "randomkey": _any_full,
    "pubsub|channels": _joined,
    "pubsub|shardchannels": _joined,
    "pubsub|numsub": _counted,
    "pubsub|shardnumsub": _counted,
    "pubsub|numpat": _summed,
}


def _placed(replies: Sequence[bytes], places: Sequence[Sequence[int]], count: int) -> bytes:
    """The elements of each reply at the places of its keys (MGET)."""
    found = [b""] * count
    for reply, ats in zip(replies, places, strict=True):
        for at, one in zip(ats, elements_of(reply), strict=True):
            found[at] = one
    return b"*%d\r\n" % count + b"".join(found)


def _streams(replies: Sequence[bytes], keys: Sequence[bytes]) -> bytes:
    """The rows of all replies in the order of the keys. In RESP3, XREAD replies with a map."""
    full = [reply for reply in replies if reply not in NULL]
    if not full:
        return replies[0]
    is_map = full[0][:1] == b"%"
    rows: dict[bytes, list[bytes]] = {}
    for reply in full:
        found = elements_of(reply)
        if is_map:
            for name, value in zip(found[::2], found[1::2], strict=True):
                rows.setdefault(name, []).append(name + value)
        else:
            for row in found:
                head = row.index(b"\n") + 1
                rows.setdefault(_bulk_at(row, head), []).append(row)
    ordered = []
    for key in keys:
        left = rows.get(encode_reply(key))
        if left:
            ordered.append(left.pop(0))
    return (b"%%%d\r\n" if is_map else b"*%d\r\n") % len(ordered) + b"".join(ordered)


def _bulk_at(data: bytes, at: int) -> bytes:
    """The bulk string that begins there."""
    line = data.index(b"\n", at) + 1
    return data[at : line + int(data[at + 1 : line]) + 2]


# SCAN


def split_cursor(word: bytes, nodes: int) -> tuple[int, bytes] | None:
    """The node of a cursor, and the cursor there; None if it is not valid."""
    if not word.isdigit() or len(word) > CURSOR_DIGITS_MAX:
        return None
    cursor, node = divmod(int(word), nodes)
    return node, b"%d" % cursor


def joined_cursor(reply: bytes, node: int, nodes: int) -> bytes:
    """The reply to SCAN of a node, with a cursor that carries the node. After the last key of a
    node, the next one follows."""
    if reply[:1] == b"-":
        return reply
    cursor, keys = elements_of(reply)
    number = int(cursor.split(b"\r\n")[1])
    if number:
        number = number * nodes + node
    elif node + 1 < nodes:
        number = node + 1
    return b"*2\r\n" + encode_reply(b"%d" % number) + keys


# Replies about the mode


def as_standalone(reply: bytes) -> bytes:
    """A reply to HELLO or INFO: clients see one server that is no cluster. INFO says that it is a
    gateway, for tools that look for the nodes."""
    if reply[:1] in (b"$", b"="):
        head, _, text = reply.partition(b"\r\n")
        text = text.removesuffix(b"\r\n")
        text = text.replace(b"redis_mode:cluster", b"redis_mode:standalone")
        text = text.replace(b"cluster_enabled:1", b"cluster_enabled:0\r\ncluster_gateway:1")
        return head[:1] + b"%d\r\n" % len(text) + text + b"\r\n"
    return reply.replace(b"$4\r\nmode\r\n$7\r\ncluster\r\n", b"$4\r\nmode\r\n$10\r\nstandalone\r\n")
