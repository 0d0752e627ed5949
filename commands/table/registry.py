"""The command table: one row per command, with all information about it.

The row drives dispatch, arity checks, COMMAND and its DOCS, ACL, the pages in docs/commands and the
tests. `@command` registers the function and returns it unwrapped: a Python wrapper around a
compiled handler doubles the cost of the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

from millstream.commands.table.categories import categories_of_flags, categories_of_group
from millstream.commands.table.keyspecs import (
    KeySpec,
    KeyUse,
    find_key_specs,
    fixed_places,
    use_with,
)
from millstream.commands.table.syntax import Argument, arity_of, parse_syntax, shown_syntax
from millstream.errors import SYNTAX

Handler = Callable[[Any, Any], Any]
H = TypeVar("H", bound=Handler)

# The flags of COMMAND. "loading": allowed while data is loaded; "no_auth": allowed before AUTH.
FLAGS = frozenset(
    [
        "write",
        "readonly",
        "denyoom",
        "admin",
        "pubsub",
        "noscript",
        "blocking",
        "loading",
        "stale",
        "skip_monitor",
        "skip_slowlog",
        "fast",
        "no_auth",
        "no_mandatory_keys",
        "movablekeys",
        "no_multi",
        "no_async_loading",
        "allow_busy",
    ]
)

# Traits for the server itself, which COMMAND does not report.
TRAITS = frozenset(
    {
        # Quick for requests of few words, unless the handler sets Context.timed_alone: consecutive
        # calls share their time.
        "hot",
        # Not queued by MULTI: it acts on the transaction itself, or ends the connection.
        "unqueued",
        # Allowed for a RESP2 client with subscriptions.
        "subscribed",
        # The reply shows no data, so it does not wait for the journal: health checks and new
        # connections do not wait for the disk. Nor do commands that inspect the server, which are
        # needed most while the disk is slow; INFO counts the keys in memory.
        "dataless",
        # Runs while the journal's queue is full, because it can end that state.
        "unblocked",
        # Only removes data, or sets what is removed: allowed while the disk is full; the second one
        # without an entry to append.
        "removes",
        "removes_without_entry",
        # Refused, before MULTI queues it, unless a directive allows it.
        "protected",
        # Changes what an administrator is responsible for: users, settings, other connections, all
        # data. The log names who ran it.
        "audited",
        # Not a write command, but postponed by a pause of writes, because it may change data or
        # send messages.
        "tells",
        # In a cluster, the keys may be in several slots of the node. Other commands take one slot.
        "any_slots",
        # The channels that ACL rules must allow: the first argument, all arguments, or all as
        # patterns.
        "channel",
        "channels",
        "patterns",
    }
)
TIPS = ("nondeterministic_output", "request_policy:", "response_policy:")
WRITES_WITH = "writes_with:"
OUR_FIRST_VERSION = "0.1.0"  # in which the commands came that Redis does not have
SUBCOMMANDS = "subcommand [argument ...]"  # the syntax line of a container


class Command:
    """One row. `name` is lower case, a subcommand's is ``container|sub``; arity is that of Redis:
    the exact number of words, negative for at least that many. `keys` is (first, last, step) of the
    keys at fixed places, with 0 for none. `key_specs` say how the keys are used and where they are.
    `writes_with` is the option with which a command that else only reads may change data; its key
    is then read and written. `tips` are COMMAND's, for clients; `categories` ACL's. `unlisted`
    subcommands are known to dispatch and to nothing else: they answer an error. `known_after` is
    called before the error about the number of words, and may raise another one."""

    def __init__(
        self,
        name: str,
        handler: Handler,
        arity: int,
        group: str,
        since: str,
        syntax: str = "",
        complexity: str = "",
    ) -> None:
        self.name = name
        self.handler = handler
        self.arity = arity
        self.group = group
        self.since = since
        self.syntax = syntax
        self.complexity = complexity
        self.flags: frozenset[str] = frozenset()
        self.keys = (0, 0, 0)
        self.key_specs: tuple[KeySpec, ...] = ()
        self.categories: frozenset[str] = frozenset()
        self.writes_with: bytes | None = None
        self.tips: tuple[str, ...] = ()
        self.traits: frozenset[str] = frozenset()
        self.subcommands: dict[bytes, Command] = {}
        self.unlisted: dict[bytes, Command] = {}
        self.known_after: Handler | None = None

    @property
    def summary(self) -> str:
        """The first paragraph of the handler's docstring, on one line."""
        return self._docstring.partition("\n\n")[0].replace("\n", " ")

    @property
    def description(self) -> str:
        """The other paragraphs."""
        return self._docstring.partition("\n\n")[2].strip()

    @property
    def _docstring(self) -> str:
        return inspect.getdoc(self.handler) or ""

    @property
    def syntax_error(self) -> str:
        """The error for wrong options. That of a command of our own shows the syntax; for a command
        of Redis it is Redis' error."""
        if self.since != OUR_FIRST_VERSION:
            return SYNTAX
        return f"{SYNTAX}, the syntax is: {self.name.upper()} {shown_syntax(self.syntax)}"


COMMANDS: dict[bytes, Command] = {}
_registered = 0


def registered_count() -> int:
    """The number of registrations so far; it changes with the table."""
    return _registered


class CommandGroup:
    """Registers the commands of one group of COMMAND DOCS. They share these tags."""

    prefix = ""

    def __init__(self, group: str, tags: str = "", since: str = "1.0.0") -> None:
        self.group = group
        self.tags = tags
        self.since = since

    def __call__(
        self,
        usage: str,
        tags: str = "",
        *,
        since: str = "",
        complexity: str = "O(1)",
        keys: str | KeyUse = "",
        arity: int = 0,
        known_after: Handler | None = None,
    ) -> Callable[[H], H]:
        """Register the handler below under the name that its usage begins with.

        The rest of the usage is the syntax line, from which arity and places of keys follow; an
        `arity` is given for what the line does not show. `tags` are flags, traits, tips for
        clients, ACL categories (``@keyspace``) and ``writes_with:OPTION``. `keys` says how keys are
        used where the flags do not; for `known_after` see `Command`. The first paragraph of the
        handler's docstring is the summary, the rest is the description.
        """
        name, _, syntax = usage.partition(" ")

        def register(handler: H) -> H:
            row = Command(
                f"{self.prefix}{name}".lower(),
                handler,
                arity,
                self.group,
                since or self.since,
                syntax,
                complexity,
            )
            row.known_after = known_after
            _derive(row, f"{self.tags} {tags}", keys)
            _add(row)
            return handler

        return register


def _derive(row: Command, tags: str, keys: str | KeyUse) -> None:
    """Set the fields that follow from the row's syntax and tags."""
    arguments, of_tags = _arguments(row.syntax), _classified(tags)
    words = row.name.count("|") + 1
    row.arity = row.arity or arity_of(arguments, words)
    row.writes_with = of_tags.writes_with
    if row.writes_with is not None:
        keys = use_with(row.writes_with)
    row.key_specs = find_key_specs(arguments, words, keys, writes="write" in of_tags.flags)
    row.keys = fixed_places(row.key_specs)
    row.flags, row.traits, row.tips = of_tags.flags, of_tags.traits, of_tags.tips
    if any(spec.is_movable for spec in row.key_specs):
        optional = ["no_mandatory_keys"] * row.key_specs[0].optional
        row.flags = row.flags.union(["movablekeys"], optional)
    if of_tags.unknown:
        raise ValueError(f"command {row.name}: unknown tags {of_tags.unknown}")
    row.categories = of_tags.categories
    if row.syntax != SUBCOMMANDS:
        row.categories |= categories_of_group(row.group)


class _Tags:
    """The tags of a row by their meaning. `categories` are those that follow from the flags, and
    those that are named."""

    def __init__(
        self,
        flags: frozenset[str],
        traits: frozenset[str],
        tips: tuple[str, ...],
        categories: frozenset[str],
        writes_with: bytes | None,
        unknown: list[str],
    ) -> None:
        self.flags = flags
        self.traits = traits
        self.tips = tips
        self.categories = categories
        self.writes_with = writes_with
        self.unknown = unknown


# Many rows have the same syntax and tags, and every start derives all rows.


@cache
def _arguments(syntax: str) -> Sequence[Argument]:
    return parse_syntax(syntax)


@cache
def _classified(text: str) -> _Tags:
    tags = text.split()
    flags, traits = FLAGS.intersection(tags), TRAITS.intersection(tags)
    tips = tuple(tag for tag in tags if tag.startswith(TIPS))
    named = {tag for tag in tags if tag.startswith("@")}
    options = [tag for tag in tags if tag.startswith(WRITES_WITH)]
    return _Tags(
        flags,
        traits,
        tips,
        categories_of_flags(flags) | {name[1:] for name in named},
        options[0].removeprefix(WRITES_WITH).encode() if options else None,
        sorted(set(tags) - flags - traits - named - {*tips, *options}),
    )


def _add(row: Command) -> None:
    global _registered
    container, _, sub = row.name.encode().partition(b"|")
    table = COMMANDS[container].subcommands if sub else COMMANDS
    table[sub or container] = row
    _registered += 1


def refuse(container: str, sub: str, arity: int, handler: Handler) -> None:
    """Register a subcommand that Redis has and this server only answers with an error."""
    row = COMMANDS[container.lower().encode()]
    name = f"{row.name}|{sub}"
    row.unlisted[sub.encode()] = Command(name, handler, arity, row.group, row.since)


command = CommandGroup("stream", since=OUR_FIRST_VERSION)
