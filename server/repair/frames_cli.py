"""`millstream frames`: the command line that lists the frames of a data directory; and what it
shares with `millstream check`."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from millstream.errors import CommandError, DataError, counted, printable, readable
from millstream.server.repair.check_report import Verdict, words_for_gap
from millstream.server.repair.frames import Frame, Key, Moment, Selection, open_data, select_frames
from millstream.storage.files.disk import SystemDisk, unusable
from millstream.storage.files.journal_reader import Gap

_KEYS_SHOWN = 5
_NO_TIME = "-" * 19


def in_words(problem: DataError | OSError) -> str:
    """A problem as a sentence."""
    if isinstance(problem, DataError):
        return str(problem)
    name = f" ({problem.filename})" if problem.filename else ""
    return f"{problem.strerror or problem}{name}"


def fail(problem: DataError | OSError) -> NoReturn:
    """End the program: the directory cannot be checked."""
    click.echo(f"millstream: {in_words(problem)}", err=True)
    sys.exit(Verdict.UNCHECKED)


def in_directory(directory: Path, problem: DataError | OSError) -> DataError | OSError:
    """The problem; if it is that of the directory, as an error of the directory."""
    if isinstance(problem, OSError) and problem.filename == str(directory):
        return unusable(directory, problem)
    return problem


if TYPE_CHECKING:
    Parameter = click.ParamType[Moment]
else:  # earlier versions of click have no generic class
    Parameter = click.ParamType


class MomentType(Parameter):
    """A frame's number, or a time to the second, as in ISO 8601. Without an offset it is local."""

    name = "FRAME|TIME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Moment:
        text = str(value)
        if text.isascii() and text.isdigit():
            return Moment(number=int(text))
        try:
            when = datetime.fromisoformat(text)
            if when.microsecond:
                self.fail(f"{text!r}: the times of frames are known to the second", param, ctx)
            return Moment(time_s=int(when.timestamp()))
        except (ValueError, OverflowError, OSError):
            self.fail(
                f"{text!r} is neither the number of a frame nor a time such as"
                " 2026-11-20T14:05:00 or 2026-11-20T14:05:00+01:00",
                param,
                ctx,
            )


MOMENT = MomentType()


@click.command(
    epilog="Exit codes: 0 all frames were read; 1 some cannot be read; 2 the directory cannot be"
    " read. Times, also those given without an offset, are local, known to the second, and those of"
    " the server's clock, which may have gone back: the numbers give the order."
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--from", "first", type=MOMENT, help="Begin with this frame, or in this second.")
@click.option("--to", "last", type=MOMENT, help="End with this frame, or with this second.")
@click.option(
    "--key",
    "pattern",
    metavar="PATTERN",
    help="Only frames that change such a key, or whole databases; a pattern as in KEYS.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each frame.")
def frames(
    directory: Path, first: Moment | None, last: Moment | None, pattern: str | None, as_json: bool
) -> None:
    """List the frames of the journals: number, time, effects, entries added, bytes, keys.

    A frame has the effects of one turn of the server. A server may be using the directory.
    """
    selection = Selection(
        first or Moment(),
        last or Moment(),
        None if pattern is None else pattern.encode("utf-8", "surrogateescape"),
    )
    is_whole = True
    try:
        with open_data(SystemDisk(directory)) as data:
            for one in select_frames(data, selection):
                is_whole = is_whole and isinstance(one, Frame)
                click.echo(_json_line(one) if as_json else _line(one))
    except CommandError as problem:  # of the pattern
        raise click.UsageError(problem.message.removeprefix("ERR ")) from None
    except BrokenPipeError:  # of the output: click ends the program without a message
        raise
    except (DataError, OSError) as problem:
        fail(in_directory(directory, problem))
    sys.exit(Verdict.WHOLE if is_whole else Verdict.DAMAGED)


def _line(one: Frame | Gap) -> str:
    if isinstance(one, Gap):
        return f"{one.first:>10}  cannot be read: {words_for_gap(one)}"
    when = _NO_TIME
    if one.time_s is not None:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(one.time_s))
    effects = ", ".join(
        name.decode("utf-8", "replace") + (f" x{count}" if count > 1 else "")
        for name, count in one.effects.items()
    )
    added = f"  {counted(one.added, 'entry')}" if one.added else ""
    keys = f"  {_keys(one)}" if one.keys or one.databases else ""
    return f"{one.number:>10}  {when}  {one.size_bytes:>9,} bytes  {effects}{added}{keys}"


def _keys(frame: Frame) -> str:
    shown = [f"database {number}" for number in frame.databases]
    shown += [_shown_key(key) for key in list(frame.keys)[:_KEYS_SHOWN]]
    more = len(frame.keys) - _KEYS_SHOWN
    return ", ".join(shown) + (f" and {counted(more, 'key')} more" if more > 0 else "")


def shown_name(name: bytes) -> str:
    """The name of a key on one line; two quotes for the empty name."""
    return printable(readable(name)) or '""'


def _shown_key(key: Key) -> str:
    db, name = key
    return shown_name(name) + (f" of database {db}" if db else "")


def _json_line(one: Frame | Gap) -> str:
    if isinstance(one, Gap):
        return json.dumps(
            {"unreadable": True, "file": one.file, "offset": one.offset,
             "first": one.first, "last": one.last}
        )  # fmt: skip
    return json.dumps(
        {
            "frame": one.number,
            "unix_time": one.time_s,
            "file": one.file,
            "size_bytes": one.size_bytes,
            "effects": {name.decode("utf-8", "replace"): n for name, n in one.effects.items()},
            "entries_added": one.added,
            "keys": [{"database": db, "key": readable(name)} for db, name in one.keys],
            "databases": list(one.databases),
            "all_databases": one.changes_all,
        }
    )
