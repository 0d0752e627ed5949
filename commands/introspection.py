"""COMMAND: the command table, told to clients in Redis' shapes.

Everything comes from the registry's rows. DOCS also describes the arguments, read from the row's
syntax line, because redis-cli shows them as hints while one types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.commands.containers import container
from millstream.commands.glob import matcher
from millstream.commands.registry import COMMANDS, Command, command
from millstream.commands.replies import Simple
from millstream.commands.syntax import Argument, parse_syntax
from millstream.errors import SYNTAX, CommandError

if TYPE_CHECKING:
    from millstream.commands.arguments import Args
    from millstream.commands.context import Context

GROUP_CATEGORIES = {"stream", "string", "connection", "pubsub", "transactions", "scripting"}


def categories(row: Command) -> list[str]:
    """ACL categories of a command, from its flags, its group and what its row adds."""
    flags = row.flags
    found = set(row.categories)
    found |= flags & {"write", "pubsub", "fast", "blocking"}
    if "readonly" in flags:
        found.add("read")
    if "admin" in flags:
        found |= {"admin", "dangerous"}
    if "fast" not in flags:
        found.add("slow")
    if row.group in GROUP_CATEGORIES:
        found.add("transaction" if row.group == "transactions" else row.group)
    return sorted(found)


def _key_specs(row: Command) -> list[object]:
    """Where the keys are, in the form that cluster-aware clients read (Redis 7 and later)."""
    first, last, step = row.keys
    if first == 0:
        return []
    access = [b"RW", b"update"] if "write" in row.flags else [b"RO", b"access"]
    span = {b"lastkey": last - first if last >= 0 else last, b"keystep": step, b"limit": 0}
    return [
        {
            b"flags": [Simple(flag) for flag in access],
            b"begin_search": {b"type": b"index", b"spec": {b"index": first}},
            b"find_keys": {b"type": b"range", b"spec": span},
        }
    ]


def details(row: Command) -> list[object]:
    """One command as COMMAND INFO answers it: ten elements, subcommands nested in the last."""
    return [
        row.name.encode(),
        row.arity,
        {Simple(flag.encode()) for flag in row.flags},
        *row.keys,
        {Simple(b"@" + name.encode()) for name in categories(row)},
        [],
        _key_specs(row),
        [details(sub) for sub in row.subcommands.values()],
    ]


def _argument_docs(argument: Argument) -> dict[bytes, object]:
    described: dict[bytes, Any] = {b"name": argument.name.encode(), b"type": argument.kind.encode()}
    if argument.kind not in ("oneof", "block", "pure-token"):
        described[b"display_text"] = argument.name.encode()
    if argument.token:
        described[b"token"] = argument.token.encode()
    flags = [
        Simple(name)
        for name, held in ((b"optional", argument.optional), (b"multiple", argument.multiple))
        if held
    ]
    if flags:
        described[b"flags"] = flags
    if argument.parts:
        described[b"arguments"] = [_argument_docs(part) for part in argument.parts]
    return described


def docs(row: Command) -> dict[bytes, object]:
    """One command as COMMAND DOCS answers it."""
    described: dict[bytes, object] = {
        b"summary": row.summary.encode(),
        b"since": row.since.encode(),
        b"group": row.group.encode(),
        b"complexity": row.complexity.encode(),
    }
    arguments = parse_syntax(row.syntax) if not row.subcommands else []
    if arguments:
        described[b"arguments"] = [_argument_docs(argument) for argument in arguments]
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


container(
    "COMMAND",
    group="server",
    summary="Returns detailed information about all commands.",
    bare=_all_details,
)


@command(
    "COMMAND|COUNT",
    arity=2,
    flags="loading stale",
    group="server",
    summary="Returns a count of commands.",
    categories=("connection",),
)
def command_count(ctx: Context, args: Args) -> object:
    return len(COMMANDS)


@command(
    "COMMAND|INFO",
    arity=-2,
    flags="loading stale",
    group="server",
    summary="Returns information about one, multiple or all commands.",
    syntax="[command-name [command-name ...]]",
    complexity="O(N), N the number of commands looked up",
    categories=("connection",),
)
def command_info(ctx: Context, args: Args) -> object:
    """For each name its row as a list of ten, null for a command that is not there."""
    if not args.remaining:
        return [details(row) for row in COMMANDS.values()]
    rows = [find(name) for name in args.rest()]
    return [None if row is None else details(row) for row in rows]


@command(
    "COMMAND|DOCS",
    arity=-2,
    flags="loading stale",
    group="server",
    summary="Returns documentary information about one, multiple or all commands.",
    syntax="[command-name [command-name ...]]",
    complexity="O(N), N the number of commands looked up",
    categories=("connection",),
)
def command_docs(ctx: Context, args: Args) -> object:
    """A map from name to documentation; names that are not there are left out."""
    if not args.remaining:
        return {row.name.encode(): docs(row) for row in COMMANDS.values()}
    rows = (find(name) for name in args.rest())
    return {row.name.encode(): docs(row) for row in rows if row is not None}


def _matching_names(args: Args) -> list[bytes]:
    names = [row.name for row in COMMANDS.values()]
    names += [sub.name for row in COMMANDS.values() for sub in row.subcommands.values()]
    if not args.remaining:
        return [row.name.encode() for row in COMMANDS.values()]
    if args.remaining != 3 or not args.option(b"FILTERBY"):
        raise CommandError(SYNTAX)
    kind, value = args.take().upper(), args.take()
    if kind == b"PATTERN":
        matches = matcher(value, any_case=True)
        return [name.encode() for name in names if matches(name.encode())]
    if kind == b"ACLCAT":
        wanted = value.decode("ascii", "replace").lower()
        rows = ((name, find(name.encode())) for name in names)
        return [name.encode() for name, row in rows if row and wanted in categories(row)]
    if kind == b"MODULE":
        return []
    raise CommandError(SYNTAX)


@command(
    "COMMAND|LIST",
    arity=-2,
    flags="loading stale",
    group="server",
    summary="Returns a list of command names.",
    syntax="[FILTERBY <MODULE module-name | ACLCAT category | PATTERN pattern>]",
    complexity="O(N), N the number of commands",
    categories=("connection",),
)
def command_list(ctx: Context, args: Args) -> object:
    """Names in lower case; with a filter subcommands too, as `container|sub`."""
    return _matching_names(args)


@command(
    "COMMAND|GETKEYS",
    arity=-3,
    flags="loading stale",
    group="server",
    summary="Extracts the key names from an arbitrary command.",
    syntax="command [arg [arg ...]]",
    complexity="O(N), N the number of arguments",
    categories=("connection",),
)
def command_getkeys(ctx: Context, args: Args) -> object:
    words = args.rest()
    row = COMMANDS.get(words[0].lower())
    if row is not None and row.subcommands and len(words) > 1:
        row = row.subcommands.get(words[1].lower(), row)
    if row is None:
        raise CommandError("ERR Invalid command specified")
    if not row.keys[0] and row.find_keys is None:
        raise CommandError("ERR The command has no key arguments")
    if len(words) != row.arity if row.arity > 0 else len(words) < -row.arity:
        raise CommandError("ERR Invalid number of arguments specified for command")
    try:
        return [words[index] for index in row.key_positions(words)]
    except (CommandError, IndexError, ValueError):
        raise CommandError("ERR Invalid arguments specified for command") from None
