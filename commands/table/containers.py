"""Commands that are made of subcommands (CLIENT, CONFIG, COMMAND, MEMORY).

The container's own row answers a bare or unknown subcommand in Redis' words, and every container
has a HELP, written from the same table as the documentation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.commands.runtime.replies import Simple
from millstream.commands.table.registry import COMMANDS, Handler, command
from millstream.commands.table.syntax import shown_syntax
from millstream.errors import CommandError, shown, wrong_arity

if TYPE_CHECKING:
    from millstream.commands.runtime.arguments import Args
    from millstream.commands.runtime.context import Context

SHOWN_WORD_BYTES = 128  # of a client's own word in an error


def unknown_subcommand(container: str, word: bytes) -> CommandError:
    """Redis' words for a subcommand that is not there; `word` as the client wrote it."""
    beginning = shown(word[:SHOWN_WORD_BYTES])
    return CommandError(f"ERR unknown subcommand '{beginning}'. Try {container} HELP.")


def wrong_subcommand(container: str, word: bytes) -> CommandError:
    """Redis' words for a subcommand that has no such form; `word` as the client wrote it."""
    beginning = shown(word[:SHOWN_WORD_BYTES])
    return CommandError(
        f"ERR unknown subcommand or wrong number of arguments for '{beginning}'. "
        f"Try {container} HELP."
    )


def container(
    name: str,
    *,
    group: str,
    summary: str,
    since: str = "1.0.0",
    categories: tuple[str, ...] = (),
    bare: Handler | None = None,
    tips: str = "",
    traits: str = "",
) -> None:
    """Register the container NAME and its HELP; subcommands are registered after it.

    `bare` answers NAME alone; without it that is a wrong number of arguments.
    """

    def answer(ctx: Context, args: Args) -> object:
        if args.remaining:
            raise unknown_subcommand(name, args.take())
        if bare is None:
            raise wrong_arity(name.lower())
        return bare(ctx, args)

    def answer_help(ctx: Context, args: Args) -> list[Simple]:
        return help_lines(name)

    answer.__doc__ = bare.__doc__ if bare else None
    command(
        name,
        arity=-1 if bare else -2,
        flags="loading stale" if bare else "",
        group=group,
        since=since,
        summary=summary,
        syntax="" if bare else "subcommand [argument ...]",
        categories=categories,
        tips=tips,
        traits=traits,
    )(answer)
    command(
        f"{name}|HELP",
        arity=2,
        flags="loading stale",
        group=group,
        since=since,
        summary="Prints this help.",
        categories=categories,
        traits="dataless",
    )(answer_help)


def help_lines(name: str) -> list[Simple]:
    """Redis' layout of a container's HELP: a usage line, then each subcommand and what it does."""
    row = COMMANDS[name.lower().encode()]
    lines = [f"{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"]
    if row.arity == -1:
        lines += ["(no subcommand)", f"    {row.summary}"]
    ordered = sorted(row.subcommands.values(), key=lambda sub: sub.name.endswith("|help"))
    for sub in ordered:
        word = sub.name.partition("|")[2].upper()
        lines += [f"{word} {shown_syntax(sub.syntax)}".rstrip(), f"    {sub.summary}"]
    return [Simple(line.encode()) for line in lines]
