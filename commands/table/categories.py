"""The ACL categories: their names, and which command is in which.

A command is in the categories that follow from its flags and its group, and in those that a tag of
its row names (`@keyspace`).
"""

from __future__ import annotations

# All categories of Redis, in its order. Some have no command here; rules may name them.
CATEGORIES = (
    "keyspace", "read", "write", "set", "sortedset", "list", "hash", "string", "bitmap",
    "hyperloglog", "geo", "stream", "pubsub", "admin", "fast", "slow", "blocking", "dangerous",
    "connection", "transaction", "scripting",
)  # fmt: skip
_OF_GROUPS = {
    **{group: group for group in ("stream", "string", "connection", "scripting")},
    "transactions": "transaction",
}


def categories_of_flags(flags: frozenset[str]) -> frozenset[str]:
    found = set(flags & {"write", "pubsub", "fast", "blocking"})
    if "readonly" in flags:
        found.add("read")
    if "admin" in flags:
        found |= {"admin", "dangerous"}
    if "fast" not in flags:
        found.add("slow")
    return frozenset(found)


def categories_of_group(group: str) -> frozenset[str]:
    return frozenset([_OF_GROUPS[group]] if group in _OF_GROUPS else ())
