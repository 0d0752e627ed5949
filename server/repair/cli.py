"""`millstream check` and `millstream inspect`: the command lines that work on a data directory
without a server.

This module contains only the output; checking, repairing and inspecting do the work. Users get
lines and a table, scripts use --json.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from millstream.errors import DataError, counted, readable
from millstream.server.repair.check_report import FileReport, Report, Verdict
from millstream.server.repair.checking import Checker
from millstream.server.repair.cli_hint import advised
from millstream.server.repair.frames import Moment
from millstream.server.repair.frames_cli import MOMENT, fail, in_directory, in_words, shown_name
from millstream.server.repair.inspecting import Contents, Ordering, Row, inspect_directory
from millstream.server.repair.repairing import repair
from millstream.server.repair.restoring import (
    Restored,
    Wanted,
    restore,
    sentence_about_contents,
    sentences,
)
from millstream.server.repair.terminal_progress import progress
from millstream.storage.files.disk import SystemDisk

_LINES_SHOWN = 20
_VERDICTS = {
    Verdict.WHOLE: "whole",
    Verdict.DAMAGED: "damaged",
    Verdict.UNCHECKED: "cannot be checked",
}
_HINTS = {
    "unread": "it is unknown which of its frames count",
    "unjudged": "it is unknown whether it counts",
    "unfinished": "left by a crash; the next start removes it",
    "unnamed": "not in use",
    "kept": "replaced by a repair or cut off by a rewind; may be removed",
    "description": "describes the backup; a server ignores it",
    "foreign": "not a file of the server; not touched",
}
_WIDE = 10_000  # columns if the output is not a terminal, so that nothing is cut off


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value, indent=2, default=_as_json))


def _as_json(value: object) -> str:
    """JSON of a value: a key, which may have any bytes."""
    assert isinstance(value, bytes)
    return readable(value)


# ---------------------------------------------------------------------------------------- check


@dataclass(frozen=True)
class Earlier:
    """The options that ask for the data of an earlier moment."""

    moment: Moment | None
    effect: str | None
    pattern: str | None
    database: int | None
    target: Path | None

    def wanted(self, mend: bool) -> Wanted | None:
        """The moment; None without these options. UsageError if they do not fit together."""
        if self.moment is None and self.effect is None:
            if (self.target, self.pattern, self.database) != (None, None, None):
                raise click.UsageError("--to, --key and --db need --until or --before")
            return None
        if self.moment is not None and self.effect is not None:
            raise click.UsageError("--until and --before exclude each other")
        if self.target is None:
            raise click.UsageError("--to NEWDIR is missing: where to write the data of that moment")
        if mend:
            raise click.UsageError("--repair changes DIR, and --until and --before never do")
        if self.effect is None and (self.pattern, self.database) != (None, None):
            raise click.UsageError("--key and --db need --before")
        return Wanted(
            self.moment or Moment(),
            None if self.effect is None else self.effect.upper().encode(),
            None if self.pattern is None else self.pattern.encode("utf-8", "surrogateescape"),
            self.database,
        )


@click.command(
    epilog="Exit codes: 0 the data is undamaged, or now repaired; 1 it is damaged; 2 it cannot be "
    "checked. A journal end torn by a crash is not damage. Times without an offset are local."
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--repair", "mend", is_flag=True, help="Recover what can be read, and keep the replaced files."
)
@click.option(
    "--until",
    "moment",
    type=MOMENT,
    help="Write the data of this moment, a frame or a second, to a new directory.",
)
@click.option(
    "--before",
    "effect",
    metavar="EFFECT",
    help="The same, before the last frame with this effect, or before a run of such frames:"
    " FLUSHALL, DEL, EVICT ...",
)
@click.option("--key", "pattern", metavar="PATTERN", help="With --before: an effect on such a key.")
@click.option("--db", "database", metavar="N", type=click.IntRange(min=0),
              help="With --before: an effect in this database.")  # fmt: skip
@click.option("--to", "target", metavar="NEWDIR", type=click.Path(path_type=Path),
              help="The new directory, which must not exist or be empty.")  # fmt: skip
@click.option(
    "--no-load",
    is_flag=True,
    help="Only read the files; do not load the data, which takes as much memory as a server.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def check(directory: Path, mend: bool, no_load: bool, as_json: bool, **earlier: Any) -> None:
    """Verify every byte of a data directory, and report what a repair would lose.

    Nothing is changed without --repair. No server may be using the directory. With --until or
    --before, a server may be using it: the data of an earlier moment is written to a new directory,
    and that one is verified.
    """
    options = Earlier(**earlier)
    wanted = options.wanted(mend)
    restored: Restored | None = None
    if wanted is not None and options.target is not None:
        restored = _restore(directory, options.target, wanted)
        directory = options.target
    disk = SystemDisk(directory)
    done: list[str] | None = None
    try:
        disk.lock_for("or check a copy of the directory", alone=mend)
        with progress("reading") as tell:
            report = Checker(disk, _now_ms(), tell).run(load=not no_load)
        if mend and report.verdict is Verdict.DAMAGED and not report.hopeless:
            done = _mend(disk, report)
    except (DataError, OSError) as problem:
        fail(problem)
    finally:
        disk.unlock()
    if as_json:
        _print_json({**_report_as_json(report, done), **_restored_as_json(restored)})
    else:
        for sentence in () if restored is None else sentences(restored):
            click.echo(sentence)
        if restored is not None and report.total_keys is not None:
            entries = report.total_entries or 0
            click.echo(sentence_about_contents(directory, report.total_keys, entries))
        _print_report(report, done, tried=mend)
    sys.exit(report.verdict if done is None else Verdict.WHOLE)


def _restore(directory: Path, target: Path, wanted: Wanted) -> Restored:
    try:
        return restore(SystemDisk(directory), target, wanted)
    except (DataError, OSError) as problem:
        fail(in_directory(directory, problem))


def _restored_as_json(restored: Restored | None) -> dict[str, Any]:
    if restored is None:
        return {}
    run = None if restored.run is None else restored.run._asdict()
    return {"restored": {**asdict(restored), "run": run}}


def _mend(disk: SystemDisk, report: Report) -> list[str] | None:
    """Repair, and return what was done; None, with a note in the report, when it failed."""
    folder = time.strftime("damaged-%Y%m%d-%H%M%S")
    try:
        return repair(disk, report, _now_ms(), folder)
    except DataError as problem:
        report.notes.append(str(problem))
    except OSError as problem:
        report.notes.append(f"the repair could not be done: {in_words(problem)}")
    return None


def _report_as_json(report: Report, done: list[str] | None) -> dict[str, Any]:
    fields = asdict(report)
    fields["verdict"] = _VERDICTS[report.verdict]
    fields["repaired"] = done
    return fields


def _print_report(report: Report, done: list[str] | None, *, tried: bool) -> None:
    width = max([len(file.name) for file in report.files], default=0)
    for file in report.files:
        _print_file(file, width)
    for note in report.notes:
        click.echo(note)
    if report.keys is not None:
        click.echo(
            f"loaded: {counted(report.keys, 'key')} with {counted(report.entries or 0, 'entry')}"
            f" from the base, then {counted(report.frames or 0, 'frame')}"
            f" with {counted(report.effects or 0, 'effect')}"
        )
    if report.hopeless:
        click.echo(f"cannot be repaired: {report.hopeless}; restore the directory from a copy")
    elif report.verdict is Verdict.DAMAGED and not tried:
        click.echo(f"{advised('check', '--repair', report.directory)} recovers the rest")
    for sentence in done or ():
        click.echo(f"repaired: {sentence}")
    verdict = "repaired" if done is not None else _VERDICTS[report.verdict]
    click.echo(f"{report.directory}: {verdict}")


def _print_file(file: FileReport, width: int) -> None:
    told = file.holds or _HINTS.get(file.state, "")
    click.echo(
        f"{file.name:{width}}  {file.state:10}  {file.size_bytes:>12,} bytes  {told}".rstrip()
    )
    for place in file.places[:_LINES_SHOWN]:
        where = "" if place.offset is None else f"at offset {place.offset}: "
        click.echo(f"  {where}{place.reason}")
    _print_more(len(file.places))
    for loss in file.loses[:_LINES_SHOWN]:
        click.echo(f"  a repair loses {loss}")
    _print_more(len(file.loses))


def _print_more(count: int) -> None:
    if count > _LINES_SHOWN:
        click.echo(f"  and {count - _LINES_SHOWN} more; --json has them")


# ---------------------------------------------------------------------------------------- inspect


@click.command(
    epilog="Without the journal, the list shows the last snapshot, from its index alone, and FIRST "
    "is a lower bound of the IDs."
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--journal/--no-journal",
    "journals",
    default=None,
    help="Load everything including the journal, as at start. [default: up to 64 MiB]",
)
@click.option(
    "--key", "pattern", metavar="PATTERN", help="Only keys that match; a pattern as in KEYS."
)
@click.option("--limit", type=click.IntRange(min=0), default=1000, show_default=True,
              metavar="N", help="List at most N keys.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def inspect(
    directory: Path, journals: bool | None, pattern: str | None, limit: int, as_json: bool
) -> None:
    """List the keys in a data directory; a server may be using it."""
    try:
        contents = inspect_directory(
            SystemDisk(directory),
            journals=journals,
            pattern=None if pattern is None else pattern.encode("utf-8", "surrogateescape"),
            limit=limit,
            now_ms=_now_ms(),
        )
    except OSError as problem:
        fail(in_directory(directory, problem))
    except DataError as problem:
        fail(problem)
    if as_json:
        _print_json(_contents_as_json(contents))
    else:
        _print_contents(contents)


def _contents_as_json(contents: Contents) -> dict[str, Any]:
    fields = asdict(contents)
    for row in fields["rows"]:
        row["rules"] = {readable(name): words for name, words in row["rules"].items()}
        row["first_id"], row["last_id"] = _id(row["first_id"]), _id(row["last_id"])
        if (ordering := row["ordering"]) is not None:
            for name in ("handed_out_id", "oldest_reservation"):
                ordering[name] = _id(ordering[name])
    fields["files"] = [{"name": name, "size_bytes": size} for name, size in contents.files]
    return fields


def _id(value: tuple[int, int] | None) -> str | None:
    return None if value is None else f"{value[0]}-{value[1]}"


def _print_contents(contents: Contents) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    if not contents.with_journals:
        click.echo(_words_for_incomplete(contents))
    console.print(_table(contents.rows), soft_wrap=not console.is_terminal)
    if contents.matching > len(contents.rows):
        click.echo(f"and {contents.matching - len(contents.rows)} keys more; see --limit and --key")
    where = "" if contents.with_journals else " in the last snapshot"
    if contents.with_journals or contents.created_ms is not None:
        click.echo(f"{counted(contents.keys, 'key')}, {counted(contents.entries, 'entry')}{where}")
    for name, size_bytes in contents.files:
        click.echo(f"{name}  {size_bytes:,} bytes")


def _words_for_incomplete(contents: Contents) -> str:
    if contents.created_ms is None:
        return (
            "incomplete: there is no snapshot yet, and all data is in journals that were not"
            " loaded; --journal loads them"
        )
    return (
        "incomplete: only the last snapshot is listed, without what the journals have changed"
        " since; --journal loads them"
    )


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False)
    with_rules = ("RULES",) if any(row.rules for row in rows) else ()
    with_scheduled = ("SCHEDULED",) if any(row.scheduled for row in rows) else ()
    for name in ("DB", "KEY", "TYPE", "ENTRIES", "FIRST", "LAST", "GROUPS", "PENDING", "BLOCKS",
                 "BYTES", "POLICY", "ORDERING", *with_rules, *with_scheduled):  # fmt: skip
        is_text = name in ("KEY", "TYPE", "POLICY", "ORDERING", "RULES", "SCHEDULED")
        table.add_column(name, justify="left" if is_text else "right")
    for row in rows:
        key = Text(shown_name(row.key), overflow="fold")
        rules = (Text(_rules_words(row)),) if with_rules else ()
        scheduled = (_scheduled_words(row),) if with_scheduled else ()
        table.add_row(str(row.database), key, row.kind, *_numbers(row), *rules, *scheduled)
    return table


def _scheduled_words(row: Row) -> str:
    """The number of scheduled entries, and the time of the first one."""
    if row.next_scheduled_ms is None:
        return ""
    return f"{row.scheduled} from {row.next_scheduled_ms}"


def _rules_words(row: Row) -> str:
    """The rules of each managed group."""
    return ", ".join(f"{shown_name(name)}: {words}" for name, words in row.rules.items())


def _numbers(row: Row) -> tuple[str, ...]:
    if row.kind != "stream":
        return (*[""] * 6, str(row.size_bytes), "", "")
    ids = (_id(row.first_id) or "-", _id(row.last_id) or "-")
    counts = (row.groups, row.pending, row.blocks, row.size_bytes)
    words = "" if row.ordering is None else _ordering_words(row.ordering)
    return (str(row.entries), *ids, *map(str, counts), row.policy, words)


def _ordering_words(ordering: Ordering) -> str:
    """The reservations, held entries and lineage of a stream, without empty parts."""
    parts = []
    if ordering.reservations:
        parts.append(f"{ordering.reservations} reserved from {_id(ordering.oldest_reservation)}")
        parts.append(f"{ordering.held} held ({ordering.held_bytes} bytes)")
    if ordering.followed:
        parts.append("followed")
    if ordering.sealed:
        parts.append("sealed")
    for name, keys in (("parents", ordering.parents), ("children", ordering.children)):
        if keys:
            parts.append(f"{name} {', '.join(map(_as_json, keys))}")
    return "; ".join(parts)
