"""`millstream tail`: the entries of a stream as they arrive."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

import click
from redis.exceptions import NoPermissionError

from millstream.remote import pairs
from millstream.tools.display import quoted, text
from millstream.tools.tool_connection import (
    ToolConnection,
    Unreachable,
    is_error,
    url_option,
)

BATCH_ENTRIES = 100
BLOCK_MS = 1000  # between two checks for Ctrl-C
NUMBER_MAX = 2**64 - 1
_ID = re.compile(r"(\d{1,20})(?:[-.](\d{1,20}))?")
_PLAIN = re.compile(r"[^\s\"'=\\]+")

EntryId = tuple[int, int]


class TailEntry(NamedTuple):
    """An entry; `id` is in the form of the X commands, ms-seq."""

    id: str
    fields: list[tuple[bytes, bytes]]

    def line(self) -> str:
        """Time, ID, and each field with its value. Words that need it are in quotes."""
        pairs = (f"{_word(name)}={_word(value)}" for name, value in self.fields)
        return f"{_time(int(self.id.partition('-')[0]))}  {self.id}  {' '.join(pairs)}"

    def as_json(self) -> str:
        """``{"id": .., "fields": {..}}``; a field that is repeated has a list."""
        fields: dict[str, Any] = {}
        for name, value in self.fields:
            key, shown = text(name), text(value)
            if key not in fields:
                fields[key] = shown
            elif isinstance(fields[key], list):
                fields[key].append(shown)
            else:
                fields[key] = [fields[key], shown]
        return json.dumps({"id": self.id, "fields": fields}, ensure_ascii=False)


def _time(ms: int) -> str:
    """The local time; a dash for one that is not in the calendar."""
    try:
        return datetime.fromtimestamp(ms / 1000).isoformat(" ", "milliseconds")
    except (OverflowError, ValueError, OSError):
        return "-"


def _word(word: bytes) -> str:
    shown = word.decode("utf-8", "surrogateescape")
    return shown if shown.isprintable() and _PLAIN.fullmatch(shown) else quoted(word)


def first_id(
    ctx: click.Context | None, param: click.Parameter | None, value: str | None
) -> EntryId | None:
    """An ID or a time as the ID of the first entry to show; BadParameter for anything else."""
    if value is None:
        return None
    found = _ID.fullmatch(value)
    if found:
        ms, seq = int(found[1]), int(found[2] or 0)
        if max(ms, seq) > NUMBER_MAX:
            raise click.BadParameter(f"{value!r} is larger than any ID")
        return ms, seq
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is neither an ID nor a time such as 2026-01-31T09:30"
        ) from None
    try:
        return max(0, int(moment.timestamp() * 1000)), 0
    except (OverflowError, ValueError, OSError):
        raise click.BadParameter(f"{value!r} is not a time that this system knows") from None


def before(entry_id: EntryId) -> EntryId:
    """The largest ID below this one; 0-0 for itself, which no entry has."""
    ms, seq = entry_id
    if seq:
        return ms, seq - 1
    return (ms - 1, NUMBER_MAX) if ms else (0, 0)


@click.command()
@click.argument("key")
@url_option
@click.option(
    "--from",
    "start",
    callback=first_id,
    metavar="ID|TIME",
    help="First entry to show: an ID (0 for the oldest), or a time in ISO 8601, local if it names "
    "no zone. The default is the next entry.",
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N entries.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def tail(key: str, url: str, start: EntryId | None, count: int | None, as_json: bool) -> None:
    """Follow a stream: print its entries as they arrive.

    It ends after N entries, or with Ctrl-C. If the connection breaks, it connects again and
    continues.
    """
    try:
        with closing(ToolConnection(url)) as server:
            for entry in islice(entries_from(server, key, start), count):
                click.echo(entry.as_json() if as_json else entry.line())
    except KeyboardInterrupt:
        return


def entries_from(server: ToolConnection, key: str, start: EntryId | None) -> Iterator[TailEntry]:
    """The entries of a stream without end. Standard error says when entries were evicted before
    they could be read, if the server can tell (TREAD), when a new stream has replaced the stream,
    and when the connection breaks and comes back."""
    follower = StreamFollower(server, key, start)
    while True:
        try:
            yield from follower.entries()
        except Unreachable as problem:
            _report(f"{problem.message}; connecting again")
            server.reconnect()
            _report("connected again")


class Counters(NamedTuple):
    """The last ID of a stream, and how many entries were ever added, 0 if the server cannot
    tell."""

    last_id: EntryId
    entries_added: int


class StreamFollower:
    """The place of a tail in its stream. A new stream under the same key is shown from its first
    entry: its counters are smaller than those of the earlier stream."""

    def __init__(self, server: ToolConnection, key: str, start: EntryId | None) -> None:
        """Begin at an ID; None is the next entry."""
        self._server = server
        self._key = key
        self._read = _read_with_gaps if _has_tread(server) else _read
        self._counters = self._read_counters(needed=start is None)
        if start is not None:
            self._place = before(start)
        else:
            self._place = (0, 0) if self._counters is None else self._counters.last_id

    def entries(self) -> Iterator[TailEntry]:
        """The next entries; none after some time without news."""
        rows = self._read(self._server, self._key, "{}-{}".format(*self._place))
        for entry in rows:
            if entry is None:
                _report("entries after {}-{} were evicted".format(*self._place))
                continue
            ms, _, seq = entry.id.partition("-")
            self._place = int(ms), int(seq)
            yield entry
        if len(rows) < BATCH_ENTRIES:
            self._notice_new_stream()

    def _notice_new_stream(self) -> None:
        earlier, self._counters = self._counters, self._read_counters()
        if earlier is None:
            return
        if self._counters is None:
            _report("the stream was deleted; waiting for a new one")
            self._place = 0, 0
        elif (
            self._counters.last_id < earlier.last_id
            or self._counters.entries_added < earlier.entries_added
        ):
            _report("a new stream has replaced the stream; this is its first entry")
            self._place = 0, 0

    def _read_counters(self, *, needed: bool = False) -> Counters | None:
        """None if the stream does not exist or, unless it is `needed`, the user may not ask."""
        (reply,) = self._server.pipeline([["XINFO", "STREAM", self._key]])
        if is_error(reply):
            may_not = isinstance(reply, NoPermissionError) and not needed
            if "no such key" in str(reply) or may_not:
                return None
        facts = pairs(self._server.checked(reply))
        ms, _, seq = text(facts["last-generated-id"]).partition("-")
        return Counters((int(ms), int(seq)), facts.get("entries-added", 0))


def _report(news: str) -> None:
    click.echo(f"millstream: {news}", err=True)


def _has_tread(server: ToolConnection) -> bool:
    (reply,) = server.pipeline([["COMMAND", "INFO", "TREAD"]])
    return not is_error(reply) and bool(reply) and reply[0] is not None


def _read_with_gaps(server: ToolConnection, key: str, after: str) -> list[TailEntry | None]:
    """Entries after an ID, waiting for some time; None stands for entries that were evicted."""
    reply = server.call("TREAD", key, after, BATCH_ENTRIES, "BLOCK", BLOCK_MS)
    return [
        None if row is None else _entry(text(row[0]).replace(".", "-"), row[1:])
        for row in reply or []
    ]


def _read(server: ToolConnection, key: str, after: str) -> list[TailEntry | None]:
    reply = server.call("XREAD", "COUNT", BATCH_ENTRIES, "BLOCK", BLOCK_MS, "STREAMS", key, after)
    return [_entry(text(entry_id), words or []) for entry_id, words in (reply or [[key, []]])[0][1]]


def _entry(entry_id: str, words: list[bytes]) -> TailEntry:
    return TailEntry(entry_id, list(zip(words[::2], words[1::2], strict=True)))
