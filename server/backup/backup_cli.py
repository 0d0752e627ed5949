"""`millstream backup`: a copy of all data, from a running server or from a data directory.

The exit codes are those of `Outcome`. Standard output has one line, or a JSON object; everything
else goes to standard error.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Any

import click

from millstream import __version__
from millstream.cli_error import CliError
from millstream.errors import DataError, counted, readable
from millstream.server.backup.kept_backups import (
    cut_off,
    description,
    is_unchanged,
    make_folder,
    new_destination,
    remove_old,
)
from millstream.server.backup.sources import (
    Broken,
    Copied,
    Refused,
    copy_from_directory,
    copy_from_server,
)
from millstream.server.repair.check_report import Report, Verdict
from millstream.server.repair.checking import Checker
from millstream.server.repair.destination import PARTIAL, Destination, Unusable, stoppable
from millstream.server.repair.terminal_progress import progress
from millstream.storage.files.disk import SystemDisk
from millstream.tools.tool_connection import (
    ToolConnection,
    ToolError,
    Unreachable,
    timeout_option,
    url_option,
)

# Writes a copy, and returns the facts about it.
Copy = Callable[[SystemDisk], tuple[Copied, dict[str, Any]]]


class Outcome(IntEnum):
    """The exit codes of `backup` and `restore`."""

    DONE = 0
    REFUSED = 1  # by the server, or the directory cannot be read
    USAGE = 2
    DESTINATION = 3
    DAMAGED = 4
    BROKEN = 5


CODES = (
    "Exit codes: 0 done; 1 the server cannot be reached or refuses, or the source cannot be read; "
    "2 wrong usage; 3 the destination cannot be used or is full; 4 the data is damaged; 5 the "
    "source ended before the copy was complete. Unless the code is 0, DEST is as it was before."
)


class Failure(CliError):
    """Ends the program with one sentence and an exit code."""

    def __init__(self, outcome: Outcome, sentence: str) -> None:
        super().__init__(sentence)
        self._outcome = outcome

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return self._outcome


class SourceLost(Failure):
    """The server of which a copy is made cannot be reached or does not serve its shard, or the
    connection broke."""


def check_option(text: str) -> Callable[[Any], Any]:
    """--check, with this help."""
    return click.option(
        "--check", "level", type=click.Choice(["all", "files", "none"]), default="all",
        show_default=True, help=text,
    )  # fmt: skip


stream_option = click.option(
    "--stream", metavar="KEY", help="Only this stream, with its groups and everything else of it."
)
db_option = click.option(
    "--db", type=click.IntRange(min=0), default=0, metavar="N", help="The database of --stream. [0]"
)


@dataclass(frozen=True)
class Options:
    """The options of `backup`."""

    url: str
    keep: int | None
    level: str
    timeout_s: float
    stream: str | None
    db: int
    as_json: bool

    @property
    def words(self) -> list[str | bytes]:
        """The words after BACKUP."""
        return [] if self.stream is None else ["STREAM", str(self.db), os.fsencode(self.stream)]

    @property
    def shown(self) -> dict[str, Any]:
        """The facts about a copy of one stream."""
        if self.stream is None:
            return {}
        return {"stream": readable(os.fsencode(self.stream)), "db": self.db}


@click.command(epilog=CODES)
@click.argument("places", nargs=-1, required=True, metavar="[DIR] DEST")
@url_option
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    metavar="N",
    help="DEST is a folder of dated backups: add one, and remove all but the newest N.",
)
@check_option(
    "Check the copy as `millstream check` does; loading all of it takes as much memory as a "
    "server, checking the files does not."
)
@timeout_option("How long the server may send nothing.")
@stream_option
@db_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def backup(ctx: click.Context, /, places: tuple[str, ...], **given: Any) -> None:
    """Copy all data of a server, or one stream of it, into the new folder DEST.

    The server of --url is running; its user needs the right to BACKUP and no other one. DIR is the
    data directory of a server that is not running. The copy has everything that was acknowledged
    before it began.
    """
    source, dest = _places(ctx, places)
    options = Options(**given)
    keep = options.keep
    if options.stream is not None and source is not None:
        raise click.UsageError(
            "--stream needs a running server: `restore --stream` takes one stream of a whole backup"
        )
    with stoppable():
        final = Path(dest)
        if source is not None:
            require_outside(Path(source), final)
        copy = (
            (lambda disk: _from_server(options, disk))
            if source is None
            else (lambda disk: copy_of_directory(Path(source), disk))
        )
        removed: list[str] = []
        notes: list[str] = []
        if keep is None:
            facts = write_copy(lambda: Destination(final), copy, options.level)
        else:
            facts, removed, notes = _add_backup(final, keep, copy, options.level)
    for note in notes:
        click.echo(f"millstream: {note}", err=True)
    if options.as_json:
        click.echo(json.dumps({**facts, "removed": removed}))
    else:
        click.echo(result_line(facts, removed))


def _add_backup(
    folder: Path, keep: int, copy: Copy, level: str
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Add a backup to a folder, and remove old ones. The folder is as before if that fails."""
    is_new = _in_words(lambda: make_folder(folder))
    try:
        facts = write_copy(
            lambda: new_destination(folder, time.time_ns() // 1_000_000), copy, level
        )
    except BaseException:
        if is_new:
            with suppress(OSError):  # another run has added a backup
                folder.rmdir()
        raise
    return facts, *remove_old(folder, keep)


def _places(ctx: click.Context, places: tuple[str, ...]) -> tuple[str | None, str]:
    """The data directory, if one was given, and the destination."""
    if len(places) > 2:
        raise click.UsageError("give at most a data directory and a destination")
    if len(places) == 1:
        return None, places[0]
    if ctx.get_parameter_source("url") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("give either --url or a data directory")
    return places[0], places[1]


def _in_words(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Unusable as error:
        raise Failure(Outcome.DESTINATION, str(error)) from None


@contextmanager
def destination_errors(final: Path) -> Iterator[None]:
    """Failure if the block cannot use the destination, or its disk is full."""
    try:
        yield
    except Unusable as error:
        raise Failure(Outcome.DESTINATION, str(error)) from None
    except OSError as error:
        raise Failure(Outcome.DESTINATION, f"{final}: {error.strerror or error}") from None


def require_outside(source: Path, final: Path) -> None:
    """Failure if the destination is in the source, which would change it."""
    if final.resolve().is_relative_to(source.resolve()):
        sentence = f"{final} is in {source}: choose a folder outside it"
        raise Failure(Outcome.DESTINATION, sentence)


def require_whole(source: Path) -> None:
    """Failure if this is a backup of which a part is missing."""
    sentence = cut_off(source)
    if sentence is not None:
        raise Failure(Outcome.DAMAGED, sentence)


def write_copy(
    prepare: Callable[[], Destination],
    copy: Copy,
    level: str,
    *,
    is_described: bool = True,
) -> dict[str, Any]:
    """Write a copy to the destination that `prepare` makes, check it, and give it its name. Returns
    the facts about it. Failure, with everything as it was before, if any step fails. `level`: how
    much is checked, "all", "files" or "none"."""
    begun_s = time.monotonic()
    destination: Destination = _in_words(prepare)
    final = destination.final
    with destination_errors(final), destination.discarded_on_error():
        copied, facts = copy(destination.disk)
        report = _check(destination.disk, level)
        facts = {**facts, **_measured(final, copied, report, level)}
        facts["seconds"] = round(time.monotonic() - begun_s, 3)
        if is_described:
            destination.describe(facts)
        destination.publish()
    if copied.torn_bytes:
        click.echo(
            f"millstream: the journal of {facts['source']} has a torn end:"
            f" {copied.torn_bytes} bytes after the last whole frame are not copied",
            err=True,
        )
    return facts


def _measured(final: Path, copied: Copied, report: Report, level: str) -> dict[str, Any]:
    return {
        "path": str(final),
        "checked": level,
        "keys": report.total_keys,
        "entries": report.total_entries,
        "bytes": copied.size_bytes,
        "last_frame": copied.last_seq,
    }


def _shown(disk: SystemDisk) -> str:
    """The name of a copy that is not complete: of a shard of a cluster, for example."""
    return disk.directory.name.removesuffix(PARTIAL)


def _check(disk: SystemDisk, level: str) -> Report:
    if level == "none":
        return Report(str(disk.directory))
    with progress(f"checking {_shown(disk)}") as tell:
        report = Checker(disk, time.time_ns() // 1_000_000, tell).run(load=level == "all")
    if report.verdict is not Verdict.WHOLE:
        places = [f"{file.name}: {place.reason}" for file in report.files for place in file.places]
        reason = "; ".join([*places[:1], *report.notes[:1]]) or "it cannot be checked"
        raise Failure(Outcome.DAMAGED, f"the copy is not used, because it is damaged: {reason}")
    return report


# The two sources


def _from_server(options: Options, disk: SystemDisk) -> tuple[Copied, dict[str, Any]]:
    copied, facts = copy_of_server(options.url, options.timeout_s, disk, options.words)
    return copied, {**facts, **options.shown}


def copy_of_server(
    url: str,
    timeout_s: float,
    disk: SystemDisk,
    words: Sequence[str | bytes] = (),
    check: Callable[[ToolConnection], object] = lambda server: None,
) -> tuple[Copied, dict[str, Any]]:
    """Write a copy of the data of a server, which `check` may refuse. `words` follow BACKUP.
    Failure if that is impossible."""
    try:
        server = ToolConnection(url, timeout_s)
    except ToolError as error:
        kind = SourceLost if isinstance(error, Unreachable) else Failure
        raise kind(Outcome.REFUSED, error.message) from None
    with closing(server):
        try:
            check(server)
            received = server.stream("BACKUP", *words)
            with progress(f"copying {_shown(disk)}") as tell:
                copied = copy_from_server(received, disk, tell)
        except Refused as error:
            kind = SourceLost if str(error).startswith("CLUSTERDOWN") else Failure
            raise kind(Outcome.REFUSED, f"{server.name}: {_refusal(str(error))}") from None
        except (Broken, ToolError) as error:
            text = error.message if isinstance(error, ToolError) else f"{server.name}: {error}"
            kind = SourceLost if isinstance(error, Broken | Unreachable) else Failure
            raise kind(Outcome.BROKEN, text) from None
    answer = copied.answer
    assert answer is not None
    return copied, {
        "source": server.name,
        "version": answer.version,
        "program": __version__,
        "role": answer.role,
        "history": answer.history,
        "time": _time_of(answer.wall_ms),
        "time_ms": answer.wall_ms,
    }


def _refusal(text: str) -> str:
    if "unknown command" in text:
        return "it is not a millstream server that can make backups: it does not know BACKUP"
    return text


def copy_of_directory(directory: Path, disk: SystemDisk) -> tuple[Copied, dict[str, Any]]:
    """Write a copy of a data directory that no server uses. Failure if it cannot be read."""
    source = SystemDisk(directory)
    try:
        source.lock_for("or use --url", alone=False)
        require_whole(directory)
        with progress(f"copying {_shown(disk)}") as tell:
            copied = copy_from_directory(source, disk, tell)
    except DataError as error:
        raise Failure(Outcome.REFUSED, str(error)) from None
    except OSError as error:
        if not str(error.filename or "").startswith(str(directory)):
            raise
        raise Failure(
            Outcome.REFUSED, f"{error.filename} cannot be read: {error.strerror}"
        ) from None
    finally:
        source.unlock()
    # The time of the copy is not that of the data.
    stated = (description(directory) or {}) if is_unchanged(directory) else {}
    return copied, {
        "source": str(directory),
        "program": __version__,
        "time": stated.get("time"),
        "time_ms": stated.get("time_ms"),
        "torn_bytes": copied.torn_bytes,
    }


def _time_of(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def result_line(facts: dict[str, Any], removed: list[str]) -> str:
    """The result in one line."""
    held = []
    if facts["keys"] is not None:
        held = [counted(facts["keys"], "key"), counted(facts["entries"], "entry")]
    text = ", ".join([*held, f"{facts['bytes']} bytes", f"{facts['seconds']:.1f} seconds"])
    written = facts["time"] or "time unknown"
    text = f"{facts['path']}: {text}; up to frame {facts['last_frame']}, {written}"
    if facts.get("torn_bytes"):
        text += f"; without a torn end of {facts['torn_bytes']} bytes"
    if facts["checked"] == "none":
        text += "; not checked"
    return text + (f"; removed {', '.join(removed)}" if removed else "")
