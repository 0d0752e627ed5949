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

# What the server itself does with a command; COMMAND does not report these.
TRAITS = frozenset(
    {
        # Quick in few words, unless it says otherwise (Context.timed_alone): equal ones in a row
        # share their time.
        "hot",
        # MULTI does not queue it: it acts on the transaction itself, or ends the conversation.
        "unqueued",
        # A RESP2 client may still ask for it once it has subscribed.
        "subscribed",
        # The reply shows no data, so it does not wait until a crash would leave the data as it is:
        # health checks and new connections do not wait for the disk. Nor does a look at what the
        # server itself does, which is wanted most while the disk is slow: INFO's count of keys is
        # the one in memory.
        "dataless",
        # It runs while the journal's queue is full, because it ends that.
        "unblocked",
    }
)


@dataclass(slots=True)
class Command:
    """One row. `name` is lower case, a subcommand's is ``container|sub``; arity as in Redis:
    the exact number of words, negative for at least that many. `keys` is (first, last, step) with
    0 for none; `find_keys` lists the key positions of commands whose keys move.
    `writes_with` is the option with which a command that else only reads may change data.
    `key_use` says how the keys are used where the flags do not, with a comma before the use of the
    second key. Keys follow the word `keyword`, searched from a position on, or their number, which
    stands at a position (`key_count`, with their step). `tips` are COMMAND's, for clients.
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
    key_use: str = ""
    keyword: tuple[str, int] | None = None
    key_count: tuple[int, int] | None = None
    tips: str = ""
    traits: frozenset[str] = frozenset()
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
_registered = 0


def registered_count() -> int:
    """How many times a command or a subcommand was registered: it changes with the table."""
    return _registered


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
    key_use: str = "",
    keyword: tuple[str, int] | None = None,
    key_count: tuple[int, int] | None = None,
    tips: str = "",
    traits: str = "",
) -> Callable[[Handler], Handler]:
    """Register a handler under NAME or ``CONTAINER|SUB`` and return it as it is.

    A container's own row (``CLIENT``) is registered before its subcommands; its handler answers
    a bare or unknown subcommand.
    """
    words, own = frozenset(flags.split()), frozenset(traits.split())
    unknown = words - FLAGS | own - TRAITS
    if unknown:
        raise ValueError(f"command {name}: unknown flags or traits {sorted(unknown)}")

    def register(handler: Handler) -> Handler:
        global _registered
        row = Command(
            name.lower(), handler, arity, words, keys, group, since, summary, syntax, complexity,
            categories, find_keys, writes_with, key_use, keyword, key_count, tips, own,
        )  # fmt: skip
        container, _, sub = row.name.encode().partition(b"|")
        table = COMMANDS[container].subcommands if sub else COMMANDS
        table[sub or container] = row
        _registered += 1
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
