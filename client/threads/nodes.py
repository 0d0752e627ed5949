# Generated from client/aio/nodes.py by scripts/client_for_threads.py: change it there.
"""The nodes of a cluster, for asyncio: reading the map, and pipelines for several nodes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from millstream.client import redis_py
from millstream.client.core.cluster_nodes import (
    FOUND,
    NODES,
    UNANSWERED,
    ClusterNodes,
    Gathered,
    first_moved,
    parts_of,
    pools_to_close,
)
from millstream.client.core.steps import Answer, Ask
from millstream.client.threads.interruptible import make_interruptible
from millstream.slot_routing import MOVES_MAX, Address, moved_to, read_slots


def learn(client: Any, moved: MovedError) -> ClusterNodes:
    """The nodes of the cluster, after one of them has named another one for a slot."""
    nodes = cluster_of(client)
    node = moved_to(moved, nodes.own)
    if nodes.slots.node_of(moved.slot_id) != node:
        read_map(nodes, [node, *nodes.to_ask()])
        nodes.slots = nodes.slots.with_node(moved.slot_id, node)
    return nodes


def cluster_of(client: Any) -> ClusterNodes:
    """The nodes of the cluster that the server of a client belongs to."""
    nodes = ClusterNodes.of(client)
    if nodes is None:
        nodes = ClusterNodes(
            client,
            redis_py.own_address(client),
            lambda node: redis_py.node_client(client, node, redis),
            time.monotonic,
        )
        setattr(client, NODES, nodes)
    return nodes


def look(client: Any) -> None:
    """Read the map if the server has said that it is a node: once it has ended, it cannot tell
    which other ones there are."""
    if FOUND in vars(client) and ClusterNodes.of(client) is None:
        nodes = cluster_of(client)
        with suppress(RedisError):  # the user may not read it
            nodes.slots = read_slots(slots_reply(client), nodes.own)


def renew(nodes: ClusterNodes) -> None:
    """Read the map again, if a node has not answered for a while."""
    if nodes.is_due():
        read_map(nodes, nodes.to_ask())


def perform_at_nodes(ask: Ask, perform: Any, answer: Answer | None = None) -> Answer:
    """Send the commands of an ask with `perform`, which sends an ask to its server: in a cluster,
    each command to the node of its keys. A command for several nodes keeps the error of one.
    `answer` is that of a node that was asked for all of it."""
    client: Any = ask.server.client
    nodes = ClusterNodes.of(client)
    if nodes is None and answer is None:
        answer = perform(ask)
        assert answer is not None
        if first_moved(answer) is None:
            look(client)
            return answer
    gathered = Gathered(ask)
    if answer is not None:
        gathered.take_all(answer)
    for _ in range(MOVES_MAX):
        moved = gathered.moved(nodes)
        if moved is not None:
            nodes = learn(client, moved)
        elif gathered.is_complete:
            break
        assert nodes is not None
        renew(nodes)
        for part in parts_of(ask, gathered.missing, nodes):
            found = perform(part.ask)
            nodes.note(part.ask.server.client, found)
            gathered.take(part, found)
    return gathered.answer()


def execute_at_node(client: Any, words: Sequence[Any], options: dict[str, Any]) -> Any:
    """Send one command to the node of its first key."""
    nodes = ClusterNodes.of(client)
    redis_client: Any = redis.Redis
    for _ in range(MOVES_MAX):
        at = client
        if nodes is not None:
            renew(nodes)
            at = nodes.of_words(words)
        try:
            reply = redis_client.execute_command(at, *words, **options)
        except MovedError as error:
            moved = error
        except (RedisConnectionError, RedisTimeoutError):
            if nodes is not None:
                nodes.note_failed(at)
            raise
        except ResponseError as error:
            raise (error if nodes is None else nodes.noted(at, error)) from None
        else:
            look(client)
            return reply
        nodes = learn(client, moved)
        nodes.refuse_several([words])
    raise moved


def read_map(nodes: ClusterNodes, asked: Iterable[Address]) -> None:
    """Read the map from the first of these nodes that tells it. None of them may, or can. Idle
    connections to nodes that are not in the map any more are closed."""
    for node in dict.fromkeys(asked):
        try:
            reply = slots_reply(nodes.at(node))
        except RedisError:
            continue
        nodes.slots = read_slots(reply, node)
        for pool in nodes.pools_of_left():
            pool.disconnect(inuse_connections=False)
        return


def slots_reply(client: Any) -> Any:
    make_interruptible(client.connection_pool)
    connection = redis_py.borrow(client)
    try:
        connection.send_command("CLUSTER", "SLOTS")
        return connection.read_response()
    except OSError as error:
        raise redis_py.failed_connection(client, error) from error
    finally:
        client.connection_pool.release(connection)


def close_client(ms: Any, *args: Any, **options: Any) -> None:
    """Close the connections, also those to other nodes of a cluster.

    >>> connect(url).close()
    """
    for pool in pools_to_close(ms):
        pool.disconnect()
    base: Any = redis.Redis
    base.close(ms, *args, **options)


# ---------------------------------------------------------------- pipelines


def execute_queued(pipe: Any, execute: Any, *, raise_on_error: bool) -> list[Any]:
    """The replies to a pipeline's commands, in order. `execute` is redis-py's, for one node."""
    if redis_py.is_transaction(pipe):
        return execute_at_once(pipe, execute, raise_on_error=raise_on_error)
    home = pipe.home
    commands = list(pipe.command_stack)
    nodes = ClusterNodes.of(home)
    replies: list[Any] = [None] * len(commands)
    left = list(range(len(commands)))
    if nodes is None or pipe.connection is not None:
        replies = execute(False)
        left = [number for number in left if isinstance(replies[number], MovedError)]
    for _ in range(MOVES_MAX):
        moved = next((replies[n] for n in left if isinstance(replies[n], MovedError)), None)
        if moved is not None:
            nodes = learn(home, moved)
        if not left or nodes is None:
            break
        renew(nodes)
        execute_at_nodes(pipe, nodes, commands, left, replies)
        left = [number for number in left if isinstance(replies[number], MovedError)]
    look(home)
    if raise_on_error:
        pipe.raise_first_error(commands, replies)
    return replies


def execute_at_nodes(
    pipe: Any,
    nodes: ClusterNodes,
    commands: Sequence[Any],
    numbers: Sequence[int],
    replies: list[Any],
) -> None:
    """Send some commands to their nodes: first all of them, so that the nodes work at once. Those
    for one node keep their order."""
    by_node: dict[Any, list[int]] = {}
    for number in numbers:
        by_node.setdefault(nodes.of_words(commands[number][0]), []).append(number)
    connections: dict[Any, Any] = {}
    try:
        for client, own in by_node.items():
            make_interruptible(client.connection_pool)
            connection = connections[client] = redis_py.borrow(client)
            packed = connection.pack_commands([commands[number][0] for number in own])
            connection.send_packed_command(packed)
        for client, own in by_node.items():
            for number in own:
                words, options = commands[number]
                try:
                    reply = pipe.parse_response(connections[client], words[0], **options)
                except ResponseError as error:
                    reply = nodes.noted(client, error)
                replies[number] = reply
            client.connection_pool.release(connections.pop(client))
    finally:  # not read to the end
        nodes_left = list(connections.items())
        for client, connection in nodes_left:
            nodes.note_failed(client)
            connection.disconnect()
            client.connection_pool.release(connection)


def execute_at_once(pipe: Any, execute: Any, *, raise_on_error: bool) -> list[Any]:
    """A transaction, at the node of its keys. Nothing of it has run if a node names another one."""
    home = pipe.home
    commands, is_explicit = list(pipe.command_stack), pipe.explicit_transaction
    is_watching = pipe.watching
    for _ in range(MOVES_MAX):
        nodes = ClusterNodes.of(home)
        if nodes is not None and pipe.connection is None:
            renew(nodes)
            pipe.connection_pool = of_first_key(nodes, commands).connection_pool
        try:
            replies: list[Any] = execute(raise_on_error)
        except MovedError as error:
            moved = error
        except UNANSWERED:
            note_lost(pipe, nodes)
            raise
        else:
            look(home)
            return replies
        nodes = learn(home, moved)
        if is_watching:
            raise redis_py.watch_lost(moved)
        nodes.refuse_several(words for words, _ in commands)
        pipe.command_stack, pipe.explicit_transaction = list(commands), is_explicit
    raise moved


def watch_at_node(pipe: Any, send: Any, words: Sequence[Any]) -> Any:
    """Send the first command of a pipeline that is sent at once, which is WATCH."""
    home = pipe.home
    for _ in range(MOVES_MAX):
        nodes = ClusterNodes.of(home)
        if nodes is not None:
            renew(nodes)
            pipe.connection_pool = nodes.of_words(words).connection_pool
        try:
            return send()
        except MovedError as error:
            moved = error
        except UNANSWERED:
            note_lost(pipe, nodes)
            raise
        pipe.reset()
        learn(home, moved)
    raise moved


def note_lost(pipe: Any, nodes: ClusterNodes | None) -> None:
    """The node of a pipeline does not answer."""
    if nodes is not None:
        nodes.note_failed(nodes.of_pool(pipe.connection_pool))


def of_first_key(nodes: ClusterNodes, commands: Sequence[Any]) -> Any:
    """The client of the node of the first command with a key."""
    for words, _ in commands:
        client = nodes.of_words(words)
        if client is not nodes.home:
            return client
    return nodes.home
