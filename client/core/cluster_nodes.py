"""The nodes of a cluster, as clients, and the one that each request goes to.

A node says in its reply to HELLO that it belongs to a cluster, and with MOVED that a key is on
another one. Then the client reads the map of the cluster, and from there on each request goes to
the node of its first key. A client of a single server has no nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from redis.exceptions import (
    ClusterCrossSlotError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from millstream.client.core.reads_and_waits import sent_words
from millstream.client.core.steps import Answer, Ask, Clock, Command
from millstream.client.core.words import word_bytes
from millstream.slot_routing import Address, SlotNodes, keys_of, slot_of

NODES: Final = "_cluster_nodes"
"""The attribute of a client of a node with its ClusterNodes."""
FOUND: Final = "_is_of_cluster"
"""The attribute of a client whose server has said that it is a node, while it has no map."""
SEVERAL = "the keys of the request are on several nodes of the cluster"
UNANSWERED: Final = (RedisConnectionError, RedisTimeoutError, ClusterDownError)
"""The errors after which a node counts as one that does not answer."""
WAIT_ENDED: Final = "UNBLOCKED force"
"""The error of a read that waited at a primary when it became a replica."""
RENEW_S = 1.0
"""The least time between two looks at the map because of nodes that do not answer."""


class ClusterNodes:
    """The clients of all nodes that are in use. `home` is the one that the program has made, of the
    node `own`."""

    def __init__(self, home: Any, own: Address, make: Callable[[Address], Any], now: Clock) -> None:
        self.home = home
        self.own = own
        self.slots = SlotNodes([])
        self._make = make
        self._now = now
        self._clients: dict[Address, Any] = {}
        self._failed: set[Address] = set()
        self._renewed_s = float("-inf")

    @classmethod
    def of(cls, client: Any) -> ClusterNodes | None:
        found: ClusterNodes | None = vars(client).get(NODES)
        return found

    def at(self, node: Address) -> Any:
        """The client of a node."""
        found = self._clients.get(node)
        if found is None:
            made = self._make(node)
            setattr(made, NODES, self)
            found = self._clients.setdefault(node, made)  # another thread may be first
        return found

    def take_pools(self) -> list[Any]:
        """The pools of all clients but `home`, to be closed."""
        pools = [client.connection_pool for _, client in self._in_use()]
        self._clients = {}
        return pools

    def pools_of_left(self) -> list[Any]:
        """The pools of nodes that the map does not have any more."""
        present = {*self.slots.all, self.own}
        return [one.connection_pool for node, one in self._in_use() if node not in present]

    def _in_use(self) -> list[tuple[Address, Any]]:
        """The nodes with clients, at once: another thread may add one."""
        return list(self._clients.items())

    # ------------------------------------------------------------ which node

    def of_key(self, key: Any) -> Any:
        """The client of the node of a key; `home` if no node serves it, which says so."""
        node = self.slots.node_of(slot_of(word_bytes(key)))
        return self.home if node is None else self.at(node)

    def of_words(self, words: Sequence[Any]) -> Any:
        """The client of the node of a request's first key; `home` without a key."""
        keys = keys_of(sent_words(words))
        return self.of_key(keys[0]) if keys else self.home

    def of_command(self, command: Command[Any]) -> Any:
        if command.packed is not None:
            return self.of_key(command.words[1])
        return self.of_words(command.words)

    def is_for_several(self, command: Command[Any]) -> bool:
        """True if the keys of a command are on several nodes, so that none of them runs it."""
        keys = () if command.packed is not None else keys_of(command.words)
        return len({id(self.of_key(key)) for key in keys}) > 1

    def is_for_one(self, ask: Ask) -> bool:
        """True if one node can run all commands of an ask."""
        clients = {id(self.of_command(command)) for command in ask.commands}
        return len(clients) == 1 and not any(map(self.is_for_several, ask.commands))

    def refuse_several(self, requests: Iterable[Sequence[Any]]) -> None:
        """Raise an error if the keys of requests that run together are on several nodes."""
        keys = [key for words in requests for key in keys_of(sent_words(words))]
        if len({id(self.of_key(key)) for key in keys}) > 1:
            raise ClusterCrossSlotError(SEVERAL)

    # ------------------------------------------------------------ nodes that do not answer

    def note_failed(self, client: Any) -> None:
        """A node does not answer, or does not serve its slots: another one may have them soon."""
        nodes = (node for node, found in self._in_use() if found is client)
        self._failed.add(next(nodes, self.own))

    def of_pool(self, pool: Any) -> Any:
        """The client with this pool."""
        clients = (one for _, one in self._in_use() if one.connection_pool is pool)
        return next(clients, self.home)

    def note(self, client: Any, answer: Answer) -> None:
        """The answer of a node. Its errors become those of a node of a cluster."""
        for at, reply in enumerate(answer.replies):
            if isinstance(reply, ResponseError):
                answer.replies[at] = self.noted(client, reply)
        if answer.error is not None:
            self.note_failed(client)

    def noted(self, client: Any, error: ResponseError) -> ResponseError:
        """The error of a node, after which another one may be asked: a node that has just become a
        replica refuses writes, and ends waits."""
        if isinstance(error, ReadOnlyError) or str(error).startswith(WAIT_ENDED):
            error = ClusterDownError(f"the node is a replica now: {error}")
        if isinstance(error, ClusterDownError):
            self.note_failed(client)
        return error

    def is_due(self) -> bool:
        """True if the map should be read again; then it is not due for a while."""
        if not self._failed or self._now() - self._renewed_s < RENEW_S:
            return False
        self._renewed_s = self._now()
        return True

    def to_ask(self) -> list[Address]:
        """The nodes that may tell the map, those that have failed last. They have not failed from
        now on."""
        failed, self._failed = self._failed, set()
        known = dict.fromkeys([*self.slots.all, self.own])
        return sorted((node for node in known if node.port), key=failed.__contains__)


def placed(client: Any, key: Any) -> tuple[Any, Any]:
    """The client of the node of a key, and the client of the whole: of the cluster, if `client` is
    one of its nodes."""
    nodes = ClusterNodes.of(client) if hasattr(client, "__dict__") else None
    return (client, client) if nodes is None else (nodes.of_key(key), nodes.home)


def pools_to_close(client: Any) -> list[Any]:
    """The connections to other nodes, which end with the client that the program has made."""
    nodes = ClusterNodes.of(client)
    return [] if nodes is None or nodes.home is not client else nodes.take_pools()


def first_moved(answer: Answer) -> MovedError | None:
    """The first reply that names another node."""
    return next((reply for reply in answer.replies if isinstance(reply, MovedError)), None)


def parts_of(ask: Ask, numbers: Sequence[int], nodes: ClusterNodes) -> list[Part]:
    """Some commands of an ask, divided by node."""
    by_node: dict[Any, list[int]] = {}
    for number in numbers:
        by_node.setdefault(nodes.of_command(ask.commands[number]), []).append(number)
    parts = []
    for client, own in by_node.items():
        server = NodeServer(client, failing=ask.server.failing)
        parts.append(Part(Ask(server, [ask.commands[number] for number in own], ask.about), own))
    return parts


class NodeServer:
    """One node, as the server of an ask."""

    __slots__ = ("client", "failing")

    def __init__(self, client: Any, *, failing: bool) -> None:
        self.client = client
        self.failing = failing


class Part:
    """Commands of an ask for one node, and their places in it."""

    __slots__ = ("ask", "numbers")

    def __init__(self, ask: Ask, numbers: list[int]) -> None:
        self.ask = ask
        self.numbers = numbers


class Gathered:
    """The answer to an ask that is made of the answers to its parts."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._replies: list[Any] = [None] * len(ask.commands)
        self._error: Exception | None = None
        self.missing = list(range(len(ask.commands)))
        """The commands that no node has run."""

    def take_all(self, answer: Answer) -> None:
        """The answer of a node that was asked for everything."""
        self._take(list(self.missing), answer)

    def take(self, part: Part, answer: Answer) -> None:
        self._take(part.numbers, answer)

    def _take(self, numbers: Sequence[int], answer: Answer) -> None:
        if answer.error is not None:
            self._error = self._error or answer.error
            return
        for number, reply in zip(numbers, answer.replies, strict=True):
            self._replies[number] = reply
            if not isinstance(reply, MovedError):
                self.missing.remove(number)

    def moved(self, nodes: ClusterNodes | None) -> MovedError | None:
        """A reply that names another node, if it helps to follow it."""
        if self._error is None:
            for number in self.missing:
                reply = self._replies[number]
                if isinstance(reply, MovedError) and not (
                    nodes is not None and nodes.is_for_several(self._ask.commands[number])
                ):
                    return reply
        return None

    @property
    def is_complete(self) -> bool:
        """True if every command was sent, or one was lost."""
        return self._error is not None or None not in [self._replies[n] for n in self.missing]

    def answer(self) -> Answer:
        if self._error is not None:
            return Answer(self._ask, error=self._error)
        return Answer(self._ask, self._replies)
