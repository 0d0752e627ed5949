"""`millstream serve`: a server for interactive use."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from millstream import __version__
from millstream.server.config.directives import DIRECTIVES
from millstream.server.main import run

SHARDS_MAX = 1024
GATEWAYS_MAX = 64


config_option = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Configuration file in the format of redis.conf.",
)


def as_directives(named: Mapping[str, str | None]) -> list[str]:
    """The options that are given, as directives on the command line."""
    return [word for name, value in named.items() if value is not None
            for word in (f"--{name}", value)]  # fmt: skip


class ServeCommand(click.Command):
    """Completes directives, too."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = super().shell_complete(ctx, incomplete)
        if not incomplete.startswith("-"):
            return found
        named = {item.value for item in found}
        options = ((f"--{name}", row.meaning) for name, row in DIRECTIVES.items())
        return found + [
            CompletionItem(option, help=meaning)
            for option, meaning in options
            if option.startswith(incomplete) and option not in named
        ]


@click.command(
    cls=ServeCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
    epilog="Every directive of the configuration file can be given as --directive value; "
    "docs/configuration.md lists them. CONFIG GET * shows them in a running server.",
)
@click.option("--port", metavar="PORT", help="TCP port [default: 6455].")
@click.option("--dir", metavar="FOLDER", help="Data directory [default: data].")
@click.option("--bind", metavar="ADDRESS", help="Address to listen on [default: 127.0.0.1].")
@config_option
@click.option(
    "--shards",
    type=click.IntRange(1, SHARDS_MAX),
    metavar="N",
    help="Run a cluster of N processes, which listen on the N ports after PORT.",
)
@click.option(
    "--gateways",
    type=click.IntRange(0, GATEWAYS_MAX),
    metavar="G",
    help="With --shards: run G gateways, which share PORT [default: 1].",
)
@click.option(
    "--check",
    "only_check",
    is_flag=True,
    help="Check configuration, users and certificates, and do not start.",
)
@click.version_option(__version__, "--version", prog_name="millstream")
@click.argument("directives", nargs=-1, type=click.UNPROCESSED, metavar="[--DIRECTIVE VALUE]...")
def serve(
    file: Path | None,
    shards: int | None,
    gateways: int | None,
    only_check: bool,
    directives: Sequence[str],
    **named: str | None,
) -> None:
    """Run a server until it is stopped (Ctrl-C, SIGTERM or the command SHUTDOWN)."""
    arguments = [*directives, *as_directives(named)]
    if shards is None:
        if gateways is not None:
            raise click.UsageError("--gateways needs --shards.")
        sys.exit(run(file, arguments, only_check=only_check))
    from millstream.server.cluster.serve_shards import run_shards

    gateways = 1 if gateways is None else gateways
    sys.exit(run_shards(file, arguments, shards, gateways, only_check=only_check))
