"""The command line of `millstream cdc`; the other modules are imported when a command runs."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

import click

from millstream.cdc import CdcError

_NEEDED = ("prometheus_client", "psycopg", "pyspark", "redis", "pyarrow", "pandas")

_OF_LIBRARIES = (
    ("psycopg", "Error"),
    ("millstream.pipeline.server_connection", "ServerError"),
    ("millstream.pipeline.source_options", "OptionError"),
)


@dataclass(frozen=True)
class Invocation:
    """The context that the group passes to its commands: the file that --config names."""

    file: str | None

    def config(self) -> Any:
        """The configuration; a wrong one ends the program with exit code 2."""
        file = needed("millstream.cdc.config_file")
        try:
            return file.load(file.find(self.file))
        except file.ConfigError as error:
            fail(error, 2)

    def sources(self, config: Any, names: tuple[str, ...]) -> Any:
        """The named sources; all of them without names."""
        faults = needed("millstream.cdc.config").ConfigError
        try:
            return tuple(config.source(name) for name in names) or config.sources
        except faults as error:
            fail(error, 2)

    def record(self, config: Any, source: Any) -> Any:
        """The record of a source."""
        server = needed("millstream.cdc.streams.stream_appender").open_server(config.millstream)
        return needed("millstream.cdc.streams.source_record").SourceRecord(config, source, server)


def _say(text: str) -> None:
    click.echo(needed("millstream.cdc.sql").one_line(text))


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
        _fail_without(missing)


def _fail_without(library: str) -> NoReturn:
    extra = "cdc,spark" if library in ("pyspark", "pyarrow", "pandas") else "cdc"
    fail(f'{library} is not installed: pip install "millstream[{extra}]"')


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    "file",
    metavar="FILE",
    help="The configuration.  [default: $MILLSTREAM_CDC_CONFIG, or cdc.toml]",
)
@click.pass_context
def cdc(ctx: click.Context, file: str | None) -> None:
    """Copy changes from PostgreSQL databases to another one.

    The guide is docs/cdc.md.
    """
    ctx.obj = Invocation(file)


def guarded(config: Any, work: Callable[[], int], error_code: int = 1) -> NoReturn:
    """Run a command; an error that a user can act on is one line, without passwords, and ends the
    program with `error_code`."""
    try:
        code = work()
    except Exception as error:
        if not _is_known(error):
            raise
        fail(needed("millstream.cdc.logs").Secrets(config).hide(error), error_code)
    sys.exit(code)


def _is_known(error: Exception) -> bool:
    """Only what is imported is compared: importing a library to compare would take a second."""
    loaded = ((sys.modules.get(module), name) for module, name in _OF_LIBRARIES)
    return isinstance(error, CdcError) or any(
        module and isinstance(error, getattr(module, name)) for module, name in loaded
    )


def _end_at_signals() -> None:
    """SIGTERM and SIGINT end the program with 0, also while libraries are still imported."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))


@cdc.command()
@click.argument("source", nargs=-1)
@click.pass_obj
def run(call: Invocation, source: tuple[str, ...]) -> None:
    """Read the sources into millstream until it is stopped."""
    _end_at_signals()
    config = call.config()
    sources = call.sources(config, source)
    for library in ("psycopg", "redis", "prometheus_client"):  # the sources' processes import them
        if find_spec(library) is None:
            _fail_without(library)
    guarded(config, lambda: int(needed("millstream.cdc.reader.run_sources").run(config, sources)))


@cdc.command()
@click.pass_obj
def check(call: Invocation) -> None:
    """Test the sources, millstream and the destination, and change nothing."""
    config = call.config()

    def work() -> int:
        checks = needed("millstream.cdc.checks.all_checks")
        hide = needed("millstream.cdc.logs").Secrets(config).hide
        found = 0
        for finding in checks.check_all(config):
            found += finding.level == "error"
            click.echo(hide(f"{finding.level} {finding.text}"))
        return 1 if found else 0

    guarded(config, work)


@cdc.command()
@click.argument("source")
@click.argument("table", required=False)
@click.option("--all", "everything", is_flag=True, help="All tables, with a new slot.")
@click.option(
    "--take-over", is_flag=True, help="With --all: replace the slot of a pipeline that has ended."
)
@click.pass_obj
def resync(
    call: Invocation, source: str, table: str | None, everything: bool, take_over: bool
) -> None:
    """Copy a table again, or everything.

    The request is recorded in millstream, and run carries it out: immediately if it is running,
    otherwise when it is started.
    """
    if (table is None) != everything:
        raise click.UsageError("name either a table or --all")
    if take_over and not everything:
        raise click.UsageError("--take-over needs --all")
    config = call.config()
    [chosen] = call.sources(config, (source,))

    def work() -> int:
        requests = needed("millstream.cdc.operations.resync_requests")
        record = call.record(config, chosen)
        if everything:
            _say(requests.resync_all(record, take_over))
        else:
            _say(requests.resync_table(record, requests.find_table(record, table)))
        return 0

    guarded(config, work)


@cdc.command("apply")
@click.option("--once", is_flag=True, help="Exit when everything in millstream has been applied.")
@click.option("--master", metavar="M", help="Spark's master.  [default: master in the file]")
@click.pass_obj
def apply_(call: Invocation, once: bool, master: str | None) -> None:
    """Apply the changes in millstream to the destination until it is stopped."""
    _end_at_signals()
    config = call.config()
    needed("pyspark")

    def work() -> int:
        try:
            return int(needed("millstream.cdc.applier.program").apply(config, once, master))
        except KeyboardInterrupt:  # Spark has a handler of its own while it starts
            return 0

    guarded(config, work)


@cdc.command()
@click.argument("source")
@click.argument("table")
@click.pass_obj
def resume(call: Invocation, source: str, table: str) -> None:
    """Retry a stopped table now."""
    config = call.config()
    [chosen] = call.sources(config, (source,))

    def work() -> int:
        requests = needed("millstream.cdc.operations.resync_requests")
        record = call.record(config, chosen)
        _say(requests.resume(record, requests.find_table(record, table)))
        return 0

    guarded(config, work)


@cdc.command()
@click.option("--create-targets", is_flag=True, help="Also create missing target tables.")
@click.option("--print-sql", is_flag=True, help="Change nothing, and print the SQL.")
@click.pass_obj
def setup(call: Invocation, create_targets: bool, print_sql: bool) -> None:
    """Create what is missing: publications, slots and the table of positions."""
    config = call.config()

    def work() -> int:
        module = needed("millstream.cdc.operations.setup")
        sql = needed("millstream.cdc.sql")
        if print_sql:
            for line in module.print_sql(config, create_targets):
                click.echo(sql.one_line(line) if line.startswith("--") else sql.visible(line))
            return 0
        errors = module.setup(config, create_targets, _say)
        hide = needed("millstream.cdc.logs").Secrets(config).hide
        for finding in errors:
            click.echo(hide(f"error {finding.text}"), err=True)
        return 1 if errors else 0

    guarded(config, work)


@cdc.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@click.pass_obj
def status(call: Invocation, as_json: bool) -> None:
    """Show sources and tables.

    \b
    Exit code, also with --json:
      0  everything runs, and nothing has a problem
      1  a table is stopped, or a reader, a table or apply has a problem or
         does not run
      2  the configuration or the command line is wrong
      3  no problem was found, but millstream, the destination or a source
         could not be asked
    """
    config = call.config()

    def work() -> int:
        module = needed("millstream.cdc.operations.status")
        hide = needed("millstream.cdc.logs").Secrets(config).hide
        found = module.status(config, hide)
        if as_json:
            click.echo(json.dumps(found, ensure_ascii=False))
        else:
            module.print_status(found)
        return int(module.EXIT_CODES[found["ok"]])

    guarded(config, work, error_code=3)


@cdc.command()
@click.argument("source")
@click.pass_obj
def drop(call: Invocation, source: str) -> None:
    """Remove a source: slot, publication, keys and positions. The rows at the destination stay."""
    config = call.config()
    [chosen] = call.sources(config, (source,))

    def work() -> int:
        needed("millstream.cdc.operations.dropping").drop(call.record(config, chosen), _say)
        return 0

    guarded(config, work)
