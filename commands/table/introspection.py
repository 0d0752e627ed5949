"""COMMAND: the command table in Redis' form.

Everything comes from the registry's rows. DOCS also describes the arguments, from the row's syntax
line, because redis-cli shows them as hints.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, repeat
from typing import Any

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import OrderedSet, Simple
from millstream.commands.table.containers import Container
from millstream.commands.table.keyspecs import KeySpec, keys_with_flags
from millstream.commands.table.registry import COMMANDS, Command
from millstream.commands.table.syntax import Argument, parse_syntax
from millstream.errors import SYNTAX, CommandError
from millstream.glob import matcher


def _described(spec: KeySpec) -> dict[bytes, object]:
    """A key spec in the form that cluster-aware clients read (Redis 7 and later)."""
    if spec.keyword:
        place = {b"keyword": spec.keyword.encode(), b"startfrom": spec.first}
        begin: dict[bytes, object] = {b"type": b"keyword", b"spec": place}
    else:
        begin = {b"type": b"index", b"spec": {b"index": spec.first}}
    kind = b"range"
    span = {b"lastkey": spec.last, b"keystep": spec.step, b"limit": 2 if spec.halved else 0}
    if spec.counted:
        kind, span = b"keynum", {b"keynumidx": 0, b"firstkey": 1, b"keystep": spec.step}
    return {
        b"flags": {Simple(flag.encode()) for flag in spec.flags.split()},
        b"begin_search": begin,
        b"find_keys": {b"type": kind, b"spec": span},
    }


def details(row: Command) -> list[object]:
    """One command in the form of COMMAND INFO: ten elements, with the subcommands in the last."""
    return [
        row.name.encode(),
        row.arity,
        {Simple(flag.encode()) for flag in row.flags},
        *row.keys,
        {Simple(b"@" + name.encode()) for name in row.categories},
        OrderedSet(tip.encode() for tip in row.tips),
        OrderedSet(map(_described, row.key_specs)),
        # In Redis, an empty list of subcommands is a set, any other an array.
        [details(sub) for sub in row.subcommands.values()] or OrderedSet(),
    ]


def _with_key_specs(arguments: list[dict[bytes, Any]], numbers: Iterator[int]) -> None:
    """Add to each key argument, in order, the number of its key spec."""
    for argument in arguments:
        if argument[b"type"] == b"key":
            argument[b"key_spec_index"] = next(numbers)
        _with_key_specs(argument.get(b"arguments", []), numbers)


def _arguments(row: Command) -> list[dict[bytes, Any]]:
    """The arguments of a command in the form of COMMAND DOCS."""
    described = [_argument_docs(argument) for argument in parse_syntax(row.syntax)]
    _with_key_specs(described, count() if len(row.key_specs) > 1 else repeat(0))
    return described


def _argument_docs(argument: Argument) -> dict[bytes, Any]:
    described: dict[bytes, Any] = {b"name": argument.name.encode(), b"type": argument.kind.encode()}
    if argument.kind not in ("oneof", "block", "pure-token"):
        described[b"display_text"] = argument.name.encode()
    if argument.token:
        described[b"token"] = argument.token.encode()
    flags = {
        Simple(name)
        for name, held in ((b"optional", argument.optional), (b"multiple", argument.multiple))
        if held
    }
    if flags:
        described[b"flags"] = flags
    if argument.parts:
        described[b"arguments"] = [_argument_docs(part) for part in argument.parts]
    return described


def docs(row: Command) -> dict[bytes, object]:
    """One command in the form of COMMAND DOCS."""
    described: dict[bytes, object] = {
        b"summary": row.summary.encode(),
        b"since": row.since.encode(),
        b"group": row.group.encode(),
        b"complexity": row.complexity.encode(),
    }
    arguments = _arguments(row) if not row.subcommands else []
    if arguments:
        described[b"arguments"] = arguments
    if row.subcommands:
        subs = row.subcommands.values()
        described[b"subcommands"] = {sub.name.encode(): docs(sub) for sub in subs}
    return described


def find(name: bytes) -> Command | None:
    """The row of ``name`` or ``container|sub``, in any case."""
    first, _, sub = name.lower().partition(b"|")
    row = COMMANDS.get(first)
    return row.subcommands.get(sub) if row is not None and sub else row


def _all_details(ctx: Context, args: Args) -> list[object]:
    return [details(row) for row in COMMANDS.values()]


subcommand = Container(
    "COMMAND",
    "server",
    "Returns detailed information about all commands.",
    since="2.8.13",
    tags="loading stale @connection",
    bare=_all_details,
    bare_tags="loading stale dataless nondeterministic_output_order @connection",
)


@subcommand("COUNT", "dataless")
def command_count(ctx: Context, args: Args) -> object:
    """Returns a count of commands."""
    return len(COMMANDS)


@subcommand(
    "INFO [command-name [command-name ...]]",
    "dataless nondeterministic_output_order",
    complexity="O(N), N the number of commands looked up",
)
def command_info(ctx: Context, args: Args) -> object:
    """Returns information about one, multiple or all commands.

    For each name, its details as a list of ten elements, or null for an unknown command."""
    if not args.remaining:
        return [details(row) for row in COMMANDS.values()]
    rows = [find(name) for name in args.rest()]
    return [None if row is None else details(row) for row in rows]


@subcommand(
    "DOCS [command-name [command-name ...]]",
    "dataless nondeterministic_output_order",
    since="7.0.0",
    complexity="O(N), N the number of commands looked up",
)
def command_docs(ctx: Context, args: Args) -> object:
    """Returns documentary information about one, multiple or all commands.

    The reply is a map from name to documentation; unknown names are left out."""
    if not args.remaining:
        return {row.name.encode(): docs(row) for row in COMMANDS.values()}
    rows = {row.name: row for row in map(find, args.rest()) if row is not None}
    return {name.encode(): docs(row) for name, row in rows.items()}


def _matching_names(args: Args) -> list[bytes]:
    names = [row.name for row in COMMANDS.values()]
    names += [sub.name for row in COMMANDS.values() for sub in row.subcommands.values()]
    if not args.remaining:
        return [name.encode() for name in names]
    if args.remaining != 3 or not args.option(b"FILTERBY"):
        raise CommandError(SYNTAX)
    kind, value = args.take().upper(), args.take()
    if kind == b"PATTERN":
        matches = matcher(value, any_case=True)
        return [name.encode() for name in names if matches(name.encode())]
    if kind == b"ACLCAT":
        wanted = value.decode("ascii", "replace").lower()
        rows = ((name, find(name.encode())) for name in names)
        return [name.encode() for name, row in rows if row and wanted in row.categories]
    if kind == b"MODULE":
        return []
    raise CommandError(SYNTAX)


@subcommand(
    "LIST [FILTERBY <filterby: MODULE module-name | ACLCAT category | PATTERN pattern>]",
    "dataless nondeterministic_output_order",
    since="7.0.0",
    complexity="O(N), N the number of commands",
)
def command_list(ctx: Context, args: Args) -> object:
    """Returns a list of command names.

    Names in lower case; subcommands are `container|sub`."""
    return _matching_names(args)


def _keys_of(words: list[bytes]) -> list[tuple[bytes, list[str]]]:
    """The keys of a request and their flags; CommandError with Redis' texts."""
    row = COMMANDS.get(words[0].lower())
    if row is not None and row.subcommands and len(words) > 1:
        row = row.subcommands.get(words[1].lower())
    if row is None:
        raise CommandError("ERR Invalid command specified")
    if not any(spec.is_key for spec in row.key_specs):
        raise CommandError("ERR The command has no key arguments")
    if len(words) != row.arity if row.arity > 0 else len(words) < -row.arity:
        raise CommandError("ERR Invalid number of arguments specified for command")
    try:
        return list(keys_with_flags(row.key_specs, words))
    except (CommandError, IndexError, ValueError):
        raise CommandError("ERR Invalid arguments specified for command") from None


@subcommand("GETKEYS command [arg [arg ...]]", complexity="O(N), N the number of arguments")
def command_getkeys(ctx: Context, args: Args) -> object:
    """Extracts the key names from an arbitrary command."""
    return [key for key, _ in _keys_of(args.rest())]


@subcommand(
    "GETKEYSANDFLAGS command [arg [arg ...]]",
    since="7.0.0",
    complexity="O(N), N the number of arguments",
)
def command_getkeysandflags(ctx: Context, args: Args) -> object:
    """Extracts the key names and access flags for an arbitrary command.

    The reply is [key, flags] for each key of the request. The flags are those of COMMAND INFO's key
    specs, evaluated for this request.
    """
    keys = _keys_of(args.rest())
    return [[key, {Simple(flag.encode()) for flag in flags}] for key, flags in keys]
