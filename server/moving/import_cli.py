"""`millstream import`: a data directory from files of Redis."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from millstream.cli_error import CliError
from millstream.errors import counted, printable
from millstream.seconds import Seconds
from millstream.server.config.kinds import parse_size
from millstream.server.moving.child_messages import messages_in
from millstream.server.moving.child_process import ChildProcess
from millstream.server.moving.converting import Source, Task, begin
from millstream.server.moving.import_report import Report, write_report
from millstream.server.moving.source_files import NoSource, aof_files, source_name
from millstream.server.repair.destination import Destination, Unusable, stoppable
from millstream.server_url import is_url
from millstream.storage.dump.base_making import DATABASES_MAX
from millstream.storage.files.journal_format import ID_SIZE
from millstream.storage.files.manifest import Manifest, base_name, store_manifest

if TYPE_CHECKING:
    from millstream.server.moving.live_source import LiveSource

MEMORY = "4gb"
# A server may take long to dump or load a large stream.
COPY_TIMEOUT_S = 300
_CODES = (
    "SOURCE is a file of Redis or Valkey (dump.rdb, appendonly.aof), a directory of AOF files "
    "(appendonlydir), - for standard input, or the URL of a running "
    "server: redis://, rediss:// or unix://. "
    "Exit codes: 0 done; 1 failed, no directory was made, and keys that --to has copied stay; "
    "2 wrong usage."
)


class Memory(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, as in directives: 512mb, 4gb."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_size(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a size such as 512mb or 4gb", param, ctx)


class Databases(click.ParamType):  # type: ignore[type-arg]
    """A database, or one and its new number: N or N:M."""

    name = "N[:M]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        old, _, new = str(value).partition(":")
        if not old.isdecimal() or not (new or old).isdecimal() or str(value).endswith(":"):
            self.fail(f"{value!r} is not N or N:M", param, ctx)
        return int(old), int(new or old)


def by_number(
    ctx: click.Context, param: click.Parameter, pairs: tuple[tuple[int, int], ...]
) -> dict[int, int] | None:
    """The new number of each wanted database; None if all are wanted."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise click.BadParameter("the same database is named twice", ctx, param)
    return found or None


@click.command("import", epilog=_CODES)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), metavar="DIR",
    help="The new data directory: absent or empty.",
)  # fmt: skip
@click.option(
    "--to", "target", metavar="URL",
    help="In place of --dir: copy from a running server into this one, by DUMP and RESTORE.",
)  # fmt: skip
@click.option(
    "--follow", is_flag=True,
    help="With --to: let that server follow this one by REPLICAOF, and show the lag.",
)  # fmt: skip
@click.option(
    "--promote", is_flag=True,
    help="With --to: the cut-over from a server to the one that follows it.",
)  # fmt: skip
@click.option(
    "--timeout", "timeout_s", type=Seconds(0.1, 3600), default=10.0, metavar="S",
    help="With --promote: take everything back after this many seconds. [10]",
)  # fmt: skip
@click.option("--no-pause", is_flag=True, help="With --promote: the writers are stopped already.")
@click.option("--replace", is_flag=True, help="With --to: replace keys that exist.")
@click.option(
    "--changed", is_flag=True,
    help="With --to: only streams and expiries that differ, and all strings; name the keys that are"
    " gone.",
)  # fmt: skip
@click.option(
    "--delete",
    is_flag=True,
    help="With --changed: delete the keys that are gone, in copied databases.",
)
@click.option("--key", "patterns", multiple=True, metavar="PATTERN", help="Only these keys.")
@click.option(
    "--db", "databases", multiple=True, type=Databases(), callback=by_number,
    help="Only this database, as database M if M is given.",
)  # fmt: skip
@click.option("--strings", type=click.Choice(["keep", "skip"]), default="keep", help="[keep]")
@click.option(
    "--other", type=click.Choice(["skip", "fail"]), default="skip",
    help="What to do with lists, sets, hashes and so on. [skip]",
)  # fmt: skip
@click.option("--salvage", is_flag=True, help="Keep what can be read of a damaged file.")
@click.option("--dry-run", is_flag=True, help="Read and check everything, and write nothing.")
@click.option(
    "--memory",
    type=Memory(),
    default=MEMORY,
    help=f"The most that the conversion may use. [{MEMORY}]",
)
@click.option(
    "--report", "report_path", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Write a report as JSON, with digests of each stream.",
)  # fmt: skip
@click.pass_context
def import_(
    ctx: click.Context,
    /,
    sources: tuple[str, ...],
    directory: Path | None,
    target: str | None,
    **given: Any,
) -> None:
    """Make a data directory from files of a Redis or Valkey, or from a running one; or copy from a
    running one into another, or let that follow it until the cut-over.

    The directory appears when it is complete. Keys of other types are counted and named.
    """
    _check_usage(ctx, directory, target, given)
    if (target is not None or any(map(is_url, sources))) and find_spec("redis") is None:
        raise CliError("a running server needs redis: pip install 'millstream[tools]'")
    if target is not None:
        if len(sources) > 1 or not is_url(sources[0]):
            raise click.UsageError("--to copies from one running server: name its URL.", ctx)
        if not is_url(target):
            raise click.UsageError("--to needs the URL of a running server.", ctx)
        with stoppable():
            # A file is imported without redis-py.
            from millstream.server.moving.live_following import follow
            from millstream.server.moving.promoting import promote

            if given["follow"]:
                follow(sources[0], target, click.echo)
            elif given["promote"]:
                timeout_s, pauses = given["timeout_s"], not given["no_pause"]
                promote(sources[0], target, timeout_s, click.echo, pauses=pauses)
            else:
                given["databases"] = _databases(ctx, sources[0], target, given["databases"])
                copy(sources[0], target, given)
        return
    assert directory is not None
    with stoppable(), contextlib.ExitStack() as stack:
        Import(sources, directory, given, stack).run()


def _check_usage(
    ctx: click.Context, directory: Path | None, target: str | None, given: dict[str, Any]
) -> None:
    """Refuse options that do not belong together."""
    if (directory is None) == (target is None):
        raise click.UsageError("Give either --dir or --to.", ctx)
    flags = [
        f"--{name}" for name in ("follow", "promote", "replace", "changed", "delete") if given[name]
    ]
    if given["no_pause"] and not given["promote"]:
        raise click.UsageError("--no-pause needs --promote.", ctx)
    if target is None:
        if flags:
            raise click.UsageError(f"{flags[0]} needs --to.", ctx)
        for new in (given["databases"] or {}).values():
            if new >= DATABASES_MAX:
                raise click.UsageError(
                    f"--db {new}: a server has {DATABASES_MAX} databases (the directive"
                    f" `databases`), 0 to {DATABASES_MAX - 1}.",
                    ctx,
                )
        return
    for name in ("salvage", "dry_run", "memory"):
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} needs --dir.", ctx)
    if given["follow"] or given["promote"]:
        _refuse_choices(ctx, flags)
    if given["replace"] and given["changed"]:
        raise click.UsageError("--replace and --changed exclude each other.", ctx)
    if given["delete"] and not given["changed"]:
        raise click.UsageError("--delete needs --changed.", ctx)


def _refuse_choices(ctx: click.Context, flags: list[str]) -> None:
    """A server follows another one as a whole."""
    chosen = ("patterns", "databases", "strings", "other", "report_path")
    for name in chosen:
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{flags[0]} takes all keys: it has no choice of them.", ctx)
    if len(flags) > 1:
        raise click.UsageError(f"{flags[0]} and {flags[1]} exclude each other.", ctx)


def _databases(
    ctx: click.Context, source_url: str, target_url: str, chosen: dict[int, int] | None
) -> dict[int, int] | None:
    """The databases of a copy, each with its number at the target; None: all. Those that the URLs
    name count as --db does."""
    from millstream.tools.tool_connection import database_of

    old, new = database_of(source_url), database_of(target_url)
    if chosen is None:
        if old is None and new is not None:
            raise click.UsageError(
                f"The URL of the target names database {new}, and that of the source names none:"
                f" --db N:{new} copies one database into it. Without a database in both URLs, all"
                " are copied.",
                ctx,
            )
        return None if old is None else {old: old if new is None else new}
    if (old is not None and set(chosen) != {old}) or (
        new is not None and set(chosen.values()) != {new}
    ):
        raise click.UsageError(
            "--db and the URLs name different databases: leave them out of the URLs.", ctx
        )
    return chosen


def copy(source_url: str, target_url: str, given: dict[str, Any]) -> None:
    """Copy from one running server into another."""
    from millstream.server.moving.key_copying import Copy, CopyOptions, report_lines
    from millstream.server.moving.server_side import ServerSide

    options = CopyOptions(
        patterns=tuple(os.fsencode(pattern) for pattern in given["patterns"]),
        databases=given["databases"],
        strings=given["strings"] == "keep",
        may_leave_out=given["other"] == "skip",
        replace=given["replace"],
        changed=given["changed"],
        delete=given["delete"],
    )
    started_s = time.monotonic()
    source, target = (ServerSide(url, COPY_TIMEOUT_S) for url in (source_url, target_url))
    with progress_bar(as_bytes=False) as tell:
        copied = Copy(source, target, options).run(lambda done, total: tell(done, total, 0))
    seconds = round(time.monotonic() - started_s, 3)
    if given["report_path"] is not None:
        names = {"source": source.name, "target": target.name}
        save_report(given["report_path"], {**names, **copied.as_dict(), "seconds": seconds})
    for line in report_lines(copied, source.name, target.name):
        click.echo(line)


class Import:
    """One import into a directory."""

    def __init__(
        self,
        sources: tuple[str, ...],
        directory: Path,
        given: dict[str, Any],
        stack: contextlib.ExitStack,
    ) -> None:
        self._given = given
        self._stack = stack
        self._directory = directory
        self._sources = [
            self._running(source) if is_url(source) else self._open(source) for source in sources
        ]

    def _open(self, source: str) -> Source:
        if source == "-":
            return Source("standard input", 0, -1)
        path = Path(source)
        try:
            if not path.is_dir():
                return self._open_file(path)
            files = [self._open_file(file) for file in aof_files(path)]
        except NoSource as error:
            raise CliError(str(error)) from None
        except OSError as error:
            raise CliError(f"{printable(source)} cannot be read: {error.strerror}") from None
        size_bytes = sum(file.size_bytes for file in files)
        return Source(source_name(path), -1, size_bytes, files)

    def _open_file(self, path: Path) -> Source:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._stack.callback(os.close, descriptor)
        status = os.fstat(descriptor)
        size_bytes = status.st_size if stat.S_ISREG(status.st_mode) else -1
        return Source(source_name(path), descriptor, size_bytes)

    def run(self) -> None:
        """Convert the sources, and publish the directory."""
        if self._given["dry_run"]:
            descriptor = os.open(os.devnull, os.O_WRONLY)
            self._stack.callback(os.close, descriptor)
            self._report(self._convert(descriptor, os.urandom(ID_SIZE), None))
            return
        try:
            destination = Destination(self._directory)
            with destination.discarded_on_error():
                self._report(self._fill(destination))
                destination.publish()
        except Unusable as problem:
            raise CliError(str(problem)) from None

    def _fill(self, destination: Destination) -> Report:
        """Write the base and the manifest, which comes last."""
        disk, name = destination.disk, base_name(1)
        identity = os.urandom(ID_SIZE)
        path = destination.folder / name
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                report = self._convert(descriptor, identity, destination.folder)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            store_manifest(disk, Manifest(name, (), 2, identity))
        except OSError as error:
            raise CliError(f"{path} cannot be written: {error.strerror}") from None
        return report

    def _report(self, report: Report) -> None:
        path = self._given["report_path"]
        if path is not None:
            save_report(path, report.as_dict())
        for line in report.lines(None if self._given["dry_run"] else self._directory):
            click.echo(line)

    # ------------------------------------------------------------ the process

    @staticmethod
    def _running(url: str) -> LiveSource:
        from millstream.server.moving.live_source import LiveSource

        return LiveSource(url)

    def _fetched(self, source: Source | LiveSource, folder: Path | None) -> Source:
        """A source as a file: a full sync of a running server."""
        if isinstance(source, Source):
            return source
        with progress_bar() as tell:
            file, fetched = source.fetch(folder, lambda done, total: tell(done, total, 0))
        self._stack.callback(file.close)
        return fetched

    def _convert(self, base: int, identity: bytes, folder: Path | None) -> Report:
        """Convert the sources into a base. `folder` is that of the base."""
        sources = [self._fetched(source, folder) for source in self._sources]
        task = Task(
            sources=sources,
            base=base,
            directory=identity.hex(),
            memory_bytes=self._given["memory"],
            patterns=self._given["patterns"],
            databases=self._given["databases"],
            strings=self._given["strings"] == "keep",
            may_leave_out=self._given["other"] == "skip",
            salvage=self._given["salvage"],
            with_digests=self._given["report_path"] is not None,
        )
        return self._follow(lambda output: begin(task, output))

    def _follow(self, begin: Callable[[int], int]) -> Report:
        """Begin the process, and read its messages to its end."""
        report = Report(with_streams=self._given["report_path"] is not None)
        failed: str | None = None
        last = ""
        child = ChildProcess()
        with child.lines(begin) as lines, progress_bar() as tell:
            for message in messages_in(lines):
                if "note" in message:
                    last = message["note"] or last
                elif "progress" in message:
                    tell(*message["progress"])
                elif "stream" in message:
                    report.add_stream(message["stream"])
                elif "failed" in message:
                    failed = message["failed"]
                else:
                    report.finish(message["done"])
        status = child.status
        if failed == "memory":
            failed = f"the files need more memory than --memory {self._given['memory']}"
        if failed is None and not report.is_complete:
            how = f"signal {-status}" if status < 0 else f"exit code {status}"
            failed = f"the conversion ended with {how}" + (f": {last}" if last else "")
        if failed is not None:
            if "nothing was written" not in failed:
                failed += "; nothing was written"
            raise CliError(failed)
        return report


def save_report(path: Path, report: dict[str, Any]) -> None:
    try:
        write_report(path, report)
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def progress_bar(*, as_bytes: bool = True) -> Iterator[Any]:
    """A bar with bytes, or else a number of keys, entries per second and the time left; nothing if
    there is no terminal."""
    console = Console(stderr=True)
    started_s = time.monotonic()
    amount = DownloadColumn() if as_bytes else MofNCompleteColumn()
    columns = (BarColumn(), amount, TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=None, rate="")

        def tell(done: int, total: int, entries: int) -> None:
            rate = counted(int(entries / max(time.monotonic() - started_s, 0.001)), "entry")
            total_shown = None if total < 0 else total
            bar.update(task, completed=done, total=total_shown, rate=f"{rate}/s" if entries else "")

        yield tell
