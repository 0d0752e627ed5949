"""The `millstream` program, also as `python -m millstream`: the entry point to all packages.

A command's module is imported only when that command runs: `millstream serve` does not load the
libraries that exporting needs, and a library that only one command needs may be absent. The help
lines of the commands are therefore in this file.
"""

from __future__ import annotations

from importlib import import_module

import click

from millstream import __version__

# Command name: the import path of the click command, and its line in the help.
COMMANDS = {
    "serve": ("millstream.server.cli:serve", "Run a server until it is stopped."),
    "check": ("millstream.server.repair.cli:check", "Verify every byte of a data directory."),
    "inspect": ("millstream.server.repair.cli:inspect", "List the keys in a data directory."),
    "export": ("millstream.pipeline.export:export", "Copy streams into one file for analysis."),
    "cdc": (
        "millstream.pipeline.cdc.cli:cdc",
        "Bring the changes of PostgreSQL databases to another one.",
    ),
}


class LazyGroup(click.Group):
    """A group whose commands are loaded when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-v", "--version", prog_name="millstream")
def main() -> None:
    """A stream server that speaks the protocol of Redis."""


if __name__ == "__main__":
    main(prog_name="millstream")
