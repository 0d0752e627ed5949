"""The columns of the table of streams, after the one with the keys.

A further column is a further item of COLUMNS. `details` of a stream has the other fields of TINFO.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from millstream.dashboard import shown
from millstream.dashboard.stream_info import StreamInfo


class TableRow(NamedTuple):
    """A row of the table; `rate` is in entries per second."""

    stream: StreamInfo
    rate: float | None
    now_ms: int


class StreamColumn(NamedTuple):
    """A column. The table can be sorted by it, in descending order, if it has a `sort_key`; `sort`
    is then its name in the address of the page."""

    title: str
    text: Callable[[TableRow], str]
    sort: str = ""
    sort_key: Callable[[StreamInfo], Any] | None = None


def _oldest(row: TableRow) -> str:
    if row.stream.oldest_ms is None:
        return "-"
    return shown.duration(max((row.now_ms - row.stream.oldest_ms) / 1000, 0))


COLUMNS = (
    StreamColumn(
        "Entries", lambda row: shown.count(row.stream.length), "length", lambda one: one.length
    ),
    StreamColumn("Rate", lambda row: shown.rate(row.rate)),
    StreamColumn(
        "Size",
        lambda row: shown.size(row.stream.size_bytes),
        "bytes",
        lambda one: one.size_bytes or 0,
    ),
    StreamColumn(
        "Groups", lambda row: str(len(row.stream.groups)), "groups", lambda one: len(one.groups)
    ),
    StreamColumn(
        "Largest lag",
        lambda row: shown.count(row.stream.lag),
        "lag",
        lambda one: -1 if one.lag is None else one.lag,
    ),
    StreamColumn(
        "Oldest unacknowledged",
        _oldest,
        "age",
        lambda one: -math.inf if one.oldest_ms is None else -one.oldest_ms,
    ),
    StreamColumn(
        "Dead letters",
        lambda row: shown.count(row.stream.dead_letters),
        "dead",
        lambda one: -1 if one.dead_letters is None else one.dead_letters,
    ),
)


def sort_key(name: str) -> Callable[[StreamInfo], Any] | None:
    """The key of the column with this name; None if there is none."""
    return next((one.sort_key for one in COLUMNS if one.sort_key and one.sort == name), None)
