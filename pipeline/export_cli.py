"""The command line of `millstream export`; the work is in `exporting` and `folder_export`.

The libraries that exporting needs are imported when the command runs. Without pyarrow, the help
still works and the command can name the missing library.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.progress import Progress

from millstream.cli_error import CliError
from millstream.errors import DataError
from millstream.url_file import KEY as URL_OF_FILE
from millstream.url_file import url_file_option, url_of_file

if TYPE_CHECKING:
    from millstream.pipeline.exporting import ExportRequest
    from millstream.pipeline.folder_export import Round

_NEEDED = ("numpy", "pyarrow", "redis")
FOLDER_OPTIONS = ("by_key", "follow", "file_mib", "file_age_s", "skip_lost", "as_json")
FILE_MIB = 128
FILE_AGE_S = 60.0


def _fail(problem: object) -> NoReturn:
    raise CliError(str(problem))


@click.command(
    epilog="A directory is read from its newest snapshot, without later changes in the journal; "
    "run BGSAVE first to include them. An export that finds no entries writes an empty file, says "
    "so on standard error, and exits with 0. Bytes that are not UTF-8 become U+FFFD; a column of "
    "the type binary keeps them, in jsonl and csv as base64."
)
@click.argument("source", metavar="[DIR|URL]", required=False)
@click.option("--url", envvar="MILLSTREAM_URL", metavar="URL",
              help="Server, if there is no argument; also from MILLSTREAM_URL. The password can "
              "come from REDISCLI_AUTH.  [default: redis://127.0.0.1:6455]")  # fmt: skip
@url_file_option(CliError)
@click.option("--format", type=click.Choice(["parquet", "jsonl", "csv", "rdb"]),
              help="Required, except with --into. rdb: a file that Redis loads.")  # fmt: skip
@click.option("--redis", metavar="VERSION",
              help="With --format rdb: the Redis that has to load the file, 6.2 to 8.10.  "
              "[default: 7.0]")  # fmt: skip
@click.option("--unowned", metavar="NAME",
              help="With --format rdb: before 8.8, the consumer that gets pending entries without "
              "an owner.  [default: unowned]")  # fmt: skip
@click.option("--key", metavar="PATTERN", multiple=True,
              help="Only streams that match; a pattern as in KEYS. Can be repeated.")  # fmt: skip
@click.option("--from", "start", metavar="ID|TIME", help="Only entries from this ID or time on.")
@click.option("--to", "end", metavar="ID|TIME", help="Only entries up to this ID or time.")
@click.option("--schema", metavar="COLUMNS",
              help="Columns and types in Spark's notation: key, id, ts, ms, seq, fields, and any "
              "other name for the field of that name.  [default: key, id, ts, fields]")  # fmt: skip
@click.option("--mode", default="PERMISSIVE", show_default=True,
              type=click.Choice(["PERMISSIVE", "DROPMALFORMED", "FAILFAST"], case_sensitive=False),
              help="What to do with a value that does not match its column: null, drop the "
              "row, or fail.")  # fmt: skip
@click.option("--output", metavar="PATH|URI",
              help="Output file, replaced when all data is written; - for standard output.  "
              "[default: DIR's name with the format's]")  # fmt: skip
@click.option("--db", type=click.IntRange(min=0), metavar="N", help="The database.  [default: 0]")
@click.option("--into", metavar="FOLDER",
              help="Instead of one file, a folder of Parquet files: each run adds the entries that "
              "are new since the last one.")  # fmt: skip
@click.option("--by-key", is_flag=True,
              help="With --into: a folder for each stream: key=...")  # fmt: skip
@click.option("--follow", is_flag=True, help="With --into: continue until SIGTERM or Ctrl-C.")
@click.option("--file-size", "file_mib", type=click.IntRange(1, 1 << 20), metavar="MIB",
              help=f"With --into: at most this size.  [default: {FILE_MIB}]")  # fmt: skip
@click.option("--file-age", "file_age_s", type=click.FloatRange(0.1, 86_400), metavar="SECONDS",
              help="With --follow: the time between two files of a stream.  "
              f"[default: {FILE_AGE_S:g}]")  # fmt: skip
@click.option("--skip-lost", is_flag=True,
              help="With --into: warn about entries that were evicted before they were exported, "
              "and continue. Without this option, that is an error.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="With --into: print JSON.")
@click.pass_context
def export(ctx: click.Context, /, source: str | None, url: str | None, **options: Any) -> None:
    """Copy streams into files for analysis: Parquet, JSON lines or CSV; or into a file for Redis.

    DIR is a data directory, which a server may be using, or its URI (s3://...); URL is a server,
    redis://localhost:6455.
    """
    output, into = options.pop("output"), options.pop("into")
    ways = {name: options.pop(name) for name in FOLDER_OPTIONS}
    of_redis = {name: options.pop(name) for name in ("redis", "unowned")}
    if options["format"] == "rdb":
        _remove_files_when_ended()
        _run_rdb(ctx, source, output, options, of_redis)
        return
    for name, given in of_redis.items():
        if given is not None:
            raise click.UsageError(f"--{name} needs --format rdb.", ctx)
    _check_usage(ctx, options, output, into, ways)
    where = _source(ctx, source, url)
    try:
        from millstream.pipeline.exporting import ExportRequest
    except ImportError as error:
        _fail_for_missing(error)
    wanted = ExportRequest(source=where, **options)  # the options have the names of its fields
    if into is not None:
        _run_into(into, wanted, **ways)
        return
    _remove_files_when_ended()
    _run(wanted, _default_name(where, wanted.format) if output is None else output)


def _remove_files_when_ended() -> None:
    """Exit normally after a signal, which removes unfinished files."""
    for ended in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ended, lambda number, _: sys.exit(128 + number))


def _check_usage(
    ctx: click.Context, options: dict[str, Any], output: str | None, into: str | None,
    ways: dict[str, Any],
) -> None:  # fmt: skip
    """Refuse options that do not belong together."""
    if into is None:
        for name, given in ways.items():
            if given:
                flag = next(one.opts[0] for one in ctx.command.params if one.name == name)
                raise click.UsageError(f"{flag} needs --into.", ctx)
        if options["format"] is None:
            (param,) = (one for one in ctx.command.params if one.name == "format")
            raise click.MissingParameter(ctx=ctx, param=param)
        return
    for flag, is_wrong in {
        "--output": output is not None,
        "--to": options["end"] is not None,
        f"--format {options['format']}": options["format"] not in (None, "parquet"),
    }.items():
        if is_wrong:
            raise click.UsageError(f"{flag} and --into exclude each other.", ctx)
    if ways["file_age_s"] is not None and not ways["follow"]:
        raise click.UsageError("--file-age needs --follow.", ctx)
    options["format"] = "parquet"


def _source(ctx: click.Context, source: str | None, url: str | None) -> str:
    """The argument, or else the server as in the tools."""
    if source is None:
        from millstream.remote import DEFAULT_URL

        return url_of_file(ctx, "url", "--url") or url or DEFAULT_URL
    by_option = ctx.get_parameter_source("url") is click.core.ParameterSource.COMMANDLINE
    if by_option or URL_OF_FILE in ctx.meta:
        raise click.UsageError("The argument and --url or --url-file exclude each other.", ctx)
    return source


@contextmanager
def _sentences() -> Iterator[None]:
    """Turn expected errors into one sentence and exit code 1."""
    from millstream.pipeline.range_plan import DataLossError
    from millstream.pipeline.server_connection import ServerError

    with _sentences_of(DataError, DataLossError, ServerError, ValueError):
        yield


@contextmanager
def _sentences_of(*expected: type[Exception]) -> Iterator[None]:
    try:
        yield
    except expected as problem:
        _fail(problem)
    except BrokenPipeError:
        raise  # the reader closed the pipe, like `head`: click ends the program without a message
    except OSError as problem:
        name = f"{problem.filename}: " if problem.filename else ""
        _fail(f"{name}{problem.strerror or problem}")


def _run(request: ExportRequest, output: str) -> None:
    from millstream.pipeline.exporting import export, export_to
    from millstream.pipeline.files import is_uri, shown_uri

    with _sentences(), _progress() as progress:
        if output == "-":
            rows = export(sys.stdout.buffer, request, progress)
        else:
            rows = export_to(output, request, progress)
    if output != "-":
        click.echo(f"{shown_uri(output) if is_uri(output) else output}: {rows:,} rows")
    if not rows:
        click.echo(f"millstream: {_nothing_selected(request)}", err=True)


def _run_rdb(
    ctx: click.Context,
    source: str | None,
    output: str | None,
    options: dict[str, Any],
    of_redis: dict[str, Any],
) -> None:
    """Write a file for Redis, from a directory."""
    from millstream.pipeline.rdb_export import RdbRequest, export_rdb, lines_of
    from millstream.storage.dump.file_writing import TARGETS

    if source is None or urlsplit(source).scheme:
        raise click.UsageError("--format rdb reads a data directory: name it.", ctx)
    version = of_redis["redis"] or "7.0"
    if version not in TARGETS:
        raise click.UsageError(f"--redis is one of {', '.join(TARGETS)}.", ctx)
    for name in ("start", "end", "schema"):
        if options[name] is not None:
            raise click.UsageError("--format rdb copies whole streams.", ctx)
    patterns = tuple(map(os.fsencode, options["key"]))
    unowned = os.fsencode(of_redis["unowned"] or "unowned")
    request = RdbRequest(Path(source), version, unowned, patterns, options["db"])
    name = f"{Path(source).resolve().name}.rdb" if output is None else output
    with _sentences_of(DataError):
        result = export_rdb(request, name)
    for line in lines_of(result, name):
        click.echo(line, err=name == "-")


# ---------------------------------------------------------------------------------- into a folder


class Stop:
    """SIGTERM, SIGINT or SIGHUP: the file that is being written is finished. A second signal ends
    the program at once."""

    def __init__(self) -> None:
        self.number = 0
        self._read, self._write = os.pipe()
        signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self._earlier = {number: signal.signal(number, self._stop) for number in signals}

    def close(self) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def _stop(self, number: int, _: object) -> None:
        self.number = number
        signal.signal(number, signal.SIG_DFL)
        os.write(self._write, b"x")

    def is_set(self) -> bool:
        return self.number > 0

    def wait(self, seconds: float) -> bool:
        """Wait until a signal, or for some seconds. True if there was a signal."""
        select.select([self._read], [], [], seconds)
        return self.is_set()


def _run_into(
    into: str, request: ExportRequest, *, by_key: bool, follow: bool,
    file_mib: int | None, file_age_s: float | None, skip_lost: bool, as_json: bool,
) -> None:  # fmt: skip
    from millstream.pipeline import folder_export
    from millstream.pipeline.exported_folder import ExportedFolder
    from millstream.pipeline.files import is_uri
    from millstream.pipeline.range_plan import Losses

    if not request.is_live:
        _fail(f"--into exports from a server, and {request.source!r} is not a server's URL")
    if is_uri(into):
        _fail("--into needs a folder of this machine, not a URI")
    losses = Losses(not skip_lost, "use --skip-lost")

    def report(made: Round) -> None:
        if made.files or not follow:
            click.echo(_shown(into, made, as_json))

    with (
        closing(Stop()) as stop,
        _sentences(),
        closing(ExportedFolder(Path(into), request.schema, by_key)) as folder,
    ):
        size_bytes = (file_mib or FILE_MIB) << 20
        work = folder_export.FolderExport(request, folder, losses, size_bytes, stop.is_set)
        with work.address.open() as server:
            server.connect()
            if follow:
                age_s = file_age_s or FILE_AGE_S
                folder_export.follow(work, server, age_s, stop.wait, report, _warn)
            else:
                report(work.round(server))
    if stop.is_set() and not follow:
        _warn("the export was stopped; the next one continues")
        sys.exit(128 + stop.number)


def _shown(into: str, made: Round, as_json: bool) -> str:
    if as_json:
        facts = {"folder": into, "streams": made.streams, "files": made.files}
        return json.dumps(facts | {"rows": made.rows, "bytes": made.size_bytes})
    noun = "file" if len(made.files) == 1 else "files"
    return f"{into}: {len(made.files):,} {noun}, {made.rows:,} rows"


def _warn(problem: str) -> None:
    click.echo(f"millstream: {problem}", err=True)


# ---------------------------------------------------------------------------------------- messages


def _nothing_selected(request: ExportRequest) -> str:
    """The reason for an export without rows, which is no error: the file is complete."""
    bounds = [("--key", pattern) for pattern in request.key]
    bounds += [(name, text) for name, text in (("--from", request.start), ("--to", request.end))
               if text is not None]  # fmt: skip
    given = " ".join(f"{name} {text!r}" for name, text in bounds)
    where = "the database" if request.db is None else f"database {request.db}"
    source = "" if request.is_live else " in the newest snapshot"
    reason = f"no entries were exported: {where} has none{source}"
    if given:
        reason += f" that match {given}"
    if request.mode.upper() == "DROPMALFORMED":
        reason += ", or --mode DROPMALFORMED dropped all rows"
    return reason


def _fail_for_missing(error: ImportError) -> NoReturn:
    missing = (error.name or "").partition(".")[0]
    if missing not in _NEEDED:
        raise error
    _fail(f"exporting needs {missing}, which is not installed: pip install millstream[spark]")


def _default_name(source: str, format_: str) -> str:
    """`data.parquet` for `data/`; for a server, the name of its host."""
    try:
        parts = urlsplit(source)
    except ValueError:  # its text may contain a part of the password; the export refuses the URL
        return f"streams.{format_}"
    is_server = parts.scheme in ("redis", "rediss")
    name = parts.hostname if is_server else Path(parts.path).absolute().name
    return f"{name or 'streams'}.{format_}"


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A progress bar on the terminal; nothing if there is no terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("exporting", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
