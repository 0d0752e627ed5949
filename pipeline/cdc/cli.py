"""The command line of `millstream cdc`; the other modules are imported when a command runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

import click

_NEEDED = ("prometheus_client", "psycopg", "pyspark", "redis", "pyarrow", "pandas")


@dataclass(frozen=True)
class Call:
    """What the group passes to its commands: the file that --config names."""

    file: str | None

    def config(self) -> Any:
        """The configuration; a wrong one ends the program with exit code 2."""
        config = needed("millstream.pipeline.cdc.config")
        try:
            return config.load(config.find(self.file))
        except config.ConfigError as error:
            fail(error, 2)

    def sources(self, config: Any, names: tuple[str, ...]) -> Any:
        """The named sources; all of them without names."""
        faults = needed("millstream.pipeline.cdc.config").ConfigError
        try:
            return tuple(config.source(name) for name in names) or config.sources
        except faults as error:
            fail(error, 2)


def fail(problem: object, code: int = 1) -> NoReturn:
    click.echo(f"millstream: {problem}", err=True)
    sys.exit(code)


def needed(module: str) -> Any:
    """Import a module of this package, whose libraries may be missing."""
    try:
        return import_module(module)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _NEEDED:
            raise
        extra = "cdc,spark" if missing in ("pyspark", "pyarrow", "pandas") else "cdc"
        fail(f'{missing} is not installed: pip install "millstream[{extra}]"')


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    "file",
    metavar="FILE",
    help="The configuration.  [default: $MILLSTREAM_CDC_CONFIG, or cdc.toml]",
)
@click.pass_context
def cdc(ctx: click.Context, file: str | None) -> None:
    """Bring the changes of PostgreSQL databases to another one.

    The guide is docs/cdc.md.
    """
    ctx.obj = Call(file)


def guarded(work: Callable[[], int]) -> NoReturn:
    """Run a command; an error that a user can act on is one line, without passwords."""
    psycopg = needed("psycopg")
    server = needed("millstream.pipeline.server")
    appending = needed("millstream.pipeline.cdc.appending")
    state = needed("millstream.pipeline.cdc.state")
    metrics = needed("millstream.pipeline.cdc.metrics")
    options = needed("millstream.pipeline.options")
    known = (
        psycopg.Error,
        server.ServerError,
        appending.RefusedError,
        appending.ReplacedError,
        state.StateError,
        metrics.MetricsError,
        options.OptionError,
    )
    try:
        code = work()
    except known as error:
        raise SystemExit(_shown(error)) from None
    sys.exit(code)


def _shown(error: Exception) -> int:
    click.echo(f"millstream: {' '.join(str(error).split())}", err=True)
    return 1


@cdc.command()
@click.argument("source", nargs=-1)
@click.pass_obj
def run(call: Call, source: tuple[str, ...]) -> None:
    """Read the sources into millstream until it is stopped."""
    config = call.config()
    sources = call.sources(config, source)
    guarded(lambda: int(needed("millstream.pipeline.cdc.running").run(config, sources)))
