"""The command line of `millstream export`; the work is in `exporting`.

The libraries that exporting needs are imported when the command runs. Without pyarrow, the help
still works and the command can name the missing library.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.progress import Progress

from millstream.errors import DataError

if TYPE_CHECKING:
    from millstream.pipeline.exporting import ExportRequest

_NEEDED = ("numpy", "pyarrow", "redis")


def _fail(problem: object) -> NoReturn:
    click.echo(f"millstream: {problem}", err=True)
    sys.exit(1)


@click.command(
    epilog="A directory is read from its newest snapshot, without later changes in the journal; "
    "run BGSAVE first to include them. An export that finds no entries writes an empty file, says "
    "so on standard error, and exits with 0. Bytes that are not UTF-8 become U+FFFD; a column of "
    "the type binary keeps them, in jsonl and csv as base64."
)
@click.argument("source", metavar="DIR|URL")
@click.option("--format", required=True, type=click.Choice(["parquet", "jsonl", "csv"]))
@click.option("--key", metavar="PATTERN", help="Only streams that match; a pattern as in KEYS.")
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
def export(output: str | None, **request: Any) -> None:
    """Copy streams into one file for analysis: Parquet, JSON lines or CSV.

    DIR is a data directory, which a server may be using, or its URI (s3://...); URL is a server,
    redis://localhost:6455.
    """
    try:
        from millstream.pipeline.exporting import ExportRequest
    except ImportError as error:
        _fail_for_missing(error)
    wanted = ExportRequest(**request)  # the names of the options are those of its fields
    for ended in (signal.SIGTERM, signal.SIGHUP):  # exit normally, which removes unfinished files
        signal.signal(ended, lambda number, _: sys.exit(128 + number))
    _run(wanted, _default_name(wanted.source, wanted.format) if output is None else output)


def _run(request: ExportRequest, output: str) -> None:
    from millstream.pipeline.exporting import export, export_to
    from millstream.pipeline.files import is_uri, shown_uri
    from millstream.pipeline.range_plan import DataLossError
    from millstream.pipeline.server_connection import ServerError

    try:
        with _progress() as progress:
            if output == "-":
                rows = export(sys.stdout.buffer, request, progress)
            else:
                rows = export_to(output, request, progress)
    except (DataError, DataLossError, ServerError, ValueError) as problem:
        _fail(problem)
    except BrokenPipeError:
        raise  # the reader closed the pipe, like `head`: click ends the program without a message
    except OSError as problem:
        name = f"{problem.filename}: " if problem.filename else ""
        _fail(f"{name}{problem.strerror or problem}")
    if output != "-":
        click.echo(f"{shown_uri(output) if is_uri(output) else output}: {rows:,} rows")
    if not rows:
        click.echo(f"millstream: {_nothing_selected(request)}", err=True)


def _nothing_selected(request: ExportRequest) -> str:
    """The reason for an export without rows, which is no error: the file is complete."""
    bounds = {"--key": request.key, "--from": request.start, "--to": request.end}
    given = " ".join(f"{name} {text!r}" for name, text in bounds.items() if text is not None)
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
