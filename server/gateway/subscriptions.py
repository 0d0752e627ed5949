"""The channels of a client of the gateway, and the nodes that have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from millstream.server.gateway.reply_scanner import elements_of
from millstream.server.protocol.resp import encode_reply

SHARD_CHANNELS = "ssubscribe"
ENDED = b"sunsubscribe"  # also without a request: the slot of a shard channel has moved
SHARD_KINDS = (SHARD_CHANNELS.encode(), ENDED)  # of confirmations


class Change(NamedTuple):
    """A request for one node, and the number of its confirmations."""

    node: int
    request: bytes
    confirmations: int
    undo: Callable[[], None]  # the node has refused it


class Subscriptions:
    """Names by kind ("subscribe", "psubscribe", "ssubscribe"), with their nodes."""

    def __init__(self) -> None:
        self._held: dict[str, dict[bytes, int]] = {}
        # Of the last request for shard channels: the number in each confirmation, and names.
        self._counts: dict[tuple[bytes, bytes], int] = {}
        self._unconfirmed: set[bytes] = set()

    def __bool__(self) -> bool:
        return any(self._held.values())

    def nodes(self) -> set[int]:
        return {node for held in self._held.values() for node in held.values()}

    def clear(self) -> None:
        self._held.clear()
        self._counts.clear()

    def counted(self, reply: bytes) -> bytes:
        """A confirmation of a shard channel with the number of those at all nodes: clients
        may take 0 as the end of all messages. ENDED may come without a request."""
        kind, name, number = elements_of(reply)
        kind, name = _text(kind), _text(name)
        self._unconfirmed.discard(name)
        count = self._counts.get((kind, name))
        if count is None and kind == ENDED:
            held = self._held.get(SHARD_CHANNELS, {})
            held.pop(name, None)
            count = len(held.keys() - self._unconfirmed)
        return reply if count is None else reply[: -len(number)] + b":%d\r\n" % count

    def _count(self, command: str, held: set[bytes], names: Sequence[bytes]) -> None:
        """Note the number in the confirmation of each of these names, one after the other. `held`
        has the names before, and then those after."""
        for name in names:
            if command == SHARD_CHANNELS:
                held.add(name)
            else:
                held.discard(name)
            self._counts[command.encode(), name] = len(held)

    def change(self, command: str, words: Sequence[bytes], node: int) -> Iterator[Change]:
        """The requests that a client's request becomes. `node` has its names; without names, all
        nodes with names of this kind get a request to end these."""
        kind = command.replace("unsub", "sub")
        held = self._held.setdefault(kind, {})
        before = dict(held)
        counted = set(before)
        self._counts.clear()
        self._unconfirmed.clear()

        def undo() -> None:
            self._held[kind] = before

        names = words[1:]
        if kind == SHARD_CHANNELS:
            self._count(command, counted, names)
            self._unconfirmed |= counted - before.keys()
        if kind == command:
            held.update(dict.fromkeys(names, node))
        elif names:
            for name in names:
                held.pop(name, None)
        elif before:
            self._held[kind] = {}
            for one in dict.fromkeys(before.values()):
                ended = [name for name, of in before.items() if of == one]
                if kind == SHARD_CHANNELS:
                    self._count(command, counted, ended)
                yield Change(one, encode_reply([words[0], *ended]), len(ended), undo)
            return
        yield Change(node, encode_reply(list(words)), max(1, len(names)), undo)


def _text(word: bytes) -> bytes:
    """The bytes of an encoded word; none for a null."""
    return word[word.index(b"\n") + 1 : -2]
