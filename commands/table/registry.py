"""The command table: one row a command, and everything that is known of it.

The row drives dispatch, arity checks, COMMAND and its DOCS, the pages in docs/commands and the
tests. `@command` registers the function and returns it unwrapped: a Python wrapper around a
compiled handler doubles the cost of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Handler = Callable[[Any, Any], Any]

FLAGS = frozenset(
    {
        "write",
        "readonly",
        "denyoom",
        "admin",
        "pubsub",
        "noscript",
        "blocking",
        "loading",  # allowed while the data is being loaded
        "stale",
        "skip_monitor",
        "skip_slowlog",
        "fast",
        "no_auth",  # allowed before AUTH
        "no_mandatory_keys",
        "movablekeys",
        "no_multi",
        "no_async_loading",
        "allow_busy",
    }
)


@dataclass(slots=True)
class Command:
    """One row. `name` is lower case, a subcommand's is ``container|sub``; arity as in Redis:
    the exact number of words, negative for at least that many. `keys` is (first, last, step) with
    0 for none; `find_keys` lists the key positions of commands whose keys move.
    `writes_with` is the option with which a command that else only reads may change data.
    `unlisted` subcommands are known to dispatch and to nothing else: they answer an error."""

    name: str
    handler: Handler
    arity: int
    flags: frozenset[str]
    keys: tuple[int, int, int]
    group: str
    since: str
    summary: str
    syntax: str
    complexity: str
    categories: tuple[str, ...] = ()
    find_keys: Callable[[list[bytes]], list[int]] | None = None
    writes_with: bytes | None = None
    subcommands: dict[bytes, Command] = field(default_factory=dict)
    unlisted: dict[bytes, Command] = field(default_factory=dict)

    def key_positions(self, words: list[bytes]) -> list[int]:
        """Indexes of the key arguments in a request of these words (name first)."""
        if self.find_keys is not None:
            return self.find_keys(words)
        first, last, step = self.keys
        if first == 0:
            return []
        end = last if last >= 0 else len(words) + last
        return list(range(first, end + 1, step))


COMMANDS: dict[bytes, Command] = {}


def command(
    name: str,
    *,
    arity: int,
    flags: str = "",
    keys: tuple[int, int, int] = (0, 0, 0),
    group: str,
    since: str = "1.0.0",
    summary: str,
    syntax: str = "",
    complexity: str = "O(1)",
    categories: tuple[str, ...] = (),
    find_keys: Callable[[list[bytes]], list[int]] | None = None,
    writes_with: bytes | None = None,
) -> Callable[[Handler], Handler]:
    """Register a handler under NAME or ``CONTAINER|SUB`` and return it as it is.

    A container's own row (``CLIENT``) is registered before its subcommands; its handler answers
    a bare or unknown subcommand.
    """
    words = frozenset(flags.split())
    unknown = words - FLAGS
    if unknown:
        raise ValueError(f"command {name}: unknown flags {sorted(unknown)}")

    def register(handler: Handler) -> Handler:
        row = Command(
            name.lower(), handler, arity, words, keys, group, since, summary, syntax, complexity,
            categories, find_keys, writes_with,
        )  # fmt: skip
        container, _, sub = row.name.encode().partition(b"|")
        table = COMMANDS[container].subcommands if sub else COMMANDS
        table[sub or container] = row
        return handler

    return register


def refuse(container: str, sub: str, arity: int, handler: Handler) -> None:
    """Register a subcommand that Redis has and this server only answers with an error."""
    row = COMMANDS[container.lower().encode()]
    row.unlisted[sub.encode()] = Command(
        f"{row.name}|{sub}",
        handler,
        arity,
        frozenset(),
        (0, 0, 0),
        row.group,
        row.since,
        "",
        "",
        "",
    )
