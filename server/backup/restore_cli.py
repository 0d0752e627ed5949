"""`millstream restore`: a data directory from a backup, or one stream of it in a running server."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from millstream.errors import DamageError, DataError, printable, readable
from millstream.server.backup.backup_cli import (
    CODES,
    Failure,
    Outcome,
    copy_of_directory,
    db_option,
    require_outside,
    require_whole,
    result_line,
    stoppable,
    stream_option,
    write_copy,
)
from millstream.server.backup.stream_upload import (
    BackedUpStream,
    NoStream,
    Unwanted,
    upload,
)
from millstream.server.repair.check_report import Verdict, counted
from millstream.server.repair.checking import Checker
from millstream.storage.files.disk import SystemDisk
from millstream.tools.tool_connection import ToolError, timeout_option, url_option


@dataclass(frozen=True)
class Options:
    """The options of `restore`."""

    stream: str | None
    db: int
    url: str
    new_key: str | None
    replace: bool
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
    with stoppable():
        if directory is None:
            _restore_stream(source, options)
        else:
            _restore_all(source, directory, as_json=options.as_json)


def _restore_all(source: Path, directory: Path, *, as_json: bool) -> None:
    require_outside(source, directory)
    keys, entries = _check(source)
    facts = write_copy(
        directory, lambda disk: copy_of_directory(source, disk), "files", is_described=False
    )
    facts |= {"keys": keys, "entries": entries}
    click.echo(json.dumps(facts) if as_json else result_line(facts, []))


def _restore_stream(source: Path, options: Options) -> None:
    assert options.stream is not None
    begun_s = time.monotonic()
    key = os.fsencode(options.stream)
    new_key = key if options.new_key is None else os.fsencode(options.new_key)
    stream = _load(source, options.db, key)
    try:
        server = upload(options.url, options.timeout_s, stream, new_key, options.replace)
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


def _load(source: Path, db: int, key: bytes) -> BackedUpStream:
    disk = SystemDisk(source)
    try:
        disk.lock_for("or copy its directory with `millstream backup`", alone=False)
        require_whole(source)
        return BackedUpStream(disk, db, key, time.time_ns() // 1_000_000)
    except (NoStream, DataError) as error:
        is_damage = isinstance(error, DamageError)
        raise Failure(Outcome.DAMAGED if is_damage else Outcome.REFUSED, str(error)) from None
    except OSError as error:
        raise _unreadable(source, error) from None
    finally:
        disk.unlock()


def _unreadable(source: Path, error: OSError) -> Failure:
    sentence = f"{error.filename or source} cannot be read: {error.strerror}"
    return Failure(Outcome.REFUSED, sentence)


def _check(source: Path) -> tuple[int | None, int | None]:
    """The keys and entries of a backup. Failure if it is damaged."""
    disk = SystemDisk(source)
    try:
        disk.lock_for("or copy its directory with `millstream backup`", alone=False)
        require_whole(source)
        report = Checker(disk, time.time_ns() // 1_000_000, lambda done, total: None).run(load=True)
    except DataError as error:
        raise Failure(Outcome.REFUSED, str(error)) from None
    except OSError as error:
        raise _unreadable(source, error) from None
    finally:
        disk.unlock()
    if report.verdict is not Verdict.WHOLE:
        raise Failure(
            Outcome.DAMAGED,
            f"{source} is damaged: `millstream check` reports what is wrong, and `check --repair`"
            " recovers the rest in a copy of it",
        )
    return report.total_keys, report.total_entries
