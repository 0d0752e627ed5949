"""`millstream restore`: a data directory from a backup, or one stream of it in a running server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from millstream.errors import DamageError, DataError, counted, printable, readable
from millstream.server.backup.backup_cli import (
    CODES,
    Failure,
    Outcome,
    copy_of_directory,
    db_option,
    require_outside,
    result_line,
    stream_option,
    write_copy,
)
from millstream.server.backup.stream_upload import (
    BackedUpStream,
    NoStream,
    Unwanted,
    upload,
)
from millstream.server.repair.backup_description import DESCRIPTION
from millstream.server.repair.check_report import Report, Verdict
from millstream.server.repair.checking import Checker
from millstream.server.repair.destination import Destination, stoppable
from millstream.server.repair.terminal_progress import progress
from millstream.storage.files.disk import SystemDisk
from millstream.tools.tool_connection import ToolError, timeout_option, url_option

T = TypeVar("T")

_OF_A_STREAM = {
    "db": "--db",
    "url": "--url",
    "new_key": "--as",
    "replace": "--replace",
    "without_policy": "--without-policy",
    "timeout_s": "--timeout",
}


@dataclass(frozen=True)
class Options:
    """The options of `restore`."""

    stream: str | None
    db: int
    url: str
    new_key: str | None
    replace: bool
    without_policy: bool
    timeout_s: float
    as_json: bool


@click.command(epilog=CODES)
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@stream_option
@db_option
@url_option
@click.option("--as", "new_key", metavar="NEWKEY", help="Another key for the restored stream.")
@click.option("--replace", is_flag=True, help="Replace the key if it exists.")
@click.option(
    "--without-policy",
    is_flag=True,
    help="With --stream: without its retention policy, which may evict old entries at once.",
)
@timeout_option("How long the server may take for a reply.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def restore(source: Path, directory: Path | None, **given: Any) -> None:
    """Copy a backup into a new data directory, or one stream of it into a running server.

    DIR does not exist or is empty. SRC is checked first and not changed, and no server is using it.
    With --stream, the server of --url is running, and gets the whole stream in one step at the end.
    """
    options = Options(**given)
    if (directory is None) == (options.stream is None):
        raise click.UsageError("give either DIR or --stream")
    if directory is not None:
        _require_no_option_of_a_stream()
    with stoppable():
        if directory is None:
            _restore_stream(source, options)
        else:
            _restore_all(source, directory, as_json=options.as_json)


def _require_no_option_of_a_stream() -> None:
    context = click.get_current_context()
    for name, option in _OF_A_STREAM.items():
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option} needs --stream, which restores one stream")


def _restore_all(source: Path, directory: Path, *, as_json: bool) -> None:
    require_outside(source, directory)
    keys, entries = read_checked(
        source, lambda _, report: (report.total_keys, report.total_entries), load=True
    )
    facts = write_copy(
        lambda: Destination(directory),
        lambda disk: copy_of_directory(source, disk),
        "files",
        is_described=False,
    )
    facts |= {"keys": keys, "entries": entries}
    click.echo(json.dumps(facts) if as_json else result_line(facts, []))


def _restore_stream(source: Path, options: Options) -> None:
    assert options.stream is not None
    begun_s = time.monotonic()
    key = os.fsencode(options.stream)
    new_key = key if options.new_key is None else os.fsencode(options.new_key)
    stream = read_checked(
        source, lambda disk, _: BackedUpStream(disk, options.db, key, _now_ms()), load=False
    )
    if options.without_policy:
        stream.drop_policy()
    if stream.evicted_before_ms is not None:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(stream.evicted_before_ms / 1000))
        _warn(
            f"the stream has a MAXAGE policy, which evicts its entries from before {when} at once;"
            " --without-policy keeps them"
        )
    try:
        server = upload(options.url, options.timeout_s, stream, new_key, options.replace, _warn)
    except Unwanted as error:
        raise Failure(Outcome.REFUSED, f"the server has restored nothing: {error}") from None
    except ToolError as error:
        raise Failure(Outcome.BROKEN, error.message) from None
    seconds = round(time.monotonic() - begun_s, 3)
    entries = stream.stream.length
    if options.as_json:
        facts = {"server": server, "key": readable(new_key), "entries": entries}
        click.echo(json.dumps({**facts, "seconds": seconds}))
    else:
        shown = printable(readable(new_key))
        click.echo(f"{server}: {shown}, {counted(entries, 'entry')}, {seconds:.1f} seconds")


def read_checked(source: Path, read: Callable[[SystemDisk, Report], T], *, load: bool) -> T:
    """Check a backup, and read it. Failure if it is damaged, or cannot be read."""
    disk = SystemDisk(source)
    try:
        disk.lock_for("or copy its directory with `millstream backup`", alone=False)
        with progress(f"checking {source.name}") as tell:
            report = Checker(disk, _now_ms(), tell).run(load=load)
        _require_whole(source, report)
        return read(disk, report)
    except (NoStream, DataError) as error:
        is_damage = isinstance(error, DamageError)
        raise Failure(Outcome.DAMAGED if is_damage else Outcome.REFUSED, str(error)) from None
    except OSError as error:
        sentence = f"{error.filename or source} cannot be read: {error.strerror}"
        raise Failure(Outcome.REFUSED, sentence) from None
    finally:
        disk.unlock()


def _require_whole(source: Path, report: Report) -> None:
    places = [(file, place) for file in report.files for place in file.places]
    if report.verdict is Verdict.UNCHECKED:
        reasons = [*(place.reason for _, place in places), *report.notes, "it cannot be checked"]
        raise Failure(Outcome.REFUSED, f"{source} cannot be read: {reasons[0]}")
    if report.verdict is Verdict.DAMAGED:
        for file, place in places:
            if file.name == DESCRIPTION:
                raise Failure(Outcome.DAMAGED, place.reason)
        raise Failure(
            Outcome.DAMAGED,
            f"{source} is damaged: `millstream check` reports what is wrong, and `check --repair`"
            " recovers the rest in a copy of it",
        )


def _warn(sentence: str) -> None:
    click.echo(f"millstream: {sentence}", err=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
