"""`millstream top`: the streams of a server and how far their groups lag."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millstream.errors import printable
from millstream.seconds import Seconds
from millstream.tools.node_surveys import SurveyedServers
from millstream.tools.survey import GroupRow, StreamRow, Survey
from millstream.tools.tool_connection import Unreachable, url_option

Row = tuple[StreamRow, GroupRow | None]
_WIDE = 10_000  # columns if the output is not a terminal, so that no line is folded
_NAME_MAX = 100  # characters of a name in a table, because all rows are as wide as the longest
_LINES_AROUND = 5  # title, head and foot of the table
_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))

# Column to sort by: the value of a row, largest first; None comes last.
ORDERS: dict[str, Callable[[Row], Any]] = {
    "lag": lambda row: row[1] and row[1].lag,
    "age": lambda row: row[1] and row[1].oldest_age_ms,
    "pending": lambda row: row[1] and row[1].pending,
    "rate": lambda row: row[0].rate_per_s,
    "length": lambda row: row[0].length,
    "size": lambda row: row[0].size_bytes,
}


@click.command(
    epilog="age: the age of the oldest entry that the group has not acknowledged. "
    "Without a terminal, the table is printed once."
)
@url_option
@click.option(
    "--sort", type=click.Choice([*ORDERS, "key"]), default="lag", show_default=True,
    help="Column to sort by.",
)  # fmt: skip
@click.option(
    "--interval",
    "interval_s",
    type=Seconds(0.1, 3600),
    default=2,
    show_default=True,
    metavar="SECONDS",
    help="Time between refreshes, over which rates are computed.",
)
@click.option("--match", "pattern", default="*", metavar="GLOB", help="Only keys that match.")
@click.option(
    "--streams-max",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    metavar="N",
    help="Examine at most N streams.",
)
@click.option("--once", is_flag=True, help="Print one table, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and stop.")
def top(
    url: str,
    sort: str,
    interval_s: float,
    pattern: str,
    streams_max: int,
    once: bool,
    as_json: bool,
) -> None:
    """Show streams and groups by lag, age or rate.

    On a terminal, the table is refreshed until Ctrl-C, also after a restart of the server. The
    streams of all databases are shown, unless the URL names one. If the server is a node of a
    cluster, or its gateway, those of all nodes are shown.
    """

    def survey() -> Survey:
        return server.survey(pattern, streams_max)

    try:
        with closing(SurveyedServers(url)) as server:
            first = survey()
            if once or as_json or not sys.stdout.isatty():
                _pause(interval_s)
                second = survey()
                second.set_rates(first)
                _print(second, sort, as_json)
            else:
                _refresh(server, first, survey, sort, interval_s)
    except KeyboardInterrupt:
        return


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def _print(survey: Survey, sort: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(survey.as_json(), indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    console.print(table_of(survey, sort))


def _refresh(
    server: SurveyedServers,
    first: Survey,
    survey: Callable[[], Survey],
    sort: str,
    interval_s: float,
) -> None:
    """Show one survey after another in the same place."""
    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        latest = first
        while True:
            lines = max(1, console.height - _LINES_AROUND)
            live.update(table_of(latest, sort, lines), refresh=True)
            _pause(interval_s)
            try:
                earlier, latest = latest, survey()
            except Unreachable as problem:
                live.update(Text(f"{problem.message}; connecting again"), refresh=True)
                latest = _next(server, survey)
            else:
                latest.set_rates(earlier)


def _next(server: SurveyedServers, survey: Callable[[], Survey]) -> Survey:
    """The next survey, once a server answers."""
    while True:
        server.reconnect()
        with suppress(Unreachable):
            return survey()
        _pause(1.0)


def sorted_rows(survey: Survey, sort: str) -> list[Row]:
    """A row for each group, and for each stream without groups."""
    rows: list[Row] = []
    for stream in survey.streams:
        rows += [(stream, group) for group in stream.groups] or [(stream, None)]
    rows.sort(key=lambda row: (row[0].db, row[0].key, row[1].name if row[1] else ""))
    if sort == "key":
        return rows
    value = ORDERS[sort]
    return sorted(rows, key=lambda row: -1 if value(row) is None else value(row), reverse=True)


def table_of(survey: Survey, sort: str, lines: int | None = None) -> Table:
    """The rows as a table; at most `lines` of them."""
    rows = sorted_rows(survey, sort)
    several = len({stream.db for stream in survey.streams}) > 1
    table = Table(box=None, header_style="bold", caption=_foot(survey, rows, lines))
    table.caption_justify = "left"
    if several:
        table.add_column("db", justify="right")
    table.add_column("stream", overflow="fold")
    for name in ("length", "size", "rate/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("group", overflow="fold")
    for name in ("lag", "pending", "consumers", "age"):
        table.add_column(name, justify="right", no_wrap=True)
    for stream, group in rows[:lines]:
        table.add_row(*([str(stream.db)] if several else []), *_cells(stream, group))
    return table


def _cells(stream: StreamRow, group: GroupRow | None) -> list[Text | str]:
    cells: list[Text | str] = [
        Text(_shown(stream.key)),
        f"{stream.length:,}",
        _size(stream.size_bytes),
        "-" if stream.rate_per_s is None else f"{stream.rate_per_s:,.1f}",
    ]
    if group is None:
        return [*cells, "-", "", "", "", ""]
    return [
        *cells,
        Text(_shown(group.name)),
        "?" if group.lag is None else f"{group.lag:,}",
        f"{group.pending:,}",
        f"{group.consumers:,}",
        _age(group.oldest_age_ms),
    ]


def _shown(name: str) -> str:
    shown = printable(name)
    if shown != shown.strip() or not shown:
        shown = f'"{shown}"'
    return shown if len(shown) <= _NAME_MAX else f"{shown[: _NAME_MAX - 1]}…"


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return "?"
    for unit_bytes, name in _UNITS:
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.1f} {name}"
    return f"{size_bytes} B"


def _age(age_ms: int | None) -> str:
    """A time in its two largest units: `2d 3h`, `4m 10s`, `0.5s`."""
    if age_ms is None:
        return "?"
    if age_ms < 10_000:
        return f"{age_ms / 1000:.1f}s"
    seconds = age_ms // 1000
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"),
             (seconds % 60, "s")]  # fmt: skip
    first = next(at for at, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number}{unit}" for number, unit in parts[first : first + 2])


def _foot(survey: Survey, rows: list[Row], lines: int | None) -> str | None:
    notes = []
    if lines is not None and len(rows) > lines:
        notes.append(f"{len(rows) - lines:,} more rows")
    if not survey.is_complete:
        notes.append(f"only the first {len(survey.streams):,} streams (--streams-max)")
    if survey.left_out:
        notes.append(f"streams left out: {survey.left_out:,} (no permission)")
    if not rows:
        notes.append("no streams")
    if survey.nodes:
        healthy = sum(node.health == "online" for node in survey.nodes)
        notes.append(f"{healthy} of {len(survey.nodes)} nodes are online")
    notes += [node.problem for node in survey.nodes if node.problem is not None]
    return "; ".join(notes) or None
