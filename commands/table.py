"""Fills the command table: the list of families that a server answers to."""

from __future__ import annotations

from importlib import import_module

FAMILIES = (
    "draft",
    "streams",
    "trimming",
    "policy",
    "deleting",
    "idempotence",
    "once",
    "bulk",
    "stream_reads",
    "groups",
    "group_reads",
    "pending",
    "inspect",
    "strings",
    "setting",
    "counters",
    "keys",
    "migration",
    "expiry",
    "databases",
    "connection",
    "clients",
    "pubsub",
    "transactions",
    "introspection",
    "admin",
    "saving",
    "memory",
    "monitoring",
    "debug",
    "scripts",
    "absent",
)


def load_table() -> None:
    """Import every family, which registers its commands; a second call does nothing."""
    for family in FAMILIES:
        import_module(f"millstream.commands.{family}")
