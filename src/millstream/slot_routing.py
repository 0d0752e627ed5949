"""The nodes of a cluster for its clients: which node serves the keys of a request.

The map comes from CLUSTER SLOTS. The server has its own places for keys, in the command table: here
it is enough to find the first key of the usual commands, because a node that does not serve a key
names the one that does.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from redis.exceptions import MovedError

SLOTS: Final = 16_384
MOVES_MAX: Final = 5
"""A request follows this many MOVED, which name nodes that do not agree."""

LEADING: Final = 4
"""The words of a request that have its first key."""

KEYLESS: Final = frozenset([
    "ACL", "ASKING", "AUTH", "BACKUP", "BGREWRITEAOF", "BGSAVE", "CLIENT", "CLUSTER", "COMMAND",
    "CONFIG", "DBSIZE", "DISCARD", "ECHO", "EXEC", "FAILOVER", "FLUSHALL", "FLUSHDB", "HELLO",
    "INFO", "KEYS", "LASTSAVE", "LATENCY", "LOLWUT", "MODULE", "MONITOR", "MULTI", "PING",
    "PSUBSCRIBE", "PSYNC", "PUBLISH", "PUBSUB", "PUNSUBSCRIBE", "QUIT", "RANDOMKEY", "READONLY",
    "READWRITE", "REPLCONF", "REPLICAOF", "RESET", "ROLE", "SAVE", "SCAN", "SCRIPT", "SELECT",
    "SHUTDOWN", "SLAVEOF", "SLOWLOG", "SUBSCRIBE", "SWAPDB", "SYNC", "TIME", "UNSUBSCRIBE",
    "UNWATCH", "WAIT", "WAITAOF",
])  # fmt: skip
SECOND: Final = frozenset(["DEBUG", "MEMORY", "OBJECT", "TAPPENDMANY", "XGROUP", "XINFO"])
"""Commands whose first key is the second word after the name."""
THIRD: Final = frozenset(["EVAL", "EVALSHA", "EVALSHA_RO", "EVAL_RO", "FCALL", "FCALL_RO"])
READS: Final = frozenset(["TMREAD", "XREAD", "XREADGROUP"])
"""Commands whose keys are the first half of the words after STREAMS."""


class Address(NamedTuple):
    host: str
    port: int


def slot_of(key: bytes) -> int:
    """The slot of a key: the CRC-16 of its tag in braces, or of all of it."""
    begin = key.find(b"{")
    if begin >= 0:
        end = key.find(b"}", begin + 1)
        if end > begin + 1:
            key = key[begin + 1 : end]
    return crc_hqx(key, 0) % SLOTS


class SlotNodes:
    """The node of each slot. It never changes: there is a new one after MOVED. `nodes` serve slots;
    `replicas` are the others."""

    def __init__(
        self, rows: Sequence[tuple[int, int, Address]], replicas: Sequence[Address] = ()
    ) -> None:
        """`rows` are the first and the last slot of each range, and its node."""
        self.nodes = tuple(dict.fromkeys(node for _, _, node in rows))
        self.replicas = tuple(dict.fromkeys(replicas))
        self._owners: list[Address | None] = [None] * SLOTS
        for first, last, node in rows:
            self._owners[first : last + 1] = [node] * (last + 1 - first)

    @property
    def all(self) -> list[Address]:
        """All nodes, which know the map."""
        return [*self.nodes, *self.replicas]

    def node_of(self, slot: int) -> Address | None:
        """The node of a slot; None if no node serves it."""
        return self._owners[slot]

    def with_node(self, slot: int, node: Address) -> SlotNodes:
        """The same map with another node for a slot, as MOVED names it."""
        if self._owners[slot] == node:
            return self
        changed = SlotNodes([], self.replicas)
        changed.nodes = tuple(dict.fromkeys([*self.nodes, node]))
        changed._owners = [*self._owners[:slot], node, *self._owners[slot + 1 :]]
        return changed


def read_slots(reply: Any, asked: Address) -> SlotNodes:
    """The map in a reply to CLUSTER SLOTS. A node without a name is the one that was asked."""
    rows, replicas = [], []
    for first, last, *nodes in reply:
        primary, *others = [
            Address(_text(name) or asked.host, int(port)) for name, port, *_ in nodes
        ]
        rows.append((int(first), int(last), primary))
        replicas += others
    return SlotNodes(rows, replicas)


def moved_to(moved: MovedError, asked: Address) -> Address:
    """The node that MOVED names. One without a host has that of the node that was asked."""
    return Address(moved.host or asked.host, moved.port)


def _text(word: Any) -> str:
    """The name of a node. Redis writes `?` if it does not know it."""
    name = word.decode() if isinstance(word, bytes) else str(word or "")
    return "" if name == "?" else name


def keys_of(words: Sequence[Any]) -> Sequence[Any]:
    """The keys of a request, as far as they decide about its node: all keys of a read of several
    streams, else the first one. None if the request has no key."""
    name = _upper(words[0])
    if name in KEYLESS:
        return ()
    if name in READS:
        for at, word in enumerate(words):
            if isinstance(word, (str, bytes)) and _upper(word) == "STREAMS":
                rest = words[at + 1 :]
                return rest[: len(rest) // 2]
        return ()
    at = 2 if name in SECOND else 3 if name in THIRD else 1
    return words[at : at + 1]


def first_key_of(encoded: bytes) -> bytes | None:
    """The first key of encoded requests. It is that of the second one after MULTI."""
    at = 0
    for _ in range(2):
        words: list[bytes] = []
        end = encoded.index(b"\n", at) + 1
        count = int(encoded[at + 1 : end])
        for _ in range(min(count, LEADING)):
            start = encoded.index(b"\n", end) + 1
            at = start + int(encoded[end + 1 : start])
            words.append(encoded[start:at])
            end = at = at + 2
        if keys := keys_of(words):
            key: bytes = keys[0]
            return key
        if count > LEADING or at >= len(encoded):
            return None
    return None


def _upper(word: Any) -> str:
    return (word.decode("latin-1") if isinstance(word, bytes) else str(word)).upper()
