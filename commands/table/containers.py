"""Commands with subcommands (CLIENT, CONFIG, COMMAND, MEMORY).

The container's own row replies to a missing or unknown subcommand with Redis' error, and every
container has a HELP, generated from the same table as the documentation.
"""

from __future__ import annotations

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import Simple
from millstream.commands.table.registry import COMMANDS, SUBCOMMANDS, CommandGroup, Handler
from millstream.commands.table.syntax import shown_syntax
from millstream.errors import CommandError, shown, wrong_arity

SHOWN_WORD_BYTES = 128  # of a client's own word in an error


def unknown_subcommand(container: str, word: bytes) -> CommandError:
    """Redis' error for an unknown subcommand; `word` is the client's spelling."""
    beginning = shown(word[:SHOWN_WORD_BYTES])
    return CommandError(f"ERR unknown subcommand '{beginning}'. Try {container} HELP.")


def wrong_subcommand(container: str, word: bytes) -> CommandError:
    """Redis' error for a subcommand that has no such form; `word` is the client's spelling."""
    beginning = shown(word[:SHOWN_WORD_BYTES])
    return CommandError(
        f"ERR unknown subcommand or wrong number of arguments for '{beginning}'. "
        f"Try {container} HELP."
    )


class Container(CommandGroup):
    """Registers a container with its HELP, then its subcommands, which share `tags` and `since`.

    `bare` handles NAME alone, with `bare_tags`; without `bare`, NAME alone is a wrong number of
    arguments.
    """

    def __init__(
        self,
        name: str,
        group: str,
        summary: str,
        *,
        since: str = "1.0.0",
        tags: str = "",
        bare: Handler | None = None,
        bare_tags: str = "",
    ) -> None:
        super().__init__(group, since=since)

        def answer(ctx: Context, args: Args) -> object:
            if args.remaining:
                raise unknown_subcommand(name, args.take())
            if bare is None:
                raise wrong_arity(name.lower())
            return bare(ctx, args)

        def answer_help(ctx: Context, args: Args) -> list[Simple]:
            """Prints this help."""
            return help_lines(name)

        answer.__doc__ = summary
        self(name if bare else f"{name} {SUBCOMMANDS}", bare_tags, arity=-1 if bare else -2)(answer)
        self.prefix = f"{name}|"
        self.tags = " ".join(tag for tag in tags.split() if tag.startswith("@"))
        self("HELP", "loading stale dataless")(answer_help)
        self.tags = tags


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
