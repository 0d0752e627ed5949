"""The channels of a client of the gateway, and the nodes that have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from millstream.server.protocol.resp import encode_reply


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

    def nodes(self) -> set[int]:
        return {node for held in self._held.values() for node in held.values()}

    def clear(self) -> None:
        self._held.clear()

    def change(self, command: str, words: Sequence[bytes], node: int) -> Iterator[Change]:
        """The requests that a client's request becomes. `node` has its names; without names, all
        nodes with names of this kind are told to end these."""
        kind = command.replace("unsub", "sub")
        held = self._held.setdefault(kind, {})
        before = dict(held)

        def undo() -> None:
            self._held[kind] = before

        names = words[1:]
        if kind == command:
            held.update(dict.fromkeys(names, node))
        elif names:
            for name in names:
                held.pop(name, None)
        elif before:
            self._held[kind] = {}
            for one in dict.fromkeys(before.values()):
                ended = [name for name, of in before.items() if of == one]
                yield Change(one, encode_reply([words[0], *ended]), len(ended), undo)
            return
        yield Change(node, encode_reply(list(words)), max(1, len(names)), undo)
