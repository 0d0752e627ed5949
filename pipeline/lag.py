"""A query's lag: the number of entries between its position and the ends of its streams, as its
progress reports it, and the same from outside.

Spark shows `metrics` of a source only if the source is written for the JVM. What it does show of a
Python source is the latest offset that the source reports, so the metrics lie there. They have the
names of Spark's Kafka source where they mean the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from millstream.pipeline.options import STREAM, Options
from millstream.pipeline.positions import PLAIN_MAX, Id, Offset, Position, Positions
from millstream.pipeline.range_plan import begin_of
from millstream.pipeline.server import Address, Server
from millstream.pipeline.stream_counters import ALL, Choice, Info, seek, survey

# Streams whose oldest entry is asked for at once.
STREAMS_PER_STEP = 100


def lag(offset: str, **options: str) -> dict[str, Any]:
    """The current lag of an offset: the `endOffset` of a query's progress, or a line
    of its checkpoint. `options` are those of the query: `server`, `subscribe` and so on."""
    chosen = Options(options, STREAM)
    read = Offset.from_json(json.loads(offset)).streams
    with Address.from_options(chosen).open() as server:
        return metrics(server, read, survey(server, Choice(chosen).find(server)))


def report(server: Server, read: Positions, infos: Mapping[bytes, Info]) -> dict[str, Any]:
    """What a query reports as its latest offset: the metrics, and where the streams end if these
    are few."""
    made: dict[str, Any] = {"metrics": metrics(server, read, infos)}
    if len(infos) <= PLAIN_MAX:
        made |= Offset({key: info.latest for key, info in infos.items()}).to_json()
    return made


def metrics(server: Server, read: Positions, infos: Mapping[bytes, Info]) -> dict[str, Any]:
    """Entries that come after the positions read, in all and of a stream, and how long ago the
    oldest of them was appended by its id; null when there is none."""
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


def unread(server: Server, begins: Positions, infos: Mapping[bytes, Info]) -> dict[bytes, int]:
    """How many entries follow each position, of the streams where there are any. The counters tell,
    except of a stream from which entries were deleted one by one: there they are counted."""
    found = {key: _by_counters(begins[key], info) for key, info in infos.items()}
    asked = {
        key: [(begins[key].id, ALL)]
        for key, count in found.items()
        if count and (infos[key].entries_deleted or begins[key].added is None)
    }
    found |= {key: seen.sought[0][0] for key, seen in seek(server, asked).items()}
    return {key: count for key, count in found.items() if count}


def _by_counters(begin: Position, info: Info) -> int:
    if info.last_id <= begin.id:
        return 0
    added = info.length if begin.added is None else info.entries_added - begin.added
    return max(0, min(added, info.length))


def _oldest_ms(server: Server, after: Mapping[bytes, Id]) -> int | None:
    """The time of the oldest of all entries that follow these ids. An entry is newer than the id
    that it follows, so streams are asked from the lowest id on until none can have an older one."""
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


def _now_ms(server: Server) -> int:
    """The server's time: ids have it, and the driver's may be another."""
    seconds, microseconds = server.call("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000
