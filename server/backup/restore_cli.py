"""`millstream restore`: a data directory from a backup."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from millstream.errors import DataError
from millstream.server.backup.backup_cli import (
    CODES,
    Failure,
    Outcome,
    copy_of_directory,
    result_line,
    stoppable,
    write_copy,
)
from millstream.server.repair.check_report import Verdict
from millstream.server.repair.checking import Checker
from millstream.storage.files.disk import SystemDisk


@click.command(epilog=CODES)
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def restore(source: Path, directory: Path, as_json: bool) -> None:
    """Copy the backup SRC into the new data directory DIR, after a check of SRC.

    DIR does not exist or is empty. SRC is not changed, and no server is using it.
    """
    with stoppable():
        keys, entries = _check(source)
        facts = write_copy(
            directory, lambda disk: copy_of_directory(source, disk), "files", is_described=False
        )
    facts |= {"keys": keys, "entries": entries}
    click.echo(json.dumps(facts) if as_json else result_line(facts, []))


def _check(source: Path) -> tuple[int | None, int | None]:
    """The keys and entries of a backup. Failure if it is damaged."""
    disk = SystemDisk(source)
    try:
        disk.lock_for("or copy its directory with `millstream backup`", alone=False)
        report = Checker(disk, time.time_ns() // 1_000_000, lambda done, total: None).run(load=True)
    except DataError as error:
        raise Failure(Outcome.REFUSED, str(error)) from None
    except OSError as error:
        raise Failure(
            Outcome.REFUSED, f"{error.filename or source} cannot be read: {error.strerror}"
        ) from None
    finally:
        disk.unlock()
    if report.verdict is not Verdict.WHOLE:
        raise Failure(
            Outcome.DAMAGED,
            f"{source} is damaged: `millstream check` reports what is wrong, and `check --repair`"
            " recovers the rest in a copy of it",
        )
    return report.total_keys, report.total_entries
