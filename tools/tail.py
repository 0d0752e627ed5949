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

from millstream.tools.display import quoted, text
from millstream.tools.options import url_option
from millstream.tools.server import Server, ToolError, is_error

BATCH_ENTRIES = 100
BLOCK_MS = 1000  # between two checks for Ctrl-C
NUMBER_MAX = 2**64 - 1
_ID = re.compile(r"(\d{1,20})(?:[-.](\d{1,20}))?")
_PLAIN = re.compile(r"[^\s\"'=\\]+")

EntryId = tuple[int, int]


class Entry(NamedTuple):
    """An entry; `id` is in the form of the X commands, ms-seq."""

    id: str
    fields: list[tuple[bytes, bytes]]

    def line(self) -> str:
        """Time, ID, and each field with its value. Words that need it are in quotes."""
        moment = datetime.fromtimestamp(int(self.id.partition("-")[0]) / 1000)
        pairs = (f"{_word(name)}={_word(value)}" for name, value in self.fields)
        return f"{moment.isoformat(' ', 'milliseconds')}  {self.id}  {' '.join(pairs)}"

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
    return max(0, int(moment.timestamp() * 1000)), 0


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

    It ends after N entries, or with Ctrl-C.
    """
    try:
        with closing(Server(url)) as server:
            for entry in islice(entries_from(server, key, start), count):
                click.echo(entry.as_json() if as_json else entry.line())
    except KeyboardInterrupt:
        return


def entries_from(server: Server, key: str, start: EntryId | None) -> Iterator[Entry]:
    """The entries of a stream without end. Entries that were evicted before they could be read are
    reported on standard error, if the server can tell (TREAD)."""
    place = before(start) if start is not None else _last_id(server, key)
    tells_gaps = _has_tread(server)
    while True:
        read = _read_with_gaps if tells_gaps else _read
        for entry in read(server, key, "{}-{}".format(*place)):
            if entry is None:
                click.echo("millstream: entries after {}-{} were evicted".format(*place), err=True)
                continue
            ms, _, seq = entry.id.partition("-")
            place = int(ms), int(seq)
            yield entry


def _last_id(server: Server, key: str) -> EntryId:
    """The last ID of a stream; 0-0 if it does not exist yet."""
    (reply,) = server.pipeline([["XINFO", "STREAM", key]])
    if is_error(reply):
        if "no such key" in str(reply):
            return 0, 0
        raise ToolError(f"{server.name}: {reply}")
    facts = dict(zip(reply[::2], reply[1::2], strict=True))
    ms, _, seq = text(facts[b"last-generated-id"]).partition("-")
    return int(ms), int(seq)


def _has_tread(server: Server) -> bool:
    (reply,) = server.pipeline([["COMMAND", "INFO", "TREAD"]])
    return not is_error(reply) and bool(reply) and reply[0] is not None


def _read_with_gaps(server: Server, key: str, after: str) -> list[Entry | None]:
    """Entries after an ID, waiting for some time; None stands for entries that were evicted."""
    reply = server.call("TREAD", key, after, BATCH_ENTRIES, "BLOCK", BLOCK_MS)
    return [
        None if row is None else _entry(text(row[0]).replace(".", "-"), row[1:])
        for row in reply or []
    ]


def _read(server: Server, key: str, after: str) -> list[Entry | None]:
    reply = server.call("XREAD", "COUNT", BATCH_ENTRIES, "BLOCK", BLOCK_MS, "STREAMS", key, after)
    return [_entry(text(entry_id), words or []) for entry_id, words in (reply or [[key, []]])[0][1]]


def _entry(entry_id: str, words: list[bytes]) -> Entry:
    return Entry(entry_id, list(zip(words[::2], words[1::2], strict=True)))
