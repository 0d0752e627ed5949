"""The treatment of each command by the gateway.

Mostly this follows from the command table: a command with keys is for the node of its slot, and
COMMAND's tips say which others are for all nodes, and how their replies are merged.
"""

from __future__ import annotations

from millstream.commands.table.registry import Command

# Kinds. The first two are known to the compiled module `routing`.
ONE = 0  # for the node of its first key
SPLIT = 1  # for several nodes, each with its keys
ANY = 2  # for any node: the one that a client uses for requests without keys
ALL = 3  # for all nodes, whose replies are merged
SESSION = 4  # for all connections of the client, also for those that are opened later
TRANSACTION = 5
SUBSCRIPTION = 6
OWN = 7  # in a way of its own
REFUSED = 8

AT_ONCE_IN_MULTI = frozenset({"wait", "waitaof"})  # they do not wait there
SPLIT_READS = frozenset({"xread", "xreadgroup", "tmread"})
_KINDS = {
    # The tips of these two are for their use in health checks of a proxy.
    "ping": ANY,
    "info": ANY,
    "command": ANY,
    "acl": ANY,  # the users are those of all nodes
    "auth": SESSION,
    "hello": SESSION,
    "client|setname": SESSION,
    "client|setinfo": SESSION,
    "client|no-evict": SESSION,
    "client|no-touch": SESSION,
    "multi": TRANSACTION,
    "exec": TRANSACTION,
    "discard": TRANSACTION,
    "watch": TRANSACTION,
    "unwatch": TRANSACTION,
    "subscribe": SUBSCRIPTION,
    "unsubscribe": SUBSCRIPTION,
    "psubscribe": SUBSCRIPTION,
    "punsubscribe": SUBSCRIPTION,
    "ssubscribe": SUBSCRIPTION,
    "sunsubscribe": SUBSCRIPTION,
    "scan": OWN,
    "quit": OWN,
    "reset": OWN,
    "pubsub|channels": ALL,
    "pubsub|shardchannels": ALL,
    "pubsub|numsub": ALL,
    "pubsub|shardnumsub": ALL,
    "pubsub|numpat": ALL,
    "acl|log": REFUSED,
    "client|list": REFUSED,
    "client|kill": REFUSED,
    "client|pause": REFUSED,
    "client|unpause": REFUSED,
    "client|unblock": REFUSED,
    "client|reply": REFUSED,
    # One of several slots would have to wait for the others.
    "mset": ONE,
    "msetex": ONE,
}
# About one node, with their subcommands.
_OF_ONE_NODE = frozenset(
    {
        "backup",
        "bgrewriteaof",
        "bgsave",
        "config",
        "debug",
        "failover",
        "lastsave",
        "latency",
        "memory",
        "monitor",
        "psync",
        "replconf",
        "replicaof",
        "save",
        "shutdown",
        "slaveof",
        "slowlog",
        "sync",
    }
)


def kind_of(row: Command) -> int:
    if row.name in _KINDS:
        return _KINDS[row.name]
    if row.name in SPLIT_READS or "request_policy:multi_shard" in row.tips:
        return SPLIT
    if row.key_specs:
        return ONE
    container = row.name.partition("|")[0]
    if container in _OF_ONE_NODE and not row.name.endswith("|help"):
        return REFUSED
    if container not in _KINDS and {"request_policy:all_shards", "request_policy:all_nodes"} & {
        *row.tips
    }:
        return ALL
    return ANY


def response_policy(row: Command) -> str:
    """The way to merge the replies of several nodes, in the words of COMMAND's tips."""
    for tip in row.tips:
        if tip.startswith("response_policy:"):
            return tip.partition(":")[2]
    return ""
