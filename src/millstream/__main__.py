"""The `millstream` program, also as `python -m millstream`: the entry point to all packages.

A command's module is imported only when that command runs: `millstream serve` does not load the
libraries that exporting needs, and a library that only one command needs may be absent. The help
lines of the commands are therefore in this file.
"""

from __future__ import annotations

import os
import sys

if os.path.basename(sys.argv[0]) in ("millstream", "__main__.py"):
    # Before the other imports, which take longer than this process if it only executes itself
    # again.
    if sys.argv[1:2] == ["serve"]:
        from millstream.server.monitor import huge_pages

        huge_pages.prepare_early(sys.argv[2:])

    import signal

    # Ctrl-C during the other imports ends the program without a traceback; later, click reports it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

import signal
from importlib import import_module
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

from millstream import __version__


class Subcommand(NamedTuple):
    """A command: the import path of the click command, its line in the help, and the extra that
    installs what it needs."""

    path: str
    line: str
    extra: str = ""


COMMANDS = {
    "serve": Subcommand("millstream.server.serve_cli:serve", "Run a server until it is stopped."),
    "users": Subcommand("millstream.server.users_cli:users", "Create a file of users."),
    "check": Subcommand(
        "millstream.server.repair.cli:check", "Verify every byte of a data directory."
    ),
    "inspect": Subcommand(
        "millstream.server.repair.cli:inspect", "List the keys in a data directory."
    ),
    "frames": Subcommand(
        "millstream.server.repair.frames_cli:frames",
        "List the frames of the journals: number, time, effects.",
    ),
    "backup": Subcommand(
        "millstream.server.backup.backup_cli:backup", "Copy all data of a server.", "tools"
    ),
    "restore": Subcommand(
        "millstream.server.backup.restore_cli:restore",
        "Copy a backup into a new data directory.",
        "tools",
    ),
    "cluster": Subcommand(
        "millstream.server.cluster.cluster_cli:cluster",
        "Create a cluster, look at it and change it, or copy its data for another number of nodes.",
    ),
    "gateway": Subcommand(
        "millstream.server.gateway.gateway_cli:gateway",
        "Run a gateway of a cluster, for clients that do not know clusters.",
    ),
    "import": Subcommand(
        "millstream.server.moving.import_cli:import_",
        "Make a data directory from files of a Redis or Valkey, or from a running one.",
    ),
    "compare": Subcommand(
        "millstream.server.moving.compare_cli:compare",
        "Compare the streams and strings of two files, data directories or servers.",
        "tools",
    ),
    "top": Subcommand(
        "millstream.tools.top:top", "Show streams and groups by lag, age or rate.", "tools"
    ),
    "tail": Subcommand(
        "millstream.tools.tail:tail", "Follow a stream: print its entries as they arrive.", "tools"
    ),
    "call": Subcommand(
        "millstream.tools.call:call", "Send one command to a server and print the reply.", "tools"
    ),
    "health": Subcommand(
        "millstream.tools.health:health", "Check whether a server replies.", "tools"
    ),
    "dashboard": Subcommand(
        "millstream.dashboard.dashboard_cli:dashboard",
        "Show streams and groups in a browser.",
        "dashboard",
    ),
    "export": Subcommand(
        "millstream.pipeline.export_cli:export",
        "Copy streams into files for analysis.",
        "export",
    ),
    "cdc": Subcommand(
        "millstream.cdc.cdc_cli:cdc",
        "Copy changes from PostgreSQL databases to another one.",
        "cdc",
    ),
    "completion": Subcommand(
        "millstream.tools.completion:completion",
        "Print a script that completes commands and options in a shell.",
    ),
}


class LazyGroup(click.Group):
    """A group whose commands are loaded when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        path, _, extra = COMMANDS[cmd_name]
        module, _, name = path.partition(":")
        try:
            command = getattr(import_module(module), name)
        except ModuleNotFoundError as problem:
            if not extra or (problem.name or "").startswith("millstream"):
                raise
            raise click.ClickException(
                f"`millstream {cmd_name}` needs {problem.name}: pip install 'millstream[{extra}]'"
            ) from None
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches  # not for commands that exist

            near = get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(
                f"No such command '{args[0]}'." + (f" Did you mean '{near[0]}'?" if near else "")
            )
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes names of commands without loading their modules."""
        options = click.Command.shell_complete(self, ctx, incomplete)
        return options + [
            CompletionItem(name, help=entry.line)
            for name, entry in COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.line) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-v", "--version", prog_name="millstream")
def main() -> None:
    """A stream server that speaks the Redis protocol."""


if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    main(prog_name="millstream")
