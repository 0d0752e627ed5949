"""A query's lag: the number of entries between its position and the ends of its streams.

The query's progress reports the lag; `lag` computes it outside the query. Spark shows `metrics` of
a source only if the source is written for the JVM. For a Python source it shows the latest offset
that the source reports, so the metrics are part of that offset. Metrics with the same meaning have
the same names as in Spark's Kafka source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from millstream.pipeline.positions import PLAIN_MAX, Id, Offset, Position, Positions
from millstream.pipeline.range_plan import begin_of
from millstream.pipeline.server_connection import Address, ServerConnection
from millstream.pipeline.source_options import STREAM, SourceOptions
from millstream.pipeline.stream_counters import ALL, StreamChoice, StreamCounters, seek, survey

# Number of streams whose oldest entries are requested together.
STREAMS_PER_STEP = 100


def lag(offset: str, **options: str) -> dict[str, Any]:
    """The current lag of an offset: the `endOffset` of a query's progress, or a line of its
    checkpoint. `options` are the options of the query: `server`, `subscribe` and so on."""
    chosen = SourceOptions(options, STREAM)
    read = Offset.from_json(json.loads(offset)).streams
    with Address.from_options(chosen).open() as server:
        return metrics(server, read, survey(server, StreamChoice(chosen).find(server)))


def report(
    server: ServerConnection, read: Positions, infos: Mapping[bytes, StreamCounters]
) -> dict[str, Any]:
    """The report of a query's latest offset: the metrics, and the ends of the streams unless there
    are more than PLAIN_MAX."""
    made: dict[str, Any] = {"metrics": metrics(server, read, infos)}
    if len(infos) <= PLAIN_MAX:
        made |= Offset({key: info.latest for key, info in infos.items()}).to_json()
    return made


def metrics(
    server: ServerConnection, read: Positions, infos: Mapping[bytes, StreamCounters]
) -> dict[str, Any]:
    """The numbers of entries after the positions read, in total and per stream, and the age of the
    oldest of these entries by its ID; null when there is none."""
    begins = {key: begin_of(read.get(key), info.latest) for key, info in infos.items()}
    counts = unread(server, begins, infos)
    total = sum(counts.values())
    oldest_ms = _oldest_ms(server, {key: begins[key].id for key in counts})
    return {
        "streams": len(infos),
        "streamsBehindLatest": len(counts),
        "offsetsBehindLatest": total,
        "minOffsetsBehindLatest": min(counts.values()) if len(counts) == len(infos) > 0 else 0,
        "maxOffsetsBehindLatest": max(counts.values(), default=0),
        "avgOffsetsBehindLatest": round(total / len(infos), 3) if infos else 0.0,
        "oldestEntryAgeMs": None if oldest_ms is None else max(0, _now_ms(server) - oldest_ms),
    }


def unread(
    server: ServerConnection, begins: Positions, infos: Mapping[bytes, StreamCounters]
) -> dict[bytes, int]:
    """The number of entries after each position, for the streams that have any. The number comes
    from the counters, except for streams with individually deleted entries: TSEEK counts those."""
    found = {key: _by_counters(begins[key], info) for key, info in infos.items()}
    asked = {
        key: [(begins[key].id, ALL)]
        for key, count in found.items()
        if count and (infos[key].entries_deleted or begins[key].added is None)
    }
    found |= {key: seen.sought[0][0] for key, seen in seek(server, asked).items()}
    return {key: count for key, count in found.items() if count}


def _by_counters(begin: Position, info: StreamCounters) -> int:
    if info.last_id <= begin.id:
        return 0
    added = info.length if begin.added is None else info.entries_added - begin.added
    return max(0, min(added, info.length))


def _oldest_ms(server: ServerConnection, after: Mapping[bytes, Id]) -> int | None:
    """The time of the oldest entry after these IDs. An entry is newer than the ID that it follows,
    so the streams are queried in order of these IDs until no further stream can have an older
    entry."""
    keys = sorted(after, key=lambda key: after[key])
    oldest: Id | None = None
    for start in range(0, len(keys), STREAMS_PER_STEP):
        step = keys[start : start + STREAMS_PER_STEP]
        if oldest is not None and after[step[0]] >= oldest:
            break
        firsts = seek(server, {key: [(after[key], 1)] for key in step}).values()
        found = [seen.sought[0][1] for seen in firsts]
        oldest = min((id_ for id_ in [oldest, *found] if id_ is not None), default=None)
    return None if oldest is None else oldest[0]


def _now_ms(server: ServerConnection) -> int:
    """The server's time, which IDs are based on; the driver's clock may differ."""
    seconds, microseconds = server.call("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000
