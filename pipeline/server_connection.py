"""A connection to a live server: one URL, and errors that name the server and its reply.

An `Address` is pickled for Spark's workers; a `Server` is opened in the process that uses it. All
requests may be sent twice, both reads and `TAPPENDONCE`. After a connection error the connection is
opened again and the request is repeated, until the option `timeout` expires. A restart of the
server therefore only delays a job.

The server may be a node of a cluster. Then the map of the cluster is read, and each request goes to
the node of its key. After a failover the map is read again, from any node that answers.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    ClusterCrossSlotError,
    ClusterDownError,
    ExecAbortError,
    MovedError,
    TryAgainError,
)
from redis.retry import Retry

from millstream.backoff import Backoff
from millstream.pipeline.source_options import SourceOptions, check_server_url
from millstream.remote import NOT_SERVED, next_step, pairs, reason_of, url_reason_of
from millstream.server_url import shown_url
from millstream.slot_routing import (
    MOVES_MAX,
    SlotNodes,
    first_key_of,
    keys_of,
    moved_to,
    read_slots,
    slot_of,
)
from millstream.slot_routing import (
    Address as Node,
)

Word = bytes | str | int
Command = Sequence[Word]
Answer = TypeVar("Answer")

TIMEOUT_S = 30
TIMEOUT_S_MAX = 3600
KEYS_PER_SCAN = 1000
TRIES = 3  # of nodes of a cluster, within the timeout
PAUSE_S = 0.05
PAUSE_S_MAX = 1.0

# Temporary failures: a connection that broke, a server that is still loading its data.
_PASSING = (redis.ConnectionError, redis.TimeoutError)
# Those of a node of a cluster: another one will serve the slot.
_REFUSED = (redis.AuthenticationError, redis.exceptions.AuthorizationError)


class ServerError(Exception):
    """The server cannot be reached or refused a request. The text names the server and the
    reason."""


class SeveralSlotsError(ServerError):
    """The keys of a transaction are in several slots of a cluster."""


class Unreachable(ServerError):
    """The server does not answer. A later attempt may succeed."""


@dataclass(frozen=True)
class Address:
    """Address and credentials: the options `server`, `username`, `password`, `db` and `timeout`
    (seconds). `nodes` are those of the cluster, so far as they are known."""

    url: str
    username: str | None
    password: str | None
    db: int | None
    timeout_s: int
    nodes: tuple[Node, ...] = ()

    @classmethod
    def from_options(cls, options: SourceOptions) -> Address:
        url = options.required("server")
        check_server_url(url)
        return cls(
            url,
            options.text("username"),
            options.text("password"),
            options.integer("db", 0, 0, 1 << 30) if "db" in options else None,
            options.integer("timeout", TIMEOUT_S, 1, TIMEOUT_S_MAX),
        )

    def __str__(self) -> str:
        """The URL without user, password and parameters."""
        return shown_url(self.url) or "given"

    def open(self, persistent: bool = True) -> ServerConnection:
        return ServerConnection(self, persistent)


class ServerConnection:
    """A pool of connections to one server; threads may share it.

    Replies are bytes, int, None, and lists of these.

    Without `persistent`, the first connection error is a ServerError: for a caller that reports the
    error and repeats the request.
    """

    def __init__(self, address: Address, persistent: bool = True) -> None:
        self.address = address
        self._persistent = persistent
        given = {
            "username": address.username,
            "password": address.password,
            "db": address.db,
            # A Unix socket has no such option.
            "socket_keepalive": None if address.url.startswith("unix:") else True,
        }
        try:
            pool: Any = redis.ConnectionPool.from_url(
                address.url,
                protocol=2,
                socket_timeout=address.timeout_s,
                socket_connect_timeout=address.timeout_s,
                retry=Retry(NoBackoff(), 0),  # `_persist` retries: redis-py's has no time limit
            )
            # As arguments, these would be overridden by the URL's, and a wrong database be read.
            pool.connection_kwargs.update({name: x for name, x in given.items() if x is not None})
            pool.connection_class(**pool.connection_kwargs)  # refuses the URL's unknown options
            self._client: Any = redis.Redis.from_pool(pool)
            self._slots: SlotNodes | None = None
            self._clients: dict[Node, Any] = {}
            self._is_by_slot = False
            self._is_alone = False
            self._is_old = False  # the map: another node may have slots of one that failed
            self._failed: set[Any] = set()  # clients of nodes, until the map is read again
        except (ValueError, TypeError) as error:
            reason = url_reason_of(error)
            raise ServerError(f"the address {address} is invalid: {reason}") from error

    def __enter__(self) -> ServerConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()
        for client in self._clients.values():
            client.connection_pool.disconnect()

    @property
    def is_cluster(self) -> bool:
        """True if the server is known to be a node of a cluster."""
        return self._slots is not None

    @property
    def known_address(self) -> Address:
        """The address with the nodes of the cluster, for a task that may start when the server of
        the URL does not run any more."""
        nodes = () if self._slots is None else tuple(self._slots.all)
        return replace(self.address, nodes=nodes)

    def connect(self) -> None:
        """Open a connection. ServerError at once if that is impossible: for a user who waits. A
        server that still loads its data can be reached."""
        pool = self._client.connection_pool
        try:
            pool.release(pool.get_connection())
        except redis.BusyLoadingError:
            return
        except _PASSING as error:
            raise self._unreachable(error, waited_s=0) from error
        except redis.RedisError as error:
            raise ServerError(f"the server at {self.address} answered: {error}") from error

    def call(self, *words: Word) -> Any:
        """Run one command; ServerError when the server refuses it."""
        (reply,) = self.pipeline([words])
        return self.checked(reply)

    def scan(self, pattern: Word, kind: str | None = None) -> Iterator[bytes]:
        """The keys that match a pattern, of one type if `kind` is given. A key may come twice."""
        of_kind = () if kind is None else ("TYPE", kind)
        for client in self._persist(self._all_clients):
            cursor: Word = 0
            while True:
                words = ("SCAN", cursor, "MATCH", pattern, "COUNT", KEYS_PER_SCAN, *of_kind)
                (reply,) = self._persist(partial(self._send, client, [words]))
                cursor, keys = self.checked(reply)
                yield from keys
                if int(cursor) == 0:
                    break

    def pipeline(self, commands: Iterable[Command]) -> list[Any]:
        """Send all commands together; the reply to a refused command is the error."""
        wanted = list(commands)
        return self._persist(lambda: self._at_nodes(wanted)) if wanted else []

    def transaction(self, commands: Iterable[Command]) -> list[Any]:
        """Like `pipeline`, but atomic: all commands run without others in between, or none runs.
        In a cluster, the keys have to be in one slot."""
        wanted = list(commands)
        return self._persist(lambda: self._at_one_node(wanted)) if wanted else []

    def transactions(self, groups: Iterable[Sequence[Command]]) -> list[Any]:
        """The replies to all commands, of which each group is atomic: on a single server, all
        together."""
        wanted = list(groups)
        if not self._is_by_slot:
            try:
                return self.transaction(command for group in wanted for command in group)
            except SeveralSlotsError:
                self._is_by_slot = True
        return self._persist(lambda: self._groups_at_nodes(wanted)) if wanted else []

    def transaction_if(self, key: str, value: bytes, commands: Iterable[Command]) -> bool:
        """Like `transaction`, if the string at `key` has this value; whether it has."""
        wanted = list(commands)

        def once() -> bool:
            with self._at_key(key).pipeline(transaction=True) as pipeline:
                pipeline.watch(key)
                if pipeline.get(key) != value:
                    return False
                pipeline.multi()
                for command in wanted:
                    pipeline.execute_command(*command)
                try:
                    pipeline.execute()
                except redis.WatchError:
                    return False
                return True

        return self._persist(partial(self._followed, once))

    def encoded(self, request: bytes) -> Any:
        """Send an encoded request; the reply to a refused request is the error."""

        (reply,) = self.encoded_many(request, 1)
        return reply

    def encoded_many(self, requests: bytes, count: int) -> list[Any]:
        """Send `count` encoded requests together; their replies as those of `pipeline`. In a
        cluster, the keys have to be in one slot."""

        def once() -> list[Any]:
            client = self._client
            if self._slots is not None:
                client = self._at_key(first_key_of(requests))
            try:
                replies = self._exchange(client, requests, count)
            except _PASSING:
                self._failed.add(client)
                raise
            for reply in replies:
                if isinstance(reply, MovedError):
                    self._check_slot(reply, first_key_of(requests))
                    raise reply
            return replies

        return self._persist(partial(self._followed, once))

    def _exchange(self, client: Any, requests: bytes, count: int) -> list[Any]:
        connection = client.connection_pool.get_connection()
        try:
            connection.send_packed_command([requests], check_health=False)
            return [self._answered(connection) for _ in range(count)]
        finally:
            client.connection_pool.release(connection)

    def _check_slot(self, moved: MovedError, first_key: bytes | None) -> None:
        """ClusterCrossSlotError if another key than the first one is at another node."""
        if first_key is not None and slot_of(first_key) != moved.slot_id:
            raise ClusterCrossSlotError("the requests have keys of several nodes")

    def _answered(self, connection: Any) -> Any:
        """The next reply. ServerError after a protocol error, because the server then closes the
        connection."""
        reply = _read_reply(connection)
        if isinstance(reply, redis.ResponseError) and str(reply).startswith("Protocol error"):
            connection.disconnect()
            raise ServerError(f"the server at {self.address} answered: {reply}") from reply
        return reply

    def checked(self, reply: Any) -> Any:
        """Return the reply; ServerError if it is an error."""
        if isinstance(reply, redis.ReadOnlyError):
            raise ServerError(
                f"the server at {self.address} is a replica, which takes no writes: set the option"
                f" 'server' to its primary ({reply})"
            ) from reply
        if isinstance(reply, redis.RedisError):
            raise ServerError(f"the server at {self.address} answered: {reply}") from reply
        return reply

    # ------------------------------------------------------------ the nodes of a cluster

    def _at_nodes(self, commands: Sequence[Command]) -> list[Any]:
        """Each command at the node of its keys; those for one node together."""
        replies: list[Any] = [None] * len(commands)
        left = list(range(len(commands)))
        for _ in range(MOVES_MAX):
            by_node: dict[Any, list[int]] = {}
            for number in left:
                by_node.setdefault(self._at_keys_of(commands[number]), []).append(number)
            for client, numbers in by_node.items():
                found = self._send(client, [commands[number] for number in numbers])
                for number, reply in zip(numbers, found, strict=True):
                    replies[number] = reply
            left = [number for number in left if isinstance(replies[number], MovedError)]
            if not left:
                break
            self._learn(replies[left[0]])
        return replies

    def _at_one_node(self, commands: Sequence[Command]) -> list[Any]:
        """One transaction."""

        def once() -> list[Any]:
            clients = {self._at_keys_of(command) for command in commands if keys_of(command)}
            if len(clients) > 1:
                raise ClusterCrossSlotError("the transaction has keys of several nodes")
            return self._send(next(iter(clients), self._client), commands, transaction=True)

        return self._followed(once)

    def _groups_at_nodes(self, groups: Sequence[Sequence[Command]]) -> list[Any]:
        """A transaction for each group; those for one node together."""
        replies: list[Any] = [None] * len(groups)

        def once() -> None:
            by_node: dict[Any, list[int]] = {}
            for number, group in enumerate(groups):
                if replies[number] is None:
                    by_node.setdefault(self._at_keys_of(group[0]), []).append(number)
            refused: Exception | None = None
            for client, numbers in by_node.items():
                wrapped = [[("MULTI",), *groups[number], ("EXEC",)] for number in numbers]
                words = [words for group in wrapped for words in group]
                found = iter(self._send(client, words))
                for number, sent in zip(numbers, wrapped, strict=True):
                    *queued, done = [next(found) for _ in sent]
                    if isinstance(done, ExecAbortError):
                        refused = next(one for one in queued if isinstance(one, Exception))
                    else:
                        replies[number] = self.checked(done)
            if isinstance(refused, MovedError):
                raise refused
            self.checked(refused)  # raises another refusal

        self._followed(once)
        return [reply for group in replies for reply in group]

    def _followed(self, attempt: Callable[[], Answer]) -> Answer:
        """The result of an attempt, which is repeated after MOVED."""
        for _ in range(MOVES_MAX):
            try:
                return attempt()
            except MovedError as error:
                self._learn(error)
        return attempt()

    def _at_keys_of(self, command: Command) -> Any:
        if self._slots is None:
            return self._client
        keys = keys_of(command)
        return self._at_key(keys[0] if keys else None)

    def _at_key(self, key: Word | None) -> Any:
        """The client of the node that serves a key."""
        if self._slots is None or key is None:
            return self._client
        encoded = key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogateescape")
        node = self._slots.node_of(slot_of(encoded))
        return self._client if node is None else self._at(node)

    def _at(self, node: Node) -> Any:
        found = self._clients.get(node)
        if found is None:
            pool = self._client.connection_pool
            kind, options = pool.connection_class, dict(pool.connection_kwargs)
            if options.pop("path", None) is not None:
                kind = redis.Connection
            options |= {"host": node.host, "port": node.port}
            # Time is left for the next primary.
            options |= dict.fromkeys(
                ("socket_timeout", "socket_connect_timeout"),
                max(1.0, self.address.timeout_s / TRIES),
            )
            made = redis.Redis.from_pool(redis.ConnectionPool(connection_class=kind, **options))
            found = self._clients.setdefault(node, made)
        return found

    def _own_node(self) -> Node:
        kwargs = self._client.connection_pool.connection_kwargs
        return Node(str(kwargs.get("host", "127.0.0.1")), int(kwargs.get("port", 6379)))

    def _learn(self, moved: MovedError) -> None:
        """Read the map, after a node has named another one."""
        slot, node = moved.slot_id, moved_to(moved, self._own_node())
        if self._slots is None or self._slots.node_of(slot) != node:
            self._read_map([node, *self._known()])
        slots = self._slots or SlotNodes([])
        self._slots, self._is_by_slot = slots.with_node(slot, node), True

    def _read_map(self, asked: Iterable[Node]) -> None:
        """Read the map from the first of these nodes that tells it; those that have failed are
        asked last."""
        failed, self._failed = self._failed, set()
        nodes = dict.fromkeys(asked)
        for node in sorted(nodes, key=lambda node: self._clients.get(node) in failed):
            try:
                (reply,) = self._send(self._at(node), [("CLUSTER", "SLOTS")])
            except redis.RedisError:
                continue
            if not isinstance(reply, Exception):
                self._slots = read_slots(reply, node)
                return

    def _known(self) -> list[Node]:
        """The nodes that may tell the map."""
        found = [] if self._slots is None else self._slots.all
        is_socket = "path" in self._client.connection_pool.connection_kwargs
        return [*found, *self.address.nodes, *([] if is_socket else [self._own_node()])]

    def _look(self) -> None:
        """Read the map if the server is a node of a cluster: it can tell it only while it runs."""
        if self._slots is None and not self._is_alone:
            (reply,) = self._send(self._client, [("HELLO",)])
            if isinstance(reply, Exception) or pairs(reply).get("mode") != b"cluster":
                self._is_alone = True
            else:
                (rows,) = self._send(self._client, [("CLUSTER", "SLOTS")])
                self._slots = read_slots(self.checked(rows), self._own_node())
                self._is_by_slot = True

    def _send(
        self, client: Any, commands: Sequence[Command], *, transaction: bool = False
    ) -> list[Any]:
        try:
            return _send(client, commands, transaction=transaction)
        except _PASSING:
            self._failed.add(client)
            raise

    def _all_clients(self) -> list[Any]:
        """The clients of all nodes; only the server itself if it is alone, or a gateway."""
        self._look()
        return [self._client] if self._slots is None else list(map(self._at, self._slots.nodes))

    def _persist(self, attempt: Callable[[], Answer]) -> Answer:
        """The result of the attempt, which is repeated after temporary failures until the
        timeout."""
        end_s, backoff = time.monotonic() + self.address.timeout_s, Backoff(PAUSE_S, PAUSE_S_MAX)
        while True:
            pause_s = backoff.next_s()
            try:
                if self._is_old:
                    self._is_old = False
                    self._read_map(self._known())
                self._look()
                return attempt()
            except (*_PASSING, *NOT_SERVED) as error:
                self._is_old = self._slots is not None or bool(self.address.nodes)
                if not self._persistent:
                    raise self._unreachable(error, waited_s=0) from error
                if _is_lasting(error) or time.monotonic() + pause_s > end_s:
                    raise self._unreachable(error, self.address.timeout_s) from error
            except ClusterCrossSlotError as error:
                raise SeveralSlotsError(
                    f"the cluster at {self.address} has the keys of a transaction in several"
                    " slots: give the prefix a {tag}, so that all keys are in one slot"
                ) from error
            except redis.RedisError as error:
                raise ServerError(f"the server at {self.address} answered: {error}") from error
            time.sleep(pause_s)

    def _unreachable(self, error: redis.RedisError, waited_s: int) -> ServerError:
        if isinstance(error, _REFUSED):
            return ServerError(
                f"the server at {self.address} refused the user or the password: {error}"
            )
        if _is_lasting(error):
            return ServerError(f"no TLS with the server at {self.address}: {error}")
        if isinstance(error, MovedError):
            return Unreachable(
                f"the nodes of the cluster at {self.address} do not agree on the owner of a slot:"
                f" MOVED {error}"
            )
        if isinstance(error, (ClusterDownError, TryAgainError)) and not waited_s:
            return Unreachable(f"the cluster at {self.address} does not serve the slot: {error}")
        what = f"did not answer for {waited_s} s" if waited_s else "cannot be reached"
        text = f"the server at {self.address} {what}: {reason_of(error)}{next_step(error)}"
        return Unreachable(text)


def _send(client: Any, commands: Sequence[Command], *, transaction: bool = False) -> list[Any]:
    with client.pipeline(transaction=transaction) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        return replies


def _read_reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def _is_lasting(error: redis.RedisError) -> bool:
    """True if another attempt would fail, too: a wrong password, an untrusted certificate."""
    return isinstance(error, _REFUSED) or isinstance(error.__context__, ssl.SSLError)
